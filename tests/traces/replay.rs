//! Does to a node what was done in a scenario, at the same times, and returns what its agent called and reported.

use std::time::{Duration, Instant};

use harness::Registry;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ephemeral;
use crate::history::outline;
use crate::images;
use crate::kubelet::Kubelet;
use crate::node::{Node, Parts, PodState};
use crate::objects::ApiObjects;
use crate::patches;
use crate::pods::{self, Pods, UNREADABLE};
use crate::scenario::{Mode, Scenario, method};
use crate::timeline::{Note, Step, step};

/// How much later than the kubelet's pods ours may reach a state before the scenario goes on without it: a retry's
/// tolerance.
const LATE: f64 = 6.0;
const LATE_SHARE: f64 = 0.2;

/// The calls that make something of a pod, those that end it, and how long the replay waits for those that the kubelet had
/// made.
const MAKING: [&str; 3] = ["RunPodSandbox", "CreateContainer", "StartContainer"];
const ENDING: [&str; 2] = ["StopContainer", "StopPodSandbox"];
const SOON: Duration = Duration::from_secs(6);

/// How often the process looks whether it can run, and which delay in seconds does not count.
const TICK: Duration = Duration::from_millis(50);
const SHORT: f64 = 0.02;

/// What an agent did in a scenario.
pub(crate) struct Replayed {
    /// Its calls, as lines of a trace.
    pub(crate) calls: Vec<Value>,
    /// The statuses before the pods were removed, as in `status.json`.
    pub(crate) status: Vec<Value>,
    /// The events about pods, as in `events.json`.
    pub(crate) events: Vec<Value>,
    /// What was done, and when.
    pub(crate) notes: Vec<Note>,
    /// Every status that was published, as in `status_history.jsonl`.
    pub(crate) history: Vec<Value>,
    /// When the pods were removed.
    pub(crate) removed_at: f64,
    /// When an API server removed objects, by their uid.
    pub(crate) gone: Vec<(String, f64)>,
    /// When the scenario went on later than it did for the kubelet: from when on (for the kubelet), and by how much.
    pub(crate) shifts: Vec<(f64, f64)>,
    /// When this process could not run for a while, and for how long: the machine was busy with something else.
    pub(crate) stalls: Vec<(f64, f64)>,
    /// The node's directory.
    pub(crate) root: String,
    /// What a kubelet has logged.
    pub(crate) log: String,
    /// What went wrong beside the agent.
    pub(crate) trouble: Vec<String>,
}

/// Replays a scenario.
pub(crate) async fn replay(scenario: &Scenario, registry: &Registry, parts: &Parts) -> Replayed {
    let mode = scenario.mode();
    // A scenario of a manifest file on a node with an API server names the pod's node in its status.
    let of_file = scenario.calls.iter().any(|call| {
        let source = "/request/config/annotations/kubernetes.io~1config.source";
        call.pointer(source).and_then(Value::as_str) == Some("file")
    });
    // The node's name and address.
    let (of_node, source) = match (mode, of_file) {
        (Mode::Static, _) => (("crinode", "192.0.2.2"), Mode::Static),
        (Mode::Api, true) => (("127.0.0.1", "127.0.0.1"), Mode::Static),
        (Mode::Api, false) => (("127.0.0.1", "127.0.0.1"), Mode::Api),
    };
    images::slow_down_once(registry, scenario);
    let mut node = Node::start(parts, of_node, registry, scenario).await;
    let mut replay = Replay {
        scenario,
        source,
        pods: Pods::new(source),
        objects: ApiObjects::default(),
        zero: Instant::now(),
        late: 0.0,
        shifts: Vec::new(),
        status: Vec::new(),
        removed_at: None,
        done: Vec::new(),
        trouble: Vec::new(),
    };
    node.proxy().recording().set_zero();
    let zero = Timestamp::now();
    let mut stalls = Vec::new();
    tokio::select! {
        () = replay.run(&mut node) => {}
        () = notice_stalls(&mut stalls) => {}
    }
    let calls = node.proxy().recording().calls();
    let (events, history) = (node.events(zero), node.history((replay.zero, zero)));
    let gone = replay.pods.gone().iter();
    let gone = gone.map(|(uid, at)| (uid.clone(), at.duration_since(zero).as_secs_f64()));
    let gone = gone.collect();
    let root = node.root().display().to_string();
    let log = node.kubelet().map_or_else(String::new, Kubelet::log_text);
    let calls = calls.iter().map(harness::proxy::Call::json).collect();
    if let Err(problem) = node.end().await {
        replay.trouble.push(problem);
    }
    Replayed {
        calls,
        status: replay.status,
        events,
        notes: replay.done,
        history,
        removed_at: replay.removed_at.unwrap_or(f64::MAX),
        gone,
        shifts: replay.shifts,
        stalls,
        root,
        log,
        trouble: replay.trouble,
    }
}

/// Notes when a short sleep takes long.
async fn notice_stalls(stalls: &mut Vec<(f64, f64)>) {
    let zero = Instant::now();
    loop {
        let before = Instant::now();
        tokio::time::sleep(TICK).await;
        let stall = before.elapsed().saturating_sub(TICK).as_secs_f64();
        if stall > SHORT {
            stalls.push((zero.elapsed().as_secs_f64(), stall));
        }
    }
}

struct Replay<'a> {
    scenario: &'a Scenario,
    /// What gives the agent its pods.
    source: Mode,
    pods: Pods,
    /// The objects that the pods refer to.
    objects: ApiObjects,
    zero: Instant,
    /// By how much the scenario is behind.
    late: f64,
    shifts: Vec<(f64, f64)>,
    status: Vec<Value>,
    /// When the pods were taken away for good.
    removed_at: Option<f64>,
    done: Vec<Note>,
    trouble: Vec<String>,
}

impl Replay<'_> {
    async fn run(&mut self, node: &mut Node) {
        let removed_at = self.scenario.removed_at();
        for note in self.scenario.notes() {
            let step = step(&note).unwrap_or_else(|| {
                let name = &self.scenario.name;
                crate::say(&format!("{name}: a note is not understood: {}", note.text));
                Step::Nothing
            });
            // A state may be reached earlier than it was then, and what follows is as much earlier.
            if step != Step::Wait {
                self.serve_until(node, note.at + self.late).await;
            }
            if note.at >= removed_at && self.removed_at.is_none() {
                self.catch_up(node, note.at, &MAKING).await;
            }
            self.capture(node);
            if note.at >= removed_at {
                let now = self.zero.elapsed().as_secs_f64();
                self.removed_at.get_or_insert(now);
            }
            let waits = step == Step::Wait;
            let before = self.zero.elapsed();
            self.take(node, step, note.at).await;
            let at = if waits { self.zero.elapsed() } else { before };
            self.done.push(Note {
                at: at.as_secs_f64(),
                text: note.text,
            });
        }
        self.catch_up(node, self.scenario.end(), &ENDING).await;
    }

    /// Keeps the statuses of the pods that the agent has from its source: the last ones are compared.
    fn capture(&mut self, node: &Node) {
        if self.removed_at.is_some() {
            return;
        }
        for pod in node.pods() {
            if node.reads_files() || self.pods.has(pod.uid()) {
                self.status
                    .retain(|earlier| earlier["metadata"]["uid"] != pod.entry["metadata"]["uid"]);
                self.status.push(pod.entry);
            }
        }
    }

    async fn take(&mut self, node: &mut Node, step: Step, at: f64) {
        let documents = self.scenario.documents();
        let texts = |replacing: bool| -> Vec<String> {
            let chosen = documents
                .iter()
                .filter(|(replaces, _)| *replaces == replacing);
            chosen.map(|(_, text)| text.clone()).collect()
        };
        match step {
            Step::Put => {
                self.objects = ApiObjects::of_manifest(self.scenario);
                node.set_objects(self.objects.map());
                self.pods.put(node, self.scenario, &texts(false)).await;
            }
            Step::CreateObjects(kind) => {
                self.objects.create(self.scenario, kind);
                node.set_objects(self.objects.map());
            }
            Step::UpdateObjects(kind) => {
                self.objects.update(self.scenario, kind);
                node.set_objects(self.objects.map());
            }
            Step::DeleteObjects(kind) => {
                self.objects.delete(kind);
                node.set_objects(self.objects.map());
            }
            Step::Replace => {
                let replacing = texts(true);
                let all = if replacing.is_empty() {
                    texts(false)
                } else {
                    replacing
                };
                self.pods.put(node, self.scenario, &all).await;
            }
            Step::Spoil => {
                self.pods
                    .put(node, self.scenario, &[UNREADABLE.to_owned()])
                    .await
            }
            Step::Clear => self.pods.clear(node, self.scenario),
            // A file on a node with an API server is removed, and its mirror pod with it.
            Step::Delete(_) if self.source == Mode::Static => self.pods.clear(node, self.scenario),
            Step::Delete(grace) => self.pods.delete(node, grace),
            Step::StopAgent => node.stop_agent().await,
            Step::StartAgent => self.start_agent(node).await,
            Step::RestartAgent => {
                node.stop_agent().await;
                self.start_agent(node).await;
            }
            Step::StopRuntime => node.stop_runtime().await,
            Step::KillRuntime => node.kill_runtime().await,
            Step::StartRuntime => node.start_runtime().await,
            Step::RestartRuntime => {
                node.stop_runtime().await;
                node.start_runtime().await;
            }
            Step::KillContainer(name, signal) => node.kill_container(&name, &signal).await,
            Step::KillSandbox => node.kill_sandbox().await,
            Step::StopContainer(name) => node.stop_container(&name).await,
            Step::RemoveContainer(name) => node.remove_container(&name).await,
            Step::RemoveImage(name) => node.remove_image(&name).await,
            Step::StopSandbox => node.stop_sandbox().await,
            Step::RemoveSandbox => node.remove_sandbox().await,
            Step::PatchLabel => self.pods.change(node, patches::label),
            Step::PatchAnnotation => self.pods.change(node, patches::annotation),
            Step::PatchImage(name) => {
                let patch = |pod: &mut _| patches::image(pod, self.scenario, &name);
                self.pods.change(node, patch);
            }
            Step::PatchDeadline(seconds) => {
                let patch = |pod: &mut _| patches::deadline(pod, self.scenario, seconds, at);
                self.pods.change(node, patch);
            }
            Step::PatchSpec => self.pods.change(node, pods::changed),
            Step::Resize => {
                let patch = |pod: &mut _| patches::resize(pod, self.scenario, at);
                self.pods.change(node, patch);
            }
            Step::AddEphemeral => {
                let add = |pod: &mut _| ephemeral::add(pod, self.scenario, at);
                self.pods.change(node, add);
            }
            Step::Wait => self.wait(node, at).await,
            Step::Nothing => {}
        }
    }

    async fn start_agent(&mut self, node: &mut Node) {
        if self.source == Mode::Api {
            self.pods.take_statuses(node.last_pods());
            self.pods.send(node);
        }
        node.start_agent().await;
        self.pods.send(node);
    }

    /// Waits for the state that the kubelet's pods had at a time. What follows is later by as much as that takes.
    async fn wait(&mut self, node: &mut Node, at: f64) {
        let wanted: Vec<Value> = self.scenario.statuses_at(at).iter().map(named).collect();
        let limit = at + self.late + LATE + at * LATE_SHARE;
        let limit = Duration::from_secs_f64(limit.max(0.0)).saturating_sub(self.zero.elapsed());
        let reached = |pods: &[PodState]| {
            let present: Vec<Value> = pods.iter().map(|pod| named(&pod.entry)).collect();
            wanted.iter().all(|outline| present.contains(outline))
        };
        if wanted.is_empty() || !node.until(limit, reached).await {
            // Without the state the rest goes on as it did then.
            self.serve_until(node, at + self.late).await;
        }
        self.late = self.zero.elapsed().as_secs_f64() - at;
        self.shifts.push((at, self.late));
    }

    /// Waits until our pods had as many calls of these kinds as the kubelet's until a time, if that is soon: so that a removal
    /// comes in the middle of the same sync, and the end after the pods'.
    async fn catch_up(&mut self, node: &Node, at: f64, kinds: &[&str]) {
        let made = |calls: &[&str]| -> Vec<usize> {
            let count = |kind: &&str| calls.iter().filter(|call| *call == kind).count();
            kinds.iter().map(count).collect()
        };
        let earlier = self.scenario.calls.iter();
        let earlier = earlier.filter(|call| call["t_start"].as_f64() < Some(at));
        let wanted = made(&earlier.map(method).collect::<Vec<_>>());
        let as_much = |ours: &[usize]| wanted.iter().zip(ours).all(|(wanted, ours)| ours >= wanted);
        let reached = node.proxy().recording().until(|calls| {
            let calls: Vec<&str> = calls.iter().map(|call| call.method.as_str()).collect();
            as_much(&made(&calls)).then_some(())
        });
        let before = Instant::now();
        let _ = tokio::time::timeout(SOON, reached).await;
        let waited = before.elapsed().as_secs_f64();
        if waited > SHORT {
            self.late += waited;
            self.shifts.push((at, self.late));
        }
    }

    /// Waits until a time, and meanwhile does what an API server does when an agent has ended a pod: the object goes.
    async fn serve_until(&mut self, node: &mut Node, at: f64) {
        let until = self.zero + Duration::from_secs_f64(at);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let deleting = self.pods.deleting();
            let finished = |pods: &[PodState]| {
                let mut ended = pods.iter().filter(|pod| pod.finished);
                let found = ended.find(|pod| deleting.iter().any(|uid| uid == pod.uid()));
                found.map(|pod| pod.uid().to_owned())
            };
            let any = |pods: &[PodState]| finished(pods).is_some();
            if deleting.is_empty() || !node.until(left, any).await {
                let left = until.saturating_duration_since(Instant::now());
                tokio::time::sleep(left).await;
                return;
            }
            if let Some(uid) = finished(&node.pods()) {
                self.capture(node);
                self.pods.remove(node, &uid);
            }
        }
    }
}

/// The outline of a pod's state, with its name.
fn named(entry: &Value) -> Value {
    json!([entry["metadata"]["name"], outline(&entry["status"])])
}
