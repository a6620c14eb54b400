//! ◆ The events of a pod as objects of the API. Pure.
//!
//! Source: Kubernetes 1.36, client-go/tools/record/event.go.

use crib_base::run_socket::{PodWithEvents, RecordedEvent};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The recorder that a kubelet names as the source of its events.
const COMPONENT: &str = "kubelet";

/// The events of a pod as `v1.Event`.
pub(crate) fn objects(of: &PodWithEvents) -> Vec<Value> {
    let (metadata, spec) = (&of.pod.metadata, of.pod.spec.as_ref());
    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let involved = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
    });
    of.events.iter().map(|event| object(event, &involved, node)).collect()
}

fn object(event: &RecordedEvent, involved: &Value, node: &str) -> Value {
    let mut involved = involved.clone();
    if !event.field_path.is_empty() {
        involved["fieldPath"] = json!(event.field_path);
    }
    let (first, last) = (event.first_timestamp, event.last_timestamp);
    let pod = involved["name"].as_str().unwrap_or_default();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{pod}.{:x}", first.as_nanosecond()),
            "namespace": involved["namespace"],
            "creationTimestamp": time(first),
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "firstTimestamp": time(first),
        "lastTimestamp": time(last),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "involvedObject": involved,
    })
}

/// A time as in the API, in seconds.
fn time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_a_kubelet() {
        let pod = json!({
            "pod": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
                "spec": {"nodeName": "laptop", "containers": []},
            },
            "events": [{
                "type": "Warning", "reason": "BackOff", "message": "Back-off", "fieldPath": "spec.containers{main}",
                "count": 3, "firstTimestamp": "1970-01-01T00:00:01.000000016Z", "lastTimestamp": "2026-01-02T03:04:05.9Z",
            }],
        });
        let found = objects(&serde_json::from_value(pod).unwrap());
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": "web.3b9aca10", "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:01Z",
            },
            "type": "Warning",
            "reason": "BackOff",
            "message": "Back-off",
            "count": 3,
            "firstTimestamp": "1970-01-01T00:00:01Z",
            "lastTimestamp": "2026-01-02T03:04:05Z",
            "source": {"component": "kubelet", "host": "laptop"},
            "reportingComponent": "kubelet",
            "reportingInstance": "laptop",
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "shop", "uid": "u",
                "fieldPath": "spec.containers{main}",
            },
        });
        assert_eq!(found, [expected]);
    }
}
