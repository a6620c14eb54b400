//! Other users of the host cannot reach files of containers: these could include a set-user-ID program.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// A user without any rights to the test's files.
const STRANGER: u32 = 65533;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The error of another user who executes the program at `path`; `None` if it ran.
fn run_as_other_user(path: &Path) -> Option<ErrorKind> {
    let mut command = Command::new(path);
    command.arg("-c").arg("true").uid(STRANGER).gid(STRANGER);
    command.current_dir("/").output().err().map(|error| error.kind())
}

/// The directories that the daemon creates for a pod with a container.
fn directories(runtime: &Runtime, pod: &str, container: &str) -> Vec<PathBuf> {
    let state = runtime.state_dir();
    let sandbox = state.join("sandboxes").join(pod);
    let own = sandbox.join("containers").join(container);
    vec![
        state.clone(),
        state.join("sandboxes"),
        state.join("images"),
        sandbox.clone(),
        sandbox.join("containers"),
        own.clone(),
        own.join("layer"),
    ]
}

#[tokio::test]
async fn daemon_directories_are_private_to_user() {
    harness::needs!(Namespaces);
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let all = directories(&runtime, &pod.id, &id);
    let modes = || -> Vec<u32> { all.iter().map(|path| mode(path)).collect() };
    assert_eq!(modes(), vec![0o700; all.len()], "{all:?}");
    // An earlier version created them with these modes.
    runtime.stop().await;
    for path in all.iter().filter(|path| !path.ends_with("layer")) {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    runtime.restart().await.unwrap();
    assert_eq!(modes(), vec![0o700; all.len()], "{all:?}");
    runtime.client.exec(&id, ["true"], 10).await.unwrap();
    let again = pod.output(pod.script("again", "echo fine")).await.unwrap();
    assert_eq!(again, "fine\n");
}

#[tokio::test]
async fn other_user_cannot_run_files_of_container() {
    harness::needs!(Namespaces, Root);
    let layer = with_programs(Layer::new(), &["/bin/sh", "/bin/cp", "/bin/chmod"]);
    let image = "example.com/plant:1";
    let (runtime, _place) = with_image(Runtime::with(), image, layer).await;
    let pod = runtime.pod("p").await.unwrap();
    let plant = "for f in /planted /etc/hosts /etc/hostname /etc/resolv.conf; do cp /bin/sh $f; chmod 4755 $f; done";
    let id = pod.start(of_image(fixture::script("c", plant), image)).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 0);
    let sandbox = runtime.state_dir().join("sandboxes").join(&pod.id);
    let upper = sandbox.join("containers").join(&id).join("layer/upper");
    let planted = [
        upper.join("planted"),
        sandbox.join("hosts"),
        sandbox.join("hostname"),
        sandbox.join("resolv.conf"),
    ];
    for path in planted {
        assert_eq!(mode(&path), 0o4755, "{}", path.display());
        let refused = run_as_other_user(&path);
        assert_eq!(refused, Some(ErrorKind::PermissionDenied), "{path:?}");
    }
}

#[tokio::test]
async fn etc_files_are_mounted_nosuid_nodev_noexec() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let table = pod.output(pod.script("c", "cat /proc/self/mountinfo")).await.unwrap();
    for file in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/shm"] {
        let line = table.lines().find(|l| l.split(' ').nth(4) == Some(file));
        let options: Vec<&str> = line
            .and_then(|line| line.split(' ').nth(5))
            .map(|options| options.split(',').collect())
            .unwrap_or_default();
        for wanted in ["nosuid", "nodev", "noexec"] {
            assert!(options.contains(&wanted), "{file}: {options:?}");
        }
    }
}

#[tokio::test]
async fn logs_are_readable_by_owner_and_group_only() {
    let (_runtime, pod) = with_pod().await;
    let mut config = pod.script("c", "echo fine");
    config.log_path = "c/0.log".to_owned();
    pod.output(config).await.unwrap();
    assert_eq!(mode(&pod.log_directory()), 0o750);
    assert_eq!(mode(&pod.log_directory().join("c")), 0o750);
    assert_eq!(mode(&pod.log_directory().join("c/0.log")), 0o640);
}

#[tokio::test]
async fn start_rejects_state_directory_of_another_user() {
    harness::needs!(Root);
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let (theirs, link, ours) =
        (place.path().join("theirs"), place.path().join("link"), place.path().join("ours"));
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(STRANGER), None).unwrap();
    fs::create_dir(&ours).unwrap();
    symlink(&ours, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
    for state_dir in [&theirs, &link] {
        let output = Command::new(harness::binary::crib().unwrap())
            .arg("runtime")
            .arg("--listen")
            .arg(format!("unix://{}", place.path().join("s").display()))
            .arg("--state-dir")
            .arg(state_dir)
            .arg("--until-stdin-closes")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(message.contains("belongs to user 65533"), "{message}");
    }
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
}
