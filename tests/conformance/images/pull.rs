//! Pulls from registries: references, authentication, errors, and leftovers.

mod auth;
mod challenge;
mod docker;
mod faults;
mod full_disk;
mod interrupted;
mod killed;
mod layers;
mod manifests;
mod mirrors;
mod shares;

use std::path::Path;

use cri::v1::{AuthConfig, ImageSpec, PullImageRequest};
use harness::runtime::Options;
use registry::Registry;

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

    /// Waits until the store has only the image that every test has.
    async fn assert_nothing_left(&self) {
        let store = self.runtime.state_dir().join("images");
        eventually(PATIENCE, "the store to be as it was", || async {
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
    let seen = registry.seen();
    let sent = seen.iter().filter(|seen| {
        seen.method == "GET" && seen.path.contains("/blobs/") && (200..300).contains(&seen.status)
    });
    sent.count()
}

/// An image named `name`, of `example.com` by default, with a layer that all such images share and one of its own.
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
