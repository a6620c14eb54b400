//! Checkpoints: what they need, told one by one.

use harness::{Runtime, fixture};
use tonic::Code;

/// Nothing here can be checkpointed yet: the first reason that a client can do something about is told.
#[tokio::test]
async fn no_checkpoints() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let checkpoint = async |container_id: &str, location: &str| {
        let request = cri::v1::CheckpointContainerRequest {
            container_id: container_id.to_owned(),
            location: location.to_owned(),
            timeout: 0,
        };
        let answer = runtime
            .client
            .runtime
            .clone()
            .checkpoint_container(request)
            .await;
        answer.unwrap_err()
    };
    assert_eq!(checkpoint("nope", "/tmp/x").await.code(), Code::NotFound);
    let relative = checkpoint(&id, "x").await;
    assert_eq!(relative.code(), Code::InvalidArgument);
    let error = checkpoint(&id, "/tmp/x").await;
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("criu"), "{error}");
    let request = cri::v1::CheckpointPodRequest {
        pod_sandbox_id: pod.id.clone(),
        output_path: "/tmp/x".to_owned(),
        ..Default::default()
    };
    let answer = runtime.client.runtime.clone().checkpoint_pod(request).await;
    assert_eq!(answer.unwrap_err().code(), Code::FailedPrecondition);
    let request = cri::v1::RestorePodRequest {
        checkpoint_path: "/no/such/checkpoint".to_owned(),
        ..Default::default()
    };
    let answer = runtime.client.runtime.clone().restore_pod(request).await;
    assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    assert!(runtime.client.sh(&id, "true").await.is_ok());
}
