//! The agent's settings in addition to a KubeletConfiguration, set by the flags of `crib agent` or `crib kubelet`.

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
use super::source::SourceArgs;
use super::status_ports::StatusPortArgs;

/// The settings; each takes precedence over the corresponding KubeletConfiguration field.
#[derive(Debug, Default, Args)]
pub(crate) struct Settings {
    /// Id of this agent, stored as a label of its pods [default: generated once and kept in --root-dir]
    #[arg(long, value_name = "ID")]
    pub(crate) agent_id: Option<String>,
    /// Manage every pod of the runtime, as the kubelet does
    #[arg(long)]
    pub(crate) adopt_node: bool,
    /// Directory for volumes and state [default: /var/lib/crib-agent for root, $XDG_DATA_HOME/crib-agent for other users]
    #[arg(long, value_name = "DIR")]
    pub(crate) root_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) volumes: VolumesDirArgs,
    /// Follow the runtime's container events, and list pods only every 10 to 60 s (less often if a listing takes long). false:
    /// list pods every second, as the kubelet does [default: the feature gate EventedPLEG in --config, or else true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) event_driven_pleg: Option<bool>,
    /// Interval at which the agent compares each pod with its manifest, even if nothing has changed (such as 1m or 90s) [default:
    /// 1m]
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
    pub(crate) status_ports: StatusPortArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Whether the agent runs as `crib kubelet`: it links logs where log collectors expect them, retries a healthz port that is in
    /// use, and binds the read-only port to the server's address.
    #[arg(skip)]
    pub(crate) as_kubelet: bool,
    /// A file to lock before the agent starts, in addition to the one in its root directory.
    #[arg(skip)]
    pub(crate) lock_file: Option<LockFile>,
}
