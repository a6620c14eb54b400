//! Robustness: output floods, shutdown during calls, stopped keepers, a second runtime, and oversized configurations.

use cri::v1::{ContainerState, ExecSyncRequest};

use crate::guard::shared_pids::{shared, with_shared_pids};
use crate::processes::behave;
use crate::restarts::recovery::keepers;
use crate::support::*;

/// Longer than any operation here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(40);

async fn within_timeout<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(LIMIT, work).await;
    done.unwrap_or_else(|_| panic!("{what} did not come to an end"))
}

#[rstest]
#[case::with_log(true)]
#[case::without_log(false)]
#[tokio::test]
async fn output_flood_does_not_block_other_calls(#[case] log: bool) {
    let (runtime, pod) = with_pod().await;
    let mut flood = pod.script("flood", "exec yes");
    if !log {
        flood.log_path.clear();
    }
    let id = pod.start(flood).await.unwrap();
    let other = within_timeout("a second container", pod.start(fixture::forever("other"))).await;
    let other = other.unwrap();
    within_timeout("an exec", runtime.client.sh(&other, "echo")).await.unwrap();
    if !log {
        let [(_, keeper)] = keepers(&runtime).try_into().unwrap();
        let rss = keeper.status("VmRSS").unwrap();
        let kilobytes: u64 = rss.trim_end_matches(" kB").parse().unwrap();
        assert!(kilobytes < 64 << 10, "the keeper holds {rss}");
    }
    within_timeout("the stop", runtime.client.stop(&id, 0)).await.unwrap();
    assert_eq!(runtime.client.container(&id).await.unwrap().exit_code, 137);
}

/// The orphan never stops writing.
#[tokio::test]
async fn exec_returns_while_orphan_writes() {
    let (runtime, _pod, id) = with_container().await;
    let exec = runtime.client.exec(&id, ["sh", "-c", "echo first; yes & exit 3"], 0);
    let answer = within_timeout("the exec", exec).await.unwrap();
    assert_eq!(answer.exit_code, 3);
    assert!(answer.stdout.starts_with(b"first\n"));
}

/// An exec without a timeout and a stop with a long grace period must not delay the shutdown; the leak check then finds any
/// leftovers.
#[tokio::test]
async fn runtime_stops_during_exec_and_stop() {
    let (mut runtime, pod) = pod_of(Runtime::with()).await;
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start_ready(pod.script("c", script)).await.unwrap();
    let (mut calls, of) = (runtime.client.runtime.clone(), id.clone());
    let exec = tokio::spawn(async move {
        calls
            .exec_sync(ExecSyncRequest {
                container_id: of,
                cmd: vec![
                    "sh".into(),
                    "-c".into(),
                    "echo in > /proc/1/fd/1; exec sleep 1000".into(),
                ],
                timeout: 0,
            })
            .await
    });
    pod.logged(&id, "in").await.unwrap();
    let (client, of) = (runtime.client.clone(), id.clone());
    let stop = tokio::spawn(async move { client.stop(&of, 3600).await });
    pod.logged(&id, "asked").await.unwrap();
    let ended = within_timeout("the runtime", runtime.stop()).await;
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    within_timeout("the exec", exec).await.unwrap().unwrap_err();
    within_timeout("the stop", stop).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn restart_is_not_blocked_by_stopped_keeper() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    pod.start(fixture::forever("c")).await.unwrap();
    let keeper = keeper_of(&runtime, &pod.id);
    runtime.kill9().await;
    kill(keeper, Signal::SIGSTOP).unwrap();
    runtime.restart().await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    other.start(fixture::forever("c")).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert_eq!(keepers(&runtime).len(), 1);
}

/// Kubernetes reports RunContainerError: the container is EXITED, and its status has the reason.
#[tokio::test]
async fn start_fails_when_log_cannot_be_opened() {
    let (runtime, pod) = with_pod().await;
    let id = pod.create(fixture::forever("c")).await.unwrap();
    file_tree::remove(&pod.log_directory()).unwrap();
    let error = within_timeout("the start", runtime.client.start(&id)).await.unwrap_err();
    assert!(error.message().contains("open the log file"), "{error:?}");
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
}

/// The message is longer than a keeper reads.
#[tokio::test]
async fn create_rejects_oversized_configuration_and_keeps_pod() {
    let (runtime, pod, id) = with_container().await;
    let mut config = fixture::forever("long");
    config.args = vec!["\u{1}".repeat(8 << 20)];
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    runtime.client.sh(&id, "echo").await.unwrap();
}

/// Processes of crib's own program in a container: a process with a behaviour script is a fork of its keeper for its whole life.
/// Its neighbour has the same user and capabilities. A container that has not been started is not visible at all.
#[rstest]
#[tokio::test]
async fn neighbor_cannot_look_into_processes_of_the_keepers_program(
    #[values(false, true)] own_users: bool,
) {
    harness::needs!(Namespaces);
    if own_users {
        harness::needs!(UserIds);
    }
    let runtime = Runtime::start().await.unwrap();
    let pod = shared(&runtime, own_users).await;
    let acting = behave::acting(&runtime, "log-1-a-second").await;
    let acting = pod.start(with_shared_pids(acting, &[])).await.unwrap();
    pod.logged(&acting, "line 1").await.unwrap();
    pod.create(with_shared_pids(fixture::forever("created"), &[])).await.unwrap();
    let neighbor = with_shared_pids(fixture::forever("neighbor"), &[]);
    let neighbor = pod.start(neighbor).await.unwrap();
    let look = "for p in /proc/[0-9]*; do
            case $(cat $p/comm) in crib*) cat $p/comm ;; *) continue ;; esac
            for link in exe root cwd fd/0 fd/1 fd/2; do readlink $p/$link && echo $link is read; done
            for file in environ maps mem auxv; do
                (exec 3< $p/$file) 2>/dev/null && echo $file is open
            done
            [ -e $p/root/proc ] && echo root is entered
        done; echo done";
    let seen = runtime.client.sh(&neighbor, look).await.unwrap();
    assert_eq!(seen, "crib-behave\ndone\n");
}
