//! ◆ Decides one pass over the signals of a node: its conditions, and the thresholds for which resources are reclaimed.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction/eviction_manager.go synchronize. A kubelet skips signals whose statistics are not
//! newer than in the last pass; here each pass measures again. Times are monotonic, from an arbitrary origin.

use std::time::Duration;

use compact::{Map, Set};

use super::config::Threshold;
use super::observe::{Observations, is_met};
use super::{Resource, Signal};
use crate::node::Pressure;

/// State that is kept between passes. Thresholds are identified by their index in the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvictionState {
    /// The time at which each threshold that is met was first met.
    first_met: Map<usize, Duration>,
    /// The thresholds whose grace period was over at the last pass: they count as met until their minimum reclaim is free too.
    unresolved: Set<usize>,
    /// When each condition was last observed.
    conditions: Map<&'static str, Duration>,
}

/// The decision of a pass.
#[derive(Debug)]
pub(crate) struct Decision<'a> {
    /// The node's conditions.
    pub(crate) pressure: Pressure,
    /// The thresholds whose grace periods are over, in the order in which resources are reclaimed for them.
    pub(crate) due: Vec<&'a Threshold>,
}

impl EvictionState {
    /// Decides on the signals observed at `now`. A condition lasts for `period` after its threshold was last met.
    pub(crate) fn decide<'a>(
        &mut self,
        thresholds: &'a [Threshold],
        observed: &Observations,
        period: Duration,
        now: Duration,
    ) -> Decision<'a> {
        let met = thresholds.iter().enumerate().filter(|(index, threshold)| {
            is_met(threshold, observed, false)
                || (self.unresolved.contains(index) && is_met(threshold, observed, true))
        });
        let met: Vec<(usize, &Threshold)> = met.collect();
        let first_met = |index: usize| self.first_met.get(&index).copied().unwrap_or(now);
        let first_met = met.iter().map(|(index, _)| (*index, first_met(*index))).collect();
        self.first_met = first_met;
        self.conditions
            .extend(met.iter().map(|(_, threshold)| (threshold.signal.node_condition(), now)));
        self.conditions.retain(|_, at| now.saturating_sub(*at) < period);
        let is_over = |(index, threshold): &&(usize, &Threshold)| {
            let since = self.first_met.get(index).copied().unwrap_or(now);
            now.saturating_sub(since) >= threshold.grace_period
        };
        let due: Vec<&(usize, &'a Threshold)> = met.iter().filter(is_over).collect();
        self.unresolved = due.iter().map(|(index, _)| *index).collect();
        let mut due: Vec<&Threshold> = due.into_iter().map(|(_, threshold)| *threshold).collect();
        compact::sort_by_key(&mut due, |threshold| threshold.signal.resource() != Resource::Memory);
        let has = |signal: Signal| self.conditions.contains_key(signal.node_condition());
        let pressure = Pressure {
            memory: has(Signal::MemoryAvailable),
            disk: has(Signal::NodeFsAvailable),
            pids: has(Signal::PidAvailable),
        };
        Decision { pressure, due }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::local_node::eviction::config::EvictionConfig;
    use crate::local_node::eviction::observe::Observation;

    const MI: i64 = 1 << 20;

    fn amounts(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, amount)| (name.to_owned(), amount.to_owned())).collect()
    }

    fn thresholds(hard: &str, soft: &str, reclaim: &str) -> Vec<Threshold> {
        let config = EvictionConfig {
            hard: amounts(hard),
            soft: amounts(soft),
            soft_grace_period: amounts("memory.available=30s pid.available=5s"),
            minimum_reclaim: amounts(reclaim),
            ..EvictionConfig::default()
        };
        config.thresholds().unwrap()
    }

    /// A node with this many MiB of memory and disk available.
    fn observed(memory: i64, disk: i64) -> Observations {
        let left = |available: i64| Observation { available: available * MI, capacity: 1000 * MI };
        Observations::from([
            (Signal::MemoryAvailable, left(memory)),
            (Signal::NodeFsAvailable, left(disk)),
        ])
    }

    /// The conditions and the signals to reclaim for after each pass. A pass is the second, and the memory and disk available.
    fn passes(thresholds: &[Threshold], passes: &[(u64, i64, i64)]) -> Vec<String> {
        let mut state = EvictionState::default();
        let pass = |(second, memory, disk): &(u64, i64, i64)| {
            let period = Duration::from_secs(60);
            let now = Duration::from_secs(*second);
            let decision = state.decide(thresholds, &observed(*memory, *disk), period, now);
            let due: Vec<&str> = decision.due.iter().map(|it| it.signal.as_str()).collect();
            format!("{}: {}", decision.pressure.conditions().join(" "), due.join(" "))
        };
        passes.iter().map(pass).collect()
    }

    #[rstest]
    #[case::enough(("memory.available=100Mi", "", ""), &[(0, 100, 500)], &[": "])]
    #[case::hard(("memory.available=100Mi", "", ""), &[(0, 99, 500)], &["MemoryPressure: memory.available"])]
    #[case::percent(("nodefs.available=10%", "", ""), &[(0, 500, 101), (1, 500, 99)],
        &[": ", "DiskPressure: nodefs.available"])]
    #[case::memory_comes_first(("nodefs.available=10% memory.available=100Mi", "", ""), &[(0, 1, 1)],
        &["MemoryPressure DiskPressure: memory.available nodefs.available"])]
    #[case::condition_lasts(("memory.available=100Mi", "", ""),
        &[(0, 1, 500), (10, 500, 500), (59, 500, 500), (60, 500, 500)],
        &["MemoryPressure: memory.available", "MemoryPressure: ", "MemoryPressure: ", ": "])]
    #[case::soft_waits_with_its_condition(("", "memory.available=100Mi", ""),
        &[(0, 1, 500), (10, 1, 500), (29, 1, 500), (30, 1, 500), (40, 1, 500)],
        &["MemoryPressure: ", "MemoryPressure: ", "MemoryPressure: ", "MemoryPressure: memory.available",
          "MemoryPressure: memory.available"])]
    #[case::grace_period_begins_again(("", "memory.available=100Mi", ""),
        &[(0, 1, 500), (20, 200, 500), (30, 1, 500), (59, 1, 500), (60, 1, 500)],
        &["MemoryPressure: ", "MemoryPressure: ", "MemoryPressure: ", "MemoryPressure: ",
          "MemoryPressure: memory.available"])]
    #[case::minimum_reclaim(("memory.available=100Mi", "", "memory.available=50Mi"),
        &[(0, 120, 500), (10, 99, 500), (20, 149, 500), (30, 150, 500), (40, 120, 500)],
        &[": ", "MemoryPressure: memory.available", "MemoryPressure: memory.available", "MemoryPressure: ",
          "MemoryPressure: "])]
    #[case::hard_and_soft(("memory.available=50Mi", "memory.available=100Mi", ""), &[(0, 70, 500), (1, 49, 500)],
        &["MemoryPressure: ", "MemoryPressure: memory.available"])]
    #[case::not_measured(("pid.available=10", "", ""), &[(0, 1, 1)], &[": "])]
    fn conditions_and_thresholds_follow_a_kubelet(
        #[case] (hard, soft, reclaim): (&str, &str, &str),
        #[case] measured: &[(u64, i64, i64)],
        #[case] expected: &[&str],
    ) {
        assert_eq!(passes(&thresholds(hard, soft, reclaim), measured), expected);
    }
}
