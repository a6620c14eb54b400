//! The task that owns the state of all probes: it decides at each tick and starts the checks.
//!
//! One timer serves all probes: it fires at the earliest tick. Results go to the pod's worker, whose reports come back as statuses.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use api::pod::{Pod, PodUid, is_sidecar};
use compact::Map;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::check::Checker;
use super::counts::{ProbeCounter, ProbeCounts};
use super::machine::{Next, ProbeKind, ProbeState, Target};
use super::ticker::{Ticker, delay};
use super::{Outcome, ProbeEvent};
use crate::clock::{Clock, after, until};
use crate::observed::{ContainerId, ProbeResult};
use crate::reporting::events::{EventRecorder, EventType};

/// A result that a probe has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeUpdate {
    /// The container's name in the spec.
    pub(crate) container: String,
    /// The container that was probed.
    pub(crate) id: ContainerId,
    /// Which probe.
    pub(crate) kind: ProbeKind,
    /// The result.
    pub(crate) result: ProbeResult,
    /// The event of the check, if the check led to the result.
    pub(crate) event: Option<ProbeEvent>,
}

/// A pod whose containers are probed.
#[derive(Debug)]
pub(crate) struct Probed {
    /// The pod.
    pub(crate) pod: Pod,
    /// Its status.
    pub(crate) status: Arc<PodStatus>,
    /// Whether one of its containers is older than the agent.
    pub(crate) adopted: bool,
    /// Receives the results.
    pub(crate) updates: mpsc::UnboundedSender<ProbeUpdate>,
}

enum Request {
    Add(Probed),
    Status(PodUid, Arc<PodStatus>),
    StopLivenessAndStartup(PodUid),
    Remove(PodUid),
}

/// A handle to the prober. Clones share it.
#[derive(Clone)]
pub(crate) struct Prober {
    requests: mpsc::UnboundedSender<Request>,
    counts: ProbeCounts,
}

impl Prober {
    /// A handle, and the task to run.
    pub(crate) fn new(
        checker: Checker,
        clock: Arc<dyn Clock>,
        events: EventRecorder,
        agent_started_at: Timestamp,
    ) -> (Self, ProberTask) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let counts = ProbeCounts::default();
        let task = ProberTask {
            counts: counts.clone(),
            checker,
            clock,
            events,
            agent_started_at,
            requests: receiver,
            pods: Map::new(),
            entries: HashMap::new(),
            last_key: 0,
            ticks: BinaryHeap::new(),
            checks: JoinSet::new(),
            checked: HashMap::new(),
        };
        (Self { requests, counts }, task)
    }

    /// The results so far.
    pub(crate) fn counts(&self) -> &ProbeCounts {
        &self.counts
    }

    /// Begins to probe the containers of a pod.
    pub(crate) fn add(&self, probed: Probed) {
        self.send(Request::Add(probed));
    }

    /// Sets the latest status of a pod.
    pub(crate) fn set_status(&self, uid: &PodUid, status: Arc<PodStatus>) {
        self.send(Request::Status(uid.clone(), status));
    }

    /// Stops the liveness and startup probes of a pod's app containers, because the pod terminates.
    pub(crate) fn stop_liveness_and_startup(&self, uid: &PodUid) {
        self.send(Request::StopLivenessAndStartup(uid.clone()));
    }

    /// Stops all probes of a pod.
    pub(crate) fn remove(&self, uid: &PodUid) {
        self.send(Request::Remove(uid.clone()));
    }

    fn send(&self, request: Request) {
        // The prober ends only with the agent.
        let _ = self.requests.send(request);
    }
}

/// Whether the pod has probes.
pub(crate) fn has_probes(pod: &Pod) -> bool {
    probed_containers(pod)
        .any(|container| ProbeKind::ALL.into_iter().any(|kind| kind.of(container).is_some()))
}

fn probed_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init));
    pod.containers().iter().chain(sidecars)
}

/// What the task stores about a pod.
struct PodEntry {
    pod: Pod,
    status: Arc<PodStatus>,
    updates: mpsc::UnboundedSender<ProbeUpdate>,
    probes: Vec<u64>,
}

/// One probe.
struct Entry {
    target: Arc<Target>,
    state: ProbeState,
    ticker: Ticker,
    /// The time of its next tick; other times in [`ProberTask::ticks`] are outdated.
    due: Timestamp,
    check: Option<AbortHandle>,
    /// When the check began.
    check_began: Timestamp,
    counter: ProbeCounter,
    /// Whether a tick fell into the check.
    ticked: bool,
    /// Whether the probe must run immediately.
    triggered: bool,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(check) = &self.check {
            check.abort();
        }
    }
}

/// The state of the prober.
pub(crate) struct ProberTask {
    checker: Checker,
    counts: ProbeCounts,
    clock: Arc<dyn Clock>,
    events: EventRecorder,
    agent_started_at: Timestamp,
    requests: mpsc::UnboundedReceiver<Request>,
    pods: Map<PodUid, PodEntry>,
    entries: HashMap<u64, Entry>,
    last_key: u64,
    /// The tick times of the probes, earliest first.
    ticks: BinaryHeap<Reverse<(Timestamp, u64)>>,
    checks: JoinSet<Outcome>,
    /// The probe that each check is for.
    checked: HashMap<Id, u64>,
}

impl ProberTask {
    /// Runs until all handles are dropped.
    pub(crate) async fn run(mut self) {
        let clock = Arc::clone(&self.clock);
        loop {
            let due = self.ticks.peek().map(|Reverse((due, _))| *due);
            // Each arm is cancel safe: it only receives or sleeps.
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => self.handle(request),
                    None => return,
                },
                Some(done) = self.checks.join_next_with_id() => self.finish(done),
                () = clock.sleep_until(due.unwrap_or(Timestamp::MAX)), if due.is_some() => self.tick(),
            }
        }
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Add(probed) => self.add(probed),
            Request::Status(uid, status) => self.set_status(&uid, status),
            Request::StopLivenessAndStartup(uid) => self.stop(&uid, |pod, target| {
                let is_app = |app: &Container| app.name == target.container.name;
                target.kind != ProbeKind::Readiness && pod.containers().iter().any(is_app)
            }),
            Request::Remove(uid) => {
                self.stop(&uid, |_, _| true);
                self.pods.remove(&uid);
            }
        }
    }

    fn add(&mut self, probed: Probed) {
        let uid = probed.pod.uid().clone();
        self.stop(&uid, |_, _| true);
        let now = self.clock.now();
        let mut probes = Vec::new();
        for container in probed_containers(&probed.pod) {
            let shared = Arc::new(container.clone());
            for kind in ProbeKind::ALL {
                let Some(probe) = kind.of(container) else {
                    continue;
                };
                let seconds = probe.period_seconds.unwrap_or(10).max(1);
                let period = Duration::from_secs(u64::from(seconds.unsigned_abs()));
                let wait = if probed.adopted {
                    let share = share(&uid, &container.name, kind);
                    delay(period, self.agent_started_at, now, share)
                } else {
                    Duration::ZERO
                };
                let target = Target {
                    pod: probed.pod.clone(),
                    container: Arc::clone(&shared),
                    kind,
                    agent_started_at: self.agent_started_at,
                };
                self.last_key += 1;
                let first = after(now, wait);
                let entry = Entry {
                    counter: self.counts.counter(&target),
                    target: Arc::new(target),
                    state: ProbeState::default(),
                    ticker: Ticker::new(first, period),
                    due: first,
                    check: None,
                    check_began: now,
                    ticked: false,
                    triggered: false,
                };
                self.ticks.push(Reverse((first, self.last_key)));
                self.entries.insert(self.last_key, entry);
                probes.push(self.last_key);
            }
        }
        let pod =
            PodEntry { pod: probed.pod, status: probed.status, updates: probed.updates, probes };
        self.pods.insert(uid, pod);
    }

    fn stop(&mut self, uid: &PodUid, which: impl Fn(&Pod, &Target) -> bool) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let entries = &mut self.entries;
        let stops = |key: &u64| entries.get(key).is_none_or(|entry| which(&pod.pod, &entry.target));
        let (stopped, kept): (Vec<u64>, Vec<u64>) = pod.probes.iter().partition(|key| stops(key));
        pod.probes = kept;
        for key in stopped {
            self.entries.remove(&key);
        }
    }

    /// Stores a status. A started container that is not ready is probed immediately, as the kubelet does whenever it computes a
    /// status.
    fn set_status(&mut self, uid: &PodUid, status: Arc<PodStatus>) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.status = status;
        let status = Arc::clone(&pod.status);
        for key in pod.probes.clone() {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            let is_readiness = entry.target.kind == ProbeKind::Readiness;
            let wants = status_of(&status, &entry.target.container.name)
                .is_some_and(|container| needs_readiness_result(container, &entry.state));
            if is_readiness && wants {
                if entry.check.is_some() {
                    entry.triggered = true;
                } else {
                    entry.ticker.reset(self.clock.now());
                    self.decide(key);
                }
            }
        }
    }

    /// Handles the probes whose tick is due.
    fn tick(&mut self) {
        let now = self.clock.now();
        while let Some(Reverse((due, key))) = self.ticks.peek().copied() {
            if due > now {
                return;
            }
            self.ticks.pop();
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if entry.due != due {
                continue;
            }
            if entry.check.is_some() {
                entry.ticked = true;
            } else {
                entry.ticker.take(now);
                self.decide(key);
            }
        }
    }

    /// Decides at a tick, and waits for the next one.
    fn decide(&mut self, key: u64) {
        let now = self.clock.now();
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let Some(pod) = self.pods.get(entry.target.pod.uid()) else {
            return;
        };
        let next = entry.state.tick(&entry.target, Some(&pod.status), now);
        publish(entry, pod, None);
        match next {
            Next::End => {
                self.entries.remove(&key);
                return;
            }
            Next::Wait => {}
            Next::Run => {
                if let Some(id) = entry.state.container_id() {
                    let (checker, target) = (self.checker.clone(), Arc::clone(&entry.target));
                    let pod_ip = pod.status.pod_ip.clone().unwrap_or_default();
                    let check = async move { checker.check(&target, &id, &pod_ip).await };
                    let handle = self.checks.spawn(tasks::boxed(check));
                    self.checked.insert(handle.id(), key);
                    entry.check = Some(handle);
                    entry.check_began = now;
                }
            }
        }
        entry.due = entry.ticker.served();
        self.ticks.push(Reverse((entry.due, key)));
    }

    fn finish(&mut self, done: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = match done {
            Ok(done) => done,
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "probe panicked");
                }
                let state = "unknown";
                let message = error.to_string();
                (error.id(), Outcome::Error { state, message })
            }
        };
        let Some(key) = self.checked.remove(&id) else {
            return;
        };
        // The probe may have been stopped.
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let Some(pod) = self.pods.get(entry.target.pod.uid()) else {
            return;
        };
        entry.check = None;
        let event = outcome.event(entry.target.kind, &entry.target.container.name);
        if let Some(event) = &event {
            let container = Some(event.container.as_str());
            let kind = EventType::Warning;
            self.events.record_text(&pod.pod, container, kind, event.reason, &event.message);
        }
        let now = self.clock.now();
        if let Some(succeeded) = outcome.succeeded() {
            entry.counter.count(succeeded, until(entry.check_began, now));
            entry.state.finish(&entry.target, succeeded);
            publish(entry, pod, event.as_ref());
        }
        let (triggered, ticked) = (entry.triggered, entry.ticked);
        (entry.triggered, entry.ticked) = (false, false);
        if triggered {
            entry.ticker.reset(now);
            self.decide(key);
        } else if ticked {
            entry.ticker.take(now);
            self.decide(key);
        }
    }
}

/// Sends a probe's recorded results to the pod's worker.
fn publish(entry: &mut Entry, pod: &PodEntry, event: Option<&ProbeEvent>) {
    let Some(id) = entry.state.container_id() else {
        return;
    };
    for result in entry.state.take_changes() {
        tracing::info!(
            pod = %pod.pod.full_name(),
            container = %entry.target.container.name,
            probe = %entry.target.kind,
            ?result,
            "probe result changed"
        );
        // The send fails only if the worker has ended.
        let _ = pod.updates.send(ProbeUpdate {
            container: entry.target.container.name.clone(),
            id: id.clone(),
            kind: entry.target.kind,
            result,
            event: event.cloned(),
        });
    }
}

fn status_of<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = status.container_statuses.iter().flatten();
    statuses
        .chain(status.init_container_statuses.iter().flatten())
        .find(|status| status.name == name)
}

/// Whether a readiness probe runs immediately: the container runs and has started, and is not recorded as ready.
fn needs_readiness_result(container: &ContainerStatus, state: &ProbeState) -> bool {
    let runs = container.state.as_ref().is_some_and(|state| state.running.is_some());
    let id = container
        .container_id
        .as_deref()
        .and_then(|id| id.split_once("://"))
        .map(|(_, id)| ContainerId::new(id));
    let is_ready = id == state.container_id() && state.recorded() == Some(ProbeResult::Success);
    runs && container.started == Some(true) && !is_ready
}

/// A number from 0 to 1 that differs between probes.
fn share(uid: &PodUid, container: &str, kind: ProbeKind) -> f64 {
    let mut hasher = DefaultHasher::new();
    (uid, container, kind).hash(&mut hasher);
    f64::from(u32::try_from(hasher.finish() >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}
