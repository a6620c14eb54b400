//! Pods on a full disk: calls fail with a clear error and can be repeated, and running containers continue.

use crate::support::*;

fn assert_says_full<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error:?}");
    assert!(error.message().contains("No space left on device"), "{error:?}");
}

#[tokio::test]
async fn calls_report_full_disk_and_succeed_once_space_is_free() {
    harness::needs!(Namespaces, SmallDisk);
    let runtime = Runtime::with().small_disk(4 << 20).start().await.unwrap();
    let (full, room) = (0, 1 << 20);
    let config = runtime.sandbox("p");

    runtime.leave_free(full).unwrap();
    assert_says_full(runtime.client.run_pod(config.clone()).await);
    assert!(runtime.client.pods(Default::default()).await.unwrap().is_empty());
    runtime.leave_free(room).unwrap();
    let pod = Pod::run(&runtime.client, config).await.unwrap();

    runtime.leave_free(full).unwrap();
    assert_says_full(pod.create(fixture::forever("c")).await);
    assert!(runtime.client.containers(Default::default()).await.unwrap().is_empty());
    runtime.leave_free(room).unwrap();
    let id = graceful_container(&pod, "c").await;

    runtime.leave_free(full).unwrap();
    runtime.client.exec(&id, ["true"], 10).await.unwrap();
    runtime.client.stop(&id, 10).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!(status.exit_code, 143, "{status:?}");
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert!(runtime.client.pods(Default::default()).await.unwrap().is_empty());
}
