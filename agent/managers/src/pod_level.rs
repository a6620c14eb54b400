//! ◆ Pods with pod-level resources (`spec.resources`), and which of their containers get exclusive resources. Pure.
//!
//! Source: Kubernetes 1.36, component-helpers/resource/helpers.go IsPodLevelResourcesSet, pkg/kubelet/cm/qos/helpers.go.

use api::pod::Pod;
use api::quantity::Quantity;
use api::totals::{Kind, amount, is_for_pods};
use k8s_openapi::api::core::v1::Container;

/// How managers handle a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Management {
    /// By container: the pod has no pod-level resources.
    Containers,
    /// Its containers share the node's resources: it has pod-level resources, and the gate PodLevelResourceManagers is off.
    Shared,
    /// By its pod-level resources: the gate is on.
    PodLevel,
}

impl Management {
    /// How managers handle this pod. `gate`: PodLevelResourceManagers is on.
    pub(crate) fn of(pod: &Pod, gate: bool) -> Self {
        match (has_resources(pod), gate) {
            (false, _) => Self::Containers,
            (true, false) => Self::Shared,
            (true, true) => Self::PodLevel,
        }
    }

    /// Whether a container of a Guaranteed pod gets exclusive resources.
    pub(crate) fn is_exclusive(self, container: &Container) -> bool {
        match self {
            Self::Containers => true,
            Self::Shared => false,
            Self::PodLevel => is_guaranteed(container),
        }
    }
}

/// Whether the pod has pod-level resources.
fn has_resources(pod: &Pod) -> bool {
    let resources = pod.spec().resources.as_ref();
    let lists = [Kind::Requests, Kind::Limits].map(|kind| kind.of(resources));
    lists.into_iter().flatten().flatten().any(|(name, _)| is_for_pods(name))
}

/// Whether a container requests CPU and memory with equal limits.
fn is_guaranteed(container: &Container) -> bool {
    let get = |kind: Kind, name: &str| {
        kind.of(container.resources.as_ref())
            .and_then(|list| list.get(name))
            .map_or(Quantity::ZERO, amount)
    };
    ["cpu", "memory"].into_iter().all(|name| {
        let request = get(Kind::Requests, name);
        !request.is_zero() && request == get(Kind::Limits, name)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::none(json!(null), Management::Containers)]
    #[case::empty(json!({"requests": {}}), Management::Containers)]
    #[case::of_another_resource(json!({"limits": {"vendor.com/gpu": "1"}}), Management::Containers)]
    #[case::requests(json!({"requests": {"cpu": "1"}}), Management::PodLevel)]
    #[case::limits(json!({"limits": {"hugepages-2Mi": "2Mi"}}), Management::PodLevel)]
    fn pods_with_pod_level_resources_are_managed_by_them(
        #[case] resources: Value,
        #[case] expected: Management,
    ) {
        let spec = json!({"resources": resources, "containers": [{"name": "a", "image": "i"}]});
        let pod = json!({"metadata": {"name": "p", "uid": "u1"}, "spec": spec});
        let pod = Pod::new(serde_json::from_value(pod).unwrap());
        assert_eq!(Management::of(&pod, true), expected);
        let without_gate = match expected {
            Management::PodLevel => Management::Shared,
            Management::Containers | Management::Shared => Management::Containers,
        };
        assert_eq!(Management::of(&pod, false), without_gate);
    }

    #[rstest]
    #[case::equal(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1000m", "memory": "1024Mi"}), true)]
    #[case::without_memory(json!({"cpu": "1"}), json!({"cpu": "1"}), false)]
    #[case::without_cpu(json!({"memory": "1"}), json!({"memory": "1"}), false)]
    #[case::more_cpu(json!({"cpu": "1", "memory": "1"}), json!({"cpu": "2", "memory": "1"}), false)]
    #[case::no_limit(json!({"cpu": "1", "memory": "1"}), json!({"cpu": "1"}), false)]
    #[case::nothing(json!({}), json!({}), false)]
    fn containers_with_equal_requests_and_limits_are_exclusive(
        #[case] requests: Value,
        #[case] limits: Value,
        #[case] expected: bool,
    ) {
        let resources = json!({"requests": requests, "limits": limits});
        let container = json!({"name": "a", "image": "i", "resources": resources});
        let container: Container = serde_json::from_value(container).unwrap();
        assert_eq!(Management::PodLevel.is_exclusive(&container), expected);
        assert!(Management::Containers.is_exclusive(&container));
        assert!(!Management::Shared.is_exclusive(&container));
    }
}
