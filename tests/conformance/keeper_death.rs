//! Processes that must not survive a killed keeper.

use harness::{PATIENCE, Runtime, eventually, fixture, witness};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rstest::rstest;

use crate::{
    recovery::{keepers, pod_on},
    support::{Means, skip_if},
};

/// The kernel clears the parent-death signal of a process that changes its user, as many entry points do.
#[rstest]
#[case::with_daemon(false)]
#[case::without_daemon(true)]
#[tokio::test]
async fn container_that_changed_user_ends_with_killed_keeper(#[case] away: bool) {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    skip_if!(
        "container_that_changed_user_ends_with_killed_keeper",
        Means::of(&runtime).await.no_users()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mark = fixture::unique("mark");
    let script = format!(
        "exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'echo ready; sleep 1000; true' {mark}"
    );
    let id = pod.start(pod.script("c", &script)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    let ours = keepers(&runtime);
    let [(_, keeper)] = ours.as_slice() else {
        panic!("one pod, one keeper: {ours:?}")
    };
    if away {
        runtime.kill9().await;
    }
    kill(Pid::from_raw(keeper.pid), Signal::SIGKILL).unwrap();
    if away {
        runtime.restart().await.unwrap();
    }
    eventually(PATIENCE, "the end of the container", || async {
        let left = witness::marked(&mark);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    let status = pod_on(&pod, &runtime).ended(&id).await.unwrap();
    assert_eq!(status.reason, "Unknown");
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
