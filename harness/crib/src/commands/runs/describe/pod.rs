//! ◆ A pod in the format of `kubectl describe`. Pure.

use crib_base::columns::age::age;
use crib_base::columns::fields::selector;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodSpec, PodStatus, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::events::Events;
use super::lines::{Lines, NONE};
use super::metadata::{annotations, pairs};
use super::time::time;
use super::{container, events, volume};

/// The lines of a pod. Without an agent, there are no events, and only the runtime's information is shown.
pub(super) fn lines(pod: &Pod, events: Events<'_>, now: Timestamp) -> Vec<String> {
    let (spec, status) =
        (pod.spec.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
    let has_agent = !matches!(events, Events::Unknown);
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
        let all = all.unwrap_or_default();
        containers(&mut lines, heading, all, statuses, &pod.metadata, has_agent);
    }
    if has_agent {
        readiness_gates(&mut lines, &spec, &status);
        conditions(&mut lines, &status);
        volumes(&mut lines, 0, &spec);
        last(&mut lines, &spec, &status);
    }
    match events {
        Events::Recorded(events) => events::add(&mut lines, events, now),
        Events::Hidden => {}
        Events::Unknown => {
            lines.field(0, "Events", "<unknown: only the agent of `crib run` keeps events>")
        }
    }
    lines.aligned()
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
    lines.field(0, "Name", metadata.name.as_deref().unwrap_or_default());
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    lines.field(0, "Namespace", namespace);
    if has_agent {
        lines.field(0, "Priority", &spec.priority.unwrap_or_default().to_string());
    }
    lines.some(0, "Priority Class Name", spec.priority_class_name.as_deref());
    lines.some(0, "Runtime Class Name", spec.runtime_class_name.as_deref());
    if has_agent {
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        lines.field(0, "Service Account", account);
    }
    match (spec.node_name.as_deref().unwrap_or_default(), &status.host_ip) {
        ("", _) if has_agent => lines.field(0, "Node", NONE),
        ("", _) => {}
        (name, Some(ip)) => lines.field(0, "Node", &format!("{name}/{ip}")),
        (name, None) => lines.field(0, "Node", name),
    }
    lines.some(0, "Start Time", status.start_time.as_ref().map(time).as_deref());
    lines.values(0, "Labels", &pairs(metadata.labels.as_ref()));
    lines.values(0, "Annotations", &annotations(metadata.annotations.as_ref()));
    match ending(metadata, status, now) {
        None => lines.field(0, "Status", status.phase.as_deref().unwrap_or("Pending")),
        Some((lasts, grace)) => {
            lines.field(0, "Status", &format!("Terminating (lasts {lasts})"));
            lines.field(0, "Termination Grace Period", &format!("{grace}s"));
        }
    }
    lines.some(0, "Reason", status.reason.as_deref());
    lines.some(0, "Message", status.message.as_deref());
    let security = spec.security_context.as_ref();
    container::seccomp(lines, [0, 0], security.and_then(|of| of.seccomp_profile.as_ref()));
    lines.field(0, "IP", status.pod_ip.as_deref().unwrap_or_default());
    let ips: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    match ips.as_slice() {
        [] => lines.field(0, "IPs", NONE),
        ips => {
            lines.line(0, "IPs:");
            for ip in ips {
                lines.field(2, "IP", ip);
            }
        }
    }
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let controller = controller.map(|owner| format!("{}/{}", owner.kind, owner.name));
    lines.some(0, "Controlled By", controller.as_deref());
    if spec.resources.is_some() {
        lines.line(0, "Resources:");
        container::resources(lines, 2, spec.resources.as_ref());
    }
}

fn containers(
    lines: &mut Lines,
    heading: &str,
    containers: &[Container],
    statuses: &[ContainerStatus],
    pod: &ObjectMeta,
    has_agent: bool,
) {
    if containers.is_empty() {
        return;
    }
    lines.line(0, &format!("{heading}:"));
    for container in containers {
        let status = statuses.iter().find(|status| status.name == container.name);
        container::add(lines, 2, container, status, pod, has_agent);
    }
}

/// Adds the readiness gates with the statuses of their conditions.
fn readiness_gates(lines: &mut Lines, spec: &PodSpec, status: &PodStatus) {
    let gates = spec.readiness_gates.as_deref().unwrap_or_default();
    if gates.is_empty() {
        return;
    }
    lines.line(0, "Readiness Gates:");
    statuses(
        lines,
        gates.iter().map(|gate| {
            let mut conditions = status.conditions.iter().flatten();
            let condition = conditions.find(|it| it.type_ == gate.condition_type);
            (gate.condition_type.as_str(), condition.map_or(NONE, |it| it.status.as_str()))
        }),
    );
}

fn conditions(lines: &mut Lines, status: &PodStatus) {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions.is_empty() {
        return;
    }
    lines.line(0, "Conditions:");
    statuses(lines, conditions.iter().map(|it| (it.type_.as_str(), it.status.as_str())));
}

/// Adds types of conditions with their statuses. In kubectl, too, a space follows the type.
fn statuses<'a>(lines: &mut Lines, statuses: impl Iterator<Item = (&'a str, &'a str)>) {
    lines.row(2, ["Type", "Status"].map(str::to_owned));
    for (kind, status) in statuses {
        lines.row(2, [format!("{kind} "), status.to_owned()]);
    }
}

/// Adds the volumes. As in kubectl, the names of a template's volumes have one more space.
pub(super) fn volumes(lines: &mut Lines, indent: usize, spec: &PodSpec) {
    match spec.volumes.as_deref().unwrap_or_default() {
        [] => lines.field(indent, "Volumes", NONE),
        volumes => {
            lines.line(indent, "Volumes:");
            let of_names = if indent == 0 { 2 } else { 3 };
            volumes.iter().for_each(|volume| volume::add(lines, of_names, volume));
        }
    }
}

fn last(lines: &mut Lines, spec: &PodSpec, status: &PodStatus) {
    let class = status.qos_class.as_deref().unwrap_or_default();
    lines.field(0, "QoS Class", class);
    scheduling(lines, 0, spec);
    constraints(lines, 0, spec);
}

/// Adds the node selector and the tolerations.
pub(super) fn scheduling(lines: &mut Lines, indent: usize, spec: &PodSpec) {
    let selectors = pairs(spec.node_selector.as_ref());
    lines.values(indent, "Node-Selectors", &selectors);
    let tolerations = spec.tolerations.iter().flatten().map(toleration);
    lines.values(indent, "Tolerations", &tolerations.collect::<Vec<_>>());
}

/// Adds the topology spread constraints, if there are any.
pub(super) fn constraints(lines: &mut Lines, indent: usize, spec: &PodSpec) {
    let mut constraints: Vec<&TopologySpreadConstraint> =
        spec.topology_spread_constraints.iter().flatten().collect();
    compact::sort_by(&mut constraints, |a, b| a.topology_key.cmp(&b.topology_key));
    if !constraints.is_empty() {
        let constraints: Vec<String> = constraints.into_iter().map(constraint).collect();
        lines.values(indent, "Topology Spread Constraints", &constraints);
    }
}

fn constraint(constraint: &TopologySpreadConstraint) -> String {
    let TopologySpreadConstraint { topology_key, when_unsatisfiable, max_skew, .. } = constraint;
    let labels = constraint.label_selector.as_ref();
    let labels = labels.map(|labels| {
        let labels = serde_json::to_value(labels).unwrap_or_default();
        format!(" for selector {}", selector(&labels, ""))
    });
    let labels = labels.unwrap_or_default();
    format!("{topology_key}:{when_unsatisfiable} when max skew {max_skew} is exceeded{labels}")
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

    fn described(events: Events<'_>) -> String {
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
  IP:           10.1.0.2
Controlled By:  ReplicaSet/web-1
Init Containers:
  before:
    Image:        x
    Port:         <none>
    Host Port:    <none>
    Environment:  <none>
    Mounts:       <none>
Containers:
  main:
    Container ID:
    Image:          y
    Image ID:       i
    Port:           <none>
    Host Port:      <none>
    State:          Running
    Ready:          True
    Restart Count:  2
    Environment:    <none>
    Mounts:         <none>
Conditions:
  Type          Status
  Initialized   True
  Ready         False
Volumes:
  v:
    Type:        EmptyDir (a temporary directory that shares a pod's lifetime)
    Medium:
    SizeLimit:   <unset>
QoS Class:       BestEffort
Node-Selectors:  a=b
Tolerations:     k:NoExecute op=Exists for 300s
Events:          <none>";
        assert_eq!(described(Events::Recorded(&[])), expected);
    }

    #[test]
    fn pod_shows_fields_that_few_pods_have() {
        let mut pod: serde_json::Value = serde_json::from_str(POD).unwrap();
        let labels = serde_json::json!({
            "matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]}],
        });
        let more = serde_json::json!({
            "priority": 7, "priorityClassName": "high", "runtimeClassName": "gvisor", "nodeName": null,
            "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
            "resources": {"requests": {"cpu": "1"}},
            "readinessGates": [{"conditionType": "Ready"}, {"conditionType": "x/y"}],
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": labels},
                {"topologyKey": "host", "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"},
            ],
        });
        for (key, value) in more.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let text =
            lines(&pod, Events::Recorded(&[]), "2026-01-02T03:04:05Z".parse().unwrap()).join("\n");
        for expected in [
            "Priority:             7
Priority Class Name:  high
Runtime Class Name:   gvisor
Service Account:      shop
Node:                 <none>
Start Time: ",
            "Status:               Running
SeccompProfile:       Localhost
LocalhostProfile:     p.json
IP:                   10.1.0.2
IPs:
  IP:           10.1.0.2
Controlled By:  ReplicaSet/web-1
Resources:
  Requests:
    cpu:  1
Init Containers:
",
            "Readiness Gates:
  Type    Status
  Ready   False
  x/y     <none>
Conditions:
",
            "
QoS Class:                    BestEffort
Node-Selectors:               a=b
Tolerations:                  k:NoExecute op=Exists for 300s
Topology Spread Constraints:  host:ScheduleAnyway when max skew 2 is exceeded
                              zone:DoNotSchedule when max skew 1 is exceeded for selector app=web,tier in (a,b)
Events:                       <none>",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn pod_that_ends_shows_since_when_and_how_long_it_may_take() {
        let mut pod: Pod = serde_json::from_str(POD).unwrap();
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let until = now + SignedDuration::from_secs(7);
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(until));
        pod.metadata.deletion_grace_period_seconds = Some(10);
        let text = lines(&pod, Events::Recorded(&[]), now).join("\n");
        let expected = "Status:                    Terminating (lasts 3s)\nTermination Grace Period:  10s\nIP: ";
        assert!(text.contains(expected), "{text}");
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        let text = lines(&pod, Events::Recorded(&[]), now).join("\n");
        assert!(text.contains("Status:           Failed\nIP: "), "{text}");
    }

    #[test]
    fn hidden_events_leave_the_rest() {
        let all = described(Events::Recorded(&[]));
        let rest = all.rsplit_once('\n').unwrap().0;
        assert_eq!(described(Events::Hidden), rest);
    }

    #[test]
    fn pod_of_runtime_has_no_events() {
        let text = described(Events::Unknown);
        let last = text.lines().last();
        let expected = "Events:             <unknown: only the agent of `crib run` keeps events>";
        assert_eq!(last, Some(expected));
        for key in
            ["Ready:", "QoS Class:", "Volumes:", "Service Account:", "Host Port:", "Environment:"]
        {
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
