//! Pulls from registries: references, authentication, errors, leftovers, and the share of each pod.

mod auth;
mod challenge;
mod docker;
mod faults;
mod full_disk;
mod interrupted;
mod killed;
mod manifests;
mod mirrors;

use std::path::Path;

use cri::v1::{AuthConfig, ImageSpec, PodSandboxMetadata, PullImageRequest};
use harness::runtime::Options;
use registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::*;

/// A registry with an image of two layers, and a runtime.
struct Bench {
    registry: Registry,
    runtime: Runtime,
}

impl Bench {
    async fn new() -> Self {
        Self::with(Registry::start().await.unwrap(), Runtime::with()).await
    }

    async fn with(registry: Registry, runtime: Options) -> Self {
        registry.add(&image("app:1", 1)).unwrap();
        let runtime = runtime.start().await.unwrap();
        Self { registry, runtime }
    }

    /// The reference of the image.
    fn name(&self) -> String {
        format!("{}/app:1", self.registry.host())
    }

    async fn pull(&self, auth: Option<AuthConfig>) -> Result<String, Status> {
        pull(&self.runtime, &self.name(), auth).await
    }

    /// How many blob downloads the registry has served.
    fn blobs(&self) -> usize {
        blobs_sent(&self.registry)
    }

    /// Waits until the store contains only the image that every test has.
    async fn assert_nothing_left(&self) {
        let store = self.runtime.state_dir().join("images");
        eventually(WAIT_LIMIT, "the store to be as it was", || async {
            let left = store_counts(&store);
            if left == [0, 0, 1, 1] { Ok(()) } else { Err(left) }
        })
        .await;
    }
}

/// The numbers of temporary entries, layers, documents and records in a store.
fn store_counts(store: &Path) -> [usize; 4] {
    ["tmp", "layers", "blobs/sha256", "images"]
        .map(|name| std::fs::read_dir(store.join(name)).unwrap().count())
}

fn blobs_sent(registry: &Registry) -> usize {
    let seen = registry.requests();
    let sent = seen.iter().filter(|seen| {
        seen.method == "GET" && seen.path.contains("/blobs/") && (200..300).contains(&seen.status)
    });
    sent.count()
}

/// An image named `name`, by default of `example.com`, with a layer that all such images share and one of its own.
fn image(name: &str, seed: u8) -> ImageBuilder {
    let base =
        Layer::new().directory("etc", 0o755).file("etc/base", 0o644, random_bytes(0, 300_000));
    let own = Layer::new().file("etc/own", 0o644, random_bytes(seed, 200_000));
    let name = if name.contains(".io/") { name.to_owned() } else { format!("example.com/{name}") };
    ImageBuilder::new(&name).layer(base).layer(own)
}

/// Incompressible bytes.
fn random_bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 0x9e37_79b9;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

async fn pull(runtime: &Runtime, name: &str, auth: Option<AuthConfig>) -> Result<String, Status> {
    let request = PullImageRequest {
        image: Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() }),
        auth,
        ..PullImageRequest::default()
    };
    let answer = runtime.client.images.clone().pull_image(request).await?;
    Ok(answer.into_inner().image_ref)
}

/// A layer with two device nodes.
fn with_nodes() -> Layer {
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["one", "two"] {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Char);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        tar.append_data(&mut header, name, std::io::empty()).unwrap();
    }
    Layer::of_stream(tar.into_inner().unwrap())
}

#[tokio::test]
async fn pull_logs_once_that_device_nodes_are_skipped() {
    harness::needs!(UserNamespaces);
    let registry = Registry::start().await.unwrap();
    registry.add(&ImageBuilder::new("example.com/nodes:1").layer(with_nodes())).unwrap();
    let runtime = rootless().start().await.unwrap();
    pull(&runtime, &format!("{}/nodes:1", registry.host()), None).await.unwrap();
    let line = "skipped the device nodes of a layer";
    assert_eq!(runtime.log().matches(line).count(), 1, "{}", runtime.log());
}

/// More than the maximum number of concurrent pulls of all pods.
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

/// A pod may name a registry that accepts connections and never responds.
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
        connections.push(tokio::time::timeout(WAIT_LIMIT, silent.accept()).await.unwrap().unwrap());
    }
    let name = format!("{}/app:1", registry.host());
    let pulled = tokio::time::timeout(WAIT_LIMIT, pull_for(&runtime, &name, "modest")).await;
    pulled.unwrap().unwrap();
    assert!(hanging.try_join_next().is_none(), "a pull that hangs has ended");
    let fifth = tokio::time::timeout(std::time::Duration::ZERO, silent.accept()).await;
    assert!(fifth.is_err(), "a fifth pull of the greedy pod has begun");
}
