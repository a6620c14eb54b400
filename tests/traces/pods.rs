//! The pods of a scenario, as a kubelet's pod sources provide them.

use std::time::Duration;

use api::manifest::static_pod::{self, Location};
use api::manifest::{self, Strictness};
use api::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::comparison::patch;
use crate::node::{Node, PodState};
use crate::scenarios::scenario::Scenario;

const SEEN: &str = "kubernetes.io/config.seen";
const SOURCE: &str = "kubernetes.io/config.source";

/// The time between the appearances of several files or objects.
const BETWEEN: Duration = Duration::from_millis(10);

/// The text of a manifest that does not parse.
pub(crate) const UNREADABLE: &str = "apiVersion: v1\nkind: [\n";

/// The pods of the scenario's source.
pub(crate) struct Pods {
    pods: Vec<ApiPod>,
    /// The name of the manifest's file, and its documents.
    file: (String, Vec<String>),
    /// When an API server removed an object, by its uid: afterwards an agent cannot update its status.
    gone: Vec<(String, Timestamp)>,
    /// How many times objects were created.
    creations: usize,
}

impl Pods {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let file = (format!("{}.yaml", scenario.name), Vec::new());
        Self { pods: Vec::new(), file, gone: Vec::new(), creations: 0 }
    }

    /// When an API server removed objects, by their uid.
    pub(crate) fn gone(&self) -> &[(String, Timestamp)] {
        &self.gone
    }

    /// Replaces the manifests: one file each, if the agent reads files.
    pub(crate) async fn write(&mut self, node: &mut Node, texts: Vec<String>) {
        if node.reads_files() {
            node.write_manifests(stem(&self.file.0), &texts);
        }
        self.file.1 = texts;
        self.read_file(node).await;
    }

    /// Renames the manifest's file, which gives its pod another uid.
    pub(crate) async fn rename(&mut self, node: &mut Node, to: &str) {
        if node.reads_files() {
            node.rename_manifests(stem(&self.file.0), stem(to));
        }
        to.clone_into(&mut self.file.0);
        self.read_file(node).await;
    }

    /// Reads the manifests for an agent that does not read files itself.
    async fn read_file(&mut self, node: &mut Node) {
        if node.reads_files() {
            return;
        }
        let (name, texts) = &self.file;
        let read = texts.iter().filter_map(|text| read_static(node, name, text)).collect();
        self.replace(node, read).await;
    }

    /// Creates an object for each document, with the uid that it had in the scenario, in place of the existing ones.
    pub(crate) async fn create(&mut self, node: &mut Node, scenario: &Scenario, texts: &[String]) {
        let read = texts.iter();
        let read = read.filter_map(|text| read_object(node, scenario, text, self.creations));
        let read = read.collect();
        self.creations += 1;
        self.replace(node, read).await;
    }

    async fn replace(&mut self, node: &mut Node, pods: Vec<ApiPod>) {
        self.pods.clear();
        if pods.is_empty() {
            self.send(node);
        }
        for pod in pods {
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

    /// Sends the pods to the agent again, as after a restart.
    pub(crate) fn send(&self, node: &mut Node) {
        node.set_pods(self.pods.iter().cloned().map(Pod::new).collect());
    }

    /// Deletes all pods at an API server, with this grace period or their own. A finished pod is removed immediately. With a grace
    /// period of zero a pod is removed immediately after an update that contains it.
    pub(crate) fn delete(&mut self, node: &mut Node, grace: Option<i64>) {
        let states = node.pods();
        let ended = |pod: &ApiPod| {
            let mut own =
                states.iter().filter(|state| Some(state.uid()) == pod.metadata.uid.as_deref());
            own.any(|state| ["Succeeded", "Failed"].contains(&state.phase()))
        };
        let now = Timestamp::now();
        // The last update and the removal of an object with a grace period of zero happen at the same time.
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
            let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
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
        let deleting = self.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        deleting.filter_map(|pod| pod.metadata.uid.clone()).collect()
    }

    /// Removes an object that the API server kept while an agent terminated its pod.
    pub(crate) fn remove(&mut self, node: &mut Node, uid: &str) {
        self.gone.push((uid.to_owned(), Timestamp::now()));
        self.pods.retain(|pod| pod.metadata.uid.as_deref() != Some(uid));
        self.send(node);
    }

    /// Patches the pod with this name, or all pods, like an API server's client.
    pub(crate) fn patch(&mut self, node: &mut Node, name: Option<&str>, patch: &Value) {
        for pod in self.pods.iter_mut().filter(|pod| is_named(pod, name)) {
            let mut patched = json!(pod);
            patch::apply(&mut patched, patch);
            *pod = serde_json::from_value(patched).unwrap();
            if patch["spec"].is_object() {
                changed(pod);
                (*pod, _) = manifest::admit(pod.clone());
            }
        }
        self.send(node);
    }

    /// Sets a condition in the status of the pod with this name, or of all pods.
    pub(crate) fn set_condition(&mut self, node: &mut Node, name: Option<&str>, wanted: &Value) {
        self.take_statuses(&node.pods());
        let wanted: PodCondition = serde_json::from_value(wanted.clone()).unwrap();
        for pod in self.pods.iter_mut().filter(|pod| is_named(pod, name)) {
            let conditions = &mut pod.status.get_or_insert_default().conditions;
            let conditions = conditions.get_or_insert_default();
            conditions.retain(|known| known.type_ != wanted.type_);
            conditions.push(wanted.clone());
        }
        self.send(node);
    }
}

fn is_named(pod: &ApiPod, name: Option<&str>) -> bool {
    name.is_none() || pod.metadata.name.as_deref() == name
}

/// The name of a manifest's file without its extension.
fn stem(file: &str) -> &str {
    file.rsplit_once('.').map_or(file, |(stem, _)| stem)
}

/// Increments the generation, like an API server when a spec changes.
fn changed(pod: &mut ApiPod) {
    let generation = pod.metadata.generation.get_or_insert(1);
    *generation += 1;
}

/// Reads a pod from a file; `None` if a kubelet would not read it.
fn read_static(node: &Node, file: &str, text: &str) -> Option<ApiPod> {
    let path = node.root().join("manifests").join(file).display().to_string();
    let read = static_pod::pod(Location::File(&path), node.name(), text.as_bytes());
    let mut pod = read.ok()?;
    seen(&mut pod, "file");
    Some(pod)
}

/// A pod as an API server would return it; `None` for other kinds. A pod that was created `earlier` times gets a new uid each time.
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

/// Sets the annotations with which a kubelet marks a pod from a source.
fn seen(pod: &mut ApiPod, source: &str) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.entry(SEEN.to_owned()).or_insert_with(|| Timestamp::now().to_string());
    annotations.entry(SOURCE.to_owned()).or_insert_with(|| source.to_owned());
}
