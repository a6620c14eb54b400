//! Flags of `crib agent` about containers that have ended.

use std::time::Duration;

use agent::DeadContainerLimits;
use clap::Args;
use crib_base::args::duration;

#[derive(Debug, Args)]
#[command(next_help_heading = "Ended containers")]
pub(super) struct DeadContainerArgs {
    /// Ended attempts of each container that are kept; less than zero: all [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    maximum_dead_containers_per_container: Option<i64>,
    /// Ended containers of all pods that are kept; less than zero: all [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    maximum_dead_containers: Option<i64>,
    /// How long a container is kept after its creation (30s, 5m) [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    minimum_container_ttl_duration: Option<Duration>,
}

impl DeadContainerArgs {
    /// The limits that the flags set.
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
