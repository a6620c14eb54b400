//! ◆ The types of a kubelet's configuration file: every field of Kubernetes 1.36.
//!
//! Source: Kubernetes 1.36, k8s.io/kubelet/config/v1beta1/types.go and k8s.io/component-base/logs/api/v1/types.go.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use api::duration::parse_go_duration;
use compact::Map;
use k8s_openapi::api::core::v1::Taint;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A KubeletConfiguration; `None`: absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct KubeletConfiguration {
    pub enable_server: Option<bool>,
    pub static_pod_path: Option<String>,
    pub pod_logs_dir: Option<String>,
    pub sync_frequency: Option<GoDuration>,
    pub file_check_frequency: Option<GoDuration>,
    pub http_check_frequency: Option<GoDuration>,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: Option<String>,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: Option<Map<String, Vec<String>>>,
    pub address: Option<String>,
    pub port: Option<i32>,
    pub read_only_port: Option<i32>,
    pub tls_cert_file: Option<String>,
    pub tls_private_key_file: Option<String>,
    pub tls_cipher_suites: Option<Vec<String>>,
    pub tls_curve_preferences: Option<Vec<i32>>,
    pub tls_min_version: Option<String>,
    pub rotate_certificates: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: Option<bool>,
    pub authentication: Option<Authentication>,
    pub authorization: Option<Authorization>,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: Option<i32>,
    pub registry_burst: Option<i32>,
    pub image_pull_credentials_verification_policy: Option<String>,
    pub preloaded_images_verification_allowlist: Option<Vec<String>>,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: Option<i32>,
    pub event_burst: Option<i32>,
    pub enable_debugging_handlers: Option<bool>,
    pub enable_contention_profiling: Option<bool>,
    pub healthz_port: Option<i32>,
    pub healthz_bind_address: Option<String>,
    pub oom_score_adj: Option<i32>,
    pub cluster_domain: Option<String>,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Option<Vec<String>>,
    pub streaming_connection_idle_timeout: Option<GoDuration>,
    pub node_status_update_frequency: Option<GoDuration>,
    pub node_status_report_frequency: Option<GoDuration>,
    pub node_lease_duration_seconds: Option<i32>,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: Option<GoDuration>,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: Option<GoDuration>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<i32>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<i32>,
    pub volume_stats_agg_period: Option<GoDuration>,
    pub kubelet_cgroups: Option<String>,
    pub system_cgroups: Option<String>,
    pub cgroup_root: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: Option<bool>,
    pub cgroup_driver: Option<String>,
    pub cpu_manager_policy: Option<String>,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub cpu_manager_policy_options: Option<BTreeMap<String, String>>,
    pub cpu_manager_reconcile_period: Option<GoDuration>,
    pub memory_manager_policy: Option<String>,
    pub topology_manager_policy: Option<String>,
    pub topology_manager_scope: Option<String>,
    pub topology_manager_policy_options: Option<BTreeMap<String, String>>,
    pub qos_reserved: Option<BTreeMap<String, String>>,
    pub runtime_request_timeout: Option<GoDuration>,
    pub hairpin_mode: Option<String>,
    pub max_pods: Option<i32>,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    pub pod_pids_limit: Option<i64>,
    pub resolv_conf: Option<String>,
    pub run_once: Option<bool>,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: Option<GoDuration>,
    pub node_status_max_images: Option<i32>,
    pub max_open_files: Option<i64>,
    pub content_type: Option<String>,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: Option<i32>,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: Option<i32>,
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<i32>,
    pub eviction_hard: Option<BTreeMap<String, String>>,
    pub eviction_soft: Option<BTreeMap<String, String>>,
    pub eviction_soft_grace_period: Option<BTreeMap<String, String>>,
    pub eviction_pressure_transition_period: Option<GoDuration>,
    pub eviction_max_pod_grace_period: Option<i32>,
    pub eviction_minimum_reclaim: Option<BTreeMap<String, String>>,
    pub merge_default_eviction_settings: Option<bool>,
    pub pods_per_core: Option<i32>,
    pub enable_controller_attach_detach: Option<bool>,
    pub protect_kernel_defaults: Option<bool>,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: Option<bool>,
    pub iptables_masquerade_bit: Option<i32>,
    pub iptables_drop_bit: Option<i32>,
    pub feature_gates: Option<Map<String, bool>>,
    pub fail_swap_on: Option<bool>,
    pub memory_swap: Option<MemorySwap>,
    pub container_log_max_size: Option<String>,
    pub container_log_max_files: Option<i32>,
    pub container_log_max_workers: Option<i32>,
    pub container_log_monitor_interval: Option<GoDuration>,
    pub config_map_and_secret_change_detection_strategy: Option<String>,
    pub system_reserved: Option<BTreeMap<String, String>>,
    pub kube_reserved: Option<BTreeMap<String, String>>,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: Option<String>,
    pub show_hidden_metrics_for_version: Option<String>,
    pub system_reserved_cgroup: Option<String>,
    pub kube_reserved_cgroup: Option<String>,
    pub enforce_node_allocatable: Option<Vec<String>>,
    pub allowed_unsafe_sysctls: Option<Vec<String>>,
    pub volume_plugin_dir: Option<String>,
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    pub kernel_memcg_notification: Option<bool>,
    pub logging: Option<Logging>,
    pub enable_system_log_handler: Option<bool>,
    pub enable_system_log_query: Option<bool>,
    pub shutdown_grace_period: Option<GoDuration>,
    pub shutdown_grace_period_critical_pods: Option<GoDuration>,
    pub shutdown_grace_period_by_pod_priority: Option<Vec<ShutdownGracePeriodByPodPriority>>,
    pub crash_loop_back_off: Option<CrashLoopBackOff>,
    pub reserved_memory: Option<Vec<ReservedMemory>>,
    pub enable_profiling_handler: Option<bool>,
    pub enable_debug_flags_handler: Option<bool>,
    pub seccomp_default: Option<bool>,
    pub memory_throttling_factor: Option<f64>,
    pub memory_reservation_policy: Option<String>,
    pub register_with_taints: Option<Vec<Taint>>,
    pub register_node: Option<bool>,
    pub tracing: Option<Tracing>,
    pub local_storage_capacity_isolation: Option<bool>,
    pub container_runtime_endpoint: Option<String>,
    pub image_service_endpoint: Option<String>,
    pub fail_cgroup_v1: Option<bool>,
    pub user_namespaces: Option<UserNamespaces>,
}

/// `authentication`: how the node's server authenticates clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct Authentication {
    pub x509: Option<X509Authentication>,
    pub webhook: Option<WebhookAuthentication>,
    pub anonymous: Option<AnonymousAuthentication>,
}

/// `authentication.x509`: clients with a certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct X509Authentication {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<String>,
}

/// `authentication.webhook`: clients with a token, which the API server reviews.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct WebhookAuthentication {
    pub enabled: Option<bool>,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: Option<GoDuration>,
}

/// `authentication.anonymous`: clients without credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct AnonymousAuthentication {
    pub enabled: Option<bool>,
}

/// `authorization`: how the node's server authorizes clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct Authorization {
    pub mode: Option<String>,
    pub webhook: Option<WebhookAuthorization>,
}

/// `authorization.webhook`: how long decisions of the API server are cached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: Option<GoDuration>,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: Option<GoDuration>,
}

/// `crashLoopBackOff`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

/// `memorySwap`: which containers may use swap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct MemorySwap {
    pub swap_behavior: Option<String>,
}

/// `shutdownGracePeriodByPodPriority`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct ShutdownGracePeriodByPodPriority {
    pub priority: Option<i32>,
    pub shutdown_grace_period_seconds: Option<i64>,
}

/// `reservedMemory`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct ReservedMemory {
    pub numa_node: Option<i32>,
    pub limits: Option<Map<String, Value>>,
}

/// `tracing`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct Tracing {
    pub endpoint: Option<String>,
    pub sampling_rate_per_million: Option<i32>,
}

/// `userNamespaces`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct UserNamespaces {
    pub ids_per_pod: Option<i64>,
}

/// `logging`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub struct Logging {
    pub format: Option<String>,
    pub flush_frequency: Option<LogPeriod>,
    pub verbosity: Option<u32>,
    pub vmodule: Option<Vec<Value>>,
    pub options: Option<Value>,
}

/// A duration in Go's format, which may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanos: i64,
}

impl GoDuration {
    /// The duration in nanoseconds.
    #[must_use]
    pub const fn of_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    /// The duration in seconds.
    #[must_use]
    pub const fn of_seconds(seconds: i64) -> Self {
        Self { nanos: seconds * 1_000_000_000 }
    }

    /// The number of nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.nanos
    }

    /// The duration; zero if it is negative.
    #[must_use]
    pub fn get(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos).unwrap_or_default())
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = self.nanos.unsigned_abs();
        let (scale, unit) = match nanos {
            0 => return f.write_str("0s"),
            1..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => {
                let text = api::duration::go_duration(Duration::from_nanos(nanos));
                return write!(f, "{sign}{text}");
            }
        };
        let digits = format!("{}", scale - 1).len();
        let fraction = format!(".{:0digits$}", nanos % scale);
        let fraction = if scale == 1 { "" } else { fraction.trim_end_matches('0') };
        write!(f, "{sign}{}{}{unit}", nanos / scale, fraction.trim_end_matches('.'))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let nanos = parse_go_duration(&text);
        nanos.map(Self::of_nanos).ok_or_else(|| {
            D::Error::custom(format!("invalid duration {text:?}: expected 10s, 1m30s or 2h"))
        })
    }
}

/// `logging.flushFrequency`: a duration, or a number of nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LogPeriod {
    /// Nanoseconds.
    Nanos(i64),
    /// A duration.
    Duration(GoDuration),
}

impl LogPeriod {
    /// The number of nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        match self {
            Self::Nanos(nanos) => nanos,
            Self::Duration(duration) => duration.nanos(),
        }
    }
}

/// Converts a count of the file to the agent's type; a validated one fits.
pub fn count<T: TryFrom<i32>>(value: Option<i32>) -> Option<T> {
    value.and_then(|value| T::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0s")]
    #[case(1, "1ns")]
    #[case(-1, "-1ns")]
    #[case(1_500, "1.5µs")]
    #[case(100_000_000, "100ms")]
    #[case(1_050_000, "1.05ms")]
    #[case(90_000_000_000, "1m30s")]
    #[case(-2_000_000_000, "-2s")]
    fn durations_are_written_as_by_go(#[case] nanos: i64, #[case] text: &str) {
        assert_eq!(GoDuration::of_nanos(nanos).to_string(), text);
        assert_eq!(parse_go_duration(text), Some(nanos));
    }
}
