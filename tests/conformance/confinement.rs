//! Confinement: what a container must not reach.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use cri::v1::{Int64Value, Mount, MountPropagation};
use harness::{Client, Pod, Runtime, fixture};
use rstest::rstest;
use tonic::Code;

use crate::{
    recovery::keepers,
    support::{Means, code, skip_if, trimmed},
};

const NOBODY: u32 = 65534;

/// `setresuid` takes 4294967295 as "no change": the container would run as root.
#[rstest]
#[case::minus_one(4_294_967_295)]
#[case::beyond_kubernetes(2_147_483_648)]
#[tokio::test]
async fn create_rejects_user_ids_out_of_range(#[case] id: i64) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut as_user = pod.script("user", "id -u");
    fixture::security(&mut as_user).run_as_user = Some(Int64Value { value: id });
    assert_eq!(code(pod.create(as_user).await), Code::InvalidArgument);
    let mut as_group = pod.script("group", "id -g");
    fixture::security(&mut as_group).run_as_user = Some(Int64Value { value: 0 });
    fixture::security(&mut as_group).run_as_group = Some(Int64Value { value: id });
    assert_eq!(code(pod.create(as_group).await), Code::InvalidArgument);
}

async fn check_read_only_root(runtime: Runtime) {
    let means = Means::of(&runtime).await;
    skip_if!(
        "read_only_root_has_no_writable_directory",
        means.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let script = "for d in / /etc /usr /var /home /tmp /run /var/tmp; do touch $d/x 2>/dev/null && echo $d; done
        touch /dev/shm/x && echo done";
    let mut config = pod.script("c", script);
    fixture::security(&mut config).readonly_rootfs = true;
    assert_eq!(trimmed(&pod.output(config).await.unwrap()), "done");
    // A writable mount below a read-only root stays writable.
    let volume = runtime.root().join("volume");
    std::fs::create_dir(&volume).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&volume, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut config = pod.script("d", "echo in > /tmp/x; cat /tmp/x");
    config.mounts.push(Mount {
        container_path: "/tmp".to_owned(),
        host_path: volume.display().to_string(),
        ..Default::default()
    });
    fixture::security(&mut config).readonly_rootfs = true;
    assert_eq!(trimmed(&pod.output(config).await.unwrap()), "in");
}

#[tokio::test]
async fn read_only_root_has_no_writable_directory() {
    check_read_only_root(Runtime::start().await.unwrap()).await;
}

/// In a user namespace the root consists of several mounts.
#[tokio::test]
async fn read_only_root_of_ordinary_user_has_no_writable_directory() {
    let name = "read_only_root_of_ordinary_user_has_no_writable_directory";
    if !nix::unistd::geteuid().is_root() {
        harness::skip!(name, "needs root to switch users");
    }
    let options = Runtime::with().user(NOBODY, NOBODY).isolation("rootless");
    match options.start().await {
        Ok(runtime) => check_read_only_root(runtime).await,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("isolation rootless is unavailable"), "{text}");
            harness::skip!(name, "{text}");
        }
    }
}

/// A mount on the host, unmounted on drop.
struct HostMount<'a>(&'a Path);

impl<'a> HostMount<'a> {
    fn tmpfs(at: &'a Path) -> Self {
        rustix::mount::mount(
            "test",
            at,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            None,
        )
        .unwrap();
        Self(at)
    }
}

impl Drop for HostMount<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[rstest]
#[case::private(MountPropagation::PropagationPrivate, "no")]
#[case::host_to_container(MountPropagation::PropagationHostToContainer, "yes")]
#[tokio::test]
async fn later_host_mounts_follow_mount_propagation(
    #[case] propagation: MountPropagation,
    #[case] seen: &str,
) {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!(
        "later_host_mounts_follow_mount_propagation",
        means.no_host_mounts()
    );
    let shared = runtime.root().join("shared");
    std::fs::create_dir(&shared).unwrap();
    // A shared mount, like a host's root under systemd.
    let _outer = HostMount::tmpfs(&shared);
    rustix::mount::mount_change(&shared, rustix::mount::MountPropagationFlags::SHARED).unwrap();
    let inner = shared.join("inner");
    std::fs::create_dir(&inner).unwrap();
    // Where the host's root is private, as in some containers, a pod only sees earlier mounts.
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.mounts.push(Mount {
        container_path: "/mnt".to_owned(),
        host_path: shared.display().to_string(),
        propagation: propagation.into(),
        ..Default::default()
    });
    let id = pod.start(config).await.unwrap();
    let _mounted = HostMount::tmpfs(&inner);
    std::fs::write(inner.join("file"), "").unwrap();
    let look = "if [ -e /mnt/inner/file ]; then echo yes; else echo no; fi";
    let answer = runtime.client.sh(&id, look).await.unwrap();
    assert_eq!(trimmed(&answer), seen);
}

/// A runtime started by a shell script that prepares its environment and ends with `exec "$@"`.
struct Bare {
    child: std::process::Child,
    client: Client,
    root: tempfile::TempDir,
}

impl Bare {
    /// Its directory is in a place that containers on the host's root see.
    fn start(script: &str) -> Self {
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let socket = root.path().join("s");
        let mut child = Command::new("/bin/sh")
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_crib"), "runtime"])
            .arg("--until-stdin-closes")
            .arg("--state-dir")
            .arg(root.path().join("state"))
            .arg("--listen")
            .arg(format!("unix://{}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("listening on"), "{line:?}");
        let client = Client::new(&socket);
        Self {
            child,
            client,
            root,
        }
    }

    async fn pod(&self) -> Pod {
        self.client.pull(&fixture::image()).await.unwrap();
        let mut config = fixture::sandbox("p");
        config.log_directory = self.root.path().join("logs").display().to_string();
        Pod::run(&self.client, config).await.unwrap()
    }

    async fn isolation(&self) -> String {
        self.client.status().await.unwrap().info["isolation"].clone()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The state directory has the records of all pods, with their environments, and control sockets.
#[tokio::test]
async fn container_does_not_see_state_directory() {
    let runtime = Bare::start("exec \"$@\"");
    if runtime.isolation().await == "process" {
        harness::skip!(
            "container_does_not_see_state_directory",
            "isolation process has no namespaces"
        );
    }
    let pod = runtime.pod().await;
    let state = runtime.root.path().join("state");
    let script = format!("ls -A {}; echo done", state.display());
    let seen = pod.output(pod.script("c", &script)).await.unwrap();
    assert_eq!(trimmed(&seen), "done");
}

#[tokio::test]
async fn file_modes_ignore_umask_of_daemon() {
    use std::os::unix::fs::PermissionsExt as _;
    let runtime = Bare::start("umask 077; exec \"$@\"");
    let isolation = runtime.isolation().await;
    if isolation == "process" || isolation.contains("single id") {
        harness::skip!(
            "file_modes_ignore_umask_of_daemon",
            "there is only one user with isolation {isolation}"
        );
    }
    let pod = runtime.pod().await;
    let mut config = pod.script("c", "cat /etc/hostname; stat -c %a /");
    fixture::security(&mut config).run_as_user = Some(Int64Value { value: 1000 });
    assert_eq!(pod.output(config).await.unwrap(), "p\n755\n");
    let sandbox = runtime.root.path().join("state/sandboxes").join(&pod.id);
    let record = std::fs::metadata(sandbox.join("sandbox.json")).unwrap();
    assert_eq!(record.permissions().mode() & 0o777, 0o600);
}

/// A container could get hold of the program that all keepers run (CVE-2019-5736).
#[tokio::test]
async fn keeper_program_is_read_only() {
    let runtime = Runtime::start().await.unwrap();
    if !runtime.is_ours() {
        harness::skip!("keeper_program_is_read_only", "the runtime has no keepers");
    }
    skip_if!(
        "keeper_program_is_read_only",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let [(_, keeper)] = keepers(&runtime).try_into().unwrap();
    let seen = nix::sys::statvfs::statvfs(&keeper.path("exe")).unwrap();
    assert!(seen.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    // A container can execute it.
    let own = runtime
        .client
        .exec(&id, ["/proc/self/exe", "version"], 30)
        .await
        .unwrap();
    assert!(
        String::from_utf8_lossy(&own.stdout).contains("crib"),
        "{own:?}"
    );
}
