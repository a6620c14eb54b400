//! The pods of a scenario, as a kubelet's sources give them.

use std::time::Duration;

use agent::manifest::static_pod::{self, Location};
use agent::manifest::{self, Strictness};
use agent::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::node::{Node, PodState};
use crate::scenario::{Mode, Scenario};

const SEEN: &str = "kubernetes.io/config.seen";
const SOURCE: &str = "kubernetes.io/config.source";

/// Several files or objects appear one after another: this is the time between two.
const BETWEEN: Duration = Duration::from_millis(10);

/// The text of a manifest that does not parse.
pub(crate) const UNREADABLE: &str = "apiVersion: v1\nkind: [\n";

/// The pods of the scenario's source.
pub(crate) struct Pods {
    mode: Mode,
    pods: Vec<ApiPod>,
    /// When an API server removed an object, by its uid: an agent can store no status in it any more.
    gone: Vec<(String, Timestamp)>,
    /// How often the documents were put into the source.
    puts: usize,
}

impl Pods {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            pods: Vec::new(),
            gone: Vec::new(),
            puts: 0,
        }
    }

    /// When an API server removed objects, by their uid.
    pub(crate) fn gone(&self) -> &[(String, Timestamp)] {
        &self.gone
    }

    /// Puts documents into the source: a file each, or an object each, with the uid that it had in the scenario. They
    /// replace what was there.
    pub(crate) async fn put(&mut self, node: &mut Node, scenario: &Scenario, documents: &[String]) {
        let hostdir = node.root().join("hostdir").display().to_string();
        let texts = documents
            .iter()
            .map(|text| text.replace("${HOSTDIR}", &hostdir));
        if node.reads_files() {
            let texts: Vec<String> = texts.collect();
            return node.write_manifests(&scenario.name, &texts);
        }
        let read: Vec<ApiPod> = match self.mode {
            Mode::Static => texts
                .filter_map(|text| read_static(node, scenario, &text))
                .collect(),
            Mode::Api => texts
                .filter_map(|text| read_object(node, scenario, &text, self.puts))
                .collect(),
        };
        self.puts += 1;
        self.pods.clear();
        if read.is_empty() {
            self.send(node);
        }
        for pod in read {
            self.pods.push(pod);
            self.send(node);
            tokio::time::sleep(BETWEEN).await;
        }
    }

    /// Whether the source has a pod.
    pub(crate) fn has(&self, uid: &str) -> bool {
        let mut pods = self.pods.iter();
        pods.any(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// Takes all pods away at once.
    pub(crate) fn clear(&mut self, node: &mut Node, scenario: &Scenario) {
        if node.reads_files() {
            return node.write_manifests(&scenario.name, &[]);
        }
        self.pods.clear();
        self.send(node);
    }

    /// Stores statuses in the objects, as an API server does.
    pub(crate) fn take_statuses(&mut self, states: &[PodState]) {
        for pod in &mut self.pods {
            let own = |state: &&PodState| Some(state.uid()) == pod.metadata.uid.as_deref();
            if let Some(state) = states.iter().find(own) {
                let status = state.entry["status"].clone();
                pod.status = serde_json::from_value(status).unwrap();
            }
        }
    }

    /// Gives the agent the pods again, as after a restart.
    pub(crate) fn send(&self, node: &mut Node) {
        node.set_pods(self.pods.iter().cloned().map(Pod::new).collect());
    }

    /// Asks an API server to delete all pods, with a grace period or their own. A pod that has ended goes at once, and so
    /// does one that gets no grace period, after a last change that says so.
    pub(crate) fn delete(&mut self, node: &mut Node, grace: Option<i64>) {
        let states = node.pods();
        let ended = |pod: &ApiPod| {
            let mut own = states
                .iter()
                .filter(|state| Some(state.uid()) == pod.metadata.uid.as_deref());
            own.any(|state| ["Succeeded", "Failed"].contains(&state.phase()))
        };
        let now = Timestamp::now();
        // The last change and the removal of an object that gets no grace period come at once.
        for pod in &self.pods {
            if ended(pod) || grace == Some(0) {
                let uid = pod.metadata.uid.clone();
                self.gone.extend(uid.map(|uid| (uid, now)));
            }
        }
        self.pods.retain(|pod| !ended(pod));
        for pod in &mut self.pods {
            if pod.metadata.deletion_timestamp.is_some() && grace != Some(0) {
                continue;
            }
            let own = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.termination_grace_period_seconds);
            let grace = grace.or(own).unwrap_or(30);
            let at = now + jiff::SignedDuration::from_secs(grace);
            pod.metadata.deletion_timestamp = Some(Time(at));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            changed(pod);
        }
        self.send(node);
        if grace == Some(0) {
            self.pods.clear();
            self.send(node);
        }
    }

    /// The pods that are being deleted.
    pub(crate) fn deleting(&self) -> Vec<String> {
        let deleting = self
            .pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_some());
        deleting
            .filter_map(|pod| pod.metadata.uid.clone())
            .collect()
    }

    /// Removes an object that an API server has kept for an agent that was ending its pod.
    pub(crate) fn remove(&mut self, node: &mut Node, uid: &str) {
        self.gone.push((uid.to_owned(), Timestamp::now()));
        self.pods
            .retain(|pod| pod.metadata.uid.as_deref() != Some(uid));
        self.send(node);
    }

    /// Changes all pods as an API server's client does.
    pub(crate) fn change(&mut self, node: &mut Node, change: impl Fn(&mut ApiPod)) {
        self.pods.iter_mut().for_each(change);
        self.send(node);
    }
}

/// An API server counts changes of a spec.
pub(crate) fn changed(pod: &mut ApiPod) {
    let generation = pod.metadata.generation.get_or_insert(1);
    *generation += 1;
}

/// A pod of a file; none if a kubelet does not read it.
fn read_static(node: &Node, scenario: &Scenario, text: &str) -> Option<ApiPod> {
    let path = node
        .root()
        .join("manifests")
        .join(format!("{}.yaml", scenario.name));
    let path = path.display().to_string();
    let read = static_pod::pod(Location::File(&path), node.name(), text.as_bytes());
    let mut pod = read.ok()?;
    seen(&mut pod, "file");
    Some(pod)
}

/// A pod as an API server has it; none for another kind of object. A pod that was created `earlier` times has another uid
/// each time.
fn read_object(node: &Node, scenario: &Scenario, text: &str, earlier: usize) -> Option<ApiPod> {
    let parsed = manifest::parse(&scenario.name, text, Strictness::Lenient);
    let mut pod = parsed.pods.first()?.api().clone();
    let name = pod.metadata.name.clone();
    let recorded = scenario.history.iter().chain(&scenario.status);
    let own = recorded.filter(|status| status["metadata"]["name"].as_str() == name.as_deref());
    let mut uids: Vec<&str> = Vec::new();
    for uid in own.filter_map(|status| status["metadata"]["uid"].as_str()) {
        if !uids.contains(&uid) {
            uids.push(uid);
        }
    }
    if let Some(uid) = uids.get(earlier).or(uids.last()) {
        pod.metadata.uid = Some((*uid).to_owned());
    }
    pod.metadata.generation = Some(1);
    pod.metadata.creation_timestamp = Some(Time(Timestamp::now()));
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.name().to_owned());
    }
    seen(&mut pod, "api");
    Some(pod)
}

/// What a kubelet notes on a pod that a source gives it.
fn seen(pod: &mut ApiPod, source: &str) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations
        .entry(SEEN.to_owned())
        .or_insert_with(|| Timestamp::now().to_string());
    annotations
        .entry(SOURCE.to_owned())
        .or_insert_with(|| source.to_owned());
}
