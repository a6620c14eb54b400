//! crib's agent on a scenario's node: in this process, with pods from the scenario.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::checks::dialer::SystemDialer;
use agent::clock::SystemClock;
use agent::cluster::Standalone;
use agent::objects::{ObjectMap, ObjectStore};
use agent::source::{DirectorySource, ManifestMode, PodSource, PodsSender};
use agent::{Agent, Event, PodReport, PublishedStatus};
use api::pod::Pod;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::RwLockWriteGuard;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::node::{PodState, WAIT_LIMIT};
use crate::runtimes::lost_sandboxes::LostSandboxes;

const CLUSTER_DNS: &str = "10.199.0.10";
const CLUSTER_DOMAIN: &str = "cluster.local";

/// The agent, and its inputs.
pub(crate) struct Library {
    running: Option<(Agent, PodsSender)>,
    address: &'static str,
    /// Sandboxes that the agent sees as ended while their containers keep running.
    lost: LostSandboxes,
    /// The directory from which it reads its pods instead.
    manifests: Option<PathBuf>,
    /// The pods in its source.
    pods: Vec<Pod>,
    /// The states of the pods when the last agent stopped.
    last: Vec<PodState>,
    /// The directory of the node's pods in the cgroup hierarchies, if pods have their own cgroups.
    cgroup_root: Option<String>,
    /// The objects that the pods refer to.
    objects: Arc<ObjectStore>,
    /// The events of each agent so far.
    events: Vec<UnboundedReceiver<Event>>,
    /// The statuses that each agent has published so far.
    statuses: Vec<UnboundedReceiver<PublishedStatus>>,
}

impl Library {
    /// Creates an agent without starting it.
    pub(crate) fn new(address: &'static str, manifests: Option<PathBuf>) -> Self {
        Self {
            running: None,
            address,
            lost: LostSandboxes::new(),
            manifests,
            pods: Vec::new(),
            last: Vec::new(),
            cgroup_root: None,
            objects: Arc::default(),
            events: Vec::new(),
            statuses: Vec::new(),
        }
    }

    /// Gives each pod its own cgroup from now on, like `cgroupsPerQOS`.
    pub(crate) fn set_cgroup_root(&mut self, root: String) {
        self.cgroup_root = Some(root);
    }

    /// The states of the pods when the last agent stopped.
    pub(crate) fn last_pods(&self) -> &[PodState] {
        &self.last
    }

    /// Starts an agent that calls the runtime at `socket`, with its directories below `root`.
    pub(crate) async fn start(&mut self, node: &str, root: &Path, socket: &Path) {
        let mut config = agent::Config::new(root.join("root"), root.join("pod-logs"));
        config.node_name = node.to_owned();
        config.remove_at_once = false;
        config.finish_starts = true;
        config.container_stop_signals = false;
        config.admission.node_labels = Some(own_labels(node));
        // The recorded kubelets polled once a second.
        config.event_driven_pleg = false;
        config.node_ips = vec![self.address.to_owned()];
        config.resolv_conf = Some(root.join("resolv.conf"));
        config.cluster_dns = vec![CLUSTER_DNS.to_owned()];
        config.cluster_domain = CLUSTER_DOMAIN.to_owned();
        if let Some(root) = &self.cgroup_root {
            config.cgroups.per_qos = true;
            config.cgroups.root.clone_from(root);
        }
        let socket = format!("unix://{}", socket.display());
        let connected = agent::cri::grpc::connect(&socket);
        let cri = tokio::time::timeout(WAIT_LIMIT, connected).await.unwrap().unwrap();
        let (source, sender) = agent::source::fixed();
        sender.set(self.pods.clone());
        let source: Box<dyn PodSource> = match &self.manifests {
            None => Box::new(source),
            Some(manifests) => {
                let node_name = node.to_owned();
                let mode = ManifestMode::Kubelet { node_name, may_refer: false };
                Box::new(DirectorySource::new(manifests.clone(), mode))
            }
        };
        let parts = agent::Parts {
            cri: self.lost.hide(cri),
            clock: Arc::new(SystemClock),
            dialer: Arc::new(SystemDialer),
            machine: Arc::new(machine::HostMachine::default()),
            node: agent::NodeParts::default(),
            managers: Arc::new(agent::managers::NoManagers),
            cluster: Arc::new(Standalone::new(Arc::clone(&self.objects))),
            sources: vec![source],
            drivers: None,
        };
        let agent = agent::start(config, parts);
        self.events.push(agent.events());
        self.statuses.push(agent.statuses());
        self.running = Some((agent, sender));
    }

    pub(crate) async fn stop(&mut self) {
        self.last = self.pods();
        if let Some((agent, _)) = self.running.take() {
            agent.stop().await;
        }
    }

    /// Ends a sandbox in the agent's view; its containers keep running.
    pub(crate) fn lose_sandbox(&self, id: &str) {
        self.lost.lose(id);
    }

    /// Blocks observations of the agent until the guard is dropped.
    pub(crate) async fn unseen(&self) -> RwLockWriteGuard<'_, ()> {
        self.lost.unseen().await
    }

    /// Replaces the objects that pods refer to.
    pub(crate) fn set_objects(&self, objects: ObjectMap) {
        self.objects.set(objects);
    }

    /// Replaces the pods of the source.
    pub(crate) fn set_pods(&mut self, pods: Vec<Pod>) {
        self.pods = pods;
        if let Some((_, source)) = &self.running {
            source.set(self.pods.clone());
        }
    }

    /// The latest state of each current or earlier pod of the source. A kubelet that reads files does not report a removed pod,
    /// which another one of the same name may have replaced.
    pub(crate) fn pods(&self) -> Vec<PodState> {
        let Some((agent, _)) = &self.running else {
            return Vec::new();
        };
        let reports = agent.reports();
        let reports = reports.borrow();
        states(reports.values(), self.manifests.is_some())
    }

    /// Waits until `found` returns true for the pods' states, for at most `limit`.
    pub(crate) async fn until(
        &self,
        limit: Duration,
        mut found: impl FnMut(&[PodState]) -> bool,
    ) -> bool {
        let Some((agent, _)) = &self.running else {
            return false;
        };
        let mut reports = agent.reports();
        let wait =
            reports.wait_for(|reports| found(&states(reports.values(), self.manifests.is_some())));
        matches!(tokio::time::timeout(limit, wait).await, Ok(Ok(_)))
    }

    /// The statuses published since the last call, in the form of `status_history.jsonl`.
    pub(crate) fn history(&mut self, zero: Timestamp) -> Vec<Value> {
        let mut statuses = Vec::new();
        for agent in &mut self.statuses {
            statuses.extend(std::iter::from_fn(|| agent.try_recv().ok()));
        }
        statuses
            .iter()
            .map(|published| {
                json!({
                    "t": published.at.duration_since(zero).as_secs_f64(),
                    "pod": format!("{}/{}", published.namespace, published.name),
                    "metadata": {
                        "name": published.name,
                        "namespace": published.namespace,
                        "uid": published.uid.as_str(),
                    },
                    "status": serde_json::to_value(&*published.status).unwrap(),
                })
            })
            .collect()
    }

    /// The events about pods since the last call, in the form of `events.json`.
    pub(crate) fn events(&mut self, zero: Timestamp) -> Vec<Value> {
        let mut events = Vec::new();
        for agent in &mut self.events {
            events.extend(std::iter::from_fn(|| agent.try_recv().ok()));
        }
        events
            .iter()
            .map(|event| {
                json!({
                    "t": event.last_at.duration_since(zero).as_secs_f64(),
                    "pod": event.object.name,
                    "field_path": event.object.field_path,
                    "type": event.kind.as_str(),
                    "reason": event.reason,
                    "message": event.message,
                })
            })
            .collect()
    }
}

/// The labels that a kubelet sets on its node.
fn own_labels(node: &str) -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let labels = [("hostname", node), ("os", "linux"), ("arch", arch)];
    let label = |(key, value): (&str, &str)| (format!("kubernetes.io/{key}"), value.to_owned());
    labels.map(label).into()
}

/// The states in reports; without removed pods if the agent reads files.
fn states<'a>(reports: impl Iterator<Item = &'a PodReport>, reads_files: bool) -> Vec<PodState> {
    let kept = reports.filter(|report| !(reads_files && report.removed));
    kept.map(state).collect()
}

fn state(report: &PodReport) -> PodState {
    PodState {
        entry: json!({
            "metadata": {
                "name": report.name,
                "namespace": report.namespace,
                "uid": report.uid.as_str(),
            },
            "status": serde_json::to_value(&*report.published).unwrap(),
        }),
        finished: report.finished,
    }
}

#[cfg(test)]
mod tests {
    use api::pod::PodUid;

    use super::*;

    #[test]
    fn agent_with_manifests_does_not_report_removed_pod() {
        let report = |uid: &str, removed: bool| PodReport {
            uid: PodUid::new(uid),
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            status: Default::default(),
            published: Arc::default(),
            finished: removed,
            removed,
            containers: Vec::new(),
        };
        let reports = [report("new", false), report("old", true)];
        let uids = |reads_files: bool| -> Vec<String> {
            let states = states(reports.iter(), reads_files);
            states.iter().map(|state| state.uid().to_owned()).collect()
        };
        assert_eq!(uids(true), ["new"]);
        assert_eq!(uids(false), ["new", "old"]);
    }
}
