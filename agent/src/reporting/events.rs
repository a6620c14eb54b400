//! Events about pods, as a kubelet records them: a stream of actions on a pod, beside its status.
//!
//! `events/texts.rs` has the kubelet's reasons and messages as data, `events/correlate.rs` counts and aggregates them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::pod::{Pod, PodUid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc;

use crate::clock::Clock;

mod correlate;
mod resize;
pub(crate) mod texts;

use correlate::Correlator;
pub(crate) use texts::{EventReason, ResizeEvent};

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// For information.
    Normal,
    /// A failure.
    Warning,
}

impl EventType {
    /// The type's name in the Kubernetes API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The kind of the object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventObjectKind {
    /// A pod.
    Pod,
    /// The node, whose uid is its name.
    Node,
    /// A PersistentVolumeClaim.
    Claim,
}

/// The object of an event (`involvedObject`): a pod, a field of its spec, the node, or a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventObject {
    /// Its kind.
    pub kind: EventObjectKind,
    /// Its identity.
    pub uid: PodUid,
    /// Its namespace; a node has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `spec.containers{NAME}` for a container; empty for the pod as a whole.
    pub field_path: String,
}

impl EventObject {
    /// The container's name, if it is about one.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        let (_, name) = self.field_path.split_once('{')?;
        name.strip_suffix('}')
    }
}

/// An event, as `v1.Event` has it. A repeated event is sent again with its new count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its object.
    pub object: EventObject,
    /// Its type.
    pub kind: EventType,
    /// The reason, as one CamelCase word (`Started`, `BackOff`).
    pub reason: String,
    /// The message.
    pub message: String,
    /// The event's annotations.
    pub annotations: BTreeMap<String, String>,
    /// How often it occurred.
    pub count: u32,
    /// When it first occurred.
    pub first_at: Timestamp,
    /// When it last occurred.
    pub last_at: Timestamp,
}

/// The prefix of an aggregate's message.
const AGGREGATE_PREFIX: &str = "(combined from similar events): ";

impl Event {
    /// Whether it is an aggregate: it replaces similar events, whose messages, and perhaps containers, differ.
    #[must_use]
    pub fn is_aggregate(&self) -> bool {
        self.message.starts_with(AGGREGATE_PREFIX)
    }
}

/// Records events: workers, image pulls and probes all report to it. Clones share it.
#[derive(Clone)]
pub(crate) struct EventRecorder {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<dyn Clock>,
}

struct Inner {
    correlator: Correlator,
    subscribers: Vec<mpsc::UnboundedSender<Event>>,
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRecorder").finish_non_exhaustive()
    }
}

impl EventRecorder {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let inner = Inner { correlator: Correlator::default(), subscribers: Vec::new() };
        Self { inner: Arc::new(Mutex::new(inner)), clock }
    }

    /// Records an event about a pod, or about one of its containers.
    pub(crate) fn record(&self, pod: &Pod, container: Option<&str>, reason: &EventReason) {
        let object = texts::object(pod, container);
        let annotations = reason.annotations();
        self.record_about(object, reason.text(pod, container), annotations);
    }

    /// Records a warning about the node of this name.
    pub(crate) fn record_node_warning(&self, node: &str, reason: &str, message: String) {
        self.record_node(node, EventType::Warning, reason, message);
    }

    /// Records an event about the node of this name.
    pub(crate) fn record_node(&self, node: &str, kind: EventType, reason: &str, message: String) {
        let object = EventObject {
            kind: EventObjectKind::Node,
            uid: PodUid::new(node),
            namespace: String::new(),
            name: node.to_owned(),
            field_path: String::new(),
        };
        let text = (kind, reason.to_owned(), message);
        self.record_about(object, text, BTreeMap::new());
    }

    /// Records an event about a claim.
    pub(crate) fn record_claim(
        &self,
        claim: &ObjectReference,
        kind: EventType,
        reason: &str,
        message: &str,
    ) {
        let object = EventObject {
            kind: EventObjectKind::Claim,
            uid: PodUid::new(claim.uid.clone().unwrap_or_default()),
            namespace: claim.namespace.clone().unwrap_or_default(),
            name: claim.name.clone().unwrap_or_default(),
            field_path: String::new(),
        };
        let text = (kind, reason.to_owned(), message.to_owned());
        self.record_about(object, text, BTreeMap::new());
    }

    /// Records an event with a given text, about a pod or one of its containers.
    pub(crate) fn record_text(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: EventType,
        reason: &str,
        message: &str,
    ) {
        let object = texts::object(pod, container);
        let text = (kind, reason.to_owned(), message.to_owned());
        self.record_about(object, text, BTreeMap::new());
    }

    /// Records an event about an object.
    fn record_about(
        &self,
        object: EventObject,
        (kind, reason, message): (EventType, String, String),
        annotations: BTreeMap<String, String>,
    ) {
        let (count, now) = (1, self.clock.now());
        let (first_at, last_at) = (now, now);
        let event = Event { object, kind, reason, message, annotations, count, first_at, last_at };
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(event) = inner.correlator.correlate(event, now) else {
            return;
        };
        tracing::debug!(
            object = %format_args!("{}/{}", event.object.namespace, event.object.name),
            field = %event.object.field_path,
            kind = event.kind.as_str(),
            reason = %event.reason,
            message = %event.message,
            count = event.count,
            "event"
        );
        inner.subscribers.retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }

    /// Receives every later event.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Event> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.subscribers.push(sender);
        receiver
    }
}
