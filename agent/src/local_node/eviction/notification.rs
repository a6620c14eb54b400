//! ◆ The memory usage that the kernel watches, so that the agent is notified as soon as a threshold is met.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction/memory_threshold_notifier_others.go UpdateThreshold.

use api::quantity::{Format, Quantity};

use super::Signal;
use super::config::Threshold;
use crate::machine::MemoryUse;

/// Whether a threshold is about memory, so that the kernel can watch it.
pub(crate) fn is_of_memory(threshold: &Threshold) -> bool {
    matches!(threshold.signal, Signal::AllocatableMemoryAvailable | Signal::MemoryAvailable)
}

/// The memory usage at which a threshold is met. The kernel's usage includes reclaimable memory, the working set does not.
pub(crate) fn watched_usage(threshold: &Threshold, memory: MemoryUse) -> u64 {
    let capacity = i64::try_from(memory.capacity).unwrap_or(i64::MAX);
    let kept = threshold.value.amount(capacity);
    let reclaimable = memory.usage.saturating_sub(memory.working_set);
    let used = Quantity::whole(capacity, Format::BinarySi).minus(kept);
    u64::try_from(used.value()).unwrap_or_default().saturating_add(reclaimable)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::local_node::eviction::config::EvictionConfig;

    fn hard(signal: &str, amount: &str) -> Threshold {
        let hard = [(signal.to_owned(), amount.to_owned())].into();
        let config = EvictionConfig { hard, ..EvictionConfig::default() };
        config.thresholds().unwrap().remove(0)
    }

    #[rstest]
    #[case::amount("100", 1000, 300, 200, 1000)]
    #[case::share("10%", 1000, 300, 250, 950)]
    #[case::nothing_to_reclaim("100", 1000, 300, 300, 900)]
    #[case::more_than_there_is("2000", 1000, 300, 250, 50)]
    fn available_threshold_is_watched_as_usage(
        #[case] amount: &str,
        #[case] capacity: u64,
        #[case] usage: u64,
        #[case] working_set: u64,
        #[case] expected: u64,
    ) {
        let threshold = hard("memory.available", amount);
        let memory = MemoryUse { capacity, usage, working_set };
        assert_eq!(watched_usage(&threshold, memory), expected);
    }

    #[rstest]
    #[case("memory.available", true)]
    #[case("allocatableMemory.available", true)]
    #[case("pid.available", false)]
    fn thresholds_of_memory_are_watched(#[case] signal: &str, #[case] expected: bool) {
        assert_eq!(is_of_memory(&hard(signal, "1")), expected);
    }
}
