//! What the agent is started with beside a KubeletConfiguration: the flags of `crib agent` fill it, and those of `crib kubelet`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crib_base::args::duration;
use crib_base::dirs::{SeccompProfileArgs, VolumesDirArgs};
use crib_base::logging::LogArgs;

use super::cgroups::CgroupArgs;
use super::cluster::ClusterArgs;
use super::images::ImageArgs;
use super::lock_file::LockFile;
use super::logs::{ContainerLogArgs, DeadContainerArgs};
use super::node::NodeArgs;
use super::server::ServerArgs;
use super::show::ShowArgs;
use super::source::SourceArgs;

/// The settings; each takes precedence over the field of a KubeletConfiguration that says the same.
#[derive(Debug, Default, Args)]
pub(crate) struct Settings {
    /// Id of this agent, stored as a label of its pods [default: generated once and kept in --root-dir]
    #[arg(long, value_name = "ID")]
    pub(crate) agent_id: Option<String>,
    /// Manage every pod of the runtime, as a kubelet does
    #[arg(long)]
    pub(crate) adopt_node: bool,
    /// Directory for volumes and state [default: /var/lib/crib-agent for root, $XDG_DATA_HOME/crib-agent for other users]
    #[arg(long, value_name = "DIR")]
    pub(crate) root_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) volumes: VolumesDirArgs,
    /// Follow the runtime's container events, and list its pods only every 10 to 60 s (the slower a listing, the longer the
    /// interval); false: list the pods every second, as a kubelet does [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) event_driven_pleg: Option<bool>,
    /// Interval at which each pod is compared with its manifest, even without a change (1m, 90s) [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) sync_frequency: Option<Duration>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) cgroups: CgroupArgs,
    #[command(flatten)]
    pub(crate) container_logs: ContainerLogArgs,
    #[command(flatten)]
    pub(crate) dead_containers: DeadContainerArgs,
    #[command(flatten)]
    pub(crate) images: ImageArgs,
    #[command(flatten)]
    pub(crate) seccomp_profiles: SeccompProfileArgs,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Whether the node is a kubelet's: its logs are linked where log collectors look for them, a port of its health that is taken is no
    /// error, and its read-only port has the address of its server.
    #[arg(skip)]
    pub(crate) as_kubelet: bool,
    /// A file to lock before the agent starts, besides that in its root directory.
    #[arg(skip)]
    pub(crate) lock_file: Option<LockFile>,
}
