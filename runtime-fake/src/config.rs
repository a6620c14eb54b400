//! What the runtime is told when it is started.

use std::path::PathBuf;

use crate::isolation::Isolation;
use crate::net::{CniConfig, PodCidrs};
use crate::registry::Registries;

/// The runtime's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where everything is kept that outlives the daemon.
    pub state_dir: PathBuf,
    /// What [`crate::enter`] found.
    pub isolation: Isolation,
    /// Image archives and layouts, or directories of them, that `PullImage` may take images from.
    pub image_archives: Vec<PathBuf>,
    /// A directory of CNI configurations, and those of plugins, instead of the runtime's own bridge.
    pub cni: Option<CniConfig>,
    /// Where pods are to have their addresses; chosen where nothing is said.
    pub pod_cidrs: PodCidrs,
    /// Every pod ends with the daemon, however that ends, and nothing is left.
    pub ephemeral: bool,
    /// How images are pulled from registries.
    pub registries: Registries,
    /// The owner has opened the socket to a group, by its mode; otherwise only the owner and root are served.
    pub socket_group: bool,
}

impl Config {
    /// Settings for `state_dir`, with pods that outlive the daemon and no archives.
    #[must_use]
    pub fn new(state_dir: PathBuf, isolation: Isolation) -> Self {
        Self {
            state_dir,
            isolation,
            image_archives: Vec::new(),
            cni: None,
            pod_cidrs: PodCidrs::default(),
            ephemeral: false,
            registries: Registries::default(),
            socket_group: false,
        }
    }
}
