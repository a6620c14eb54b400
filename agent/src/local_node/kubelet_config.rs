//! ◆ A kubelet's configuration file: the fields that the agent honours.
//!
//! Source: Kubernetes 1.36, kubelet.config.k8s.io/v1beta1, KubeletConfiguration.

use std::collections::BTreeMap;
use std::time::Duration;

use api::duration::parse_go_duration;
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::node::{CgroupDriver, MemoryReservation, SwapBehavior};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";
/// The gates of [`FeatureGates`].
const GATES: [&str; 2] = ["ContainerStopSignals", "MemoryQoS"];

/// The fields of a KubeletConfiguration that the agent honours; `None`: absent from the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are Kubernetes'")]
pub struct KubeletConfiguration {
    pub max_pods: Option<u32>,
    pub allowed_unsafe_sysctls: Option<Vec<String>>,
    pub system_reserved: Option<BTreeMap<String, String>>,
    pub kube_reserved: Option<BTreeMap<String, String>>,
    pub register_with_taints: Option<Vec<Taint>>,
    pub container_log_max_size: Option<String>,
    pub container_log_max_files: Option<usize>,
    #[serde(deserialize_with = "duration")]
    pub container_log_monitor_interval: Option<Duration>,
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<u32>,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: Option<u32>,
    pub registry_burst: Option<u32>,
    pub image_pull_credentials_verification_policy: Option<String>,
    pub preloaded_images_verification_allowlist: Option<Vec<String>>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<u8>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<u8>,
    #[serde(rename = "imageMinimumGCAge", deserialize_with = "duration")]
    pub image_minimum_gc_age: Option<Duration>,
    #[serde(rename = "imageMaximumGCAge", deserialize_with = "duration")]
    pub image_maximum_gc_age: Option<Duration>,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Option<Vec<String>>,
    pub cluster_domain: Option<String>,
    pub resolv_conf: Option<String>,
    pub static_pod_path: Option<String>,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: Option<String>,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: Option<BTreeMap<String, Vec<String>>>,
    #[serde(deserialize_with = "duration")]
    pub file_check_frequency: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    pub http_check_frequency: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    pub sync_frequency: Option<Duration>,
    pub port: Option<u16>,
    pub address: Option<String>,
    pub tls_cert_file: Option<String>,
    pub tls_private_key_file: Option<String>,
    pub rotate_certificates: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: Option<bool>,
    pub authentication: Option<Authentication>,
    pub authorization: Option<Authorization>,
    pub healthz_port: Option<u16>,
    pub read_only_port: Option<u16>,
    pub healthz_bind_address: Option<String>,
    pub crash_loop_back_off: Option<CrashLoopBackOff>,
    pub memory_swap: Option<MemorySwap>,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: Option<bool>,
    pub cgroup_driver: Option<CgroupDriver>,
    pub cgroup_root: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod", deserialize_with = "duration")]
    pub cpu_cfs_quota_period: Option<Duration>,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub memory_throttling_factor: Option<f64>,
    pub memory_reservation_policy: Option<MemoryReservation>,
    pub seccomp_default: Option<bool>,
    pub pod_logs_dir: Option<String>,
    pub feature_gates: Option<FeatureGates>,
}

/// `featureGates`: those that the agent has a switch for. Others are known to Kubernetes and have no effect here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct FeatureGates {
    /// Whether `lifecycle.stopSignal` counts.
    #[serde(rename = "ContainerStopSignals")]
    pub container_stop_signals: Option<bool>,
    /// Whether memory is shared as `memoryThrottlingFactor` and `memoryReservationPolicy` say.
    #[serde(rename = "MemoryQoS")]
    pub memory_qos: Option<bool>,
}

/// `authentication`: who clients of the node's server are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Authentication {
    /// Clients with a certificate.
    pub x509: Option<X509Authentication>,
    /// Clients without credentials.
    pub anonymous: Option<AnonymousAuthentication>,
    /// Clients with a token.
    pub webhook: Option<WebhookAuthentication>,
}

/// `authentication.x509`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct X509Authentication {
    /// The file with the authorities of the certificates.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<String>,
}

/// `authentication.anonymous`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnonymousAuthentication {
    /// Whether they are admitted.
    pub enabled: Option<bool>,
}

/// `authentication.webhook`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookAuthentication {
    /// Whether the API server reviews the tokens.
    pub enabled: Option<bool>,
    /// How long its answers count.
    #[serde(rename = "cacheTTL", deserialize_with = "duration")]
    pub cache_ttl: Option<Duration>,
}

/// `authorization`: what clients of the node's server may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Authorization {
    /// `Webhook` or `AlwaysAllow`.
    pub mode: Option<String>,
    /// How the API server is asked.
    pub webhook: Option<WebhookAuthorization>,
}

/// `authorization.webhook`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookAuthorization {
    /// How long its permissions count.
    #[serde(rename = "cacheAuthorizedTTL", deserialize_with = "duration")]
    pub cache_authorized_ttl: Option<Duration>,
    /// How long its refusals count.
    #[serde(rename = "cacheUnauthorizedTTL", deserialize_with = "duration")]
    pub cache_unauthorized_ttl: Option<Duration>,
}

/// `crashLoopBackOff`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CrashLoopBackOff {
    /// The longest delay between restarts, 1 s to 300 s.
    #[serde(deserialize_with = "duration")]
    pub max_container_restart_period: Option<Duration>,
}

/// `memorySwap`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MemorySwap {
    /// Which containers may use swap; an empty one means `NoSwap`.
    pub swap_behavior: SwapBehavior,
}

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum KubeletConfigError {
    /// It is not YAML.
    #[error("it is not valid YAML or JSON: {0}")]
    Syntax(String),
    /// It is another kind of document.
    #[error("expected apiVersion {API_VERSION} and kind {KIND}")]
    Kind,
    /// A field has another type or form.
    #[error("{field}: {message}")]
    Field {
        /// The field.
        field: String,
        /// What is wrong.
        message: String,
    },
}

/// Reads a configuration file. Also returns the names of the fields that have no effect on the agent.
///
/// # Errors
///
/// Fails if it is no KubeletConfiguration, or if a field that the agent honours is malformed.
pub fn parse(text: &str) -> Result<(KubeletConfiguration, Vec<String>), KubeletConfigError> {
    let document: Value = serde_saphyr::from_str(text)
        .map_err(|error| KubeletConfigError::Syntax(error.to_string()))?;
    let Value::Object(mut fields) = document else {
        return Err(KubeletConfigError::Kind);
    };
    let is = |value: Option<Value>, expected: &str| value.is_some_and(|value| value == expected);
    if !is(fields.remove("apiVersion"), API_VERSION) || !is(fields.remove("kind"), KIND) {
        return Err(KubeletConfigError::Kind);
    }
    let mut supported = serde_json::Map::new();
    let mut ignored = Vec::new();
    for (field, value) in fields {
        let alone = Value::Object([(field.clone(), value.clone())].into_iter().collect());
        match serde_json::from_value::<KubeletConfiguration>(alone) {
            Ok(_) => {
                if field == "featureGates" {
                    let gates = value.as_object().into_iter().flatten();
                    let others = gates.filter(|(gate, _)| !GATES.contains(&gate.as_str()));
                    ignored.extend(others.map(|(gate, _)| format!("featureGates.{gate}")));
                }
                supported.insert(field, value);
            }
            Err(error) if error.to_string().starts_with(&format!("unknown field `{field}`")) => {
                ignored.push(field);
            }
            Err(error) => {
                let message = error.to_string();
                return Err(KubeletConfigError::Field { field, message });
            }
        }
    }
    let parsed = serde_json::from_value(Value::Object(supported));
    let parsed = parsed.map_err(|error| KubeletConfigError::Syntax(error.to_string()))?;
    Ok((parsed, ignored))
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let nanos = parse_go_duration(&text).and_then(|nanos| u64::try_from(nanos).ok());
    let nanos = nanos.ok_or_else(|| {
        serde::de::Error::custom(format!("invalid duration {text:?}: expected 10s, 1m30s or 2h"))
    })?;
    Ok(Some(Duration::from_nanos(nanos)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    #[test]
    fn supported_fields_are_read_and_others_are_named() {
        let text = format!(
            "{HEAD}maxPods: 20\nregistryPullQPS: 0\nimageMinimumGCAge: 5m0s\nsystemReserved: {{cpu: 500m}}\n\
             authentication: {{anonymous: {{enabled: false}}, webhook: {{cacheTTL: 0s, enabled: true}}, x509: {{clientCAFile: /ca}}}}\n\
             authorization: {{mode: Webhook, webhook: {{cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 5s}}}}\nregisterWithTaints:\n- {{key: a, effect: NoSchedule}}\n\
             crashLoopBackOff: {{maxContainerRestartPeriod: 30s}}\ncgroupDriver: systemd\ncgroupsPerQOS: true\n\
             cpuCFSQuotaPeriod: 10ms\nsingleProcessOOMKill: false\npodLogsDir: /logs\ncpuManagerPolicy: none\n\
             memorySwap: {{swapBehavior: LimitedSwap}}\nfeatureGates: {{ContainerStopSignals: true, DisableNodeKubeProxyVersion: true}}\n"
        );
        let (config, ignored) = parse(&text).unwrap();
        assert_eq!(config.max_pods, Some(20));
        assert_eq!(config.registry_pull_qps, Some(0));
        assert_eq!(config.image_minimum_gc_age, Some(Duration::from_secs(300)));
        assert_eq!(config.system_reserved.unwrap()["cpu"], "500m");
        assert_eq!(config.register_with_taints.unwrap()[0].effect, "NoSchedule");
        let period = config.crash_loop_back_off.unwrap().max_container_restart_period;
        assert_eq!(period, Some(Duration::from_secs(30)));
        let swap = config.memory_swap.unwrap();
        assert_eq!(swap.swap_behavior, SwapBehavior::LimitedSwap);
        let gates = config.feature_gates.unwrap();
        assert_eq!(gates.container_stop_signals, Some(true));
        assert_eq!(config.cgroup_driver, Some(CgroupDriver::Systemd));
        assert_eq!(config.cgroups_per_qos, Some(true));
        assert_eq!(config.cpu_cfs_quota_period, Some(Duration::from_millis(10)));
        assert_eq!(config.single_process_oom_kill, Some(false));
        assert_eq!(config.pod_logs_dir.as_deref(), Some("/logs"));
        let authentication = config.authentication.unwrap();
        assert_eq!(authentication.anonymous.unwrap().enabled, Some(false));
        assert_eq!(authentication.x509.unwrap().client_ca_file.as_deref(), Some("/ca"));
        let reviews = config.authorization.unwrap().webhook.unwrap();
        assert_eq!(reviews.cache_unauthorized_ttl, Some(Duration::from_secs(5)));
        assert_eq!(ignored, ["cpuManagerPolicy", "featureGates.DisableNodeKubeProxyVersion"]);
    }

    #[rstest]
    #[case("{}")]
    #[case("{swapBehavior: ''}")]
    #[case("{swapBehavior: NoSwap}")]
    fn swap_is_forbidden_by_default(#[case] value: &str) {
        let (config, _) = parse(&format!("{HEAD}memorySwap: {value}\n")).unwrap();
        assert_eq!(config.memory_swap, Some(MemorySwap::default()));
        assert_eq!(SwapBehavior::default(), SwapBehavior::NoSwap);
    }

    #[rstest]
    #[case("maxPods: 1", "expected apiVersion")]
    #[case("- 1", "expected apiVersion")]
    #[case("a: [", "it is not valid YAML or JSON")]
    fn other_documents_are_refused(#[case] text: &str, #[case] words: &str) {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[rstest]
    #[case("featureGates: {ContainerStopSignals: maybe}", "featureGates: invalid type")]
    #[case(
        "cgroupDriver: runit",
        "cgroupDriver: unknown variant `runit`, expected `cgroupfs` or `systemd`"
    )]
    #[case("maxPods: many", "maxPods: invalid type")]
    #[case("maxPods: -1", "maxPods: invalid value")]
    #[case("syncFrequency: soon", "syncFrequency: invalid duration \"soon\"")]
    #[case("syncFrequency: -1s", "syncFrequency: invalid duration \"-1s\"")]
    #[case("crashLoopBackOff: {most: 1s}", "crashLoopBackOff: unknown field `most`")]
    #[case(
        "memorySwap: {swapBehavior: UnlimitedSwap}",
        "memorySwap: unknown variant `UnlimitedSwap`, expected one of ``, `NoSwap`, `LimitedSwap`"
    )]
    #[case("maxPods: 1\nmaxPods: 2", "duplicate")]
    fn malformed_fields_are_refused(#[case] line: &str, #[case] words: &str) {
        let error = parse(&format!("{HEAD}{line}\n")).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
