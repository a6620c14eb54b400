//! The ends of containers: exit, stop signal, SIGKILL. The rules of `crib check` (stop) cover the simple cases.

use cri::v1::ContainerState;

use crate::restarts::recovery::keepers;
use crate::support::*;

/// A grace period longer than any test, so that its expiry cannot end a container.
const LONG: i64 = 3600;

#[tokio::test]
async fn stop_rejects_negative_grace_period() {
    let (runtime, _pod, id) = with_container().await;
    assert_eq!(code(runtime.client.stop(&id, -1).await), Code::InvalidArgument);
    let seen = runtime.client.container(&id).await.unwrap().state();
    assert_eq!(seen, ContainerState::ContainerRunning);
}

/// StopPodSandbox stops containers even if a grace period is still running.
#[tokio::test]
async fn stop_pod_does_not_wait_for_grace_period_of_container() {
    let (runtime, pod) = with_pod().await;
    let script = "trap 'echo no' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start_ready(pod.script("c", script)).await.unwrap();
    let (client, long) = (runtime.client.clone(), id.clone());
    let long = tokio::spawn(async move { client.stop(&long, LONG).await });
    pod.logged(&id, "no").await.unwrap();
    let stopped =
        tokio::time::timeout(Duration::from_secs(30), runtime.client.stop_pod(&pod.id)).await;
    stopped.unwrap().unwrap();
    long.await.unwrap().unwrap();
    assert_eq!(runtime.client.container(&id).await.unwrap().exit_code, 137);
}

#[tokio::test]
async fn stop_pod_works_with_stopped_keeper() {
    let (runtime, pod, id) = with_container().await;
    let [(_, keeper)] = keepers(&runtime).try_into().unwrap();
    kill(Pid::from_raw(keeper.pid), Signal::SIGSTOP).unwrap();
    // The call ends at its deadline, even if the grace period is longer.
    let stop = tokio::time::timeout(WAIT_LIMIT, runtime.client.stop(&id, LONG)).await;
    assert_eq!(code(stop.unwrap()), Code::DeadlineExceeded);
    runtime.client.stop_pod(&pod.id).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    runtime.client.remove_pod(&pod.id).await.unwrap();
    eventually(WAIT_LIMIT, "the keeper's end", || async {
        if keeper.runs() { Err(keeper) } else { Ok(()) }
    })
    .await;
}
