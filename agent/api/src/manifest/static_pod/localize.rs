//! ◆ Converts a decoded pod to this node's static pod. Pure.

use k8s_openapi::api::core::v1::{Pod as ApiPod, PodIP, PodStatus, Toleration};

use super::super::hex_hash;
use super::super::typed_value::TypedValue;
use super::Location;

/// The annotation with a static pod's uid.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Annotations of Kubernetes before 1.6, which the API drops.
const DROPPED: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
];

/// Converts a decoded pod to this node's static pod: uid, name, node, annotation, toleration and phase.
pub(super) fn localize(pod: &mut ApiPod, location: Location<'_>, node_name: &str) {
    let given = pod.metadata.uid.take().filter(|uid| !uid.is_empty());
    let uid = given.unwrap_or_else(|| uid(pod, location, node_name));
    let name = pod.metadata.name.take().unwrap_or_default();
    pod.metadata.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| !DROPPED.contains(&key.as_str()));
    annotations.insert(CONFIG_HASH.to_owned(), uid.clone());
    pod.metadata.uid = Some(uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if matches!(location, Location::File(_)) {
        // A taint of the node must not evict it.
        tolerate(spec.tolerations.get_or_insert_default());
    }
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Pending".to_owned());
    pod_ips(status);
}

/// Adds the toleration of every NoExecute taint, or replaces one that differs only in its seconds.
fn tolerate(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let is_empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    let mut found = false;
    for toleration in tolerations.iter_mut() {
        if is_empty(&toleration.key)
            && is_empty(&toleration.value)
            && toleration.operator == wanted.operator
            && toleration.effect == wanted.effect
        {
            *toleration = wanted.clone();
            found = true;
        }
    }
    if !found {
        tolerations.push(wanted);
    }
}

/// Sets `podIP` and the first of `podIPs` to the same address; `podIP` takes precedence.
fn pod_ips(status: &mut PodStatus) {
    let first = status.pod_ips.as_ref().and_then(|ips| ips.first()).map(|first| first.ip.clone());
    match status.pod_ip.clone().filter(|ip| !ip.is_empty()) {
        Some(ip) if first.as_ref() != Some(&ip) => status.pod_ips = Some(vec![PodIP { ip }]),
        Some(_) => {}
        None => status.pod_ip = first,
    }
}

/// 32 hex digits derived from the pod, the node and the origin.
fn uid(pod: &ApiPod, location: Location<'_>, node_name: &str) -> String {
    let content = TypedValue::of(pod).json();
    hex_hash(&match location {
        Location::File(path) => format!("{content}\0host:{node_name}\0file:{path}"),
        Location::Url(url) => format!("{content}\0url:{url}"),
    })
}
