//! Labels and annotations by which sandboxes and containers are found again, and the hash of a container's definition.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/labels.go and pkg/kubelet/container/helpers.go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;

use crate::pod::Pod;

/// Label: pod name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: pod namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: pod uid.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: container name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: [`container_hash`] of the definition the container was made from.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Annotation: how often the container was started again.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: path of the termination message in the container.
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the preStop hook as JSON, for containers whose pod is gone from the source.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";
/// Annotation: `metadata.deletionGracePeriodSeconds`.
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: `spec.terminationGracePeriodSeconds`.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// The three labels that every sandbox and container of the pod has.
pub fn of_pod(pod: &Pod) -> BTreeMap<String, String> {
    BTreeMap::from([
        (POD_NAME.to_owned(), pod.name().to_owned()),
        (POD_NAMESPACE.to_owned(), pod.namespace().to_owned()),
        (POD_UID.to_owned(), pod.uid().to_string()),
    ])
}

/// Labels of the pod's sandboxes: the pod's own, then the three.
pub fn of_sandbox(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = pod
        .labels()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    labels.extend(of_pod(pod));
    labels
}

/// Labels of one of the pod's containers: the three and the container's name.
pub fn of_container(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut labels = of_pod(pod);
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

/// The hash of a container's definition: FNV-32a over the JSON of its name and image, in lower-case hex.
///
/// Another hash than the one a container was made with means that the container has to be replaced.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    // Go's encoder writes the members in this order and leaves an empty image out.
    let mut json = format!("{{\"name\":{}", go_json_string(&container.name));
    if !image.is_empty() {
        json.push_str(",\"image\":");
        json.push_str(&go_json_string(image));
    }
    json.push('}');
    format!("{:x}", fnv32a(json.as_bytes()))
}

/// A JSON string as Go's encoder writes it, with the characters that HTML minds escaped.
fn go_json_string(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// FNV-1a, 32 bits.
fn fnv32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Annotations of one of the pod's containers: what is needed to judge and to stop it when its pod is gone.
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut annotations = BTreeMap::from([
        (CONTAINER_HASH.to_owned(), container_hash(container)),
        (RESTART_COUNT.to_owned(), restart_count.to_string()),
        (
            TERMINATION_PATH.to_owned(),
            text(&container.termination_message_path),
        ),
        (
            TERMINATION_POLICY.to_owned(),
            text(&container.termination_message_policy),
        ),
    ]);
    let deletion = pod.api().metadata.deletion_grace_period_seconds;
    let termination = pod.spec().termination_grace_period_seconds;
    for (name, seconds) in [(DELETION_GRACE, deletion), (TERMINATION_GRACE, termination)] {
        if let Some(seconds) = seconds {
            annotations.insert(name.to_owned(), seconds.to_string());
        }
    }
    annotations
}
