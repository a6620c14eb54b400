//! ◆ The EndpointSlices of Services: the pods that their selectors match. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/endpointslice (reconciler.go, utils.go) and pkg/controller/endpointslice.

use std::collections::BTreeMap;

use api::generated_names::generated_name;
use serde_json::{Map, Value, json};

/// The maximum number of addresses of a slice (`--max-endpoints-per-slice`).
const MOST: usize = 100;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The slices of a Service, given the `pods`, both as in an API server. A Service without a selector has the slices of its
/// manifests.
#[must_use]
pub fn slices<'v>(service: &Value, pods: impl Iterator<Item = &'v Value>) -> Vec<Value> {
    if selector(service).is_none() {
        return Vec::new();
    }
    // Pods with the same port numbers share slices.
    let mut by_ports: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    for pod in pods.filter(|pod| chooses(service, pod)) {
        let Some(endpoint) = endpoint(service, pod) else {
            continue;
        };
        let ports = ports(service, pod);
        let (_, endpoints) =
            by_ports.entry(ports.to_string()).or_insert_with(|| (ports, Vec::new()));
        endpoints.push(endpoint);
    }
    if by_ports.is_empty() {
        by_ports.insert(String::new(), (json!([]), Vec::new()));
    }
    let mut all = Vec::new();
    for (name, (ports, endpoints)) in by_ports {
        if endpoints.is_empty() {
            all.push(slice(service, &name, &ports, &[]));
        }
        for (number, some) in endpoints.chunks(MOST).enumerate() {
            all.push(slice(service, &format!("{name}{number}"), &ports, some));
        }
    }
    all
}

/// The selector of a Service, if it has one.
fn selector(service: &Value) -> Option<&Map<String, Value>> {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    selector.filter(|labels| !labels.is_empty())
}

/// Whether a Service's selector matches a pod.
#[must_use]
pub fn chooses(service: &Value, pod: &Value) -> bool {
    let labels = pod.pointer("/metadata/labels");
    let has =
        |(key, value): (&String, &Value)| labels.and_then(|labels| labels.get(key)) == Some(value);
    text(pod, "/metadata/namespace") == text(service, "/metadata/namespace")
        && selector(service).is_some_and(|selector| selector.iter().all(has))
}

/// Builds a slice. `seed` distinguishes its name from those of the Service's other slices.
fn slice(service: &Value, seed: &str, ports: &Value, endpoints: &[Value]) -> Value {
    let name = text(service, "/metadata/name");
    let own = service.pointer("/metadata/labels").and_then(Value::as_object);
    let mut labels: Map<String, Value> = own.cloned().unwrap_or_default();
    let mut label = |key: &str, value: &str| labels.insert(key.to_owned(), json!(value));
    label(MANAGED_BY, CONTROLLER);
    label(SERVICE_NAME, name);
    if text(service, "/spec/clusterIP") == "None" {
        label(HEADLESS, "");
    }
    let uid = text(service, "/metadata/uid");
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": generated_name(&format!("{name}-"), &format!("{uid}\0{seed}")),
            "namespace": text(service, "/metadata/namespace"),
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    })
}

/// A pod's address and conditions; `None` for a pod that has ended, or has no address yet.
fn endpoint(service: &Value, pod: &Value) -> Option<Value> {
    let address = Some(text(pod, "/status/podIP")).filter(|address| !address.is_empty())?;
    if matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
        return None;
    }
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let is_serving = conditions.into_iter().flatten().any(|condition| {
        text(condition, "/type") == "Ready" && text(condition, "/status") == "True"
    });
    let is_terminating = pod.pointer("/metadata/deletionTimestamp").is_some();
    let unready = service.pointer("/spec/publishNotReadyAddresses");
    let publishes = unready.and_then(Value::as_bool) == Some(true);
    let mut endpoint = json!({
        "addresses": [address],
        "conditions": {
            "ready": publishes || is_serving && !is_terminating,
            "serving": is_serving, "terminating": is_terminating,
        },
        "targetRef": {
            "kind": "Pod", "namespace": text(pod, "/metadata/namespace"),
            "name": text(pod, "/metadata/name"), "uid": text(pod, "/metadata/uid"),
        },
    });
    let node = text(pod, "/spec/nodeName");
    if !node.is_empty() {
        endpoint["nodeName"] = json!(node);
    }
    let hostname = text(pod, "/spec/hostname");
    if !hostname.is_empty() && text(pod, "/spec/subdomain") == text(service, "/metadata/name") {
        endpoint["hostname"] = json!(hostname);
    }
    Some(endpoint)
}

/// The Service's ports in a pod; ports that the pod does not have are omitted.
fn ports(service: &Value, pod: &Value) -> Value {
    let all = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let ports = all.filter_map(|port| {
        let protocol = Some(text(port, "/protocol")).filter(|protocol| !protocol.is_empty());
        let protocol = protocol.unwrap_or("TCP");
        let number = match port.get("targetPort") {
            Some(Value::String(name)) => port_of_container(pod, name, protocol)?,
            Some(Value::Number(number)) => number.as_i64()?,
            _ => port.get("port").and_then(Value::as_i64)?,
        };
        let mut own = json!({"name": text(port, "/name"), "port": number, "protocol": protocol});
        if let Some(application) = port.get("appProtocol") {
            own["appProtocol"] = application.clone();
        }
        Some(own)
    });
    Value::Array(ports.collect())
}

fn port_of_container(pod: &Value, name: &str, protocol: &str) -> Option<i64> {
    let of = |field: &str| pod.pointer(field).and_then(Value::as_array).into_iter().flatten();
    let sidecars = of("/spec/initContainers").filter(|it| text(it, "/restartPolicy") == "Always");
    let containers = of("/spec/containers").chain(sidecars);
    let ports =
        containers.flat_map(|container| container.get("ports").and_then(Value::as_array)).flatten();
    let mut found = ports.filter(|port| {
        let own = Some(text(port, "/protocol")).filter(|protocol| !protocol.is_empty());
        text(port, "/name") == name && own.unwrap_or("TCP") == protocol
    });
    found.next()?.get("containerPort")?.as_i64()
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use rstest::rstest;

    use super::*;

    fn service(spec: Value) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "labels": {"team": "a"}}, "spec": spec,
        })
    }

    /// A pod with this label, number, phase and readiness.
    fn pod(label: &str, number: usize, phase: &str, ready: bool) -> Value {
        json!({
            "metadata": {"name": format!("p{number}"), "namespace": "shop", "uid": format!("u{number}"), "labels": {"app": label}},
            "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "http", "containerPort": 8000 + number % 2}]}]},
            "status": {
                "phase": phase, "podIP": format!("10.0.{}.{}", number / 256, number % 256),
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        })
    }

    /// `ADDRESS[+serving][+terminating][-ready]@PORTS` of all endpoints.
    fn shown(slices: &[Value]) -> Vec<String> {
        let mut all = Vec::new();
        for slice in slices {
            let ports: Vec<String> = slice["ports"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["port"].to_string())
                .collect();
            for endpoint in slice["endpoints"].as_array().unwrap() {
                let is = |field: &str| endpoint["conditions"][field] == true;
                let mut words = endpoint["addresses"][0].as_str().unwrap().to_owned();
                for field in ["ready", "serving", "terminating"] {
                    if is(field) {
                        words += &format!("+{field}");
                    }
                }
                all.push(format!("{words}@{}", ports.join(",")));
            }
        }
        all
    }

    #[rstest]
    #[case::number(json!(80), "10.0.0.1+ready+serving@80")]
    #[case::name(json!("http"), "10.0.0.1+ready+serving@8001")]
    #[case::unknown_name(json!("none"), "10.0.0.1+ready+serving@")]
    #[case::none(json!(null), "10.0.0.1+ready+serving@7")]
    fn ports_are_those_of_the_pod(#[case] target: Value, #[case] expected: &str) {
        let spec =
            json!({"selector": {"app": "web"}, "ports": [{"port": 7, "targetPort": target}]});
        let slices = slices(&service(spec), [pod("web", 1, "Running", true)].iter());
        assert_eq!(shown(&slices), [expected]);
    }

    #[test]
    fn endpoints_are_pods_that_may_serve() {
        let mut ending = pod("web", 3, "Running", true);
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut elsewhere = pod("web", 5, "Running", true);
        elsewhere["metadata"]["namespace"] = json!("other");
        let mut new = pod("web", 6, "Pending", false);
        new["status"]["podIP"] = json!(null);
        let pods = [
            pod("web", 1, "Running", false),
            pod("db", 2, "Running", true),
            ending,
            pod("web", 4, "Succeeded", false),
            elsewhere,
            new,
        ];
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
        let found = slices(&service(spec.clone()), pods.iter());
        assert_eq!(shown(&found), ["10.0.0.1@80", "10.0.0.3+serving+terminating@80"]);
        let labels = &found[0]["metadata"]["labels"];
        assert_eq!((&labels[SERVICE_NAME], &labels["team"]), (&json!("web"), &json!("a")));
        let mut all = spec;
        all["publishNotReadyAddresses"] = json!(true);
        let found = slices(&service(all), pods[..1].iter());
        assert_eq!(shown(&found), ["10.0.0.1+ready@80"]);
    }

    #[test]
    fn slices_have_a_hundred_addresses_and_one_set_of_ports() {
        let spec =
            json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]});
        let pods: Vec<Value> = (0..210).map(|number| pod("web", number, "Running", true)).collect();
        let found = slices(&service(spec), pods.iter());
        let sizes: Vec<usize> =
            found.iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect();
        assert_eq!(sizes, [100, 5, 100, 5]);
        let mut names: Vec<&str> =
            found.iter().map(|slice| slice["metadata"]["name"].as_str().unwrap()).collect();
        names.dedup();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|name| name.starts_with("web-")), "{names:?}");
    }

    #[test]
    fn service_without_pods_has_one_empty_slice_and_one_without_selector_none() {
        let found = slices(&service(json!({"selector": {"app": "web"}})), std::iter::empty());
        assert_eq!(
            (found.len(), &found[0]["endpoints"], &found[0]["ports"]),
            (1, &json!([]), &json!([]))
        );
        let none = slices(&service(json!({"clusterIP": "None"})), std::iter::empty());
        assert_eq!(none, [Value::Null; 0]);
    }
}
