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
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// The reason of the limitation that pods have no addresses of the node's ranges.
const REASON: &str = "PodCIDRNotUsed";

/// The ranges last sent to the runtime, whatever its answer.
pub(crate) type ToldRanges = watch::Sender<Option<String>>;

/// ◆ The node's ranges in the format of UpdateRuntimeConfig; `None` if the node has none or is unknown.
fn ranges(objects: &ObjectMap) -> Option<String> {
    let spec = objects.node()?.spec.as_ref()?;
    let ranges = spec.pod_cidrs.clone().unwrap_or_default().join(",");
    (!ranges.is_empty()).then_some(ranges)
}

/// Waits until the runtime has answered about the node's current ranges, or for [`FIRST_ANSWER`].
pub(crate) async fn wait_until_told(
    store: &ObjectStore,
    told: &mut watch::Receiver<Option<String>>,
) {
    if let Some(ranges) = ranges(&store.current()) {
        let is_told = |told: &Option<String>| told.as_ref() == Some(&ranges);
        let _ = timeout(FIRST_ANSWER, told.wait_for(is_told)).await;
    }
}

/// Sends the ranges to the runtime whenever they change.
pub(crate) async fn run(
    store: Arc<ObjectStore>,
    cri: Arc<dyn Cri>,
    told: ToldRanges,
    limits: NodeLimits,
) {
    let mut changes = store.changes();
    let mut taken = None;
    loop {
        let wanted = ranges(&store.current());
        // If the node loses its ranges, the runtime keeps them, as with the kubelet.
        let mut refused = false;
        if let Some(ranges) = wanted.filter(|wanted| taken.as_ref() != Some(wanted)) {
            let answer = cri.update_pod_cidr(&ranges).await;
            refused = answer.is_err();
            limits.set(REASON, answer.as_ref().err().map(|error| error.message.clone()));
            match answer {
                Ok(()) => {
                    tracing::info!(ranges, "told the runtime the ranges of pods' addresses");
                    taken = Some(ranges.clone());
                }
                Err(error) => tracing::warn!(
                    ranges, %error, "the runtime does not take the ranges of pods' addresses; will retry"
                ),
            }
            told.send_replace(Some(ranges));
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = sleep(RETRY), if refused => {}
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
