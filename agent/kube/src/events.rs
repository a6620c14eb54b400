//! Writes the events of pods and of the node to the API server, as the agent has counted and aggregated them.
//!
//! Events are best effort: an event that the server rejects is dropped, and so is one that finds the queue full.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/tools/record/event.go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agent::{Event, EventObject, EventObjectKind, EventType};
use api::manifest::dns_subdomain;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::chance::{chance, uuid};
use crate::client::{ApiClient, ApiError, PatchKind};
use crate::pods::KnownPods;
use crate::time::whole_seconds;

/// The capacity of the queue.
const QUEUE: usize = 1000;
/// Attempts per event, and the interval between them.
const TRIES: usize = 12;
const RETRY: Duration = Duration::from_secs(10);
/// How many written events are remembered, so that a repetition updates the count.
const REMEMBERED: usize = 4096;

/// The source component of events.
const COMPONENT: &str = "kubelet";

/// Identifies an event: a repetition has the same identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    object: EventObject,
    kind: EventType,
    reason: String,
    message: String,
    first_at: Timestamp,
}

/// Writes events.
pub(crate) struct Events {
    client: ApiClient,
    node: String,
    /// The pods at the server, for the `resourceVersion` of the pod that an event involves.
    known: watch::Receiver<Arc<KnownPods>>,
    /// The names of the written events.
    written: HashMap<Identity, String>,
}

impl Events {
    pub(crate) fn new(
        client: ApiClient,
        node: &str,
        known: watch::Receiver<Arc<KnownPods>>,
    ) -> Self {
        Self { client, node: node.to_owned(), known, written: HashMap::new() }
    }

    /// Queues and writes events until the task is cancelled.
    pub(crate) async fn run(mut self, mut recorded: mpsc::UnboundedReceiver<Event>) {
        let (queue, mut queued) = mpsc::channel(QUEUE);
        let taking = async {
            while let Some(event) = recorded.recv().await {
                if queue.try_send(event).is_err() {
                    tracing::warn!("dropped an event: the queue of {QUEUE} events is full");
                }
            }
        };
        let writing = async {
            while let Some(event) = queued.recv().await {
                self.write_with_retries(&event).await;
            }
        };
        tokio::join!(taking, writing);
    }

    async fn write_with_retries(&mut self, event: &Event) {
        for tried in 0..TRIES {
            let error = match self.write(event).await {
                Ok(()) => return,
                Err(error) => error,
            };
            if error.is_final() {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "dropped an event: the API server rejected it");
                return;
            }
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "failed to write an event; will retry"
            );
            // The first delay is random, so that nodes that lost the server at the same time do not all return at the same time.
            sleep(if tried == 0 { RETRY.mul_f64(chance()) } else { RETRY }).await;
        }
        tracing::warn!("dropped an event: the API server could not be reached {TRIES} times");
    }

    async fn write(&mut self, event: &Event) -> Result<(), ApiError> {
        let identity = identity(event);
        if let Some(name) = self.written.get(&identity) {
            let path = format!("{}/{name}", events(namespace(event)));
            let patch = json!({
                "count": event.count,
                "message": event.message,
                "lastTimestamp": whole_seconds(event.last_at),
            });
            match self.client.patch(&path, PatchKind::StrategicMerge, &patch).await {
                // The server deletes events after an hour.
                Err(error) if error.is_not_found() => {}
                result => return result.map(drop),
            }
        }
        let name = name(&event.object.name, Timestamp::now(), uuid());
        let mut object = recorded(&self.node, event, &name);
        if let Some(pod) = self.known.borrow().get(&event.object.uid) {
            let version = &pod.api().metadata.resource_version;
            object["involvedObject"]["resourceVersion"] = json!(version);
        }
        self.client.create(&events(namespace(event)), &object).await?;
        if self.written.len() >= REMEMBERED {
            self.written.clear();
        }
        self.written.insert(identity, name);
        Ok(())
    }
}

/// ◆ The identity of an event. An aggregate is one event, whichever message and container its last occurrence had.
fn identity(event: &Event) -> Identity {
    let (mut object, mut message) = (event.object.clone(), event.message.clone());
    if event.is_aggregate() {
        object.field_path.clear();
        message.clear();
    }
    Identity {
        object,
        kind: event.kind,
        reason: event.reason.clone(),
        message,
        first_at: event.first_at,
    }
}

fn events(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// ◆ A unique name: `uuid` if the object's name is too long for an event's (client-go/tools/record/util/util.go
/// GenerateEventName).
fn name(object: &str, now: Timestamp, uuid: String) -> String {
    let name = format!("{object}.{:x}", now.as_nanosecond());
    if dns_subdomain(&name).is_some() { uuid } else { name }
}

/// ◆ The namespace of an event: its object's, or `default` for the node, which has none.
fn namespace(event: &Event) -> &str {
    match event.object.kind {
        EventObjectKind::Pod | EventObjectKind::Claim => &event.object.namespace,
        EventObjectKind::Node => "default",
    }
}

/// ◆ The Event object of this name.
fn recorded(node: &str, event: &Event, name: &str) -> Value {
    let object = &event.object;
    let mut involved = match object.kind {
        EventObjectKind::Pod => of_namespace("Pod", object),
        EventObjectKind::Claim => of_namespace("PersistentVolumeClaim", object),
        EventObjectKind::Node => node_reference(&object.name),
    };
    if !object.field_path.is_empty() {
        involved["fieldPath"] = json!(object.field_path);
    }
    let mut metadata = json!({"name": name, "namespace": namespace(event)});
    if !event.annotations.is_empty() {
        metadata["annotations"] = json!(event.annotations);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": involved,
        "type": event.kind.as_str(),
        "reason": event.reason,
        "message": event.message,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "count": event.count,
        "firstTimestamp": whole_seconds(event.first_at),
        "lastTimestamp": whole_seconds(event.last_at),
    })
}

/// ◆ The reference to a namespaced object.
fn of_namespace(kind: &str, object: &EventObject) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": kind,
        "namespace": object.namespace,
        "name": object.name,
        "uid": object.uid.as_str(),
    })
}

/// ◆ The reference to the node. The kubelet omits the uid, because it may not have the node's object yet (pkg/kubelet/kubelet.go
/// nodeRef, pkg/kubelet/cm nodeRefFromNode).
fn node_reference(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": name})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use api::pod::PodUid;

    use super::*;

    /// An event about the container `app` of a pod.
    fn event(message: &str, at: Timestamp) -> Event {
        Event {
            object: EventObject {
                kind: EventObjectKind::Pod,
                uid: PodUid::new("u"),
                namespace: "ns".to_owned(),
                name: "web".to_owned(),
                field_path: "spec.containers{app}".to_owned(),
            },
            kind: EventType::Warning,
            reason: "BackOff".to_owned(),
            message: message.to_owned(),
            annotations: std::collections::BTreeMap::from([(
                "starved_resource".to_owned(),
                "memory".to_owned(),
            )]),
            count: 3,
            first_at: at,
            last_at: at,
        }
    }

    #[test]
    fn aggregate_has_one_identity_whatever_its_last_message() {
        let at = Timestamp::UNIX_EPOCH;
        let combined =
            |message: &str| event(&format!("(combined from similar events): {message}"), at);
        let (first, mut next) = (combined("port 1"), combined("port 2"));
        "spec.containers{sidecar}".clone_into(&mut next.object.field_path);
        assert_eq!(identity(&first), identity(&next));
        assert_ne!(identity(&first), identity(&event("port 1", at)));
        assert_ne!(identity(&event("port 1", at)), identity(&event("port 2", at)));
        // A later aggregate is another event.
        next.first_at = Timestamp::from_second(1).unwrap();
        assert_ne!(identity(&first), identity(&next));
    }

    #[test]
    fn event_names_its_pod_and_container() {
        let at: Timestamp = "2026-11-28T10:00:00.5Z".parse().unwrap();
        let event = event("m", at);
        let object = recorded("n1", &event, "web.ff");
        let annotations = json!({"starved_resource": "memory"});
        let expected = json!({"name": "web.ff", "namespace": "ns", "annotations": annotations});
        assert_eq!(object["metadata"], expected);
        let involved = &object["involvedObject"];
        assert_eq!(involved["fieldPath"], "spec.containers{app}");
        assert_eq!((&involved["uid"], &object["count"]), (&json!("u"), &json!(3)));
        assert_eq!(object["source"], json!({"component": "kubelet", "host": "n1"}));
        assert_eq!(object["lastTimestamp"], "2026-11-28T10:00:00Z");
        let node = EventObject {
            kind: EventObjectKind::Node,
            uid: PodUid::new("n1"),
            namespace: String::new(),
            name: "n1".to_owned(),
            field_path: String::new(),
        };
        let object = recorded("n1", &Event { object: node, ..event }, "n1.ff");
        assert_eq!(object["metadata"]["namespace"], "default");
        let expected = json!({"apiVersion": "v1", "kind": "Node", "name": "n1"});
        assert_eq!(object["involvedObject"], expected);
    }

    #[test]
    fn event_of_a_long_named_object_has_a_uuid() {
        let at = Timestamp::from_nanosecond(255).unwrap();
        let named = |object: &str| name(object, at, "uuid".to_owned());
        assert_eq!(named("web"), "web.ff");
        let longest = "a".repeat(250);
        assert_eq!(named(&longest), format!("{longest}.ff"));
        assert_eq!(named(&"a".repeat(251)), "uuid");
        assert_eq!(named("Node_1"), "uuid", "no valid name of an event");
    }
}
