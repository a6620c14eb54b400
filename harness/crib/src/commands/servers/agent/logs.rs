//! Flags of `crib agent` for container logs and ended containers.

use std::path::PathBuf;
use std::time::Duration;

use agent::local_node::kubelet_config::{GoDuration, KubeletConfiguration, count};
use agent::{Config, DeadContainerLimits, LogRotation};
use api::quantity::Quantity;
use clap::Args;
use crib_base::args::duration;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Container logs")]
pub(crate) struct ContainerLogArgs {
    /// Directory for container logs [default: logs in --root-dir]
    #[arg(long, value_name = "DIR")]
    pub(super) pod_logs_dir: Option<PathBuf>,
    /// Size at which a log is rotated, such as 10Mi; negative: do not rotate [default: 10Mi]
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true)]
    container_log_max_size: Option<String>,
    /// Maximum number of log files per container, at least 2 [default: 5]
    #[arg(long, value_name = "N")]
    container_log_max_files: Option<usize>,
}

impl ContainerLogArgs {
    /// Applies the flags, or else the file.
    pub(super) fn apply(
        &self,
        file: &KubeletConfiguration,
        config: &mut Config,
    ) -> Result<(), String> {
        let mut rotation = LogRotation::default();
        let max_files = self.container_log_max_files.or(count(file.container_log_max_files));
        rotation.max_files = max_files.unwrap_or(rotation.max_files);
        if rotation.max_files < 2 {
            return Err("--container-log-max-files: a log needs at least 2 files".to_owned());
        }
        let period = file.container_log_monitor_interval.map(GoDuration::get);
        rotation.period = period.unwrap_or(rotation.period);
        let size = self.container_log_max_size.as_ref();
        config.log_rotation = match size.or(file.container_log_max_size.as_ref()) {
            None => Some(rotation),
            Some(size) => {
                let amount = Quantity::parse(size)
                    .map_err(|error| format!("--container-log-max-size: {error}"))?;
                rotation.max_size = u64::try_from(amount.value()).unwrap_or_default();
                (!amount.is_negative()).then_some(rotation)
            }
        };
        Ok(())
    }
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Ended containers")]
pub(crate) struct DeadContainerArgs {
    /// Maximum number of ended instances to keep of each container; negative: no limit [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) maximum_dead_containers_per_container: Option<i64>,
    /// Maximum number of ended containers to keep on the node; negative: no limit [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) maximum_dead_containers: Option<i64>,
    /// Minimum time between the creation and the removal of an ended container (such as 30s or 5m) [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) minimum_container_ttl_duration: Option<Duration>,
}

impl DeadContainerArgs {
    /// The limits from the flags.
    pub(super) fn limits(&self) -> DeadContainerLimits {
        let usual = DeadContainerLimits::default();
        DeadContainerLimits {
            per_container: self
                .maximum_dead_containers_per_container
                .unwrap_or(usual.per_container),
            in_all: self.maximum_dead_containers.unwrap_or(usual.in_all),
            min_age: self.minimum_container_ttl_duration.unwrap_or(usual.min_age),
        }
    }
}
