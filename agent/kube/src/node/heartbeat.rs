//! Keeps the node's status as the node is: registers it first, then patches it when it changes, and from time to time.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_node_status.go syncNodeStatus, updateNodeStatus, tryUpdateNodeStatus.

use std::time::Duration;

use agent::EventType;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::facts::NodeFacts;
use super::registration::{self, register};
use super::startup::NodeStartup;
use super::status::{Facts, architecture, differs, patch, status};
use super::volumes_in_use::VolumesInUse;
use crate::StatusSettings;
use crate::chance::{chance, jittered};
use crate::client::{ApiClient, ApiError, PatchKind};

const JITTER: f64 = 0.04;
/// The attempts per period.
const MAX_TRIES: usize = 5;

/// ◆ When an unchanged status is due.
#[derive(Debug)]
struct Cadence {
    /// The interval between reports of an unchanged status.
    period: Duration,
    due: Option<Instant>,
}

impl Cadence {
    fn new(period: Duration) -> Self {
        Self { period, due: None }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Records a report. After a change, and after the start, `chance` makes the period up to half shorter or longer, so that nodes
    /// that changed at the same time do not keep reporting at the same time.
    fn reported(&mut self, changed: bool, now: Instant, chance: f64) {
        let share = match changed || self.due.is_none() {
            true => 0.5 + chance,
            false => 1.0,
        };
        self.due = Some(now + self.period.mul_f64(share));
    }
}

/// The state kept between updates.
#[derive(Debug)]
pub(super) struct HeartbeatState {
    cadence: Cadence,
    /// Whether the node was unschedulable at the last update. Initially false, so that an unschedulable node causes an event at the
    /// start, as in the kubelet.
    unschedulable: bool,
}

impl HeartbeatState {
    pub(super) fn new(period: Duration) -> Self {
        Self { cadence: Cadence::new(period), unschedulable: false }
    }

    /// The reason of the event if the node's `spec.unschedulable` has changed (recordNodeSchedulableEvent).
    fn schedulable_transition(&mut self, node: &Value) -> Option<&'static str> {
        let unschedulable = node["spec"]["unschedulable"] == true;
        let before = std::mem::replace(&mut self.unschedulable, unschedulable);
        let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
        (before != unschedulable).then_some(reason)
    }
}

/// An event of the node.
#[derive(Debug)]
pub(super) struct NodeEvent {
    kind: EventType,
    reason: &'static str,
    message: String,
}

impl NodeEvent {
    /// Records it with the agent's events, so that their limits apply to all events of the node together.
    fn record(self, node: &NodeFacts) {
        let name = &node.registration.name;
        node.view.record_node_event(name, self.kind, self.reason, self.message);
    }
}

/// Registers the node and updates its status. Never returns. A change of readiness, of limitations, or of the volumes in use is sent
/// without delay. `known` is the node's object from the watch.
pub(crate) async fn run(
    client: ApiClient,
    node: NodeFacts,
    settings: StatusSettings,
    in_use: VolumesInUse,
    known: watch::Receiver<Option<Value>>,
) {
    let starting = NodeEvent {
        kind: EventType::Normal,
        reason: "Starting",
        message: "Starting kubelet.".to_owned(),
    };
    starting.record(&node);
    if let Some(status) = register(&client, &node).await {
        for reason in transitions(&Value::Null, &status) {
            status_event(&node.registration.name, reason).record(&node);
        }
    }
    let (mut view, mut limits) = (node.view.clone(), node.limits.clone());
    let mut volumes = node.volumes_in_use.clone();
    let mut state = HeartbeatState::new(settings.report_period);
    loop {
        if let Some(facts) = update(&client, &node, &known, &mut state).await
            && let Some(volumes) = &facts.volumes_in_use
        {
            in_use.set_reported(volumes);
        }
        tokio::select! {
            () = sleep(jittered(settings.period, JITTER)) => {}
            () = view.readiness_changed() => {}
            Ok(()) = limits.changed() => {}
            Ok(()) = volumes.changed() => {}
        }
    }
}

/// Updates the status. Returns the reported facts, or `None` if the update failed.
async fn update(
    client: &ApiClient,
    node: &NodeFacts,
    known: &watch::Receiver<Option<Value>>,
    state: &mut HeartbeatState,
) -> Option<Facts> {
    let facts = node.now().await;
    // The first attempt uses the object from the watch.
    let known = known.borrow().clone();
    let happened = try_updates(client, &facts, state, known, &node.startup).await?;
    for event in happened {
        event.record(node);
    }
    Some(facts)
}

/// Tries an update until it succeeds, at most [`MAX_TRIES`] times. Returns the events.
pub(super) async fn try_updates(
    client: &ApiClient,
    facts: &Facts,
    state: &mut HeartbeatState,
    mut known: Option<Value>,
    startup: &NodeStartup,
) -> Option<Vec<NodeEvent>> {
    for tried in 0..MAX_TRIES {
        match try_update(client, facts, state, known.take(), startup).await {
            Ok(happened) => return Some(happened),
            Err(error) => {
                if closes_connections(tried, &error) {
                    client.reconnect();
                }
                let error = &error as &dyn std::error::Error;
                tracing::warn!(node = %facts.name, error, "failed to update node status");
            }
        }
    }
    None
}

/// ◆ Whether the client closes its connections after this attempt of a heartbeat has failed; the first one is 0.
///
/// The kubelet closes its idle connections after each failure except the first, and detects dead ones by HTTP/2 pings. HTTP/1.1 has
/// no pings, so this also ends watches on dead connections. If the server answers, watches continue, as in the kubelet.
pub(super) fn closes_connections(tried: usize, error: &ApiError) -> bool {
    tried > 0 && error.has_no_response()
}

/// Updates the status if it has changed or is due. Returns the events of the changes.
async fn try_update(
    client: &ApiClient,
    facts: &Facts,
    state: &mut HeartbeatState,
    known: Option<Value>,
    startup: &NodeStartup,
) -> Result<Vec<NodeEvent>, ApiError> {
    let path = registration::path(&facts.name);
    let before = match known {
        Some(node) => node,
        None => client.get(&path, &[]).await?,
    };
    let mut after = before.clone();
    after["status"] = status(facts, &before["status"], Timestamp::now());
    let relabelled = set_system_labels(&mut after);
    let changed = relabelled || differs(&before["status"], &after["status"]);
    let event = |reason: &'static str| status_event(&facts.name, reason);
    if !changed && !state.cadence.is_due(Instant::now()) {
        return Ok(state.schedulable_transition(&before).map(event).into_iter().collect());
    }
    let patch = patch(&before, &after).map_err(|error| ApiError::Malformed(error.to_string()))?;
    if let Some(patch) = patch {
        let path = format!("{path}/status");
        client.patch(&path, PatchKind::StrategicMerge, &patch).await?;
    }
    state.cadence.reported(changed, Instant::now(), chance());
    let schedulable_transition = state.schedulable_transition(&before);
    let (before, after) = (&before["status"], &after["status"]);
    if is_true(after, "Ready") == Some(true) {
        startup.became_ready(Timestamp::now());
    }
    let transitions =
        transitions(before, after).into_iter().chain(schedulable_transition).map(event);
    let rebooted = rebooted(before, after).map(|boot| NodeEvent {
        kind: EventType::Warning,
        reason: "Rebooted",
        message: format!("Node {} has been rebooted, boot id: {boot}", facts.name),
    });
    Ok(rebooted.into_iter().chain(transitions).collect())
}

/// ◆ The event for a change of the node's status.
fn status_event(node: &str, reason: &'static str) -> NodeEvent {
    let message = format!("Node {node} status is now: {reason}");
    NodeEvent { kind: EventType::Normal, reason, message }
}

/// ◆ The boot ID, if it differs from the server's.
fn rebooted<'a>(before: &Value, after: &'a Value) -> Option<&'a str> {
    let known = before["nodeInfo"]["bootID"].as_str().filter(|id| !id.is_empty())?;
    after["nodeInfo"]["bootID"].as_str().filter(|id| !id.is_empty() && *id != known)
}

/// ◆ Sets the labels of operating system and architecture. Returns whether one has changed.
fn set_system_labels(node: &mut Value) -> bool {
    let mut changed = false;
    for (label, value) in [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", architecture())] {
        let label = &mut node["metadata"]["labels"][label];
        if *label != value {
            *label = value.into();
            changed = true;
        }
    }
    changed
}

/// The conditions whose changes cause events, with the reasons for true and for false.
const TRANSITIONS: [(&str, &str, &str); 4] = [
    ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
    ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
    ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
    ("Ready", "NodeReady", "NodeNotReady"),
];

/// ◆ The reasons of the events for changed conditions. A new node causes no event if it is ready, but causes one for each absent
/// pressure (pkg/kubelet/nodestatus/setters.go).
fn transitions(before: &Value, after: &Value) -> Vec<&'static str> {
    let reason = |(kind, yes, no): (&str, &'static str, &'static str)| {
        let (before, after) = (is_true(before, kind), is_true(after, kind)?);
        let is_event = before.map_or(kind != "Ready", |before| before != after);
        is_event.then_some(if after { yes } else { no })
    };
    TRANSITIONS.into_iter().filter_map(reason).collect()
}

fn is_true(status: &Value, kind: &str) -> Option<bool> {
    let mut conditions = status["conditions"].as_array()?.iter();
    let condition = conditions.find(|condition| condition["type"] == kind)?;
    Some(condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use fetch::FetchError;
    use serde_json::json;

    use super::*;

    #[test]
    fn connections_close_after_the_second_try_without_answer() {
        let slow = || ApiError::TimedOut(Duration::from_secs(10));
        let silent = || ApiError::Unreachable(FetchError::Silence(Duration::from_secs(10)));
        let refused = |code| ApiError::refused(code, b"no");
        for (tried, error, expected) in [
            (0, slow(), false),
            (1, slow(), true),
            (4, slow(), true),
            (0, silent(), false),
            (1, silent(), true),
            (1, refused(403), false),
            (1, refused(409), false),
            (4, refused(503), false),
            (1, ApiError::Malformed("no".to_owned()), false),
        ] {
            assert_eq!(closes_connections(tried, &error), expected, "{tried} {error}");
        }
    }

    #[test]
    fn changed_conditions_cause_events() {
        let of =
            |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status}]});
        let (yes, no, unknown) =
            (of("Ready", "True"), of("Ready", "False"), of("Ready", "Unknown"));
        assert_eq!(transitions(&no, &yes), ["NodeReady"]);
        assert_eq!(transitions(&unknown, &yes), ["NodeReady"]);
        assert_eq!(transitions(&yes, &no), ["NodeNotReady"]);
        assert_eq!(transitions(&yes, &yes), [""; 0]);
        assert_eq!(transitions(&Value::Null, &yes), [""; 0]);
        assert_eq!(
            transitions(&Value::Null, &of("DiskPressure", "False")),
            ["NodeHasNoDiskPressure"]
        );
        let (short, enough) = (of("DiskPressure", "True"), of("DiskPressure", "False"));
        assert_eq!(transitions(&enough, &short), ["NodeHasDiskPressure"]);
        assert_eq!(transitions(&short, &enough), ["NodeHasNoDiskPressure"]);
    }

    #[test]
    fn changed_schedulability_causes_an_event() {
        let mut state = HeartbeatState::new(Duration::from_secs(300));
        let (cordoned, free) = (json!({"spec": {"unschedulable": true}}), json!({"spec": {}}));
        let mut reason = |node: &Value| state.schedulable_transition(node);
        assert_eq!(reason(&free), None);
        assert_eq!(reason(&cordoned), Some("NodeNotSchedulable"));
        assert_eq!(reason(&cordoned), None);
        assert_eq!(reason(&json!({"spec": {"unschedulable": false}})), Some("NodeSchedulable"));
        assert_eq!(reason(&free), None);
        let mut started = HeartbeatState::new(Duration::from_secs(300));
        assert_eq!(started.schedulable_transition(&cordoned), Some("NodeNotSchedulable"));
    }

    #[test]
    fn changed_boot_id_is_a_reboot() {
        let of = |boot: &str| json!({"nodeInfo": {"bootID": boot}});
        assert_eq!(rebooted(&of("a"), &of("b")), Some("b"));
        for (before, after) in [(of("a"), of("a")), (of(""), of("b")), (of("a"), of(""))] {
            assert_eq!(rebooted(&before, &after), None, "{before} {after}");
        }
        assert_eq!(rebooted(&Value::Null, &of("b")), None, "a new node");
    }

    #[test]
    fn system_labels_are_restored() {
        let arch = architecture();
        let right = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": arch, "theirs": "1"});
        for (labels, changed) in [
            (right.clone(), false),
            (json!({"kubernetes.io/os": "plan9", "kubernetes.io/arch": arch, "theirs": "1"}), true),
            (json!({"theirs": "1"}), true),
        ] {
            let mut node = json!({"metadata": {"labels": labels}});
            assert_eq!(set_system_labels(&mut node), changed, "{labels}");
            assert_eq!(node["metadata"]["labels"], right);
        }
        assert!(set_system_labels(&mut json!({"metadata": {}})));
    }

    #[test]
    fn unchanged_status_is_due_after_five_minutes_more_or_less() {
        let start = Instant::now();
        let mut cadence = Cadence::new(Duration::from_secs(300));
        assert!(cadence.is_due(start));
        cadence.reported(false, start, 0.0);
        assert!(!cadence.is_due(start + Duration::from_secs(149)));
        assert!(cadence.is_due(start + Duration::from_secs(150)));
        let second = start + Duration::from_secs(150);
        cadence.reported(false, second, 0.0);
        assert!(!cadence.is_due(second + Duration::from_secs(299)));
        assert!(cadence.is_due(second + Duration::from_secs(300)));
        cadence.reported(true, second, 1.0);
        assert!(!cadence.is_due(second + Duration::from_secs(449)));
        assert!(cadence.is_due(second + Duration::from_secs(450)));
    }
}
