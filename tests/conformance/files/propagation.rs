//! Mount propagation from the host to containers and back.

use std::fs;
use std::path::{Path, PathBuf};

use cri::v1::{Mount, MountPropagation};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::support::*;

/// A mount on the host, unmounted on drop.
struct OnHost(PathBuf);

impl OnHost {
    fn tmpfs(at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
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
#[case::host_to_container(MountPropagation::PropagationHostToContainer)]
#[case::bidirectional(MountPropagation::PropagationBidirectional)]
#[tokio::test]
async fn create_rejects_propagation_of_private_mount(#[case] propagation: MountPropagation) {
    harness::needs!(HostMounts);
    let (runtime, pod) = with_pod().await;
    let volume = OnHost::sharing(runtime.root().join("volume"), MsFlags::MS_PRIVATE);
    let mut config = fixture::forever("c");
    config.mounts = vec![mount_with_propagation(&volume.0, propagation)];
    rejected(pod.create(config).await, Code::InvalidArgument, "--make-shared");
}

#[tokio::test]
async fn bidirectional_propagation_requires_root() {
    let runtime = Runtime::start().await.unwrap();
    if runtime.isolation().await.unwrap() == "root" {
        return;
    }
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.mounts =
        vec![mount_with_propagation(Path::new("/usr"), MountPropagation::PropagationBidirectional)];
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

/// Later containers of a pod see volumes that were mounted on the host after RunPodSandbox.
#[tokio::test]
async fn volume_mounted_after_pod_creation_is_visible() {
    harness::needs!(HostMounts);
    let (runtime, pod) = with_pod().await;
    let volume = OnHost::sharing(runtime.root().join("volume"), MsFlags::MS_PRIVATE);
    fs::write(volume.0.join("file"), "late\n").unwrap();
    let mut config = pod.script("c", "cat /mnt/file");
    config.mounts = vec![of(&volume.0, "/mnt")];
    assert_eq!(pod.output(config).await.unwrap(), "late\n");
}
