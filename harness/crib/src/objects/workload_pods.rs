//! ◆ The pods of an object, best first, and the target ports of a Service. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/polymorphichelpers/helpers.go, kubectl/pkg/cmd/portforward, kubectl/pkg/util/podutils,
//! kubectl/pkg/util/pod_port.go and service_port.go.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use api::selector::matches_selector;
use compact::Set;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::metadata;

/// The order in which pods are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Best {
    /// For logs: running pods with the most restarts first.
    ForLogs,
    /// For connections: ready pods that are not terminating, with the fewest restarts first.
    ToConnect,
}

/// A port of a pod or of a Service in an argument: `80`, `http`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemotePort {
    Number(u16),
    Name(String),
}

impl fmt::Display for RemotePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// The pods of an object: those that its selector matches or, without a selector, those that it or its Jobs own.
pub(crate) fn pods_of<'v>(
    object: &Value,
    objects: &'v [Value],
    best: Best,
) -> Result<Vec<&'v Value>, String> {
    let (kind, name) = (text(object, "/kind"), metadata(object, "name"));
    let selector = object.pointer("/spec/selector");
    let selector = match kind {
        "Service" | "ReplicationController" => {
            let labels = selector.and_then(Value::as_object).filter(|labels| !labels.is_empty());
            let Some(labels) = labels else {
                return Err(format!(
                    "invalid {} '{name}': {kind} is defined without a selector",
                    kind.to_lowercase()
                ));
            };
            let pairs = labels
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            let match_labels = Some(pairs.collect());
            Some(LabelSelector { match_labels, ..LabelSelector::default() })
        }
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            let selector = selector.cloned().unwrap_or_default();
            Some(
                serde_json::from_value(selector)
                    .map_err(|error| format!("invalid label selector: {error}"))?,
            )
        }
        "Job" | "CronJob" => None,
        kind => return Err(format!("selector for {kind} not implemented")),
    };
    let owners = owned(metadata(object, "uid"), objects);
    let is_of = |pod: &&Value| {
        let in_namespace = metadata(pod, "namespace") == metadata(object, "namespace");
        let chosen = match &selector {
            Some(selector) => matches_selector(selector, &labels(pod)),
            None => owners.contains(metadata(pod, "uid")),
        };
        text(pod, "/kind") == "Pod" && in_namespace && chosen
    };
    let mut pods: Vec<&Value> = objects.iter().filter(is_of).collect();
    sort(&mut pods, best);
    Ok(pods)
}

/// The uids of the objects that an object owns, directly or indirectly.
fn owned<'v>(uid: &'v str, objects: &'v [Value]) -> Set<&'v str> {
    let mut found = Set::from([uid]);
    loop {
        let before = found.len();
        for object in objects {
            let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            let mut owners = owners.into_iter().flatten();
            if owners.any(|owner| found.contains(text(owner, "/uid"))) {
                found.insert(metadata(object, "uid"));
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Sorts the pods, best first.
pub(crate) fn sort(pods: &mut [&Value], best: Best) {
    pods.sort_by_cached_key(|pod| {
        let is_unassigned = text(pod, "/spec/nodeName").is_empty();
        let (ready_since, restarts) = (ready_since(pod), restarts(pod));
        let readiness = (ready_since.is_none(), ready_since.unwrap_or_default());
        let (is_unready, since) = (readiness.0, readiness.1.to_owned());
        let created = metadata(pod, "creationTimestamp").to_owned();
        let phase = text(pod, "/status/phase");
        match best {
            Best::ForLogs => {
                let rank = ["", "Unknown", "Pending"].iter().position(|it| *it == phase);
                let more = (i64::MAX - restarts.0, i64::MAX - restarts.1);
                let rank = rank.unwrap_or_default();
                (is_unassigned, rank, is_unready, None, since, more, created)
            }
            Best::ToConnect => {
                let rank = ["Running", "Unknown"].iter().position(|it| *it == phase);
                let ends = metadata(pod, "deletionTimestamp").to_owned();
                let ends = (!ends.is_empty()).then_some(Reverse(ends));
                (is_unassigned, rank.unwrap_or(2), is_unready, ends, since, restarts, created)
            }
        }
    });
}

/// The time since which a pod is ready.
fn ready_since(pod: &Value) -> Option<&str> {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|it| text(it, "/type") == "Ready" && text(it, "/status") == "True");
    ready.map(|condition| text(condition, "/lastTransitionTime"))
}

/// The highest restart count of a pod's containers, and of its sidecars.
fn restarts(pod: &Value) -> (i64, i64) {
    let most = |field: &str, counts: &dyn Fn(&str) -> bool| {
        let statuses = pod.pointer(field).and_then(Value::as_array).into_iter().flatten();
        let counted = statuses.filter(|status| counts(text(status, "/name")));
        let restarts = counted.filter_map(|status| status.get("restartCount")?.as_i64());
        restarts.max().unwrap_or_default()
    };
    let inits = pod.pointer("/spec/initContainers").and_then(Value::as_array);
    let is_sidecar = |name: &str| {
        let mut inits = inits.into_iter().flatten();
        inits.any(|it| text(it, "/name") == name && text(it, "/restartPolicy") == "Always")
    };
    let regular = most("/status/containerStatuses", &|_| true);
    (regular, most("/status/initContainerStatuses", &is_sidecar))
}

/// The number of a Service's port.
pub(crate) fn service_port(service: &Value, port: &RemotePort) -> Result<u16, String> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let ports: Vec<&Value> = ports.into_iter().flatten().collect();
    let missing = |named: &str| {
        format!("Service '{}' does not have a named port '{named}'", metadata(service, "name"))
    };
    port_number(&ports, "port", port, missing)
}

/// The number of a pod's port.
pub(crate) fn pod_port(pod: &Value, port: &RemotePort) -> Result<u16, String> {
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter();
    let containers = containers.filter_map(|field| pod.pointer(field)?.as_array()).flatten();
    let ports: Vec<&Value> =
        containers.filter_map(|it| it.get("ports")?.as_array()).flatten().collect();
    let missing = |named: &str| {
        format!("Pod '{}' does not have a named port '{named}'", metadata(pod, "name"))
    };
    port_number(&ports, "containerPort", port, missing)
}

fn port_number(
    ports: &[&Value],
    field: &str,
    port: &RemotePort,
    missing: impl Fn(&str) -> String,
) -> Result<u16, String> {
    let number_of = |it: &Value| -> Option<u16> { it.get(field)?.as_u64()?.try_into().ok() };
    let number = match port {
        RemotePort::Number(number) => *number,
        RemotePort::Name(named) => {
            let found = ports.iter().find(|it| text(it, "/name") == named);
            found.and_then(|it| number_of(it)).ok_or_else(|| missing(named))?
        }
    };
    let same = ports.iter().filter(|it| number_of(it) == Some(number));
    let protocols: Vec<&str> = same.map(|it| text(it, "/protocol")).collect();
    // No protocol means TCP.
    if protocols.contains(&"UDP") && !protocols.iter().any(|it| matches!(*it, "" | "TCP")) {
        return Err(format!("UDP protocol is not supported for {port}"));
    }
    Ok(number)
}

/// The port of a pod for a port of a Service.
pub(crate) fn target_port(service: &Value, pod: &Value, port: u16) -> Result<u16, String> {
    if text(service, "/spec/clusterIP") == "None" {
        return Ok(port);
    }
    let name = metadata(service, "name");
    let mut ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let found = ports.find(|it| it.get("port").and_then(Value::as_u64) == Some(port.into()));
    let found =
        found.ok_or_else(|| format!("Service {name} does not have a service port {port}"))?;
    match found.get("targetPort") {
        Some(Value::String(named)) => pod_port(pod, &RemotePort::Name(named.clone())),
        Some(target) => {
            let target = target.as_u64().filter(|target| *target > 0);
            Ok(target.and_then(|target| target.try_into().ok()).unwrap_or(port))
        }
        None => Ok(port),
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let pairs = object.pointer("/metadata/labels").and_then(Value::as_object);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    pairs.into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect()
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// A pod on a running node, modified by `more`.
    fn pod(name: &str, more: Value) -> Value {
        let mut pod = json!({
            "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "n", "uid": name, "labels": {"app": "web"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"nodeName": "here", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}],
                "containerStatuses": [{"name": "c", "restartCount": 1}],
            },
        });
        merge(&mut pod, more);
        pod
    }

    fn merge(into: &mut Value, more: Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                for (key, value) in more {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, more) => *into = more,
        }
    }

    // The pairs follow the rules of ByLogging and ActivePods in kubectl/pkg/util/podutils.
    #[rstest]
    #[case::unassigned(json!({}), json!({"spec": {"nodeName": ""}}), Some(true), Some(true))]
    #[case::pending(json!({}), json!({"status": {"phase": "Pending"}}), Some(true), Some(true))]
    #[case::ended(json!({}), json!({"status": {"phase": "Succeeded", "conditions": []}}), Some(true), Some(true))]
    #[case::unready(json!({}), json!({"status": {"conditions": []}}), Some(true), Some(true))]
    #[case::ends(json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:03:00Z"}}), None, Some(true))]
    #[case::ready_later(
        json!({}),
        json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"}]}}),
        Some(true),
        Some(true)
    )]
    #[case::restarted_more(json!({}), json!({"status": {"containerStatuses": [{"name": "c", "restartCount": 3}]}}), Some(false), Some(true))]
    #[case::younger(json!({}), json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:07Z"}}), Some(true), Some(true))]
    fn first_pod_is_better(
        #[case] one: Value,
        #[case] other: Value,
        #[case] for_logs: Option<bool>,
        #[case] to_connect: Option<bool>,
    ) {
        let (one, other) = (pod("one", one), pod("other", other));
        for (best, expected) in [(Best::ForLogs, for_logs), (Best::ToConnect, to_connect)] {
            let first = |mut pods: [&Value; 2]| {
                sort(&mut pods, best);
                metadata(pods[0], "name").to_owned()
            };
            let (forward, backward) = (first([&one, &other]), first([&other, &one]));
            // Equal pods keep their order.
            let found = (forward == backward).then(|| forward == "one");
            assert_eq!(found, expected, "{best:?}");
        }
    }

    #[rstest]
    #[case::service(json!({"kind": "Service", "spec": {"selector": {"app": "web"}}}), Ok("a b"))]
    #[case::deployment(
        json!({"kind": "Deployment", "spec": {"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}}),
        Ok("a b")
    )]
    #[case::job(json!({"kind": "Job", "metadata": {"uid": "job"}}), Ok("of-job"))]
    #[case::cron_job(json!({"kind": "CronJob", "metadata": {"uid": "cron"}}), Ok("of-job"))]
    #[case::elsewhere(json!({"kind": "Service", "metadata": {"namespace": "m"}, "spec": {"selector": {"app": "web"}}}), Ok("c"))]
    #[case::no_selector(json!({"kind": "Service", "spec": {}}), Err("invalid service 'web': Service is defined without a selector"))]
    #[case::other(json!({"kind": "Secret"}), Err("selector for Secret not implemented"))]
    fn pods_of_an_object_are_found(#[case] object: Value, #[case] expected: Result<&str, &str>) {
        let mut whole = json!({"metadata": {"name": "web", "namespace": "n", "uid": "web"}});
        merge(&mut whole, object);
        let owned = |uid: &str| json!({"metadata": {"ownerReferences": [{"uid": uid}], "labels": {"app": null}}});
        let mut job = owned("cron");
        merge(
            &mut job,
            json!({"kind": "Job", "metadata": {"namespace": "n", "uid": "job", "name": "job"}}),
        );
        let mut of_job = pod("of-job", owned("job"));
        of_job["metadata"]["labels"] = json!({});
        let objects = [
            pod("a", json!({})),
            job,
            of_job,
            pod("b", json!({})),
            pod("c", json!({"metadata": {"namespace": "m"}})),
        ];
        let found = pods_of(&whole, &objects, Best::ToConnect);
        let names = found
            .map(|pods| pods.iter().map(|pod| metadata(pod, "name")).collect::<Vec<_>>().join(" "));
        assert_eq!(names.as_deref().map_err(String::as_str), expected);
    }

    #[rstest]
    #[case::number(80, Ok(8000))]
    #[case::named(81, Ok(8080))]
    #[case::same(82, Ok(82))]
    #[case::none(83, Err("Service web does not have a service port 83"))]
    #[case::unknown_name(84, Err("Pod 'a' does not have a named port 'none'"))]
    fn port_of_a_service_is_that_of_its_pod(
        #[case] port: u16,
        #[case] expected: Result<u16, &str>,
    ) {
        let ports = json!([
            {"port": 80, "targetPort": 8000}, {"port": 81, "targetPort": "http"}, {"port": 82},
            {"port": 84, "targetPort": "none"},
        ]);
        let mut service = json!({"metadata": {"name": "web"}, "spec": {"ports": ports}});
        let pod = pod("a", json!({}));
        let found = target_port(&service, &pod, port);
        assert_eq!(found.as_ref().copied().map_err(String::as_str), expected);
        service["spec"]["clusterIP"] = json!("None");
        assert_eq!(target_port(&service, &pod, port), Ok(port));
    }

    #[rstest]
    #[case::number("80", Ok((80, 80)))]
    #[case::name("http", Ok((81, 8080)))]
    #[case::container_of_pod("init", Err("Service 'web' does not have a named port 'init'"))]
    #[case::udp_only("dns", Err("UDP protocol is not supported for dns"))]
    #[case::both_protocols("dns-udp", Ok((5353, 54)))]
    #[case::no_name("ftp", Err("Service 'web' does not have a named port 'ftp'"))]
    fn ports_have_numbers_or_names(#[case] port: &str, #[case] expected: Result<(u16, u16), &str>) {
        let ports = json!([
            {"port": 80}, {"port": 81, "name": "http", "targetPort": "http"},
            {"port": 53, "name": "dns", "protocol": "UDP"},
            {"port": 5353, "name": "dns-udp", "protocol": "UDP", "targetPort": 54},
            {"port": 5353, "name": "dns-tcp", "protocol": "TCP", "targetPort": 54},
        ]);
        let service = json!({"metadata": {"name": "web"}, "spec": {"ports": ports}});
        let port = match port.parse() {
            Ok(number) => RemotePort::Number(number),
            Err(_) => RemotePort::Name(port.to_owned()),
        };
        let found = service_port(&service, &port)
            .and_then(|own| Ok((own, target_port(&service, &pod("a", json!({})), own)?)));
        assert_eq!(found.as_ref().copied().map_err(String::as_str), expected);
    }

    #[rstest]
    #[case::container("http", Ok(8080))]
    #[case::init_container("init", Ok(9))]
    #[case::udp("udp", Err("UDP protocol is not supported for udp"))]
    #[case::none("https", Err("Pod 'a' does not have a named port 'https'"))]
    fn named_port_of_pod_is_found_in_all_containers(
        #[case] name: &str,
        #[case] expected: Result<u16, &str>,
    ) {
        let ports = json!([
            {"name": "init", "containerPort": 9}, {"name": "udp", "containerPort": 53, "protocol": "UDP"},
        ]);
        let pod = pod("a", json!({"spec": {"initContainers": [{"name": "i", "ports": ports}]}}));
        let found = pod_port(&pod, &RemotePort::Name(name.to_owned()));
        assert_eq!(found.as_ref().copied().map_err(String::as_str), expected);
    }
}
