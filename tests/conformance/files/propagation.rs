//! Mount propagation from the host to containers and back.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

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

/// A mounted FUSE file system that never answers. Dropping it ends all waiting calls with an error.
struct Silent {
    // Closed before the mount is removed.
    _connection: fs::File,
}

impl Silent {
    fn mount(at: &Path) -> Self {
        let connection = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let fd = connection.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("silent"), at, Some("fuse"), flags, Some(options.as_str())).unwrap();
        Self { _connection: connection }
    }
}

/// docs/cri.md documents the limit of 8 seconds. Calls for other pods do not wait for it.
#[tokio::test]
async fn exec_whose_set_up_hangs_is_killed_while_others_are_served() {
    harness::needs!(Fuse);
    let (runtime, pod) = with_pod().await;
    let volume = OnHost::sharing(runtime.root().join("volume"), MsFlags::MS_SHARED);
    let silent_at = volume.0.join("silent");
    fs::create_dir(&silent_at).unwrap();
    let mut config = fixture::forever("c");
    config.mounts =
        vec![mount_with_propagation(&volume.0, MountPropagation::PropagationHostToContainer)];
    config.working_dir = "/mnt/silent".to_owned();
    let id = pod.start(config).await.unwrap();
    let silent = Silent::mount(&silent_at);
    let client = runtime.client.clone();
    let began = Instant::now();
    let hangs = tokio::spawn(async move { client.exec(&id, ["true"], 0).await });
    // One container with the same keeper, and one with another.
    let beside = pod.start(fixture::forever("d")).await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    let other = other.start(fixture::forever("c")).await.unwrap();
    for id in [&beside, &other] {
        assert_eq!(runtime.client.sh(id, "echo here").await.unwrap(), "here\n");
    }
    assert!(!hangs.is_finished(), "it did not hang");
    let answer = tokio::time::timeout(WAIT_LIMIT, hangs).await.unwrap().unwrap();
    let time = began.elapsed();
    // The keeper killed the process. Otherwise the daemon would abandon the call, and the process would be left.
    let status = answer.as_ref().unwrap_err();
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("took longer than 8 s and was given up"), "{status:?}");
    assert!((8..30).contains(&time.as_secs()), "{answer:?} after {time:?}");
    assert_eq!(runtime.client.sh(&beside, "echo here").await.unwrap(), "here\n");
    drop(silent);
}
