//! ◆ The kubelet's Summary API: resource usage of a node and its pods, as JSON. Unknown values are absent. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go: the same fields in the same order.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// The summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) node: NodeStats,
    pub(crate) pods: Vec<PodStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeStats {
    pub(crate) node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) system_containers: Vec<ContainerStats>,
    pub(crate) start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rlimit: Option<RlimitStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RlimitStats {
    pub(crate) time: Time,
    #[serde(rename = "maxpid", skip_serializing_if = "Option::is_none")]
    pub(crate) max_pid: Option<u64>,
    #[serde(rename = "curproc", skip_serializing_if = "Option::is_none")]
    pub(crate) running: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuntimeStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image_fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container_fs: Option<FsStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodStats {
    pub(crate) pod_ref: PodReference,
    pub(crate) start_time: Time,
    pub(crate) containers: Vec<ContainerStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub(crate) ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub(crate) processes: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PodReference {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerStats {
    /// The runtime's ID of the container, which the API does not have.
    #[serde(skip)]
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ProcessStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process_count: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CpuStats {
    pub(crate) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) psi: Option<Psi>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemoryStats {
    pub(crate) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) psi: Option<Psi>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct IoStats {
    pub(crate) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) psi: Option<Psi>,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Psi {
    pub(crate) full: PsiData,
    pub(crate) some: PsiData,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PsiData {
    pub(crate) total: u64,
    pub(crate) avg10: f64,
    pub(crate) avg60: f64,
    pub(crate) avg300: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SwapStats {
    pub(crate) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NetworkStats {
    pub(crate) time: Time,
    /// The default interface.
    #[serde(flatten)]
    pub(crate) default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) interfaces: Vec<InterfaceStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InterfaceStats {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tx_errors: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FsStats {
    pub(crate) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeStats {
    #[serde(flatten)]
    pub(crate) fs: FsStats,
    pub(crate) name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub(crate) claim: Option<ClaimReference>,
    #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<VolumeHealth>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct VolumeHealth {
    #[serde(rename = "abnormal")]
    pub(crate) is_abnormal: bool,
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ClaimReference {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// A time in Kubernetes' format: whole seconds, or null if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Option<Timestamp>);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(Some(at))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(at) => serializer.collect_str(&at.strftime("%Y-%m-%dT%H:%M:%SZ")),
            None => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_those_of_kubernetes_and_unknown_values_are_absent() {
        let at: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let time = Time::from(at);
        let fs = FsStats { time, used_bytes: Some(1), inodes_used: Some(2), ..FsStats::default() };
        let pod = PodStats {
            pod_ref: PodReference {
                name: "p".to_owned(),
                namespace: "ns".to_owned(),
                uid: "u".to_owned(),
            },
            start_time: time,
            cpu: Some(CpuStats { time, usage_nano_cores: Some(3), ..CpuStats::default() }),
            network: Some(NetworkStats {
                time,
                default: InterfaceStats {
                    name: "eth0".to_owned(),
                    rx_bytes: Some(0),
                    ..InterfaceStats::default()
                },
                interfaces: Vec::new(),
            }),
            volumes: vec![VolumeStats {
                fs: fs.clone(),
                name: "v".to_owned(),
                claim: Some(ClaimReference { name: "c".to_owned(), namespace: "ns".to_owned() }),
                health: Some(VolumeHealth { is_abnormal: true }),
            }],
            ephemeral_storage: Some(fs.clone()),
            processes: Some(ProcessStats { process_count: Some(4) }),
            ..PodStats::default()
        };
        let rlimit = RlimitStats { time, max_pid: Some(5), running: Some(6) };
        let node = NodeStats {
            node_name: "n1".to_owned(),
            system_containers: vec![ContainerStats {
                name: "kubelet".to_owned(),
                ..ContainerStats::default()
            }],
            rlimit: Some(rlimit),
            runtime: Some(RuntimeStats { image_fs: Some(fs), container_fs: None }),
            ..NodeStats::default()
        };
        let when = "2026-01-02T03:04:05Z";
        let used = json!({"time": when, "usedBytes": 1, "inodesUsed": 2});
        let expected = json!({
            "node": {
                "nodeName": "n1",
                "systemContainers": [{"name": "kubelet", "startTime": null}],
                "startTime": null,
                "runtime": {"imageFs": used},
                "rlimit": {"time": when, "maxpid": 5, "curproc": 6},
            },
            "pods": [{
                "podRef": {"name": "p", "namespace": "ns", "uid": "u"},
                "startTime": when,
                "containers": [],
                "cpu": {"time": when, "usageNanoCores": 3},
                "network": {"time": when, "name": "eth0", "rxBytes": 0},
                "volume": [{"time": when, "usedBytes": 1, "inodesUsed": 2, "name": "v",
                    "pvcRef": {"name": "c", "namespace": "ns"}, "volumeHealthStats": {"abnormal": true}}],
                "ephemeral-storage": used,
                "process_stats": {"process_count": 4},
            }],
        });
        let summary = Summary { node, pods: vec![pod] };
        assert_eq!(serde_json::to_value(summary).unwrap(), expected);
    }
}
