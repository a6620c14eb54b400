//! Pulls of one pod leave other pods their share.

use cri::v1::{ImageSpec, PodSandboxMetadata, PullImageRequest};
use registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::image;
use crate::support::*;

/// More than the runtime pulls at once, for all pods together.
const MANY: usize = 40;

async fn pull_for(runtime: &Runtime, name: &str, uid: &str) -> Result<(), Status> {
    let mut pod = runtime.sandbox("p");
    pod.metadata = Some(PodSandboxMetadata { uid: uid.to_owned(), ..Default::default() });
    let request = PullImageRequest {
        image: Some(ImageSpec { image: name.to_owned(), ..Default::default() }),
        sandbox_config: Some(pod),
        ..Default::default()
    };
    runtime.client.images.clone().pull_image(request).await.map(drop)
}

/// A registry that accepts and never answers can be anybody's.
#[tokio::test]
async fn pod_whose_pulls_hang_does_not_delay_pulls_of_another() {
    let registry = Registry::start().await.unwrap();
    registry.add(&image("app:1", 1)).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let runtime = std::sync::Arc::new(Runtime::start().await.unwrap());
    let mut hanging = JoinSet::new();
    for number in 0..MANY {
        let (runtime, name) = (runtime.clone(), format!("{address}/app{number}:1"));
        hanging.spawn(async move { pull_for(&runtime, &name, "greedy").await });
    }
    // The greedy pod's share.
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(tokio::time::timeout(PATIENCE, silent.accept()).await.unwrap().unwrap());
    }
    let name = format!("{}/app:1", registry.host());
    let pulled = tokio::time::timeout(PATIENCE, pull_for(&runtime, &name, "modest")).await;
    pulled.unwrap().unwrap();
    assert!(hanging.try_join_next().is_none(), "a pull that hangs has ended");
    let fifth = tokio::time::timeout(std::time::Duration::ZERO, silent.accept()).await;
    assert!(fifth.is_err(), "a fifth pull of the greedy pod has begun");
}
