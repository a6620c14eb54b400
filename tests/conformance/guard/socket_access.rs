//! Access to the socket: its owner, root, and the group given by `--socket-group`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::support::*;

/// A user and group without any rights to the test's files.
const STRANGER: u32 = 65533;
const GROUP: u32 = 65532;

/// Runs `crib ps` as another user: whether it succeeded, and its output.
fn ps(runtime: &Runtime, uid: u32, gid: u32) -> (bool, String) {
    let mut command = Command::new(harness::binary::crib().unwrap());
    command
        .arg("ps")
        .arg("--runtime-endpoint")
        .arg(format!("unix://{}", runtime.socket().display()));
    // `CommandExt::uid` also drops the supplementary groups, since the test runs as root.
    command.uid(uid).gid(gid);
    let output = command.current_dir("/").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), message)
}

fn mode(runtime: &Runtime) -> u32 {
    let metadata = fs::metadata(runtime.socket()).unwrap();
    metadata.permissions().mode() & 0o7777
}

#[tokio::test]
async fn socket_is_for_owner_only() {
    let runtime = Runtime::with().start().await.unwrap();
    assert_eq!(mode(&runtime), 0o600);
    harness::needs!(Root);
    let (reached, message) = ps(&runtime, STRANGER, GROUP);
    assert!(!reached && message.contains("Permission denied"), "{message}");
    assert!(message.contains("run crib as the socket's owner"), "{message}");
    // Peer credentials are checked too, so a wrong mode grants no access.
    fs::set_permissions(runtime.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    let (reached, message) = ps(&runtime, STRANGER, GROUP);
    assert!(!reached, "{message}");
    let (reached, message) = ps(&runtime, 0, 0);
    assert!(reached, "{message}");
}

/// In the daemon's user namespace, root of the host and unknown users have the same id. So if the mode lets everyone connect, the
/// daemon admits neither.
#[rstest]
#[case::of_its_user(NOBODY, [true, true])]
#[case::of_root(0, [true, false])]
#[case::of_stranger(STRANGER, [false, false])]
#[tokio::test]
async fn rootless_daemon_serves_its_user_and_root(
    #[case] uid: u32,
    #[case] with_modes_of_owner_and_all: [bool; 2],
) {
    harness::needs!(Root, UserNamespaces);
    let runtime = rootless().start().await.unwrap();
    let served = [0o600, 0o666].map(|mode| {
        fs::set_permissions(runtime.socket(), fs::Permissions::from_mode(mode)).unwrap();
        ps(&runtime, uid, uid)
    });
    let reached = served.each_ref().map(|(reached, _)| *reached);
    assert_eq!(reached, with_modes_of_owner_and_all, "{served:?}");
}

#[tokio::test]
async fn socket_group_may_use_socket() {
    harness::needs!(Root);
    let options = Runtime::with().argument(format!("--socket-group={GROUP}"));
    let runtime = options.start().await.unwrap();
    assert_eq!(mode(&runtime), 0o660);
    assert_eq!(fs::metadata(runtime.socket()).unwrap().gid(), GROUP);
    let (reached, message) = ps(&runtime, STRANGER, GROUP);
    assert!(reached, "{message}");
    let (reached, message) = ps(&runtime, STRANGER, GROUP - 1);
    assert!(!reached && message.contains("Permission denied"), "{message}");
    let pod = runtime.pod(&fixture::unique("p")).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

#[tokio::test]
async fn socket_group_may_be_group_of_owner() {
    let group = nix::unistd::getegid().as_raw();
    let options = Runtime::with().argument(format!("--socket-group={group}"));
    let runtime = options.start().await.unwrap();
    assert_eq!(mode(&runtime), 0o660);
    // As seen from the host; in the daemon's user namespace the group has another id.
    assert_eq!(fs::metadata(runtime.socket()).unwrap().gid(), group);
}

#[tokio::test]
async fn start_rejects_unknown_socket_group() {
    let refused = Runtime::with().argument("--socket-group=no-such-group").start().await;
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("unknown group no-such-group"), "{message}");
}
