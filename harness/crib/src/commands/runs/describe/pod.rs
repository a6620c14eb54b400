//! ◆ A pod in the format of `kubectl describe`. Pure.

use std::collections::BTreeMap;

use crib_base::columns::age::age;
use crib_base::run_socket::RecordedEvent;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::lines::{Lines, NONE};
use super::time::time;
use super::{container, events, volume};

/// The width of the key column.
const WIDTH: usize = 18;
/// The width of the key column in the last section.
const LAST_WIDTH: usize = 29;

/// The lines of a pod. Without an agent, there are no events, and only the runtime's information is shown.
pub(super) fn lines(pod: &Pod, events: Option<&[RecordedEvent]>, now: Timestamp) -> Vec<String> {
    let (spec, status) =
        (pod.spec.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
    let has_agent = events.is_some();
    let mut lines = Lines::default();
    head(&mut lines, pod, &spec, &status, has_agent, now);
    let as_containers = api::pod::Pod::new(pod.clone());
    let ephemeral = as_containers.ephemeral_containers();
    let groups = [
        ("Init Containers", spec.init_containers.as_deref(), &status.init_container_statuses),
        ("Containers", Some(spec.containers.as_slice()), &status.container_statuses),
        ("Ephemeral Containers", Some(ephemeral), &status.ephemeral_container_statuses),
    ];
    for (heading, all, statuses) in groups {
        let statuses = statuses.as_deref().unwrap_or_default();
        containers(&mut lines, heading, all.unwrap_or_default(), statuses, has_agent);
    }
    if has_agent {
        conditions(&mut lines, &status);
        volumes(&mut lines, &spec);
        last(&mut lines, &spec, &status);
    }
    match events {
        Some(events) => events::add(&mut lines, LAST_WIDTH, events, now),
        None => {
            lines.field(0, WIDTH, "Events", "<unknown: only the agent of `crib run` keeps events>")
        }
    }
    lines.0
}

/// For a terminating pod, the time since its deletion, and its grace period in seconds.
fn ending(metadata: &ObjectMeta, status: &PodStatus, now: Timestamp) -> Option<(String, i64)> {
    let until = metadata.deletion_timestamp.as_ref()?;
    let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let since = until.0.checked_sub(SignedDuration::from_secs(grace)).unwrap_or(until.0);
    (!has_ended).then(|| (age(since, now), grace))
}

fn head(
    lines: &mut Lines,
    pod: &Pod,
    spec: &PodSpec,
    status: &PodStatus,
    has_agent: bool,
    now: Timestamp,
) {
    let metadata = &pod.metadata;
    lines.field(0, WIDTH, "Name", metadata.name.as_deref().unwrap_or_default());
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    lines.field(0, WIDTH, "Namespace", namespace);
    lines.some(0, WIDTH, "Priority Class Name", spec.priority_class_name.as_deref());
    if has_agent {
        lines.field(0, WIDTH, "Priority", &spec.priority.unwrap_or_default().to_string());
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        lines.field(0, WIDTH, "Service Account", account);
    }
    let node = spec.node_name.as_ref().map(|name| match &status.host_ip {
        Some(ip) => format!("{name}/{ip}"),
        None => name.clone(),
    });
    lines.some(0, WIDTH, "Node", node.as_deref());
    lines.some(0, WIDTH, "Start Time", status.start_time.as_ref().map(time).as_deref());
    lines.values(0, WIDTH, "Labels", &pairs(metadata.labels.as_ref(), "="));
    lines.values(0, WIDTH, "Annotations", &pairs(metadata.annotations.as_ref(), ": "));
    match ending(metadata, status, now) {
        None => lines.field(0, WIDTH, "Status", status.phase.as_deref().unwrap_or("Pending")),
        Some((lasts, grace)) => {
            lines.field(0, WIDTH, "Status", &format!("Terminating (lasts {lasts})"));
            lines.field(0, LAST_WIDTH, "Termination Grace Period", &format!("{grace}s"));
        }
    }
    lines.some(0, WIDTH, "Reason", status.reason.as_deref());
    lines.some(0, WIDTH, "Message", status.message.as_deref());
    lines.field(0, WIDTH, "IP", status.pod_ip.as_deref().unwrap_or_default());
    let ips: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    match ips.as_slice() {
        [] => lines.field(0, WIDTH, "IPs", NONE),
        ips => {
            lines.line(0, "IPs:");
            for ip in ips {
                lines.field(2, WIDTH - 2, "IP", ip);
            }
        }
    }
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let controller = controller.map(|owner| format!("{}/{}", owner.kind, owner.name));
    lines.some(0, WIDTH, "Controlled By", controller.as_deref());
}

fn containers(
    lines: &mut Lines,
    heading: &str,
    containers: &[Container],
    statuses: &[ContainerStatus],
    has_agent: bool,
) {
    if containers.is_empty() {
        return;
    }
    lines.line(0, &format!("{heading}:"));
    for container in containers {
        let status = statuses.iter().find(|status| status.name == container.name);
        container::add(lines, container, status, has_agent);
    }
}

fn conditions(lines: &mut Lines, status: &PodStatus) {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions.is_empty() {
        return;
    }
    lines.line(0, "Conditions:");
    let mut rows = vec![["Type", "Status"].map(str::to_owned)];
    rows.extend(
        conditions.iter().map(|condition| [condition.type_.clone(), condition.status.clone()]),
    );
    lines.table(2, &rows);
}

fn volumes(lines: &mut Lines, spec: &PodSpec) {
    match spec.volumes.as_deref().unwrap_or_default() {
        [] => lines.field(0, WIDTH, "Volumes", NONE),
        volumes => {
            lines.line(0, "Volumes:");
            volumes.iter().for_each(|volume| volume::add(lines, volume));
        }
    }
}

fn last(lines: &mut Lines, spec: &PodSpec, status: &PodStatus) {
    let class = status.qos_class.as_deref().unwrap_or_default();
    lines.field(0, LAST_WIDTH, "QoS Class", class);
    let selectors = pairs(spec.node_selector.as_ref(), "=");
    lines.values(0, LAST_WIDTH, "Node-Selectors", &selectors);
    let tolerations = spec.tolerations.iter().flatten().map(toleration);
    lines.values(0, LAST_WIDTH, "Tolerations", &tolerations.collect::<Vec<_>>());
}

fn toleration(toleration: &Toleration) -> String {
    let mut text = toleration.key.clone().unwrap_or_default();
    let value = toleration.value.as_deref().filter(|value| !value.is_empty());
    text.extend(value.map(|value| format!("={value}")));
    text.extend(toleration.effect.as_ref().map(|effect| format!(":{effect}")));
    if toleration.operator.as_deref() == Some("Exists") && value.is_none() {
        text.push_str(if text.is_empty() { "op=Exists" } else { " op=Exists" });
    }
    text.extend(toleration.toleration_seconds.map(|seconds| format!(" for {seconds}s")));
    text
}

fn pairs(map: Option<&BTreeMap<String, String>>, sign: &str) -> Vec<String> {
    let pairs = map.into_iter().flatten();
    pairs.map(|(key, value)| format!("{key}{sign}{value}")).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const POD: &str = r#"{
        "metadata": {
            "name": "web", "namespace": "shop", "labels": {"app": "web", "tier": "front"}, "annotations": {"note": "x"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u", "controller": true}]
        },
        "spec": {
            "nodeName": "laptop", "serviceAccountName": "shop",
            "initContainers": [{"name": "before", "image": "x"}],
            "containers": [{"name": "main", "image": "y"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]
        },
        "status": {
            "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}], "qosClass": "BestEffort",
            "startTime": "2026-01-02T03:04:05Z",
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "main", "image": "y", "imageID": "i", "ready": true, "restartCount": 2, "state": {"running": {}}}]
        }
    }"#;

    fn described(events: Option<&[RecordedEvent]>) -> String {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        lines(&serde_json::from_str(POD).unwrap(), events, now).join("\n")
    }

    #[test]
    fn pod_of_agent_shows_everything() {
        let expected = "Name:             web
Namespace:        shop
Priority:         0
Service Account:  shop
Node:             laptop/10.0.0.1
Start Time:       Fri, 02 Jan 2026 03:04:05 +0000
Labels:           app=web
                  tier=front
Annotations:      note: x
Status:           Running
IP:               10.1.0.2
IPs:
  IP:             10.1.0.2
Controlled By:    ReplicaSet/web-1
Init Containers:
  before:
    Image:          x
    Environment:    <none>
    Mounts:         <none>
Containers:
  main:
    Container ID:
    Image:          y
    Image ID:       i
    State:          Running
    Ready:          True
    Restart Count:  2
    Environment:    <none>
    Mounts:         <none>
Conditions:
  Type         Status
  Initialized  True
  Ready        False
Volumes:
  v:
    Type:       EmptyDir (a temporary directory that shares a pod's lifetime)
    Medium:
    SizeLimit:  <unset>
QoS Class:                   BestEffort
Node-Selectors:              a=b
Tolerations:                 k:NoExecute op=Exists for 300s
Events:                      <none>";
        assert_eq!(described(Some(&[])), expected);
    }

    #[test]
    fn pod_that_ends_shows_since_when_and_how_long_it_may_take() {
        let mut pod: Pod = serde_json::from_str(POD).unwrap();
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let until = now + SignedDuration::from_secs(7);
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(until));
        pod.metadata.deletion_grace_period_seconds = Some(10);
        let text = lines(&pod, Some(&[]), now).join("\n");
        let expected =
            "Status:           Terminating (lasts 3s)\nTermination Grace Period:    10s\nIP: ";
        assert!(text.contains(expected), "{text}");
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        let text = lines(&pod, Some(&[]), now).join("\n");
        assert!(text.contains("Status:           Failed\nIP: "), "{text}");
    }

    #[test]
    fn pod_of_runtime_has_no_events() {
        let text = described(None);
        let last = text.lines().last();
        let expected = "Events:           <unknown: only the agent of `crib run` keeps events>";
        assert_eq!(last, Some(expected));
        for key in ["Ready:", "QoS Class:", "Volumes:", "Service Account:", "Environment:"] {
            assert!(!text.contains(key), "{key}: {text}");
        }
    }

    #[rstest]
    #[case(r#"{"key": "k", "value": "v", "effect": "NoSchedule"}"#, "k=v:NoSchedule")]
    #[case(r#"{"operator": "Exists"}"#, "op=Exists")]
    #[case(r#"{"key": "k", "operator": "Exists"}"#, "k op=Exists")]
    fn toleration_is_as_in_kubectl(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(toleration(&serde_json::from_str(text).unwrap()), expected);
    }
}
