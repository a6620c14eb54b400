//! ◆ Labels and annotations that identify sandboxes and containers, and the hash of a container's spec.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/labels.go and pkg/kubelet/container/helpers.go.

use std::collections::BTreeMap;

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, ContainerPort, HTTPHeader, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Label: pod name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: pod namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: pod uid.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: container name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: [`container_hash`] of the container's spec.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Annotation: restart count.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: path of the termination message in the container.
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the preStop hook as JSON, for containers whose pod is no longer in the source.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";
/// Annotation: `metadata.deletionGracePeriodSeconds`.
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: `spec.terminationGracePeriodSeconds`.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Label of sandboxes: the id of the agent that created them. A kubelet sets none, because it owns its node.
pub const AGENT: &str = "crib.local/agent";

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
    let mut labels: BTreeMap<String, String> =
        pod.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    labels.extend(of_pod(pod));
    labels
}

/// Labels of one of the pod's containers: the three and the container's name.
pub fn of_container(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut labels = of_pod(pod);
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

/// Hashes a container's spec: FNV-32a over Go's formatting of the JSON of its name and image, in lower-case hex.
///
/// If the hash differs from the one at creation, the container must be replaced.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let json = format!(
        "{{\"image\":{},\"name\":{}}}",
        go_json_string(image),
        go_json_string(&container.name)
    );
    // The kubelet hashes Go's printed form of the JSON bytes, not the bytes themselves.
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    format!("{:x}", fnv32a(format!("([]uint8)[{}]", bytes.join(" ")).as_bytes()))
}

/// Formats a JSON string like Go's encoder, which escapes HTML characters.
fn go_json_string(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// FNV-1a, 32 bits.
fn fnv32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Annotations of a container: everything needed to plan its stop if its pod is no longer in a source.
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut annotations = BTreeMap::from([
        (CONTAINER_HASH.to_owned(), container_hash(container)),
        (RESTART_COUNT.to_owned(), restart_count.to_string()),
        (TERMINATION_PATH.to_owned(), text(&container.termination_message_path)),
        (TERMINATION_POLICY.to_owned(), text(&container.termination_message_policy)),
    ]);
    let deletion = pod.api().metadata.deletion_grace_period_seconds;
    let termination = pod.spec().termination_grace_period_seconds;
    for (name, seconds) in [(DELETION_GRACE, deletion), (TERMINATION_GRACE, termination)] {
        if let Some(seconds) = seconds {
            annotations.insert(name.to_owned(), seconds.to_string());
        }
    }
    let lifecycle = container.lifecycle.as_ref();
    if let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
        annotations.insert(PRE_STOP.to_owned(), hook_json(hook));
    }
    let ports = container.ports.as_deref().unwrap_or_default();
    if !ports.is_empty() {
        let ports: Vec<String> = ports.iter().map(port_json).collect();
        annotations.insert(PORTS.to_owned(), format!("[{}]", ports.join(",")));
    }
    annotations
}

/// Formats a lifecycle hook like Go's encoder.
fn hook_json(hook: &LifecycleHandler) -> String {
    let text = |key: &str, value: &Option<String>| {
        let value = value.as_deref().filter(|value| !value.is_empty())?;
        Some(format!("\"{key}\":{}", go_json_string(value)))
    };
    let list = |key: &str, items: Vec<String>| {
        (!items.is_empty()).then(|| format!("\"{key}\":[{}]", items.join(",")))
    };
    let port = |port: &IntOrString| {
        let port = match port {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(name) => go_json_string(name),
        };
        Some(format!("\"port\":{port}"))
    };
    let exec = hook.exec.as_ref().map(|exec| {
        let words = exec.command.iter().flatten();
        let command = list("command", words.map(|word| go_json_string(word)).collect());
        ("exec", vec![command])
    });
    let http = hook.http_get.as_ref().map(|http| {
        let header = |header: &HTTPHeader| {
            let (name, value) = (go_json_string(&header.name), go_json_string(&header.value));
            format!("{{\"name\":{name},\"value\":{value}}}")
        };
        let headers = http.http_headers.iter().flatten().map(header).collect();
        let members = vec![
            text("path", &http.path),
            port(&http.port),
            text("host", &http.host),
            text("scheme", &http.scheme),
            list("httpHeaders", headers),
        ];
        ("httpGet", members)
    });
    let tcp = hook
        .tcp_socket
        .as_ref()
        .map(|tcp| ("tcpSocket", vec![port(&tcp.port), text("host", &tcp.host)]));
    let sleep = hook.sleep.as_ref().map(|sleep| {
        let seconds = format!("\"seconds\":{}", sleep.seconds);
        ("sleep", vec![Some(seconds)])
    });
    let handlers = [exec, http, tcp, sleep].into_iter().flatten();
    let handlers: Vec<String> = handlers
        .map(|(name, members)| {
            let members: Vec<String> = members.into_iter().flatten().collect();
            format!("\"{name}\":{{{}}}", members.join(","))
        })
        .collect();
    format!("{{{}}}", handlers.join(","))
}

/// Formats a port like Go's encoder.
fn port_json(port: &ContainerPort) -> String {
    let text = |key: &str, value: &Option<String>| {
        let value = value.as_deref().filter(|value| !value.is_empty())?;
        Some(format!("\"{key}\":{}", go_json_string(value)))
    };
    let members = [
        text("name", &port.name),
        port.host_port.filter(|port| *port != 0).map(|port| format!("\"hostPort\":{port}")),
        Some(format!("\"containerPort\":{}", port.container_port)),
        text("protocol", &port.protocol),
        text("hostIP", &port.host_ip),
    ];
    format!("{{{}}}", members.into_iter().flatten().collect::<Vec<_>>().join(","))
}
