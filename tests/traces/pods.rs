//! The pods of a scenario, as a kubelet's sources give them.

use std::time::Duration;

use agent::manifest::static_pod::{self, Location};
use agent::manifest::{self, Strictness};
use agent::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod as ApiPod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use crate::node::Node;
use crate::scenario::{Mode, Scenario, method};

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
}

impl Pods {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            pods: Vec::new(),
            gone: Vec::new(),
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
                .filter_map(|text| read_object(node, scenario, &text))
                .collect(),
        };
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

    pub(crate) fn patch_label(&mut self, node: &mut Node) {
        for pod in &mut self.pods {
            pod.metadata
                .labels
                .get_or_insert_default()
                .insert("patched".to_owned(), "yes".to_owned());
        }
        self.send(node);
    }

    /// Gives a container the image that it was restarted with in the scenario.
    pub(crate) fn patch_image(&mut self, node: &mut Node, scenario: &Scenario, name: &str) {
        let mut images = scenario
            .calls
            .iter()
            .filter(|call| method(call) == "CreateContainer");
        let last = images.rfind(|call| call["request"]["config"]["metadata"]["name"] == name);
        let image = last.unwrap()["request"]["config"]["image"]["user_specified_image"]
            .as_str()
            .unwrap();
        for pod in &mut self.pods {
            let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
            for container in containers.filter(|container| container.name == name) {
                container.image = Some(image.to_owned());
            }
            changed(pod);
        }
        self.send(node);
    }

    /// Adds the ephemeral containers that the scenario's status has.
    pub(crate) fn add_ephemeral(&mut self, node: &mut Node, scenario: &Scenario) {
        let status = &scenario.status[0]["status"];
        let statuses = status["ephemeralContainerStatuses"].as_array().unwrap();
        let added: Vec<EphemeralContainer> = statuses
            .iter()
            .map(|status| ephemeral(scenario, status))
            .collect();
        for pod in &mut self.pods {
            if let Some(spec) = &mut pod.spec {
                spec.ephemeral_containers = Some(added.clone());
            }
            changed(pod);
            let (admitted, _) = manifest::admit(pod.clone());
            *pod = admitted;
        }
        self.send(node);
    }
}

/// An ephemeral container, from its status and from the call that created it, if there was one.
fn ephemeral(scenario: &Scenario, status: &Value) -> EphemeralContainer {
    let name = status["name"].as_str().unwrap();
    let created = scenario
        .calls
        .iter()
        .filter(|call| method(call) == "CreateContainer");
    let mut created = created.map(|call| &call["request"]["config"]);
    let config = created.rfind(|config| config["metadata"]["name"] == name);
    let words = |key: &str| {
        let list = config?.get(key)?.as_array()?;
        Some(
            list.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        )
    };
    let set = |key: &str| config.and_then(|config| config.get(key)?.as_bool());
    EphemeralContainer {
        name: name.to_owned(),
        image: status["image"].as_str().map(str::to_owned),
        command: words("command"),
        args: words("args"),
        stdin: set("stdin"),
        tty: set("tty"),
        ..Default::default()
    }
}

fn changed(pod: &mut ApiPod) {
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

/// A pod as an API server has it; none for another kind of object.
fn read_object(node: &Node, scenario: &Scenario, text: &str) -> Option<ApiPod> {
    let parsed = manifest::parse(&scenario.name, text, Strictness::Lenient);
    let mut pod = parsed.pods.first()?.api().clone();
    let name = pod.metadata.name.clone();
    let mut recorded = scenario.history.iter().chain(&scenario.status);
    let own = recorded.find(|status| status["metadata"]["name"].as_str() == name.as_deref());
    if let Some(uid) = own.and_then(|status| status["metadata"]["uid"].as_str()) {
        pod.metadata.uid = Some(uid.to_owned());
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
