//! What the runtime is told when it is started.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use image::Registries;
use network::{PodCidrs, cni::CniConfig};

use crate::handler::Handlers;
use crate::isolation::Isolation;
use crate::keeper_client::Deadlines;

/// Where vendors install specifications, and where those that are made at run time are (CDI, SPEC.md).
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The runtime's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where everything is kept that outlives the daemon.
    pub state_dir: PathBuf,
    /// What [`crate::enter`] found.
    pub isolation: Isolation,
    /// Image archives and layouts, or directories of them, that `PullImage` may take images from.
    pub image_archives: Vec<PathBuf>,
    /// The ways to run pods that clients may name.
    pub handlers: Handlers,
    /// A directory of CNI configurations, and those of plugins, instead of the runtime's own bridge.
    pub cni: Option<CniConfig>,
    /// Where pods are to have their addresses; chosen where nothing is said.
    pub pod_cidrs: PodCidrs,
    /// Where the Container Device Interface's specifications are; a later directory is stronger than an earlier one.
    pub cdi_dirs: Vec<PathBuf>,
    /// Every pod ends with the daemon, however that ends, and nothing is left.
    pub ephemeral: bool,
    /// How images are pulled from registries.
    pub registries: Registries,
    /// The owner has opened the socket to a group, by its mode; otherwise only the owner and root are served.
    pub socket_group: bool,
    /// Where clients of Exec, Attach and PortForward are sent.
    pub streams: Streams,
    /// How many bytes a container's log may have; a log that would exceed it is truncated first. Without it, the log's
    /// reader rotates them.
    pub log_max: Option<NonZeroU64>,
    /// Every pod gets an SELinux label, not only those that ask for one.
    pub selinux: bool,
    /// How long a keeper may take for a call.
    pub deadlines: Deadlines,
    /// Below which directory the files of the kernel's security modules are: `/`, but in tests.
    pub kernel_files: PathBuf,
}

/// How the stream server is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// Where it listens; port 0 is any that is free. What goes over it is not encrypted: a loopback address is best.
    pub address: SocketAddr,
    /// A connection over which nothing went either way for so long is closed.
    pub idle: Duration,
    /// How long a client may take to open the streams that it asked for.
    pub creation: Duration,
}

impl Default for Streams {
    /// Any free port of 127.0.0.1, and what a kubelet waits: 4 hours and 30 seconds.
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            idle: Duration::from_secs(4 * 3600),
            creation: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Settings for `state_dir`, with pods that outlive the daemon and no archives.
    #[must_use]
    pub fn new(state_dir: PathBuf, isolation: Isolation) -> Self {
        Self {
            state_dir,
            isolation,
            image_archives: Vec::new(),
            handlers: Handlers::default(),
            cni: None,
            pod_cidrs: PodCidrs::default(),
            cdi_dirs: CDI_DIRS.map(PathBuf::from).to_vec(),
            ephemeral: false,
            registries: Registries::default(),
            socket_group: false,
            streams: Streams::default(),
            log_max: None,
            selinux: false,
            deadlines: Deadlines::default(),
            kernel_files: PathBuf::from("/"),
        }
    }
}
