//! ◆ A pod's emptyDir volumes in memory: their sizes, and the annotation that requests them from crib's runtime. Pure.
//!
//! A kubelet mounts a tmpfs. The agent makes no mounts: the runtime mounts it in the pod's mount namespace.

use std::path::Path;

use api::pod::Pod;
use api::totals::amount;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume};
use serde_json::json;

use super::cgroup::pod_cgroup;
use crate::node::Node;

/// Annotation of sandboxes: a list of volumes in JSON, each with the host path by which mounts refer to it, its size in bytes, and
/// its group if it has one (docs/cri.md).
pub(crate) const ANNOTATION: &str = "crib.local/memory-volumes";

/// Whether a volume is in memory.
pub(crate) fn is_in_memory(volume: &EmptyDirVolumeSource) -> bool {
    volume.medium.as_deref() == Some("Memory")
}

/// The annotation for a pod whose emptyDir volumes have the paths that `path` returns; `None` if none of them is in memory.
pub(crate) fn annotation<P: AsRef<Path>>(
    pod: &Pod,
    node: &Node,
    path: impl Fn(&str) -> P,
) -> Option<String> {
    let security = pod.spec().security_context.as_ref();
    let group = security.and_then(|security| security.fs_group);
    let volumes: Vec<_> = of_pod(pod)
        .map(|(volume, source)| {
            let mut requested = json!({
                "path": path(&volume.name).as_ref(),
                "size": size(source, pod, node),
            });
            if let Some(group) = group {
                requested["group"] = json!(group);
            }
            requested
        })
        .collect();
    (!volumes.is_empty()).then(|| serde_json::Value::from(volumes).to_string())
}

fn of_pod(pod: &Pod) -> impl Iterator<Item = (&Volume, &EmptyDirVolumeSource)> {
    let volumes = pod.spec().volumes.iter().flatten();
    let empty = volumes.filter_map(|volume| Some((volume, volume.empty_dir.as_ref()?)));
    empty.filter(|(_, source)| is_in_memory(source))
}

/// The smallest of the node's allocatable memory, the pod's limit and the volume's own. Kubernetes 1.36,
/// calculateEmptyDirMemorySize.
fn size(source: &EmptyDirVolumeSource, pod: &Pod, node: &Node) -> i64 {
    let allocatable = node.allocatable.get("memory");
    let allocatable = allocatable.map(|text| amount(&quantity(text)).value());
    let own = source.size_limit.as_ref().map(|limit| amount(limit).value());
    let limits = [allocatable, pod_cgroup(pod, node).memory, own];
    let least = limits.into_iter().flatten().filter(|limit| *limit > 0).min();
    // Without any limit, the machine's memory is the limit.
    least.unwrap_or(node.memory_capacity)
}

fn quantity(text: &str) -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::Value;

    use super::*;
    use crate::fixtures;

    fn pod(limit: Option<&str>, volumes: Value) -> Pod {
        let resources = limit.map_or(json!({}), |limit| json!({"limits": {"memory": limit}}));
        let spec = json!({
            "containers": [{"name": "c", "resources": resources}],
            "securityContext": {"fsGroup": 7},
            "volumes": volumes,
        });
        fixtures::pod(json!({"spec": spec}))
    }

    #[rstest]
    #[case(None, None, 1 << 30)]
    #[case(None, Some("64Mi"), 64 << 20)]
    #[case(None, Some("2Gi"), 1 << 30)]
    #[case(None, Some("0"), 1 << 30)]
    #[case(Some("128Mi"), None, 128 << 20)]
    #[case(Some("128Mi"), Some("64Mi"), 64 << 20)]
    #[case(Some("128Mi"), Some("256Mi"), 128 << 20)]
    fn size_is_the_smallest_limit(
        #[case] pod_limit: Option<&str>,
        #[case] own: Option<&str>,
        #[case] expected: i64,
    ) {
        let mut node = Node::new("n", "/r", "/l");
        node.allocatable.insert("memory".to_owned(), "1Gi".to_owned());
        let mut volume = json!({"name": "v", "emptyDir": {"medium": "Memory"}});
        if let Some(own) = own {
            volume["emptyDir"]["sizeLimit"] = json!(own);
        }
        let pod = pod(pod_limit, json!([{"name": "d", "emptyDir": {}}, volume]));
        let text = annotation(&pod, &node, |name| format!("/p/{name}")).unwrap();
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found, json!([{"path": "/p/v", "size": expected, "group": 7}]));
    }

    #[test]
    fn pod_without_volumes_in_memory_has_no_annotation() {
        let pod = pod(None, json!([{"name": "d", "emptyDir": {}}]));
        let node = Node::new("n", "/r", "/l");
        assert_eq!(annotation(&pod, &node, |name| name.to_owned()), None);
    }
}
