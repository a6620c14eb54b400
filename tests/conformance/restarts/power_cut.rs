//! Durability: the content of the disk when PullImage returns, which is all that a power cut leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

const NAME: &str = "example.com/durable:1";
/// The size of the disk.
const BYTES: u64 = 128 << 20;

fn body(number: usize) -> Vec<u8> {
    // Sizes from 0 to 256 KiB; no file has only zeroes.
    let length = if number == 0 { 0 } else { 37 << (number % 14) };
    (0..length).map(|at| u8::try_from((at * 7 + number) % 251 + 1).unwrap()).collect()
}

fn layers() -> Vec<Layer> {
    let of = |layer: usize| {
        (0..60).fold(Layer::new(), |tar, number| {
            tar.file(&format!("d{}/l{layer}-{number}", number % 5), 0o644, body(number))
        })
    };
    (0..3).map(of).collect()
}

fn new_disk(path: &Path) {
    let file = fs::File::create(path).unwrap();
    file.set_len(BYTES).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(path).status();
    assert!(made.unwrap().success());
}

fn file_of(layers: &[PathBuf], name: &str) -> Option<Vec<u8>> {
    layers.iter().find_map(|layer| fs::read(layer.join("fs").join(name)).ok())
}

#[tokio::test]
async fn pulled_image_is_complete_after_power_cut() {
    harness::needs!(DiskImage);
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("image.tar");
    let mut image = ImageBuilder::new(NAME);
    for layer in layers() {
        image = image.layer(layer);
    }
    image.write_docker(&archive).unwrap();
    let (disk, cut) = (place.path().join("disk"), place.path().join("cut"));
    new_disk(&disk);
    let runtime = Runtime::with().disk_image(&disk).archive(&archive);
    let runtime = runtime.start().await.unwrap();
    let id = runtime.client.pull(NAME).await.unwrap();
    // The copy does not have dirty pages that the kernel has not written back.
    fs::copy(&disk, &cut).unwrap();
    drop(runtime);

    let runtime = Runtime::with().disk_image(&cut).start().await.unwrap();
    let found = runtime.client.image(NAME).await.unwrap();
    assert_eq!(found.map(|image| image.id), Some(id));
    let layers = fs::read_dir(runtime.disk().unwrap().join("images/layers")).unwrap();
    let layers: Vec<PathBuf> = layers.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(layers.len(), 3);
    for layer in 0..3 {
        for number in 0..60 {
            let name = format!("d{}/l{layer}-{number}", number % 5);
            let there = file_of(&layers, &name);
            assert!(there == Some(body(number)), "{name}: {:?}", there.map(|t| t.len()));
        }
    }
}

/// Records of pods are not synced: after a power cut they may be from any earlier moment, and their processes are gone.
#[tokio::test]
async fn pods_of_before_power_cut_do_not_run_and_can_be_removed() {
    harness::needs!(DiskImage);
    let place = tempfile::tempdir().unwrap();
    let (disk, cut) = (place.path().join("disk"), place.path().join("cut"));
    new_disk(&disk);
    let runtime = Runtime::with().disk_image(&disk).start().await.unwrap();
    for number in 0..5 {
        let pod = runtime.pod(&format!("p{number}")).await.unwrap();
        pod.start(fixture::forever("c")).await.unwrap();
        if number == 3 {
            // The kernel writes the others back by itself.
            nix::unistd::sync();
        }
    }
    fs::copy(&disk, &cut).unwrap();
    drop(runtime);

    let runtime = Runtime::with().disk_image(&cut).start().await.unwrap();
    let pods = runtime.client.pods(Default::default()).await.unwrap();
    assert!(pods.len() >= 4, "{pods:?}");
    for pod in &pods {
        assert_eq!(pod.state(), v1::PodSandboxState::SandboxNotready, "{pod:?}");
    }
    let containers = runtime.client.containers(Default::default()).await.unwrap();
    for container in &containers {
        assert_ne!(container.state(), v1::ContainerState::ContainerRunning, "{container:?}");
    }
    for pod in &pods {
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    let again = runtime.pod("p0").await.unwrap();
    let id = again.start(fixture::forever("c")).await.unwrap();
    assert_eq!(runtime.client.sh(&id, "echo runs").await.unwrap(), "runs\n");
}
