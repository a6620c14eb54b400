//! ◆ The eviction settings of a kubelet's configuration.
//!
//! Source: Kubernetes 1.36, cmd/kubelet/app/server.go and pkg/kubelet/eviction/defaults_linux.go.

use std::time::Duration;

use super::config::{ConfigError, EvictionConfig, Threshold};
use crate::local_node::kubelet_config::{GoDuration, KubeletConfiguration};

/// The hard thresholds of a kubelet whose configuration has none.
pub const DEFAULT_HARD: [(&str, &str); 5] = [
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

/// The default minimum duration of a node's condition.
const TRANSITION_PERIOD: Duration = Duration::from_secs(300);

/// The eviction settings of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionSettings {
    /// The amounts as configured.
    pub config: EvictionConfig,
    /// The same amounts as thresholds.
    pub thresholds: Vec<Threshold>,
    /// `evictionMaxPodGracePeriod`: the longest grace period of a pod that a soft threshold evicts, in seconds; 0: the pod's own.
    pub max_pod_grace_seconds: i64,
    /// `evictionPressureTransitionPeriod`: how long a condition of the node lasts after its threshold was last met.
    pub transition_period: Duration,
    /// `kernelMemcgNotification`: whether the kernel reports that memory usage crosses a threshold.
    pub kernel_notifies: bool,
}

impl EvictionSettings {
    /// The settings of a configuration. `None`: it has no threshold, and without `has_defaults` there are no default ones. If all
    /// pods together are limited, the threshold of the node's memory applies to them too.
    ///
    /// # Errors
    /// If a threshold, grace period or minimum reclaim is malformed.
    pub fn of(
        file: &KubeletConfiguration,
        has_defaults: bool,
        limits_pods: bool,
    ) -> Result<Option<Self>, ConfigError> {
        if !has_defaults && file.eviction_hard.is_none() && file.eviction_soft.is_none() {
            return Ok(None);
        }
        let merges = file.merge_default_eviction_settings.unwrap_or_default();
        let mut hard = file.eviction_hard.clone().unwrap_or_default();
        if file.eviction_hard.is_none() || merges {
            for (signal, amount) in DEFAULT_HARD {
                hard.entry(signal.to_owned()).or_insert_with(|| amount.to_owned());
            }
        }
        let config = EvictionConfig {
            enforce_node_allocatable: limits_pods.then(|| "pods".to_owned()).into_iter().collect(),
            hard,
            soft: file.eviction_soft.clone().unwrap_or_default(),
            soft_grace_period: file.eviction_soft_grace_period.clone().unwrap_or_default(),
            minimum_reclaim: file.eviction_minimum_reclaim.clone().unwrap_or_default(),
        };
        let period =
            file.eviction_pressure_transition_period.map_or(TRANSITION_PERIOD, GoDuration::get);
        Ok(Some(Self {
            thresholds: config.thresholds()?,
            config,
            max_pod_grace_seconds: file.eviction_max_pod_grace_period.unwrap_or_default().into(),
            transition_period: if period.is_zero() { TRANSITION_PERIOD } else { period },
            kernel_notifies: file.kernel_memcg_notification.unwrap_or_default(),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::local_node::kubelet_config::tests::config;

    fn settings(fields: &str, has_defaults: bool) -> Option<EvictionSettings> {
        EvictionSettings::of(&config(fields), has_defaults, false).unwrap()
    }

    fn hard(settings: &EvictionSettings) -> Vec<String> {
        let hard = settings.config.hard.iter();
        hard.map(|(signal, amount)| format!("{signal}<{amount}")).collect()
    }

    #[rstest]
    #[case::of_a_node(
        "",
        true,
        Some(
            "imagefs.available<15% imagefs.inodesFree<5% memory.available<100Mi nodefs.available<10% nodefs.inodesFree<5%"
        )
    )]
    #[case::of_no_node("", false, None)]
    #[case::periods_alone("evictionMaxPodGracePeriod: 5", false, None)]
    #[case::given("evictionHard: {memory.available: 1Gi}", true, Some("memory.available<1Gi"))]
    #[case::given_to_no_node(
        "evictionHard: {memory.available: 1Gi}",
        false,
        Some("memory.available<1Gi")
    )]
    #[case::none("evictionHard: {}", true, Some(""))]
    #[case::merged(
        "evictionHard: {memory.available: 1Gi, pid.available: '7'}\nmergeDefaultEvictionSettings: true",
        true,
        Some(
            "imagefs.available<15% imagefs.inodesFree<5% memory.available<1Gi nodefs.available<10% nodefs.inodesFree<5% pid.available<7"
        )
    )]
    fn given_thresholds_replace_the_defaults(
        #[case] fields: &str,
        #[case] has_defaults: bool,
        #[case] expected: Option<&str>,
    ) {
        let found = settings(fields, has_defaults).map(|settings| hard(&settings).join(" "));
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn every_field_is_read() {
        let fields = "evictionHard: {memory.available: 100Mi}\nevictionSoft: {memory.available: 200Mi}\n\
                      evictionSoftGracePeriod: {memory.available: 1m30s}\nevictionMinimumReclaim: {memory.available: 1Mi}\n\
                      evictionMaxPodGracePeriod: 60\nevictionPressureTransitionPeriod: 30s";
        let settings = settings(fields, false).unwrap();
        let periods: Vec<u64> =
            settings.thresholds.iter().map(|threshold| threshold.grace_period.as_secs()).collect();
        assert_eq!(periods, [0, 90]);
        assert!(settings.thresholds.iter().all(|threshold| threshold.minimum_reclaim.is_some()));
        assert_eq!(settings.max_pod_grace_seconds, 60);
        assert_eq!(settings.transition_period, Duration::from_secs(30));
    }

    #[test]
    fn conditions_last_five_minutes_by_default() {
        let settings = settings("evictionPressureTransitionPeriod: 0s", true).unwrap();
        assert_eq!(settings.transition_period, Duration::from_secs(300));
    }
}
