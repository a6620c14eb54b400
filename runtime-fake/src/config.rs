//! The configuration of the runtime.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use image::{NamedScript, Registries};
use network::{PodCidrs, cni::CniConfig};

use crate::handler::Handlers;
use crate::isolation::Isolation;
use crate::keeper_client::Deadlines;

/// The directories for installed specifications, and for specifications generated at run time (CDI, SPEC.md).
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The runtime's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of all files that outlive the daemon.
    pub state_dir: PathBuf,
    /// The isolation that [`crate::enter`] found.
    pub isolation: Isolation,
    /// Why no stronger isolation is available, if known.
    pub isolation_reason: Option<String>,
    /// Image archives and layouts, or directories of them, for `PullImage`.
    pub image_archives: Vec<PathBuf>,
    /// Behaviour images, which override images of archives and registries with these names.
    pub scripts: Vec<NamedScript>,
    /// The runtime handlers.
    pub handlers: Handlers,
    /// CNI configurations and plugins, instead of the runtime's own bridge.
    pub cni: Option<CniConfig>,
    /// Privileges of unprivileged programs in a pod's own network namespace.
    pub unprivileged: Unprivileged,
    /// The subnets for pods; the daemon chooses them if empty.
    pub pod_cidrs: PodCidrs,
    /// The directories of CDI specifications; a later one takes precedence.
    pub cdi_dirs: Vec<PathBuf>,
    /// Every pod ends with the daemon, even if the daemon is killed, and leaves nothing behind.
    pub ephemeral: bool,
    /// How images are pulled from registries.
    pub registries: Registries,
    /// The socket's mode admits a group; otherwise only the owner and root are served.
    pub socket_group: bool,
    /// The socket's path. If set, a rootless daemon serves unmapped users, whom it cannot distinguish, only while the socket's
    /// mode admits its owner alone.
    pub socket: Option<PathBuf>,
    /// The stream server for Exec, Attach and PortForward.
    pub streams: Streams,
    /// Limit on the bytes of a container's log: a log that would exceed it is truncated first. `None` leaves rotation
    /// to the log's reader.
    pub log_max: Option<NonZeroU64>,
    /// Every pod gets an SELinux label, not only pods that request one.
    pub selinux: bool,
    /// The deadlines of calls to keepers.
    pub deadlines: Deadlines,
    /// The root directory of the security modules' kernel files: `/`, except in tests.
    pub kernel_files: PathBuf,
}

/// Privileges of unprivileged programs in a pod's own network namespace: default kernel parameters, as in containerd 2. A pod's
/// own sysctls take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unprivileged {
    /// Listen on ports below 1024 (`net.ipv4.ip_unprivileged_port_start`).
    pub ports: bool,
    /// Send echo requests without `CAP_NET_RAW` (`net.ipv4.ping_group_range`).
    pub ping: bool,
}

/// The settings of the stream server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// The listen address; port 0 means any free port. Traffic is not encrypted: prefer a loopback address.
    pub address: SocketAddr,
    /// A connection without traffic for this long is closed.
    pub idle: Duration,
    /// Timeout for a client to open the streams that it requested.
    pub creation: Duration,
}

impl Default for Streams {
    /// Any free port of 127.0.0.1, and a kubelet's timeouts: 4 hours and 30 seconds.
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            idle: Duration::from_secs(4 * 3600),
            creation: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// The configuration for `state_dir`, with pods that outlive the daemon and no archives.
    #[must_use]
    pub fn new(state_dir: PathBuf, isolation: Isolation) -> Self {
        Self {
            state_dir,
            isolation,
            isolation_reason: None,
            image_archives: Vec::new(),
            scripts: Vec::new(),
            handlers: Handlers::default(),
            cni: None,
            unprivileged: Unprivileged { ports: true, ping: true },
            pod_cidrs: PodCidrs::default(),
            cdi_dirs: CDI_DIRS.map(PathBuf::from).to_vec(),
            ephemeral: false,
            registries: Registries::default(),
            socket_group: false,
            socket: None,
            streams: Streams::default(),
            log_max: None,
            selinux: false,
            deadlines: Deadlines::default(),
            kernel_files: PathBuf::from("/"),
        }
    }
}
