//! ◆ Plans a DaemonSet: one pod on the node, which tolerates the node's conditions. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/daemon/util/daemonset_util.go.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSpec, Toleration};

use super::owned::{OwnedPod, Plan};
use super::replica_set::{self, Failures};

/// The taints of a node's conditions.
const TAINTS: [(&str, &str); 6] = [
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
];

/// Plans the one pod.
pub fn plan(pods: &[OwnedPod], failures: Failures, capacity: usize, now: Timestamp) -> Plan {
    replica_set::plan(1, pods, failures, capacity, now)
}

/// Adds tolerations of the taints of the node's conditions to a pod.
pub(super) fn tolerate(spec: &mut PodSpec) {
    let network =
        (spec.host_network == Some(true)).then_some(("network-unavailable", "NoSchedule"));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in TAINTS.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}
