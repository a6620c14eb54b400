//! ◆ The order in which pods end when the machine shuts down, and the time limit of each. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodeshutdown/nodeshutdown_manager.go.

use std::time::Duration;

use api::pod::Pod;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::local_node::kubelet_config::{GoDuration, KubeletConfiguration};

/// A pod of at least this priority is critical.
const CRITICAL: i32 = 2_000_000_000;

/// The time limit of pods from a priority on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    /// The lowest priority.
    pub priority: i32,
    /// The time limit, in seconds.
    pub seconds: i64,
}

/// The last time that a node's pods were ended before the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShutdownTimes {
    /// The start.
    pub start_time: Option<Timestamp>,
    /// The end.
    pub end_time: Option<Timestamp>,
}

/// The periods of a configuration, lowest priority first; empty: pods are not ended when the machine shuts down.
#[must_use]
pub fn periods(config: &KubeletConfiguration) -> Vec<ShutdownPeriod> {
    let by_priority = config.shutdown_grace_period_by_pod_priority.iter().flatten();
    let mut periods: Vec<ShutdownPeriod> = by_priority
        .map(|period| ShutdownPeriod {
            priority: period.priority.unwrap_or_default(),
            seconds: period.shutdown_grace_period_seconds.unwrap_or_default(),
        })
        .collect();
    if periods.is_empty() {
        let of = |field: Option<GoDuration>| field.map_or(Duration::ZERO, GoDuration::get);
        let all = of(config.shutdown_grace_period);
        let critical = of(config.shutdown_grace_period_critical_pods);
        let seconds = |period: Duration| i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
        if !all.is_zero()
            && let Some(others) = all.checked_sub(critical)
        {
            periods = vec![
                ShutdownPeriod { priority: 0, seconds: seconds(others) },
                ShutdownPeriod { priority: CRITICAL, seconds: seconds(critical) },
            ];
        }
    }
    compact::sort_by_key(&mut periods, |period| period.priority);
    periods
}

/// The time limit of the whole shutdown.
pub(crate) fn requested(periods: &[ShutdownPeriod]) -> Duration {
    let seconds = periods.iter().map(|period| period.seconds).fold(0, i64::saturating_add);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// A group of pods that end together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) period: ShutdownPeriod,
    pub(crate) pods: Vec<Pod>,
}

impl Group {
    /// The grace period of a pod of the group, in seconds: its own if that is shorter.
    pub(crate) fn grace(&self, pod: &Pod) -> i64 {
        let own = pod.spec().termination_grace_period_seconds;
        own.map_or(self.period.seconds, |own| own.min(self.period.seconds))
    }

    /// How long the next group waits for this one.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.period.seconds).unwrap_or_default())
    }
}

/// The non-empty groups, in the order in which they end. `periods` are sorted. A pod belongs to the period with the highest
/// priority that does not exceed its own, or else to the lowest period.
pub(crate) fn groups(periods: &[ShutdownPeriod], pods: Vec<Pod>) -> Vec<Group> {
    let mut groups: Vec<Group> =
        periods.iter().map(|period| Group { period: *period, pods: Vec::new() }).collect();
    for pod in pods {
        let priority = pod.spec().priority.unwrap_or_default();
        let reached = periods.iter().rposition(|period| period.priority <= priority);
        if let Some(group) = groups.get_mut(reached.unwrap_or_default()) {
            group.pods.push(pod);
        }
    }
    groups.retain(|group| !group.pods.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::local_node::kubelet_config::tests::config;

    fn of(pairs: &[(i32, i64)]) -> Vec<ShutdownPeriod> {
        let period = |(priority, seconds): &(i32, i64)| ShutdownPeriod {
            priority: *priority,
            seconds: *seconds,
        };
        pairs.iter().map(period).collect()
    }

    #[rstest]
    #[case::off("", &[])]
    #[case::critical_pods_last(
        "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s",
        &[(0, 20), (CRITICAL, 10)]
    )]
    #[case::none_for_critical_pods("shutdownGracePeriod: 30s", &[(0, 30), (CRITICAL, 0)])]
    #[case::by_priority(
        "shutdownGracePeriodByPodPriority:\n- {priority: 1000, shutdownGracePeriodSeconds: 5}\n- {priority: -3, shutdownGracePeriodSeconds: 7}",
        &[(-3, 7), (1000, 5)]
    )]
    fn periods_are_those_of_the_configuration(
        #[case] fields: &str,
        #[case] expected: &[(i32, i64)],
    ) {
        let periods = periods(&config(fields));
        assert_eq!(periods, of(expected));
        let sum: i64 = expected.iter().map(|(_, seconds)| seconds).sum();
        assert_eq!(requested(&periods).as_secs(), u64::try_from(sum).unwrap());
    }

    fn pod(uid: &str, priority: Option<i32>, grace: Option<i64>) -> Pod {
        let mut spec = json!({"containers": []});
        if let Some(priority) = priority {
            spec["priority"] = json!(priority);
        }
        if let Some(grace) = grace {
            spec["terminationGracePeriodSeconds"] = json!(grace);
        }
        fixtures::pod(json!({"metadata": {"name": "p", "uid": uid}, "spec": spec}))
    }

    // A boundary belongs to the period above it.
    #[rstest]
    #[case::below_all(Some(-10), 0)]
    #[case::none(None, 0)]
    #[case::between(Some(99), 0)]
    #[case::boundary(Some(100), 100)]
    #[case::above_all(Some(i32::MAX), CRITICAL)]
    fn pod_belongs_to_the_period_that_its_priority_reaches(
        #[case] priority: Option<i32>,
        #[case] expected: i32,
    ) {
        let periods = of(&[(0, 1), (100, 2), (CRITICAL, 3)]);
        let groups = groups(&periods, vec![pod("u", priority, None)]);
        let priorities: Vec<i32> = groups.iter().map(|group| group.period.priority).collect();
        assert_eq!(priorities, [expected]);
    }

    #[test]
    fn groups_end_in_order_with_the_shorter_grace_period() {
        let pods = vec![
            pod("c", Some(CRITICAL), Some(60)),
            pod("a", None, Some(5)),
            pod("b", Some(7), Some(60)),
            pod("d", Some(7), None),
        ];
        let groups = groups(&of(&[(0, 20), (CRITICAL, 10)]), pods);
        let graces = groups.iter().map(|group| {
            let of_pods = group.pods.iter().map(|pod| (pod.uid().to_string(), group.grace(pod)));
            (group.limit().as_secs(), of_pods.collect::<Vec<_>>())
        });
        let named = |pairs: &[(&str, i64)]| -> Vec<(String, i64)> {
            pairs.iter().map(|(uid, grace)| ((*uid).to_owned(), *grace)).collect()
        };
        let expected = [(20, named(&[("a", 5), ("b", 20), ("d", 20)])), (10, named(&[("c", 10)]))];
        assert_eq!(graces.collect::<Vec<_>>(), expected);
    }
}
