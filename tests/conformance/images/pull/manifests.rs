//! References, manifests and indexes.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use cri::v1::{ImageSpec, ImageStatusRequest, StreamImagesRequest};
use flate2::{Compression, write::GzEncoder};
use registry::Registry;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use serde_json::{Value, json};

use super::{Bench, image, pull};
use crate::support::*;

#[tokio::test]
async fn image_from_two_registries_is_stored_once() {
    let bench = Bench::new().await;
    let client = &bench.runtime.client;
    let other = Registry::start().await.unwrap();
    for name in ["app:1", "app:2"] {
        other.add(&image(name, 1)).unwrap();
    }
    let id = bench.pull(None).await.unwrap();
    for tag in ["app:1", "app:2"] {
        let name = format!("{}/{tag}", other.host());
        assert_eq!(pull(&bench.runtime, &name, None).await.unwrap(), id);
    }
    assert_eq!(super::blobs_sent(&other), 0, "the layers were there");
    let status = client.image(&id).await.unwrap().unwrap();
    assert_eq!((status.repo_tags.len(), status.repo_digests.len()), (3, 2));
    // critest: "removing one tag removes all tags … across two registries".
    client.remove_image(&bench.name()).await.unwrap();
    for name in status.repo_tags.iter().chain(&status.repo_digests).chain([&id]) {
        assert_eq!(client.image(name).await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn verbose_status_and_stream_describe_image() {
    let registry = Registry::start().await.unwrap();
    let pinned = format!("{}/app:1", registry.host());
    let config = format!("pull: {{pinned: [\"{pinned}\"]}}\n");
    let bench = Bench::with(registry, Runtime::with().config(&config)).await;
    let id = bench.pull(None).await.unwrap();
    let mut images = bench.runtime.client.images.clone();
    let request = ImageStatusRequest {
        image: Some(ImageSpec { image: id.clone(), ..ImageSpec::default() }),
        verbose: true,
    };
    let status = images.image_status(request).await.unwrap().into_inner();
    let image = status.image.unwrap();
    assert!(image.pinned);
    let info: Value = serde_json::from_str(&status.info["info"]).unwrap();
    assert_eq!(info["imageSpec"]["rootfs"]["diff_ids"].as_array().unwrap().len(), 2);
    assert!(info["chainID"].as_str().unwrap().starts_with("sha256:"));

    let stream = images.stream_images(StreamImagesRequest::default()).await.unwrap();
    let mut stream = stream.into_inner();
    let mut streamed = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        streamed.extend(part.images);
    }
    assert_eq!(streamed, bench.runtime.client.list_images().await.unwrap());
    assert!(streamed.contains(&image));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

const OCI: &str = "application/vnd.oci.image.";
const DOCKER: &str = "application/vnd.docker.";

/// Adds an image of one layer to the registry, in docker or OCI format, and returns its manifest and id.
fn put(registry: &Registry, docker: bool, seed: u8) -> (Vec<u8>, String) {
    let tar = Layer::new().file("file", 0o644, super::random_bytes(seed, 50_000)).tar().unwrap();
    let diff_id = registry.add_blob(&tar).unwrap();
    let (config_type, layer_type) = if docker {
        (format!("{DOCKER}container.image.v1+json"), format!("{DOCKER}image.rootfs.diff.tar.gzip"))
    } else {
        (format!("{OCI}config.v1+json"), format!("{OCI}layer.v1.tar+gzip"))
    };
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff_id.to_string()]}});
    let blob = |kind: String, bytes: &[u8]| {
        let digest = registry.add_blob(bytes).unwrap();
        json!({"mediaType": kind, "digest": digest.to_string(), "size": bytes.len()})
    };
    let config = blob(config_type, &serde_json::to_vec(&config).unwrap());
    let id = config["digest"].as_str().unwrap().to_owned();
    let layer = blob(layer_type, &gzip(&tar));
    let media_type = manifest_type(docker);
    let manifest =
        json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer]});
    (serde_json::to_vec(&manifest).unwrap(), id)
}

fn manifest_type(docker: bool) -> String {
    if docker {
        format!("{DOCKER}distribution.manifest.v2+json")
    } else {
        format!("{OCI}manifest.v1+json")
    }
}

fn index_type(docker: bool) -> String {
    if docker {
        format!("{DOCKER}distribution.manifest.list.v2+json")
    } else {
        format!("{OCI}index.v1+json")
    }
}

/// An index of manifests and their platforms.
fn index(registry: &Registry, docker: bool, manifests: &[(&[u8], Value)]) -> Vec<u8> {
    let entries: Vec<Value> = manifests
        .iter()
        .map(|(manifest, platform)| {
            let digest = registry.add_manifest("example.com/multi:part", &manifest_type(docker), manifest).unwrap();
            json!({"mediaType": manifest_type(docker), "digest": digest.to_string(), "size": manifest.len(), "platform": platform})
        })
        .collect();
    serde_json::to_vec(
        &json!({"schemaVersion": 2, "mediaType": index_type(docker), "manifests": entries}),
    )
    .unwrap()
}

fn this_machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[rstest]
#[tokio::test]
async fn index_selects_image_of_host_platform(#[values(false, true)] docker: bool) {
    let (registry, runtime) =
        (Registry::start().await.unwrap(), Runtime::with().start().await.unwrap());
    let (other, _) = put(&registry, docker, 1);
    let (ours, id) = put(&registry, docker, 2);
    let platforms = [
        (&other[..], json!({"os": "windows", "architecture": this_machine()})),
        (&other[..], json!({"os": "linux", "architecture": "mips64le"})),
        (&other[..], json!({"os": "linux", "architecture": this_machine(), "variant": "v99"})),
        (&ours[..], json!({"os": "linux", "architecture": this_machine()})),
        (&other[..], json!({"os": "unknown", "architecture": "unknown"})),
    ];
    let document = index(&registry, docker, &platforms);
    let digest =
        registry.add_manifest("example.com/multi:1", &index_type(docker), &document).unwrap();
    let name = format!("{}/multi", registry.host());
    assert_eq!(pull(&runtime, &format!("{name}:1"), None).await.unwrap(), id);
    // The repository digest is that of the index.
    let image = runtime.client.image(&id).await.unwrap().unwrap();
    assert_eq!(image.repo_digests, [format!("{name}@{digest}")]);

    let document = index(&registry, docker, &platforms[..2]);
    registry.add_manifest("example.com/multi:2", &index_type(docker), &document).unwrap();
    let pulled = pull(&runtime, &format!("{name}:2"), None).await;
    let platforms =
        format!("no image for linux/{}, only for windows/{0}, linux/mips64le", this_machine());
    rejected(pulled, Code::FailedPrecondition, &platforms);
}

#[tokio::test]
async fn pull_rejects_documents_that_are_no_image() {
    let (registry, runtime) =
        (Registry::start().await.unwrap(), Runtime::with().start().await.unwrap());
    let (good, _) = put(&registry, false, 1);
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut manifest: Value = serde_json::from_slice(&good).unwrap();
        change(&mut manifest);
        serde_json::to_vec(&manifest).unwrap()
    };
    let both = changed(&|manifest| manifest["manifests"] = json!([]));
    let chart = changed(&|manifest| {
        manifest["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into()
    });
    let sealed = changed(&|manifest| {
        manifest["layers"][0]["mediaType"] = format!("{OCI}layer.v1.tar+gzip+encrypted").into()
    });
    let endless = changed(&|manifest| manifest["layers"][0]["size"] = json!(1u64 << 60));
    let old =
        serde_json::to_vec(&json!({"schemaVersion": 1, "name": "x", "fsLayers": []})).unwrap();
    let more = changed(&|manifest| {
        manifest["layers"] = json!([manifest["layers"][0], manifest["layers"][0]])
    });
    let huge = changed(&|manifest| manifest["annotations"] = json!({"x": "y".repeat(5 << 20)}));
    let cases: [(&[u8], &str); 8] = [
        (&both, "index and manifest at once"),
        (&chart, "which is no container image"),
        (&sealed, "which is encrypted"),
        (&endless, "has more than the"),
        (&old, "docker's schema 1"),
        (&more, "lists 2 layers and the configuration 1"),
        (&huge, "has more than the 4194304 bytes allowed"),
        (b"not JSON", "is not the document it should be"),
    ];
    for (i, (document, says)) in cases.into_iter().enumerate() {
        registry
            .add_manifest(&format!("example.com/bad:{i}"), &manifest_type(false), document)
            .unwrap();
        let error = rejected(
            pull(&runtime, &format!("{}/bad:{i}", registry.host()), None).await,
            Code::FailedPrecondition,
            says,
        );
        assert!(error.message().contains(&registry.host()), "{error:?}");
    }
}

/// A socket that is bound but does not listen, with its address.
fn taken_port() -> (OwnedFd, SocketAddrV4) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

#[tokio::test]
async fn pull_reports_missing_image_and_registry() {
    let bench = Bench::new().await;
    let host = bench.registry.host();
    let other = format!("sha256:{}", "0".repeat(64));
    for name in [format!("{host}/app:2"), format!("{host}/none:1"), format!("{host}/app@{other}")] {
        rejected(pull(&bench.runtime, &name, None).await, Code::NotFound, &name);
    }
    let sha512 = format!("{host}/app@sha512:{}", "0".repeat(128));
    assert_eq!(code(pull(&bench.runtime, &sha512, None).await), Code::FailedPrecondition);
    // A bound port, so that no other test listens there and connections are refused.
    let (_taken, address) = taken_port();
    let name = format!("{address}/app:1");
    rejected(pull(&bench.runtime, &name, None).await, Code::Unavailable, "is unreachable");
    bench.assert_nothing_left().await;
}
