//! ◆ The order in which pending resizes are decided.
//!
//! First the resizes that request no more than is allocated, then by priority, by QoS class, and by how long they have been
//! deferred.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/allocation/allocation_manager.go sortPendingResizes.

use api::pod::Pod;
use api::qos::{QosClass, qos_class};
use jiff::Timestamp;

use crate::pod_spec::spec::resources::pod_requests;

/// The sort key of a pending resize.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// It requests more CPU or memory.
    increases: bool,
    /// The highest priority first.
    priority: std::cmp::Reverse<i32>,
    /// Guaranteed pods first.
    not_guaranteed: bool,
    /// New resizes last.
    is_new: bool,
    /// The longest wait first.
    since: Option<Timestamp>,
}

impl Rank {
    /// The sort key of a resize from `allocated` to `desired`, pending since `since`.
    pub(crate) fn of(desired: &Pod, allocated: &Pod, since: Option<Timestamp>) -> Self {
        let (new, old) = (pod_requests(desired), pod_requests(allocated));
        let more = |name: &str| match (new.get(name), old.get(name)) {
            (Some(new), Some(old)) => new > old,
            (Some(new), None) => *new > api::quantity::Quantity::ZERO,
            (None, _) => false,
        };
        Self {
            increases: more("cpu") || more("memory"),
            priority: std::cmp::Reverse(desired.spec().priority.unwrap_or_default()),
            not_guaranteed: qos_class(desired) != QosClass::Guaranteed,
            is_new: since.is_none(),
            since,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn rank(cpu: &str, priority: i32, guaranteed: bool, since: Option<i64>) -> Rank {
        let pod = |cpu: &str| {
            let mut resources = json!({"requests": {"cpu": cpu, "memory": "1Gi"}});
            if guaranteed {
                resources["limits"] = resources["requests"].clone();
            }
            let spec = json!({"priority": priority, "containers": [{"name": "a", "resources": resources}]});
            fixtures::pod(json!({"spec": spec}))
        };
        let since = since.map(|second| Timestamp::from_second(second).unwrap());
        Rank::of(&pod(cpu), &pod("1"), since)
    }

    #[test]
    fn resizes_are_decided_in_order() {
        let order = [
            rank("500m", 0, false, None),
            rank("2", 9, false, None),
            rank("2", 1, true, None),
            rank("2", 1, false, Some(5)),
            rank("2", 1, false, Some(7)),
            rank("2", 1, false, None),
            rank("2", 0, true, Some(1)),
        ];
        assert!(order.is_sorted(), "{order:#?}");
    }
}
