//! Applies the steps of a scenario to a node, at the same times, and returns its agent's calls and reports.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use registry::Registry;
use serde_json::{Value, json};

use crate::kubelet::Kubelet;
use crate::node::{Node, Parts, PodState};
use crate::objects::ApiObjects;
use crate::pods::{Pods, UNREADABLE};
use crate::runtimes::images;
use crate::scenarios::history::outline;
use crate::scenarios::scenario::{Scenario, method};
use crate::scenarios::steps::{Action, Mode, Step};

/// How much later than the kubelet's pods crib's may reach a state before the scenario continues without it: the tolerance of a
/// retry.
const LATE: f64 = 6.0;
const LATE_SHARE: f64 = 0.2;

/// The calls that create parts of a pod, those that end them, and how long the replay waits for calls that the kubelet had made.
const MAKING: [&str; 3] = ["RunPodSandbox", "CreateContainer", "StartContainer"];
const ENDING: [&str; 2] = ["StopContainer", "StopPodSandbox"];
const SOON: Duration = Duration::from_secs(6);

/// The interval of the check for stalls of this process, and the delay in seconds that does not count.
const TICK: Duration = Duration::from_millis(50);
const SHORT: f64 = 0.02;

/// The behaviour of an agent in a scenario.
pub(crate) struct Replayed {
    /// Its calls, as lines of a trace.
    pub(crate) calls: Vec<Value>,
    /// The statuses before the pods were removed, in the form of `status.json`.
    pub(crate) status: Vec<Value>,
    /// The events about pods, in the form of `events.json`.
    pub(crate) events: Vec<Value>,
    /// The executed steps, with their times.
    pub(crate) steps: Vec<Step>,
    /// Every published status, in the form of `status_history.jsonl`.
    pub(crate) history: Vec<Value>,
    /// When the pods were removed.
    pub(crate) removed_at: f64,
    /// When an API server removed objects, by their uid.
    pub(crate) gone: Vec<(String, f64)>,
    /// When the scenario fell behind the kubelet's: from which time (of the kubelet), and by how much.
    pub(crate) shifts: Vec<(f64, f64)>,
    /// When this process could not run for a while, and for how long, because the machine was busy with something else.
    pub(crate) stalls: Vec<(f64, f64)>,
    /// The node's directory.
    pub(crate) root: String,
    /// A kubelet's log.
    pub(crate) log: String,
    /// Problems other than the agent's behaviour.
    pub(crate) problems: Vec<String>,
}

/// Replays a scenario.
pub(crate) async fn replay(scenario: &Scenario, registry: &Registry, parts: &Parts) -> Replayed {
    // The node's name and address.
    let of_node = match scenario.plan.mode {
        Mode::Static => ("crinode", "192.0.2.2"),
        Mode::Api => ("127.0.0.1", "127.0.0.1"),
    };
    images::slow_down_once(registry, scenario);
    let mut node = Node::start(parts, of_node, registry, scenario).await;
    let mut replay = Replay {
        scenario,
        pods: Pods::new(scenario),
        objects: ApiObjects::default(),
        zero: Instant::now(),
        late: 0.0,
        shifts: Vec::new(),
        status: Vec::new(),
        removed_at: None,
        done: Vec::new(),
        problems: Vec::new(),
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
    let calls = calls.iter().map(proxy::Call::json).collect();
    if let Err(problem) = node.end().await {
        replay.problems.push(problem);
    }
    Replayed {
        calls,
        status: replay.status,
        events,
        steps: replay.done,
        history,
        removed_at: replay.removed_at.unwrap_or(f64::MAX),
        gone,
        shifts: replay.shifts,
        stalls,
        root,
        log,
        problems: replay.problems,
    }
}

/// Records when a short sleep takes too long.
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
    pods: Pods,
    /// The objects that the pods refer to.
    objects: ApiObjects,
    zero: Instant,
    /// By how much the scenario is behind.
    late: f64,
    shifts: Vec<(f64, f64)>,
    status: Vec<Value>,
    /// When the pods were finally removed.
    removed_at: Option<f64>,
    done: Vec<Step>,
    problems: Vec<String>,
}

impl Replay<'_> {
    async fn run(&mut self, node: &mut Node) {
        let removed_at = self.scenario.plan.removed_at();
        for step in &self.scenario.plan.steps {
            // A state may be reached earlier than in the recording; then the following steps are also earlier.
            let waits = step.action == Action::AwaitStatus;
            if !waits {
                self.serve_until(node, step.at + self.late).await;
            }
            if step.at >= removed_at && self.removed_at.is_none() {
                self.catch_up(node, step.at, &MAKING).await;
            }
            self.capture(node);
            if step.at >= removed_at {
                let now = self.zero.elapsed().as_secs_f64();
                self.removed_at.get_or_insert(now);
            }
            let before = self.zero.elapsed();
            self.take(node, step).await;
            let at = if waits { self.zero.elapsed() } else { before };
            self.done.push(Step { at: at.as_secs_f64(), action: step.action.clone() });
        }
        self.catch_up(node, self.scenario.plan.end(), &ENDING).await;
    }

    /// Stores the statuses of the pods in the agent's source: the last ones are compared.
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

    async fn take(&mut self, node: &mut Node, step: &Step) {
        match &step.action {
            Action::WriteManifests { documents } => {
                self.pods.write(node, self.texts(node, documents)).await;
            }
            Action::CorruptManifests => self.pods.write(node, vec![UNREADABLE.to_owned()]).await,
            Action::RenameManifest { to } => self.pods.rename(node, to).await,
            Action::RemoveManifests => self.pods.write(node, Vec::new()).await,
            Action::CreatePods { documents } => {
                let texts = self.texts(node, documents);
                self.pods.create(node, self.scenario, &texts).await;
            }
            Action::DeletePods { grace } => self.pods.delete(node, *grace),
            Action::PatchPods { pod, patch } => self.pods.patch(node, pod.as_deref(), patch),
            Action::SetCondition { pod, condition } => {
                self.pods.set_condition(node, pod.as_deref(), condition);
            }
            Action::ApplyObjects { objects } => {
                self.objects.apply(objects);
                node.set_objects(self.objects.map());
            }
            Action::DeleteObjects { kind } => {
                self.objects.delete(kind);
                node.set_objects(self.objects.map());
            }
            Action::StartAgent => self.start_agent(node).await,
            Action::StopAgent => node.stop_agent().await,
            Action::KillAgent => node.kill_agent().await,
            Action::StartRuntime => node.start_runtime().await,
            Action::StopRuntime => node.stop_runtime().await,
            Action::KillRuntime => node.kill_runtime().await,
            Action::KillContainer { container, signal } => {
                node.kill_container(container, signal).await;
            }
            Action::StopContainer { container } => node.stop_container(container).await,
            Action::RemoveContainer { container } => node.remove_container(container).await,
            Action::KillSandbox => node.kill_sandbox().await,
            Action::StopSandbox => node.stop_sandbox().await,
            Action::RemoveSandbox => node.remove_sandbox().await,
            Action::RemoveImage { image } => node.remove_image(image).await,
            Action::AwaitStatus => self.wait(node, step.at).await,
            Action::Remark { .. } | Action::End => {}
        }
    }

    /// The documents of the manifest with these indexes, for this node.
    fn texts(&self, node: &Node, documents: &[usize]) -> Vec<String> {
        let hostdir = node.root().join("hostdir").display().to_string();
        let all = self.scenario.documents();
        documents.iter().map(|index| all[*index].replace("${HOSTDIR}", &hostdir)).collect()
    }

    async fn start_agent(&mut self, node: &mut Node) {
        if self.scenario.plan.creates_objects() {
            self.pods.take_statuses(node.last_pods());
        }
        self.pods.send(node);
        node.start_agent().await;
        self.pods.send(node);
    }

    /// Waits for the state that the kubelet's pods had at a time. Later steps are shifted accordingly.
    async fn wait(&mut self, node: &mut Node, at: f64) {
        let wanted: Vec<Value> = self.scenario.statuses_at(at).iter().map(named).collect();
        let limit = at + self.late + LATE + at * LATE_SHARE;
        let limit = Duration::from_secs_f64(limit.max(0.0)).saturating_sub(self.zero.elapsed());
        let reached = |pods: &[PodState]| {
            let present: Vec<Value> = pods.iter().map(|pod| named(&pod.entry)).collect();
            wanted.iter().all(|outline| present.contains(outline))
        };
        if wanted.is_empty() || !node.until(limit, reached).await {
            // If the state is not reached, the later steps keep their times.
            self.serve_until(node, at + self.late).await;
        }
        self.late = self.zero.elapsed().as_secs_f64() - at;
        self.shifts.push((at, self.late));
    }

    /// Waits a short time until crib's pods had as many calls of these kinds as the kubelet's before `at`. A removal then happens
    /// in the middle of the same sync, and the end after that of the pods.
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

    /// Waits until a time. Meanwhile it removes the objects of pods that the agent has terminated, like an API server.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::steps::Plan;

    const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.29-2";

    /// Replays steps with a pod that runs until it is stopped, and has a readiness gate.
    fn replayed(plan: Value) -> Replayed {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {
                "readinessGates": [{"conditionType": "example.com/gate"}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "3600"]}],
            },
        });
        let plan: Plan = serde_json::from_value(plan).unwrap();
        let name = if plan.mode == Mode::Api { "p" } else { "p-crinode" };
        let container =
            json!({"name": "c", "state": {"running": {}}, "restartCount": 0, "ready": true});
        // The awaited state.
        let running = json!({
            "t": 0.0,
            "pod": name,
            "metadata": {"name": name, "uid": "u"},
            "status": {"phase": "Running", "containerStatuses": [container]},
        });
        let scenario = Scenario {
            name: "steps".to_owned(),
            plan,
            manifest: pod.to_string(),
            calls: Vec::new(),
            status: Vec::new(),
            history: vec![running],
            events: Vec::new(),
        };
        let tokio = tokio::runtime::Runtime::new().unwrap();
        tokio.block_on(async {
            let mut scenarios = [scenario];
            let registry = images::registry(&mut scenarios).await;
            replay(&scenarios[0], &registry, &Parts::CRIB).await
        })
    }

    #[test]
    fn set_condition_makes_pod_with_gate_ready() {
        harness::needs!(Busybox);
        let condition = json!({"type": "example.com/gate", "status": "True"});
        let replayed = replayed(json!({"about": "A gate.", "mode": "api", "steps": [
            {"at": 0, "do": "create_pods", "documents": [0]},
            {"at": 0.1, "do": "set_condition", "pod": "p", "condition": condition},
            {"at": 0.5, "do": "await_status"},
            {"at": 2, "do": "delete_pods"},
            {"at": 3, "do": "end"},
        ]}));
        let ready = |entry: &Value| -> Option<String> {
            let conditions = entry["status"]["conditions"].as_array()?;
            let ready = conditions.iter().find(|it| it["type"] == "Ready")?;
            Some(ready["reason"].as_str().unwrap_or("True").to_owned())
        };
        let seen: Vec<String> = replayed.history.iter().filter_map(ready).collect();
        assert!(seen.iter().any(|it| it == "True"), "{seen:?} {:?}", replayed.problems);
    }

    #[test]
    fn renamed_manifest_ends_its_pod() {
        harness::needs!(Busybox);
        let replayed = replayed(json!({"about": "A file.", "mode": "static", "steps": [
            {"at": 0, "do": "write_manifests", "documents": [0]},
            {"at": 0.5, "do": "await_status"},
            {"at": 1, "do": "rename_manifest", "to": "other.yaml"},
            {"at": 3, "do": "remove_manifests"},
            {"at": 4, "do": "end"},
        ]}));
        let at = |action: &Action| {
            let step = replayed.steps.iter().find(|step| step.action == *action);
            step.unwrap().at
        };
        let renaming = at(&Action::RenameManifest { to: "other.yaml".to_owned() });
        let stopped = replayed.calls.iter().find(|call| method(call) == "StopContainer").unwrap();
        let stopped = stopped["t_start"].as_f64().unwrap();
        let renamed = renaming..at(&Action::RemoveManifests);
        assert!(renamed.contains(&stopped), "{stopped} {:?}", replayed.steps);
    }
}
