//! Confinement: resources that a container must not reach.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use cri::v1::{Int64Value, Mount, NamespaceMode, PodSandboxConfig};
use harness::Client;

use crate::restarts::recovery::keepers;
use crate::support::*;

async fn check_read_only_root(runtime: Runtime) {
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
    harness::needs!(Namespaces);
    check_read_only_root(Runtime::start().await.unwrap()).await;
}

/// In a user namespace the root consists of several mounts.
#[tokio::test]
async fn read_only_root_of_ordinary_user_has_no_writable_directory() {
    harness::needs!(Root, UserNamespaces);
    let options = Runtime::with().user(NOBODY, NOBODY).isolation("rootless");
    check_read_only_root(options.start().await.unwrap()).await;
}

/// A runtime started by a shell script that prepares its environment and ends with `exec "$@"`.
struct Bare {
    child: std::process::Child,
    client: Client,
    root: TempDir,
}

impl Bare {
    /// Its directory is in a place that containers with the host's root can see.
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
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on"), "{line:?}");
        let client = Client::new(&socket);
        Self { child, client, root }
    }

    async fn pod(&self) -> Pod {
        self.pod_of(fixture::sandbox("p")).await
    }

    async fn pod_of(&self, mut config: PodSandboxConfig) -> Pod {
        self.client.pull(&fixture::image()).await.unwrap();
        config.log_directory = self.root.path().join("logs").display().to_string();
        Pod::run(&self.client, config).await.unwrap()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The state directory contains the records of all pods, with their environments, and control sockets.
#[tokio::test]
async fn container_does_not_see_state_directory() {
    harness::needs!(Namespaces);
    let runtime = Bare::start("exec \"$@\"");
    let pod = runtime.pod().await;
    let state = runtime.root.path().join("state");
    let script = format!("ls -A {}; echo done", state.display());
    let seen = pod.output(pod.script("c", &script)).await.unwrap();
    assert_eq!(trimmed(&seen), "done");
}

/// A script for [`Bare`]: a mount namespace whose mounts are shared, as the host's are with systemd.
const WITH_SHARED_MOUNTS: &str = "exec unshare --mount --propagation shared \"$@\"";

/// Later mounts of the host would appear in the container, for example below `/sys` of the host, and would be writable.
#[rstest]
#[case::own_network(NamespaceMode::Pod)]
#[case::network_of_the_host(NamespaceMode::Node)]
#[tokio::test]
async fn container_receives_no_mounts_of_the_host(#[case] network: NamespaceMode) {
    harness::needs!(HostMounts);
    let runtime = Bare::start(WITH_SHARED_MOUNTS);
    let mut config = fixture::sandbox("p");
    config.hostname.clear();
    fixture::pod_namespaces(&mut config).network = network.into();
    let pod = runtime.pod_of(config).await;
    let script = "grep -E ' (shared|master):' /proc/self/mountinfo; echo done";
    let seen = pod.output(pod.script("c", script)).await.unwrap();
    assert_eq!(trimmed(&seen), "done");
}

/// A script for [`Bare`]: a file system below `/sys`, like debugfs.
const WITH_MOUNT_BELOW_SYS: &str = r#"exec unshare --mount sh -c '
    mount -t tmpfs none /sys/kernel && : > /sys/kernel/secret && exec "$@"' sh "$@""#;

#[rstest]
#[case::own_network(NamespaceMode::Pod)]
#[case::network_of_the_host(NamespaceMode::Node)]
#[tokio::test]
async fn container_sees_no_mounts_below_sys_of_the_host(#[case] network: NamespaceMode) {
    harness::needs!(HostMounts);
    let runtime = Bare::start(WITH_MOUNT_BELOW_SYS);
    let mut config = fixture::sandbox("p");
    config.hostname.clear();
    fixture::pod_namespaces(&mut config).network = network.into();
    let pod = runtime.pod_of(config).await;
    let script = "[ -d /sys/class/net ] && echo sys; [ -e /sys/kernel/secret ] || echo hidden";
    assert_eq!(pod.output(pod.script("c", script)).await.unwrap(), "sys\nhidden\n");
}

#[tokio::test]
async fn file_modes_ignore_umask_of_daemon() {
    use std::os::unix::fs::PermissionsExt as _;
    harness::needs!(UserIds);
    let runtime = Bare::start("umask 077; exec \"$@\"");
    let pod = runtime.pod().await;
    let mut config = pod.script("c", "cat /etc/hostname; stat -c %a /");
    fixture::security(&mut config).run_as_user = Some(Int64Value { value: 1000 });
    assert_eq!(pod.output(config).await.unwrap(), "p\n755\n");
    let sandbox = runtime.root.path().join("state/sandboxes").join(&pod.id);
    let record = std::fs::metadata(sandbox.join("sandbox.json")).unwrap();
    assert_eq!(record.permissions().mode() & 0o777, 0o600);
}

/// Behind a link, a later mount could hide the paths to mask from the runtime, but not `/proc` from the container: `/dev` covers the
/// link in it, which led to `/x`.
#[rstest]
#[case::proc("proc", |l: Layer| l.symlink("proc", "/x"))]
#[case::proc_below_dev("proc", |l: Layer| l.symlink("proc", "/dev/link").symlink("dev/link", "/x"))]
#[case::sys("sys", |l: Layer| l.symlink("sys", "/x"))]
#[tokio::test]
async fn create_rejects_links_in_place_of_proc_and_sys(
    #[case] name: &str,
    #[case] make: fn(Layer) -> Layer,
) {
    const IMAGE: &str = "example.com/linked-proc:1";
    harness::needs!(Namespaces);
    let layer = make(Layer::new().directory("x", 0o755));
    let (runtime, _place) =
        with_image(Runtime::with(), IMAGE, with_programs(layer, &["/bin/sh"])).await;
    let pod = runtime.pod("p").await.unwrap();
    let config = of_image(pod.script("c", "echo reached"), IMAGE);
    let reason = format!("failed to mount /{name}: it is a symbolic link in the image");
    rejected(pod.create(config).await, Code::InvalidArgument, &reason);
}

/// Masked files are covered by the host's `/dev/null`, which root in a container owns: the first by a mount, the others by clones
/// of it.
#[tokio::test]
async fn container_cannot_change_dev_null_of_the_host_through_masks() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    // The mode that it has already, for the case that the change succeeds.
    let script = "for f in /proc/version /proc/cmdline; do
            stat -c %F $f; cat $f; echo x > $f && echo written; chmod 666 $f && echo changed
        done; echo done";
    let mut config = pod.script("c", script);
    fixture::security(&mut config).masked_paths =
        ["/proc/version", "/proc/cmdline"].map(str::to_owned).to_vec();
    let seen = pod.output(config).await.unwrap();
    assert_eq!(seen, format!("{}done\n", "character special file\nwritten\n".repeat(2)));
}

/// A rootless container's devices are the host's, which its root owns if root started the runtime.
#[tokio::test]
async fn rootless_container_of_root_cannot_change_devices_of_the_host() {
    harness::needs!(Root, UserNamespaces);
    let (_runtime, pod) = pod_of(Runtime::with().isolation("rootless")).await;
    // The modes that they have already, for the case that the change succeeds.
    let script = "for d in null zero full random urandom requested; do
            mode=$(stat -c %a /dev/$d) && chmod $mode /dev/$d && echo changed $d
        done
        echo x > /dev/null && echo written; head -c 1 /dev/zero | wc -c
        echo x > /dev/requested && echo written; head -c 1 /dev/requested | wc -c";
    let mut config = pod.script("c", script);
    config.devices = vec![v1::Device {
        host_path: "/dev/zero".to_owned(),
        container_path: "/dev/requested".to_owned(),
        permissions: "rw".to_owned(),
    }];
    let seen = pod.output(config).await.unwrap();
    assert_eq!(seen, "written\n1\nwritten\n1\n");
}

/// A container could get a descriptor of the program that all keepers run (CVE-2019-5736).
#[tokio::test]
async fn keeper_program_is_read_only() {
    harness::needs!(Namespaces);
    let (runtime, _pod, id) = with_container().await;
    let [(_, keeper)] = keepers(&runtime).try_into().unwrap();
    let seen = nix::sys::statvfs::statvfs(&keeper.path("exe")).unwrap();
    assert!(seen.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    // A container can execute it.
    let own = runtime.client.exec(&id, ["/proc/self/exe", "version"], 30).await.unwrap();
    assert!(String::from_utf8_lossy(&own.stdout).contains("crib"), "{own:?}");
}
