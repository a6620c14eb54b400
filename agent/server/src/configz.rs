//! ◆ `/configz`: the configuration in use, as a KubeletConfiguration. Fields that do not apply to the agent are absent. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/component-base/configz and k8s.io/kubelet/config/v1beta1/types.go.

use std::net::IpAddr;
use std::path::Path;

use agent::local_node::kubelet_config::{
    GateState, Gates, KubeletConfiguration, effective, followed_gates,
};
use agent::{CgroupDriver, Config, MemoryReservation};
use api::duration::go_duration as duration;
use compact::Map;
use serde_json::{Value, json};

use super::{Authorization, Settings};

/// The ports besides the server's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherPorts {
    /// The port of the health endpoint; 0: none.
    pub healthz: u16,
    /// The read-only port; 0: none.
    pub read_only: u16,
    /// The address of both ports.
    pub address: IpAddr,
}

/// The configuration: the kubelet's defaults, overridden by `file`, and both overridden by the agent's effective settings and
/// flags.
pub(crate) fn configz(
    config: &Config,
    file: &KubeletConfiguration,
    settings: &Settings,
    others: OtherPorts,
) -> Value {
    let mut fields = effective(file);
    let parts =
        [server(settings, others), pods(config), images(config), cgroups(config), eviction(config)];
    for part in parts {
        if let Value::Object(part) = part {
            for (name, value) in part {
                match (value, name.as_str()) {
                    // The agent does not have this field.
                    (Value::Null, _) => drop(fields.remove(&name)),
                    (Value::Object(gates), "featureGates") => {
                        let known = fields.entry(name).or_insert_with(|| json!({}));
                        known.as_object_mut().into_iter().for_each(|all| all.extend(gates.clone()));
                    }
                    (value, _) => drop(fields.insert(name, value)),
                }
            }
        }
    }
    json!({"kubeletconfig": fields})
}

fn server(settings: &Settings, others: OtherPorts) -> Value {
    let (mode, webhook) = match settings.authorization {
        Authorization::AlwaysAllow => ("AlwaysAllow", json!({})),
        Authorization::Webhook { allowed_ttl, denied_ttl } => {
            let (allowed, refused) = (duration(allowed_ttl), duration(denied_ttl));
            ("Webhook", json!({"cacheAuthorizedTTL": allowed, "cacheUnauthorizedTTL": refused}))
        }
    };
    let reviews = settings.token_reviews;
    let authority = settings.client_authority.as_deref().map(path);
    let x509 = authority.map_or_else(|| json!({}), |file| json!({"clientCAFile": file}));
    json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "address": settings.address.ip().to_string(),
        "port": settings.address.port(),
        "readOnlyPort": others.read_only,
        "healthzPort": others.healthz,
        "healthzBindAddress": others.address.to_string(),
        "tlsCertFile": path(&settings.certificate.certificate),
        "tlsPrivateKeyFile": path(&settings.certificate.key),
        "authentication": {
            "x509": x509,
            "webhook": {"enabled": reviews.is_some(), "cacheTTL": duration(reviews.unwrap_or_default())},
            "anonymous": {"enabled": settings.anonymous},
        },
        "authorization": {"mode": mode, "webhook": webhook},
        "enableDebuggingHandlers": settings.handlers.debugging,
        "enableSystemLogHandler": settings.handlers.system_logs.is_some(),
    })
}

fn pods(config: &Config) -> Value {
    let rules = &config.admission;
    let logs = config.log_rotation;
    let gates: Map<&str, bool> = own_gates(config).into_iter().collect();
    json!({
        "podLogsDir": path(&config.pod_logs_dir),
        "syncFrequency": duration(config.resync_period),
        "clusterDomain": config.cluster_domain,
        "clusterDNS": config.cluster_dns,
        "resolvConf": config.resolv_conf.as_deref().map_or_else(String::new, path),
        "maxPods": rules.max_pods,
        "allowedUnsafeSysctls": rules.allowed_unsafe_sysctls,
        "registerWithTaints": rules.taints,
        "systemReserved": rules.system_reserved,
        "kubeReserved": rules.kube_reserved,
        "containerLogMaxSize": logs.map(|logs| logs.max_size.to_string()),
        "containerLogMaxFiles": logs.map(|logs| logs.max_files),
        "containerLogMonitorInterval": logs.map(|logs| duration(logs.period)),
        "crashLoopBackOff": {"maxContainerRestartPeriod": duration(config.crash_backoff.1)},
        "memorySwap": {"swapBehavior": format!("{:?}", config.swap_behavior)},
        "seccompDefault": config.seccomp_default,
        "featureGates": gates,
    })
}

/// The gates whose values are among the agent's own settings, which a file need not have set.
fn own_gates(config: &Config) -> [(&'static str, bool); 4] {
    [
        ("ContainerStopSignals", config.container_stop_signals),
        ("EventedPLEG", config.event_driven_pleg),
        ("MemoryQoS", config.cgroups.memory_qos.is_some()),
        ("PodLogsQuerySplitStreams", config.selects_log_streams),
    ]
}

/// The feature gates that an agent with this configuration uses, and their values.
pub(crate) fn feature_gates(config: &Config, gates: &Gates) -> Vec<GateState> {
    let own = own_gates(config);
    let with_own = |mut gate: GateState| {
        if let Some((_, enabled)) = own.iter().find(|(name, _)| *name == gate.name) {
            gate.enabled = *enabled;
        }
        gate
    };
    followed_gates(gates).into_iter().map(with_own).collect()
}

fn images(config: &Config) -> Value {
    let images = &config.images;
    // A threshold of 100 percent disables garbage collection.
    let (high, low) = images.garbage_collection.as_ref().map_or((100, 100), |it| it.thresholds());
    let ages = images.garbage_collection.as_ref().map(|policy| policy.ages());
    json!({
        "serializeImagePulls": images.serialize_image_pulls,
        "maxParallelImagePulls": images.max_parallel_image_pulls,
        "registryPullQPS": images.registry_pull_qps,
        "registryBurst": images.registry_burst,
        "imageGCHighThresholdPercent": high,
        "imageGCLowThresholdPercent": low,
        "imageMinimumGCAge": ages.map(|(minimum, _)| duration(minimum)),
        "imageMaximumGCAge": ages.map(|(_, maximum)| duration(maximum)),
    })
}

fn eviction(config: &Config) -> Value {
    let Some(settings) = &config.eviction else {
        return json!({"evictionHard": {}});
    };
    let amounts = &settings.config;
    json!({
        "evictionHard": amounts.hard,
        "evictionSoft": amounts.soft,
        "evictionSoftGracePeriod": amounts.soft_grace_period,
        "evictionMinimumReclaim": amounts.minimum_reclaim,
        "evictionMaxPodGracePeriod": settings.max_pod_grace_seconds,
        "evictionPressureTransitionPeriod": duration(settings.transition_period),
        "kernelMemcgNotification": settings.kernel_notifies,
    })
}

fn cgroups(config: &Config) -> Value {
    let cgroups = &config.cgroups;
    let driver = match cgroups.driver {
        CgroupDriver::Cgroupfs => "cgroupfs",
        CgroupDriver::Systemd => "systemd",
    };
    let reserved = [
        ("system-reserved", &cgroups.enforced.system_reserved),
        ("kube-reserved", &cgroups.enforced.kube_reserved),
    ];
    let mut enforced: Vec<String> = Vec::new();
    if cgroups.per_qos && cgroups.enforced.pods {
        enforced.push("pods".to_owned());
    }
    enforced.extend(reserved.iter().filter_map(|(name, cgroup)| {
        let end = if cgroup.as_ref()?.compressible { "-compressible" } else { "" };
        Some(format!("{name}{end}"))
    }));
    if enforced.is_empty() {
        enforced.push("none".to_owned());
    }
    let qos = cgroups.memory_qos;
    let reservation = qos.map(|qos| match qos.reservation {
        MemoryReservation::None => "None",
        MemoryReservation::TieredReservation => "TieredReservation",
    });
    json!({
        "cgroupsPerQOS": cgroups.per_qos,
        "cgroupDriver": driver,
        "cgroupRoot": cgroups.root,
        "podPidsLimit": cgroups.pod_pids_limit.unwrap_or(-1),
        "enforceNodeAllocatable": enforced,
        "cpuCFSQuota": cgroups.cpu_quota,
        "cpuCFSQuotaPeriod": duration(cgroups.cpu_quota_period),
        "singleProcessOOMKill": cgroups.single_process_oom_kill,
        "memoryThrottlingFactor": qos.map(|qos| qos.throttling_factor),
        "memoryReservationPolicy": reservation,
    })
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::PathBuf;
    use std::time::Duration;

    use agent::local_node::kubelet_config;

    use super::*;
    use crate::KeyPairFiles;

    #[test]
    fn configuration_has_the_values_in_use() {
        let mut config = Config::new(PathBuf::from("/agent"), PathBuf::from("/logs"));
        config.admission.max_pods = Some(7);
        let settings = Settings {
            any_port: false,
            address: ([127, 0, 0, 1], 10250).into(),
            certificate: KeyPairFiles { certificate: "/a.crt".into(), key: "/a.key".into() },
            reloads_certificate: true,
            signed: None,
            client_authority: Some("/ca.crt".into()),
            reloads_client_authority: true,
            reads_user_ids: true,
            anonymous: false,
            token_reviews: Some(Duration::from_secs(120)),
            authorization: Authorization::Webhook {
                allowed_ttl: Duration::from_secs(300),
                denied_ttl: Duration::from_secs(30),
            },
            requires_tls_1_3: false,
            handlers: crate::Handlers::default(),
            cipher_suites: Vec::new(),
        };
        let others = OtherPorts { healthz: 10248, read_only: 0, address: [127, 0, 0, 1].into() };
        let file = KubeletConfiguration {
            static_pod_path: Some("/pods".to_owned()),
            ..KubeletConfiguration::default()
        };
        let shown = configz(&config, &file, &settings, others);
        let shown = &shown["kubeletconfig"];
        assert_eq!(shown["kind"], "KubeletConfiguration");
        assert_eq!((&shown["port"], &shown["maxPods"]), (&json!(10250), &json!(7)));
        let authentication = json!({
            "x509": {"clientCAFile": "/ca.crt"},
            "webhook": {"enabled": true, "cacheTTL": "2m0s"},
            "anonymous": {"enabled": false},
        });
        assert_eq!(shown["authentication"], authentication);
        assert_eq!(shown["authorization"]["webhook"]["cacheUnauthorizedTTL"], "30s");
        assert_eq!(shown["memorySwap"]["swapBehavior"], "NoSwap");
        assert_eq!(shown["imageGCHighThresholdPercent"], 85);
        assert_eq!(shown.get("maxParallelImagePulls"), None);
        assert_eq!(
            (&shown["staticPodPath"], &shown["syncFrequency"]),
            (&json!("/pods"), &json!("1m0s"))
        );
        let mut gates = feature_gates(&config, &Gates::default()).into_iter();
        let shown_gates = &shown["featureGates"];
        assert!(gates.all(|gate| shown_gates[gate.name] == gate.enabled), "{shown_gates}");
        // The agent accepts the shown configuration as a file.
        let parsed = kubelet_config::parse(&shown.to_string()).unwrap();
        let normalized = kubelet_config::normalized(&parsed.document).unwrap();
        let checked = kubelet_config::check(&normalized).unwrap();
        assert_eq!((parsed.unknown, checked.without_effect.len()), (Vec::new(), 0));
    }
}
