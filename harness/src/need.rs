//! Requirements of tests on the machine and the user. Tests are skipped if one is missing.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::Runtime;

/// The user for processes of an ordinary user if root runs the tests. It has no subordinate ids.
const NOBODY: u32 = 65534;

/// Defines the needs. Each has a probe that returns the reason if it is missing.
macro_rules! define_needs {
    ($($(#[$doc:meta])* $name:ident => $missing:expr,)+) => {
        /// A requirement that a machine or a user may not meet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Need { $($(#[$doc])* $name,)+ }

        impl Need {
            /// All needs.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The reason if this machine or user does not meet it.
            #[must_use]
            pub fn missing(self) -> Option<String> {
                match self { $(Self::$name => $missing,)+ }
            }
        }
    };
}

define_needs! {
    /// The root user, which may switch users, change owners, create device nodes and enter network namespaces.
    Root => unless(is_root(), "the user is not root"),
    /// Isolation `root`, whose daemon may mount on the host.
    HostMounts => host_mounts(),
    /// Images with device nodes, and a device cgroup that restricts access to them.
    DeviceNodes => host_mounts().or_else(|| {
        let unrestricted = limits().contains("access to devices is not restricted");
        unless(!unrestricted, limits())
    }),
    /// Cgroup controllers, so that limits apply.
    Cgroups => unless(has_cgroups(), limits()),
    /// No cgroup controllers, so that limits do not apply.
    NoCgroups => unless(!has_cgroups(), "limits apply here"),
    /// Pods in namespaces.
    Namespaces => unless(isolation() != "process", "isolation process has no namespaces"),
    /// Containers that run as any user.
    UserIds => Self::Namespaces.missing().or_else(|| {
        unless(!isolation().contains("single id"), "the user has no subordinate ids")
    }),
    /// User namespaces for an ordinary user.
    UserNamespaces => succeeds(Command::new("unshare").args(["--user", "--map-current-user", "--keep-caps", "true"])),
    /// An ordinary user without subordinate ids, in a user namespace.
    SingleId => Self::UserNamespaces.missing().or_else(|| {
        unless(is_root() || isolation().contains("single id"), "the user has subordinate ids")
    }),
    /// Checkpoints, created by criu.
    Checkpoints => host_mounts().or_else(|| {
        // criu's directory is not always on the PATH.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin";
        runs(Command::new("criu").arg("check").env("PATH", path))
    }),
    /// A small file system only for the runtime.
    SmallDisk => Runtime::no_small_disk().map(str::to_owned),
    /// A file system in a file.
    DiskImage => Runtime::no_disk_image().map(str::to_owned),
    /// A second file system for temporary files, at /dev/shm.
    SecondFileSystem => {
        let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
        let shm = device(Path::new("/dev/shm"));
        unless(shm.is_some() && shm != device(&std::env::temp_dir()), "/dev/shm is no file system of its own")
    },
    /// /dev/net/tun.
    Tun => File::open("/dev/net/tun").err().map(|error| format!("failed to open /dev/net/tun: {error}")),
    /// /dev/net/tun for an ordinary user.
    TunForUsers => succeeds(Command::new("sh").args(["-c", "exec 3<>/dev/net/tun"])),
    /// /dev/fuse, and permission to mount with it.
    Fuse => host_mounts().or_else(|| {
        File::open("/dev/fuse").err().map(|error| format!("failed to open /dev/fuse: {error}"))
    }),
    /// Keyrings (keyctl(2)).
    Keyrings => {
        let keyctl = if cfg!(target_arch = "aarch64") { 219 } else { 250 };
        let script = format!("exit(syscall({keyctl}, 0, -3, 0) == -1)");
        runs(Command::new("perl").args(["-e", &script]))
    },
    /// IPv6.
    Ipv6 => TcpListener::bind("[::1]:0").err().map(|error| format!("failed to bind to ::1: {error}")),
    /// Permission to lower the OOM score, which needs CAP_SYS_RESOURCE.
    LowerOomScore => runs(Command::new("sh").args(["-c", "echo -999 > /proc/self/oom_score_adj"])),
    /// Ports that only root may bind.
    PrivilegedPorts => unless(first_unprivileged_port() > 1, "net.ipv4.ip_unprivileged_port_start frees every port"),
    /// An address of the host other than loopback.
    HostAddress => unless(host_address().is_some(), "the host has no address but its loopback interface's"),
    /// Namespaces for the test alone, created by tests/interop/alone.
    Alone => unless(std::env::var_os("CRIB_ALONE").is_some(), "CRIB_ALONE is not set"),
    /// A kubelet, built by tests/interop/kubelet/build.
    Kubelet => unless(std::env::var_os("KUBELET").is_some(), "KUBELET names no kubelet"),
    /// busybox.
    Busybox => runs(Command::new("busybox").arg("true")),
    /// Chromium.
    Chromium => runs(Command::new("chromium").arg("--version")),
    /// The CNI reference plugins, in Debian's directory.
    CniPlugins => ["bridge", "host-local", "portmap", "bandwidth", "firewall"].iter().find_map(|plugin| {
        let installed = Path::new("/usr/lib/cni").join(plugin).exists();
        unless(installed, format!("/usr/lib/cni has no {plugin}: apt-get install containernetworking-plugins"))
    }),
    /// Docker's registry.
    DockerRegistry => runs(Command::new("docker-registry").arg("--version")),
    /// pasta.
    Pasta => runs(Command::new("pasta").arg("--version")),
    /// skopeo.
    Skopeo => runs(Command::new("skopeo").arg("--version")),
    /// slirp4netns.
    Slirp4netns => runs(Command::new("slirp4netns").arg("--version")),
    /// tmux.
    Tmux => runs(Command::new("tmux").arg("-V")),
}

/// Returns from the calling test if one of its needs is missing. Needs are names of [`Need`]s or, after `..`, an expression for a
/// list of them. A skipped test writes `skipped: TEST: needs NEED: REASON` to standard error, bypassing the test runner's capture.
///
/// ```
/// fn other_user_cannot_read_the_state_directory() {
///     harness::needs!(Root, Namespaces);
/// }
/// ```
#[macro_export]
macro_rules! needs {
    (..$needs:expr) => {{
        fn here() {}
        if $crate::need::skips(here, $needs) {
            return;
        }
    }};
    ($($need:ident),+ $(,)?) => { $crate::needs!(..&[$($crate::need::Need::$need),+]) };
}

/// Whether one of the needs is missing. If so, writes the line of [`needs!`](crate::needs!) for the test that contains this
/// function.
pub fn skips<Local: Fn()>(_inside: Local, needs: &[Need]) -> bool {
    let Some((need, reason)) =
        needs.iter().find_map(|need| need.missing().map(|reason| (need, reason)))
    else {
        return false;
    };
    // The test runner captures the output of print macros. A single write prevents interleaving with other threads' output.
    let name = test_name(std::any::type_name::<Local>());
    let _ =
        writeln!(io::LineWriter::new(io::stderr()), "skipped: {name}: needs {need:?}: {reason}");
    true
}

/// The name of the test that contains a function: `TEST` in `cli::names::TEST::{{closure}}::here`.
fn test_name(local: &str) -> &str {
    local.rsplit("::").find(|part| *part != "here" && !part.starts_with('{')).unwrap_or(local)
}

fn unless(met: bool, reason: impl Into<String>) -> Option<String> {
    (!met).then(|| reason.into())
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn host_mounts() -> Option<String> {
    unless(isolation() == "root", format!("isolation is {}", isolation()))
}

/// The isolation and the cgroups in the verbose Status of a runtime with default options. Both are empty if it does not start: then
/// tests fail with the error instead of being skipped.
fn probed() -> &'static [String; 2] {
    static PROBED: OnceLock<[String; 2]> = OnceLock::new();
    PROBED.get_or_init(|| {
        // The calling test may run in its own tokio runtime, and runtimes cannot be nested.
        std::thread::spawn(|| {
            let executor =
                tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            executor.block_on(async {
                let runtime = Runtime::with().start().await.ok()?;
                let mut info = runtime.client.status().await.ok()?.info;
                Some(["isolation", "cgroups"].map(|key| info.remove(key).unwrap_or_default()))
            })
        })
        .join()
        .ok()
        .flatten()
        .unwrap_or_default()
    })
}

fn isolation() -> &'static str {
    &probed()[0]
}

fn limits() -> &'static str {
    &probed()[1]
}

fn has_cgroups() -> bool {
    !limits().contains("not applied")
}

/// The reason if an ordinary user cannot run a command successfully.
fn succeeds(command: &mut Command) -> Option<String> {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    runs(command.current_dir("/"))
}

/// The reason if a command does not succeed.
fn runs(command: &mut Command) -> Option<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or_default();
            Some(format!("{program} fails ({}): {last}", output.status))
        }
        Err(error) => Some(format!("failed to run {program}: {error}")),
    }
}

/// The first port that an ordinary user may bind to.
#[must_use]
pub fn first_unprivileged_port() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// The address from which the host reaches other machines.
#[must_use]
pub fn host_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("198.51.100.1", 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn skipped_test_is_named_without_being_told() {
        fn here() {}
        let seen = test_name(std::any::type_name_of_val(&here));
        assert_eq!(seen, "skipped_test_is_named_without_being_told");
        assert_eq!(test_name("cli::names::test::{{closure}}::here"), "test");
        assert_eq!(test_name("cli::names::case::test::{{closure}}::{{closure}}::here"), "test");
    }
}
