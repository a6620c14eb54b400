//! Sends the ranges of the pods' addresses (`spec.podCIDRs`) to the runtime when the node gets or changes them.
//!
//! The kubelet checks them when it computes the node's status, every 10 s. The agent sends them as soon as it sees them in the
//! node's object, and new pods wait for the runtime's answer, because a runtime may accept ranges only before its first pod. The
//! agent sends rejected ranges again.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_node_status.go updateNode, pkg/kubelet/kubelet_network.go updatePodCIDR.

use std::sync::Arc;
use std::time::Duration;

use agent::cri::Cri;
use agent::objects::{ObjectMap, ObjectStore};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::limits::NodeLimits;

/// The delay before rejected ranges are sent again.
const RETRY: Duration = Duration::from_secs(10);
/// How long new pods wait for the runtime's answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The reason of the limitation that pods have no addresses of the node's ranges.
const REASON: &str = "PodCIDRNotUsed";

/// The ranges last sent to the runtime, whatever its answer.
pub(crate) type SentPodCidrs = watch::Sender<Option<String>>;

/// ◆ The node's ranges in the format of UpdateRuntimeConfig; `None` if the node has none or is unknown.
fn ranges(objects: &ObjectMap) -> Option<String> {
    let spec = objects.node()?.spec.as_ref()?;
    let ranges = spec.pod_cidrs.clone().unwrap_or_default().join(",");
    (!ranges.is_empty()).then_some(ranges)
}

/// Waits until the runtime has answered about the node's current ranges, or for [`SEND_TIMEOUT`].
pub(crate) async fn wait_until_sent(
    store: &ObjectStore,
    sent_cidrs: &mut watch::Receiver<Option<String>>,
) {
    if let Some(ranges) = ranges(&store.current()) {
        let is_sent = |sent_cidrs: &Option<String>| sent_cidrs.as_ref() == Some(&ranges);
        let _ = timeout(SEND_TIMEOUT, sent_cidrs.wait_for(is_sent)).await;
    }
}

/// Sends the ranges to the runtime whenever they change.
pub(crate) async fn run(
    store: Arc<ObjectStore>,
    cri: Arc<dyn Cri>,
    sent_cidrs: SentPodCidrs,
    limits: NodeLimits,
) {
    let mut changes = store.changes();
    let mut accepted = None;
    loop {
        let current = ranges(&store.current());
        // If the node loses its ranges, the runtime keeps them, as with the kubelet.
        let mut is_rejected = false;
        if let Some(ranges) = current.filter(|current| accepted.as_ref() != Some(current)) {
            let answer = cri.update_pod_cidr(&ranges).await;
            is_rejected = answer.is_err();
            limits.set(REASON, answer.as_ref().err().map(|error| error.message.clone()));
            match answer {
                Ok(()) => {
                    tracing::info!(ranges, "updated the runtime's pod CIDRs");
                    accepted = Some(ranges.clone());
                }
                Err(error) => tracing::warn!(
                    ranges, %error, "failed to update the runtime's pod CIDRs; will retry"
                ),
            }
            sent_cidrs.send_replace(Some(ranges));
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = sleep(RETRY), if is_rejected => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::none_yet(json!({}), None)]
    #[case::no_spec(Value::Null, None)]
    #[case::one(json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]}), Some("10.244.0.0/24"))]
    #[case::both_families(json!({"podCIDRs": ["10.244.0.0/24", "fd00::/64"]}), Some("10.244.0.0/24,fd00::/64"))]
    // The kubelet uses only the list.
    #[case::one_alone(json!({"podCIDR": "10.244.0.0/24"}), None)]
    fn ranges_are_those_of_the_list(#[case] spec: Value, #[case] expected: Option<&str>) {
        let mut objects = ObjectMap::default();
        assert_eq!(ranges(&objects), None);
        objects.set_node(serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap());
        assert_eq!(ranges(&objects).as_deref(), expected);
    }
}
