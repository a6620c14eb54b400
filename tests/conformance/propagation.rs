//! Mount propagation from the host to containers and back.

use std::fs;
use std::path::{Path, PathBuf};

use cri::v1::{Mount, MountPropagation};
use harness::{Runtime, fixture};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rstest::rstest;
use tonic::Code;

use crate::support::{Means, code, of, skip_if};

/// A mount on the host, unmounted on drop.
struct OnHost(PathBuf);

impl OnHost {
    fn tmpfs(at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        mount(
            Some("tmpfs"),
            &at,
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .unwrap();
        Self(at)
    }

    /// A mount with the given propagation.
    fn sharing(at: PathBuf, how: MsFlags) -> Self {
        let new = Self::tmpfs(at);
        mount(None::<&str>, &new.0, None::<&str>, how, None::<&str>).unwrap();
        new
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        // Mounts of containers may be stacked on top.
        while umount2(&self.0, MntFlags::MNT_DETACH).is_ok() {}
    }
}

fn mount_with_propagation(host_path: &Path, propagation: MountPropagation) -> Mount {
    let mut mount = of(host_path, "/mnt");
    mount.set_propagation(propagation);
    mount
}

#[rstest]
#[case::private(MountPropagation::PropagationPrivate, false, false)]
#[case::host_to_container(MountPropagation::PropagationHostToContainer, true, false)]
#[case::bidirectional(MountPropagation::PropagationBidirectional, true, true)]
#[tokio::test]
async fn later_mounts_propagate_as_requested(
    #[case] propagation: MountPropagation,
    #[case] inside: bool,
    #[case] outside: bool,
) {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "later_mounts_propagate_as_requested",
        Means::of(&runtime).await.no_host_mounts()
    );
    // The pod is created before the volume is mounted, so its mount namespace does not have it.
    let pod = runtime.pod("p").await.unwrap();
    let volume = OnHost::sharing(runtime.root().join("volume"), MsFlags::MS_SHARED);
    for name in ["from-host", "from-container"] {
        fs::create_dir(volume.0.join(name)).unwrap();
    }
    let mut config = fixture::forever("c");
    config.mounts = vec![mount_with_propagation(&volume.0, propagation)];
    fixture::security(&mut config).privileged = true;
    let id = pod.start(config.clone()).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.mounts, config.mounts);

    let later = OnHost::tmpfs(volume.0.join("from-host"));
    fs::write(later.0.join("file"), "host\n").unwrap();
    let script = "cat /mnt/from-host/file 2>/dev/null || echo nothing
        mount -n -t tmpfs inner /mnt/from-container && echo container > /mnt/from-container/file";
    let seen = runtime.client.sh(&id, script).await.unwrap();
    assert_eq!(seen, if inside { "host\n" } else { "nothing\n" });
    let there = volume.0.join("from-container");
    let seen = fs::read_to_string(there.join("file"));
    assert_eq!(
        seen.ok().as_deref(),
        outside.then_some("container\n"),
        "{outside}"
    );
    runtime.client.remove(&id).await.unwrap();
    while outside && umount2(&there, MntFlags::MNT_DETACH).is_ok() {}
}

#[rstest]
#[case::host_to_container(MountPropagation::PropagationHostToContainer)]
#[case::bidirectional(MountPropagation::PropagationBidirectional)]
#[tokio::test]
async fn create_rejects_propagation_of_private_mount(#[case] propagation: MountPropagation) {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "create_rejects_propagation_of_private_mount",
        Means::of(&runtime).await.no_host_mounts()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = OnHost::sharing(runtime.root().join("volume"), MsFlags::MS_PRIVATE);
    let mut config = fixture::forever("c");
    config.mounts = vec![mount_with_propagation(&volume.0, propagation)];
    let error = pod.create(config).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("--make-shared"), "{error}");
}

#[tokio::test]
async fn bidirectional_propagation_requires_root() {
    let runtime = Runtime::start().await.unwrap();
    if runtime.isolation().await.unwrap() == "root" {
        return;
    }
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.mounts = vec![mount_with_propagation(
        Path::new("/usr"),
        MountPropagation::PropagationBidirectional,
    )];
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

/// Later containers of a pod see volumes that were mounted on the host after RunPodSandbox.
#[tokio::test]
async fn volume_mounted_after_pod_creation_is_visible() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "volume_mounted_after_pod_creation_is_visible",
        Means::of(&runtime).await.no_host_mounts()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = OnHost::sharing(runtime.root().join("volume"), MsFlags::MS_PRIVATE);
    fs::write(volume.0.join("file"), "late\n").unwrap();
    let mut config = pod.script("c", "cat /mnt/file");
    config.mounts = vec![of(&volume.0, "/mnt")];
    assert_eq!(pod.output(config).await.unwrap(), "late\n");
}
