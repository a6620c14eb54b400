//! The whole agent on a paused clock, with the scripted runtime.
#![allow(clippy::unwrap_used)]

mod admission;
mod ephemeral;
mod events;
mod hooks;
mod housekeeping;
mod killed;
mod life;
mod many;
mod ownership;
mod preemption;
mod probes;
mod repeats;
mod resize;
mod restarts;
mod statuses;
mod termination;
mod volumes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::clock::{Clock, TokioClock, until};
use crate::cri::Cri;
use crate::cri::fake::{Behaviour, FakeCri};
use crate::dialer::SystemDialer;
use crate::objects::{ObjectStore, Objects};
use crate::pod::{Pod, PodUid};
use crate::source::{self, PodsSender};
use crate::{Agent, Config, ContainerPhase, Parts, PodReport};

thread_local! {
    /// The directories of this thread's scenes, which go when the thread of a test ends. Nothing sooner will do: an agent that
    /// is dropped leaves what it does on the blocking pool, which the end of tokio's runtime waits for, and which would put
    /// directories back.
    static ROOTS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

/// A scripted runtime and an agent that drives it.
struct Scene {
    fake: FakeCri,
    clock: Arc<dyn Clock>,
    epoch: Timestamp,
    root: PathBuf,
    agent: Option<Agent>,
    pods: Option<PodsSender>,
    objects: Arc<ObjectStore>,
    relist: Duration,
    /// The agent's id, and whether it adopts the node.
    owner: (Option<String>, bool),
    /// What is left of a pod goes with it, unlike in a kubelet.
    remove_at_once: bool,
    /// What a removed pod starts is started to the end, as in a kubelet.
    finish_starts: bool,
}

impl Scene {
    fn new() -> Self {
        Self::listing_every(seconds(10))
    }

    /// A scene in which sandboxes and logs of removed pods are left to garbage collection, and starts are finished.
    fn as_kubelet() -> Self {
        let mut scene = Self::without_agent(seconds(10));
        scene.remove_at_once = false;
        scene.finish_starts = true;
        scene.start_agent();
        scene
    }

    /// A scene with this relist period while events arrive.
    fn listing_every(relist: Duration) -> Self {
        let mut scene = Self::without_agent(relist);
        scene.start_agent();
        scene
    }

    /// A scene whose agent is still to be started.
    fn without_agent(relist: Duration) -> Self {
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(epoch));
        let fake = FakeCri::new(Arc::clone(&clock));
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        ROOTS.with_borrow_mut(|roots| roots.push(directory));
        Self {
            fake,
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
        }
    }

    fn config(&self) -> Config {
        Config {
            resolv_conf: None,
            log_rotation: None,
            remove_at_once: self.remove_at_once,
            finish_starts: self.finish_starts,
            relist_period_with_events: self.relist,
            agent_id: self.owner.0.clone(),
            adopt_node: self.owner.1,
            ..Config::new(self.root.join("root"), self.root.join("logs"))
        }
    }

    fn start_agent(&mut self) {
        self.start_agent_on(Arc::new(self.fake.clone()));
    }

    /// Starts an agent that sees the runtime in this way.
    fn start_agent_on(&mut self, cri: Arc<dyn Cri>) {
        let (source, pods) = source::fixed();
        let parts = Parts {
            objects: Arc::clone(&self.objects) as Arc<dyn Objects>,
            cri,
            clock: Arc::clone(&self.clock),
            dialer: Arc::new(SystemDialer),
            sources: vec![Box::new(source)],
        };
        self.agent = Some(crate::start(self.config(), parts));
        self.pods = Some(pods);
    }

    async fn stop_agent(&mut self) {
        self.pods = None;
        self.agent.take().unwrap().stop().await;
    }

    /// Starts another agent with this id.
    async fn restart_as(&mut self, id: Option<&str>, adopt_node: bool) {
        self.stop_agent().await;
        self.owner = (id.map(str::to_owned), adopt_node);
        self.start_agent();
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
        self.second(self.clock.now())
    }

    fn report(&self, uid: &str) -> PodReport {
        self.agent().reports().borrow()[&PodUid::new(uid)].clone()
    }

    /// Seconds since the test began.
    fn second(&self, at: Timestamp) -> u64 {
        until(self.epoch, at).as_secs()
    }

    /// The seconds at which calls with that text were made.
    fn seconds(&self, text: &str) -> Vec<u64> {
        self.fake
            .times(text)
            .into_iter()
            .map(|at| self.second(at))
            .collect()
    }

    /// The calls up to now, without their times.
    fn calls(&self) -> Vec<String> {
        self.fake
            .calls()
            .into_iter()
            .map(|call| call.text)
            .collect()
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("root/pods").join(uid)
    }

    /// Asserts that neither the runtime nor the disk has anything left of any pod.
    fn assert_clean(&self) {
        assert_eq!(self.fake.population(), (0, 0), "sandboxes and containers");
        for place in ["root/pods", "logs"] {
            let left: Vec<_> = std::fs::read_dir(self.root.join(place))
                .into_iter()
                .flatten()
                .flatten()
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

fn container(name: &str, image: &str) -> Value {
    json!({"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log"})
}

fn pod_with(uid: &str, spec: Value) -> Pod {
    let mut spec = spec;
    let defaults = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default", "enableServiceLinks": true});
    for (key, value) in defaults.as_object().unwrap() {
        spec.as_object_mut()
            .unwrap()
            .entry(key)
            .or_insert(value.clone());
    }
    let pod = json!({"metadata": {"name": format!("pod-{uid}"), "namespace": "default", "uid": uid}, "spec": spec});
    Pod::new(serde_json::from_value(pod).unwrap())
}

/// A pod with one container.
fn pod(uid: &str, image: &str, policy: &str) -> Pod {
    pod_with(
        uid,
        json!({"containers": [container("app", image)], "restartPolicy": policy}),
    )
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn states(report: &PodReport) -> BTreeMap<String, ContainerPhase> {
    report
        .containers
        .iter()
        .map(|container| (container.name.clone(), container.state))
        .collect()
}

fn phase(report: &PodReport) -> &str {
    report.status.phase.as_deref().unwrap_or_default()
}

fn reason(report: &PodReport, name: &str) -> String {
    report
        .containers
        .iter()
        .find(|container| container.name == name)
        .unwrap()
        .reason
        .clone()
}

fn job(after: u64, code: i32) -> Behaviour {
    Behaviour::ends(seconds(after), code)
}
