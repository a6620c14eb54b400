//! The whole agent on a paused clock, with the scripted runtime.
#![allow(clippy::unwrap_used)]

mod admission;
mod cgroups;
mod claims;
mod drivers;
mod ephemeral;
mod events;
mod eviction;
mod hooks;
mod housekeeping;
mod killed;
mod life;
mod managers;
mod preemption;
mod probes;
mod repeats;
mod resize;
mod restarts;
mod shutdown;
mod statuses;
mod termination;
mod volumes;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::pod::{Pod, PodUid};
use compact::Map;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::checks::dialer::SystemDialer;
use crate::clock::{Clock, TokioClock, until};
use crate::cluster::Standalone;
use crate::cri::Cri;
use crate::cri::fake::{Behaviour, FakeCri};
use crate::fixtures;
use crate::local_node::eviction::settings::EvictionSettings;
use crate::local_node::shutdown::ShutdownPeriod;
use crate::machine::OomKill;
use crate::machine::cgroups::ControlGroups;
use crate::machine::cgroups::fake::FakeCgroups;
use crate::machine::fake::FakeMachine;
use crate::machine::logind::Logind;
use crate::machine::logind::fake::FakeLogind;
use crate::managers::claims::ClaimManager;
use crate::managers::fake::FakeManagers;
use crate::objects::ObjectStore;
use crate::source::{self, PodsSender};
use crate::storage::drivers::VolumeDrivers;
use crate::{
    Agent, CgroupConfig, CgroupDriver, Config, ContainerPhase, MemoryQos, NodeParts, Parts,
    PodReport,
};

thread_local! {
    /// The directories of this thread's scenes, removed when the thread of a test ends. It cannot be sooner: the blocking tasks of
    /// a dropped agent continue until the end of tokio's runtime, and would re-create directories.
    static ROOTS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

/// A scripted runtime and an agent that drives it.
struct Scene {
    fake: FakeCri,
    machine: FakeMachine,
    managers: FakeManagers,
    clock: Arc<dyn Clock>,
    epoch: Timestamp,
    root: PathBuf,
    agent: Option<Agent>,
    pods: Option<PodsSender>,
    objects: Arc<ObjectStore>,
    relist: Duration,
    /// The agent's id, and whether it adopts the node.
    owner: (Option<String>, bool),
    /// Whether the rest of a pod is removed with it, unlike in a kubelet.
    remove_at_once: bool,
    /// Whether the start of a removed pod is completed, as in a kubelet.
    finish_starts: bool,
    /// When pods are evicted.
    eviction: Option<EvictionSettings>,
    drivers: Option<Arc<dyn VolumeDrivers>>,
    claims: Option<Arc<dyn ClaimManager>>,
    /// The machine's cgroups, in which the agent creates those of pods.
    cgroups: Option<FakeCgroups>,
    cgroup_driver: CgroupDriver,
    memory_qos: Option<MemoryQos>,
    /// The OOM kills for the next agent.
    oom_kills: Option<UnboundedReceiver<OomKill>>,
    /// The login manager of the machine, and the periods of its shutdowns.
    logind: Option<FakeLogind>,
    shutdown: Vec<ShutdownPeriod>,
}

impl Scene {
    fn new() -> Self {
        Self::listing_every(seconds(10))
    }

    /// A scene in which sandboxes and logs of removed pods are left to garbage collection, and starts are completed.
    fn as_kubelet() -> Self {
        let mut scene = Self::without_agent(seconds(10));
        scene.remove_at_once = false;
        scene.finish_starts = true;
        scene.start_agent();
        scene
    }

    /// A scene whose pod `u1` runs, with one container of this image.
    async fn running(image: &str) -> Self {
        let scene = Self::new();
        scene.run(&pod("u1", image, "Always")).await;
        scene
    }

    /// A scene with this relist period while events arrive.
    fn listing_every(relist: Duration) -> Self {
        let mut scene = Self::without_agent(relist);
        scene.start_agent();
        scene
    }

    /// A scene without a running agent.
    fn without_agent(relist: Duration) -> Self {
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(epoch));
        let fake = FakeCri::new(Arc::clone(&clock));
        images().into_iter().for_each(|(name, behaviour)| fake.image(name, behaviour));
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        ROOTS.with_borrow_mut(|roots| roots.push(directory));
        Self {
            fake,
            machine: FakeMachine::default(),
            managers: FakeManagers::default(),
            clock,
            epoch,
            root,
            agent: None,
            pods: None,
            objects: Arc::default(),
            relist,
            owner: (None, false),
            remove_at_once: true,
            finish_starts: false,
            eviction: None,
            drivers: None,
            claims: None,
            cgroups: None,
            cgroup_driver: CgroupDriver::Cgroupfs,
            memory_qos: None,
            oom_kills: None,
            logind: None,
            shutdown: Vec::new(),
        }
    }

    fn config(&self) -> Config {
        Config {
            resolv_conf: None,
            log_rotation: None,
            remove_at_once: self.remove_at_once,
            finish_starts: self.finish_starts,
            eviction: self.eviction.clone(),
            relist_period_with_events: self.relist,
            agent_id: self.owner.0.clone(),
            adopt_node: self.owner.1,
            shutdown: self.shutdown.clone(),
            cgroups: CgroupConfig {
                per_qos: self.cgroups.is_some(),
                driver: self.cgroup_driver,
                root: "/own".to_owned(),
                owns_root: true,
                pod_pids_limit: Some(100),
                memory_qos: self.memory_qos,
                ..CgroupConfig::default()
            },
            ..Config::new(self.root.join("root"), self.root.join("logs"))
        }
    }

    fn start_agent(&mut self) {
        self.start_agent_on(Arc::new(self.fake.clone()));
    }

    /// Starts an agent with this client of the runtime.
    fn start_agent_on(&mut self, cri: Arc<dyn Cri>) {
        let (source, pods) = source::fixed();
        let parts = Parts { sources: vec![Box::new(source)], ..self.parts(cri) };
        self.agent = Some(crate::start(self.config(), parts));
        self.pods = Some(pods);
    }

    /// The parts of an agent with this client of the runtime, and without sources.
    fn parts(&mut self, cri: Arc<dyn Cri>) -> Parts {
        Parts {
            cluster: Arc::new(Standalone::new(Arc::clone(&self.objects))),
            cri,
            clock: Arc::clone(&self.clock),
            dialer: Arc::new(SystemDialer),
            machine: Arc::new(self.machine.clone()),
            managers: Arc::new(self.managers.clone()),
            node: NodeParts {
                cgroups: self.cgroups.clone().map(|it| Arc::new(it) as Arc<dyn ControlGroups>),
                oom_kills: self.oom_kills.take(),
                logind: self.logind.clone().map(|it| Arc::new(it) as Arc<dyn Logind>),
                claims: self.claims.clone(),
            },
            sources: Vec::new(),
            drivers: self.drivers.clone(),
        }
    }

    async fn stop_agent(&mut self) {
        self.pods = None;
        self.agent.take().unwrap().stop().await;
    }

    async fn restart_agent(&mut self) {
        self.stop_agent().await;
        self.start_agent();
    }

    /// Starts another agent with this id.
    async fn restart_as(&mut self, id: Option<&str>, adopt_node: bool) {
        self.owner = (id.map(str::to_owned), adopt_node);
        self.restart_agent().await;
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    fn want(&self, pods: &[Pod]) {
        self.pods.as_ref().unwrap().set(pods.to_vec());
    }

    /// Waits, at most two hours, until a pod's report satisfies `holds`; returns the second of the test.
    async fn until(&self, uid: &str, what: &str, holds: impl Fn(&PodReport) -> bool) -> u64 {
        let mut reports = self.agent().reports();
        let wait = reports.wait_for(|reports| reports.get(&PodUid::new(uid)).is_some_and(&holds));
        if tokio::time::timeout(seconds(7200), wait).await.is_err() {
            panic!(
                "never seen: {what}; last: {:#?}",
                self.agent().reports().borrow().get(&PodUid::new(uid))
            );
        }
        self.now()
    }

    async fn until_running(&self, uid: &str) -> u64 {
        self.until(uid, "running", |report| phase(report) == "Running").await
    }

    async fn until_finished(&self, uid: &str) -> u64 {
        self.until(uid, "finished", |report| report.finished).await
    }

    async fn until_removed(&self, uid: &str) -> u64 {
        self.until(uid, "removed", |report| report.removed).await
    }

    /// Waits until the pod's first container was restarted once.
    async fn until_restarted(&self, uid: &str) -> u64 {
        self.until(uid, "restarted", |report| report.containers[0].restarts == 1).await
    }

    /// Waits until a container has this reason.
    async fn until_reason(&self, uid: &str, container: &str, expected: &str) -> u64 {
        self.until(uid, expected, |report| reason(report, container) == expected).await
    }

    /// Waits until every container of the pod runs.
    async fn until_all_run(&self, uid: &str) {
        let run = |report: &PodReport| {
            states(report).values().all(|state| *state == ContainerPhase::Running)
        };
        self.until(uid, "all run", run).await;
    }

    /// Makes this the only pod, and waits until it runs.
    async fn run(&self, pod: &Pod) -> u64 {
        self.want(std::slice::from_ref(pod));
        self.until_running(pod.uid().as_str()).await
    }

    /// Removes every pod from the source, and waits until `u1` is removed.
    async fn remove_all(&self) -> u64 {
        self.want(&[]);
        self.until_removed("u1").await
    }

    async fn sleep(&self, time: u64) {
        tokio::time::sleep(seconds(time)).await;
    }

    /// The pod as in an API server after a deletion with this grace period.
    fn deleted(&self, pod: &Pod, grace: Option<i64>) -> Pod {
        changed(pod, |api| {
            api.metadata.deletion_timestamp = Some(Time(self.clock.now()));
            api.metadata.deletion_grace_period_seconds = grace;
        })
    }

    /// The phase of a pod, and its reason.
    fn status(&self, uid: &str) -> (String, String) {
        let status = self.report(uid).status;
        (status.phase.clone().unwrap_or_default(), status.reason.clone().unwrap_or_default())
    }

    fn report(&self, uid: &str) -> PodReport {
        self.agent().reports().borrow()[&PodUid::new(uid)].clone()
    }

    /// The current second of the test.
    fn now(&self) -> u64 {
        self.second(self.clock.now())
    }

    /// Seconds since the test began.
    fn second(&self, at: Timestamp) -> u64 {
        until(self.epoch, at).as_secs()
    }

    /// The seconds at which calls with this text were made.
    fn seconds(&self, text: &str) -> Vec<u64> {
        self.fake.times(text).into_iter().map(|at| self.second(at)).collect()
    }

    /// The seconds at which calls with this prefix were made.
    fn times(&self, call: &str) -> Vec<u64> {
        let calls = self.fake.calls().into_iter().filter(|made| made.text.starts_with(call));
        calls.map(|made| self.second(made.at)).collect()
    }

    /// The calls up to now, without their times.
    fn calls(&self) -> Vec<String> {
        self.fake.calls().into_iter().map(|call| call.text).collect()
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("root/pods").join(uid)
    }

    /// Asserts that the first sandbox with a name was removed before the second one was created.
    fn assert_replaced(&self, name: &str) {
        let removed = self.fake.times(&format!("RemovePodSandbox {name}"))[0];
        let sandboxes = self.fake.times("RunPodSandbox pod-u1/0");
        assert_eq!(sandboxes.len(), 2);
        assert!(removed <= sandboxes[1]);
    }

    /// Asserts that the runtime and the disk have nothing left of any pod.
    fn assert_clean(&self) {
        assert_eq!(self.fake.object_counts(), (0, 0), "sandboxes and containers");
        for place in ["root/pods", "logs"] {
            let left: Vec<_> =
                std::fs::read_dir(self.root.join(place)).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// The images of every scene, in addition to a test's own.
fn images() -> [(&'static str, Behaviour); 7] {
    let pull = (seconds(0), Some("no such image".to_owned()));
    let bad = Behaviour { create_fails: Some("no such device".to_owned()), ..Behaviour::forever() };
    [
        ("app", Behaviour::forever()),
        ("one", Behaviour::forever()),
        ("two", Behaviour::forever()),
        ("deaf", ignores_stop()),
        ("crash", job(1, 1)),
        ("gone:1", Behaviour { present: false, pull, ..Behaviour::forever() }),
        ("bad", bad),
    ]
}

fn container(name: &str, image: &str) -> Value {
    json!({"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log"})
}

fn sidecar(name: &str, image: &str) -> Value {
    let mut sidecar = container(name, image);
    sidecar["restartPolicy"] = json!("Always");
    sidecar
}

/// A container that is restarted only by a rule with this action, when it exits with 42.
fn ruled(name: &str, image: &str, action: &str) -> Value {
    let mut container = container_with(name, image, "restartPolicy", json!("Never"));
    let codes = json!({"operator": "In", "values": [42]});
    container["restartPolicyRules"] = json!([{"action": action, "exitCodes": codes}]);
    container
}

/// A container with this value of one of its fields.
fn container_with(name: &str, image: &str, field: &str, value: Value) -> Value {
    let mut container = container(name, image);
    container[field] = value;
    container
}

/// A pod as provided by a source of this kind.
fn of_source(source: &str, pod: &Pod) -> Pod {
    changed(pod, |api| {
        let annotations = api.metadata.annotations.get_or_insert_default();
        annotations.insert("kubernetes.io/config.source".to_owned(), source.to_owned());
    })
}

/// A pod that differs from another one.
fn changed(pod: &Pod, change: impl FnOnce(&mut ApiPod)) -> Pod {
    let mut api = pod.api().clone();
    change(&mut api);
    Pod::new(api)
}

fn pod_with(uid: &str, spec: Value) -> Pod {
    let defaults = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default", "enableServiceLinks": true});
    let spec = fixtures::with(defaults, &spec);
    fixtures::pod_of(uid, &format!("pod-{uid}"), spec)
}

/// A pod with one container.
fn pod(uid: &str, image: &str, policy: &str) -> Pod {
    pod_with(uid, json!({"containers": [container("app", image)], "restartPolicy": policy}))
}

/// A pod with the same name, as from an edited manifest.
fn replacing(pod: &Pod, uid: &str) -> Pod {
    changed(pod, |api| api.metadata.uid = Some(uid.to_owned()))
}

/// The exec handler of a hook, or the exec check of a probe.
fn exec(command: &str) -> Value {
    json!({"exec": {"command": [command]}})
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn states(report: &PodReport) -> Map<String, ContainerPhase> {
    report.containers.iter().map(|container| (container.name.clone(), container.state)).collect()
}

fn phase(report: &PodReport) -> &str {
    report.status.phase.as_deref().unwrap_or_default()
}

fn reason(report: &PodReport, name: &str) -> String {
    report.containers.iter().find(|container| container.name == name).unwrap().reason.clone()
}

/// Takes all items that are in a channel.
fn drain<T>(receiver: &mut UnboundedReceiver<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(|| receiver.try_recv().ok())
}

fn gaps(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Ignores the stop signal.
fn ignores_stop() -> Behaviour {
    Behaviour { yields_after: None, ..Behaviour::forever() }
}

/// Ends this long after the stop signal.
fn slow(after: u64) -> Behaviour {
    Behaviour { yields_after: Some(seconds(after)), ..Behaviour::forever() }
}

/// The message of a container's state.
fn message(report: &PodReport, name: &str) -> String {
    report.containers.iter().find(|container| container.name == name).unwrap().message.clone()
}

fn job(after: u64, code: i32) -> Behaviour {
    Behaviour::ends(seconds(after), code)
}
