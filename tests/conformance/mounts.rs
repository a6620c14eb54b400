//! Bind mounts of host files and directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use cri::v1::{Mount, MountPropagation};
use harness::{PATIENCE, Pod, Runtime, eventually, fixture};
use rstest::rstest;
use tonic::Code;

use crate::support::{Means, code, directory, of, skip_if};

async fn output(pod: &Pod, mounts: impl IntoIterator<Item = Mount>, script: &str) -> String {
    let mut config = pod.script(&fixture::unique("c"), script);
    config.mounts = mounts.into_iter().collect();
    pod.output(config).await.unwrap()
}

#[tokio::test]
async fn bind_mount_shares_directory_with_host() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "bind_mount_shares_directory_with_host",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = directory(&runtime, "volume");
    fs::write(volume.join("from-host"), "hello\n").unwrap();
    let at = "/a/mount/point/that/is/made";
    let script = format!("cat {at}/from-host; echo hi > {at}/from-container");
    assert_eq!(output(&pod, [of(&volume, at)], &script).await, "hello\n");
    assert_eq!(
        fs::read_to_string(volume.join("from-container")).unwrap(),
        "hi\n"
    );
    // A container of another pod sees the same directory at another path.
    let other = runtime.pod("q").await.unwrap();
    assert_eq!(
        output(&other, [of(&volume, "/mnt")], "cat /mnt/from-container").await,
        "hi\n"
    );
}

#[tokio::test]
async fn file_mount_covers_existing_and_missing_targets() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "file_mount_covers_existing_and_missing_targets",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let file = directory(&runtime, "volume").join("file");
    fs::write(&file, "mine\n").unwrap();
    let mounts = [
        of(&file, "/etc/passwd"),
        of(&file, "/etc/hosts"),
        of(&file, "/new/file"),
    ];
    let out = output(
        &pod,
        mounts,
        "cat /etc/passwd /etc/hosts /new/file; echo yours > /new/file",
    )
    .await;
    assert_eq!(out, "mine\nmine\nmine\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "yours\n");
}

#[tokio::test]
async fn mount_follows_symlinks_of_host_and_image() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "mount_follows_symlinks_of_host_and_image",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = directory(&runtime, "volume");
    fs::write(volume.join("file"), "real\n").unwrap();
    let link = runtime.root().join("link");
    symlink(&volume, &link).unwrap();
    assert_eq!(
        output(&pod, [of(&link, "/mnt")], "cat /mnt/file").await,
        "real\n"
    );
    // /var/run is a symlink to /run in Debian images: the mount must follow it.
    let out = output(
        &pod,
        [of(&volume, "/var/run/volume")],
        "cat /var/run/volume/file",
    )
    .await;
    assert_eq!(out, "real\n");
}

#[tokio::test]
async fn read_only_mount_rejects_writes() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "read_only_mount_rejects_writes",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = directory(&runtime, "volume");
    let read_only = Mount {
        readonly: true,
        ..of(&volume, "/mnt")
    };
    let script = "(echo x > /mnt/x) 2>&1 | grep -o 'Read-only file system'";
    assert_eq!(
        output(&pod, [read_only], script).await,
        "Read-only file system\n"
    );
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
}

/// /dev/shm is a writable submount of the host's /dev.
#[rstest]
#[case::alone(false, "written\n")]
#[case::recursive(true, "Read-only file system\n")]
#[tokio::test]
async fn submounts_are_read_only_only_when_recursive(
    #[case] recursive_read_only: bool,
    #[case] expected: &str,
) {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "submounts_are_read_only_only_when_recursive",
        Means::of(&runtime).await.no_namespaces()
    );
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    if !table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some("/dev/shm"))
    {
        harness::skip!(
            "submounts_are_read_only_only_when_recursive",
            "nothing is mounted at /dev/shm"
        );
    }
    let pod = runtime.pod("p").await.unwrap();
    let mount = Mount {
        readonly: true,
        recursive_read_only,
        ..of(Path::new("/dev"), "/mnt")
    };
    let file = fixture::unique("/mnt/shm/crib-test");
    let script = format!(
        "(echo x > {file} && echo written; rm -f {file}) 2>&1 | grep -oE 'written|Read-only file system' | head -1"
    );
    assert_eq!(output(&pod, [mount], &script).await, expected);
}

#[rstest]
#[case::not_read_only(|mount: &mut Mount| mount.readonly = false)]
#[case::host_to_container(|mount: &mut Mount| mount.set_propagation(MountPropagation::PropagationHostToContainer))]
#[case::bidirectional(|mount: &mut Mount| mount.set_propagation(MountPropagation::PropagationBidirectional))]
#[tokio::test]
async fn create_rejects_invalid_recursive_read_only(#[case] change: fn(&mut Mount)) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut mount = Mount {
        readonly: true,
        recursive_read_only: true,
        ..of(Path::new("/usr"), "/usr")
    };
    change(&mut mount);
    let mut config = fixture::forever("c");
    config.mounts = vec![mount];
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

#[rstest]
#[case::source_that_cannot_be_created("/proc/no/such/directory", "/mnt")]
#[case::relative_source("usr", "/mnt")]
#[case::source_with_a_nul("/usr\0", "/mnt")]
#[case::no_source("", "/mnt")]
#[case::relative_target("/usr", "mnt")]
#[case::target_with_a_nul("/usr", "/mnt\0")]
#[case::root_target("/usr", "/")]
#[case::root_target_with_dot_dot("/usr", "/mnt/..")]
#[case::target_below_file("/usr", "/etc/passwd/mnt")]
#[case::no_target("/usr", "")]
#[tokio::test]
async fn create_rejects_invalid_mount(#[case] host_path: &str, #[case] container_path: &str) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::script("c", "echo fine");
    config.mounts = vec![of(Path::new(host_path), container_path)];
    code(pod.create(config).await);
    // The pod still works.
    assert_eq!(
        pod.output(fixture::script("c", "echo fine")).await.unwrap(),
        "fine\n"
    );
}

/// As in runc, `..` is removed before symlinks are followed.
#[tokio::test]
async fn dot_dot_in_mount_target_is_resolved_lexically() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "dot_dot_in_mount_target_is_resolved_lexically",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mount = of(Path::new("/usr"), "/proc/./../place/");
    let text = output(&pod, [mount], "test -d /place/bin && echo there").await;
    assert_eq!(text, "there\n");
}

#[tokio::test]
async fn status_returns_given_mounts() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "status_returns_given_mounts",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.mounts = vec![Mount {
        readonly: true,
        ..of(Path::new("/usr"), "/mnt")
    }];
    let id = pod.create(config.clone()).await.unwrap();
    assert_eq!(
        runtime.client.container(&id).await.unwrap().mounts,
        config.mounts
    );
}

/// Like a volume that is updated while a container runs.
#[tokio::test]
async fn volume_changes_are_visible_to_container_and_host() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "volume_changes_are_visible_to_container_and_host",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = directory(&runtime, "volume");
    let mut config = pod.script(
        "c",
        "echo ready; until [ -e /mnt/go ]; do sleep 0.05; done; echo gone; rm /mnt/go",
    );
    config.mounts = vec![of(&volume, "/mnt")];
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    fs::write(volume.join("go"), "").unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 0);
    eventually(PATIENCE, "the file to go", || async {
        if volume.join("go").exists() {
            Err("it is there")
        } else {
            Ok(())
        }
    })
    .await;
}
