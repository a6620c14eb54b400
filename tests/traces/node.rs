//! The node of a scenario: a runtime, a recorder and an agent, in their own directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use agent::objects::ObjectMap;
use api::pod::Pod;
use cri::v1;
use harness::eventually::within;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::Proxy;
use registry::Registry;
use serde_json::Value;
use tokio::sync::RwLockWriteGuard;

use crate::kubelet::Kubelet;
use crate::runtimes::images;
use crate::runtimes::runtime::{NodeRuntime, RuntimeKind};
use crate::scenarios::library::Library;
use crate::scenarios::scenario::Scenario;

/// The resolv.conf of the recorded node.
const RESOLV_CONF: &str = "nameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch node.example.test example.test\noptions timeout:2 edns0\n";
/// The time limit for each part of a node to start.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// How long a step waits for the sandbox or container that it acts on.
const SOON: Duration = Duration::from_secs(6);

/// The parts of a node.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) runtime: RuntimeKind,
    pub(crate) agent: AgentKind,
}

/// The agent that manages a node's pods.
#[derive(Debug, Clone)]
pub(crate) enum AgentKind {
    /// crib's agent, with pods from the scenario.
    Crib,
    /// crib's agent, which reads its pods from a directory like a kubelet.
    CribOfDirectory,
    /// The real kubelet, with the path of its program.
    Kubelet(PathBuf),
}

impl Parts {
    /// The tested combination.
    pub(crate) const CRIB: Self = Self { runtime: RuntimeKind::Crib, agent: AgentKind::Crib };
}

/// A pod as an agent reports it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodState {
    /// In the form of `status.json`.
    pub(crate) entry: Value,
    /// Nothing of the pod runs or will run. Only crib's agent reports this.
    pub(crate) finished: bool,
}

impl PodState {
    pub(crate) fn uid(&self) -> &str {
        let uid = &self.entry["metadata"]["uid"];
        uid.as_str().unwrap_or_default()
    }

    pub(crate) fn phase(&self) -> &str {
        let phase = &self.entry["status"]["phase"];
        phase.as_str().unwrap_or_default()
    }
}

/// A node. [`Node::end`] stops its parts.
pub(crate) struct Node {
    agent: NodeAgent,
    proxy: Proxy,
    runtime: NodeRuntime,
    name: String,
    /// Whether the agent reads its pods from files.
    reads_files: bool,
}

enum NodeAgent {
    Crib(Box<Library>),
    Kubelet(Kubelet),
}

impl Node {
    /// Starts a node with the initial images of a scenario, and an agent that has observed that nothing runs.
    pub(crate) async fn start(
        parts: &Parts,
        (name, address): (&str, &'static str),
        registry: &Registry,
        scenario: &Scenario,
    ) -> Self {
        let hosts = images::hosts(scenario);
        let runtime = NodeRuntime::start(parts.runtime, registry, &hosts).await;
        for image in scenario.images_present() {
            let pulled = runtime.client().pull(&image).await;
            pulled.unwrap_or_else(|status| panic!("failed to pull {image}: {status}"));
        }
        let root = runtime.root();
        fs::write(root.join("resolv.conf"), RESOLV_CONF).unwrap();
        fs::create_dir_all(root.join("manifests")).unwrap();
        host_directory(&root.join("hostdir"));
        let proxy = Proxy::start(&root.join("proxy.sock"), &runtime.socket()).unwrap();
        let library = |manifests| {
            let mut library = Library::new(address, manifests);
            if scenario.plan.pod_cgroups {
                library.set_cgroup_root(cgroup_root(&root));
            }
            library
        };
        let agent = match &parts.agent {
            AgentKind::Crib => NodeAgent::Crib(Box::new(library(None))),
            AgentKind::CribOfDirectory => {
                NodeAgent::Crib(Box::new(library(Some(root.join("manifests")))))
            }
            AgentKind::Kubelet(program) => NodeAgent::Kubelet(Kubelet::new(program, &root)),
        };
        let mut node = Self {
            agent,
            proxy,
            runtime,
            name: name.to_owned(),
            reads_files: !matches!(parts.agent, AgentKind::Crib),
        };
        node.start_agent().await;
        let listed = node.proxy.recording().until(|calls| {
            let mut ended = calls.iter().filter(|call| call.end.is_some());
            ended.any(|call| call.method == "ListContainers").then_some(())
        });
        tokio::time::timeout(WAIT_LIMIT, listed).await.unwrap();
        if let Some(kubelet) = node.kubelet() {
            kubelet.sync_loop_runs().await;
        }
        node
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.runtime.root()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Whether the agent reads its pods from files.
    pub(crate) fn reads_files(&self) -> bool {
        self.reads_files
    }

    /// Replaces the files of the directory of manifests.
    pub(crate) fn write_manifests(&self, name: &str, texts: &[String]) {
        let directory = self.root().join("manifests");
        let path = |index: usize| directory.join(format!("{name}-{index}.yaml"));
        for (index, text) in texts.iter().enumerate() {
            // Files whose names begin with a dot are ignored.
            let draft = directory.join(".draft");
            fs::write(&draft, text).unwrap();
            fs::rename(draft, path(index)).unwrap();
        }
        for index in texts.len().. {
            if fs::remove_file(path(index)).is_err() {
                return;
            }
        }
    }

    /// Renames the files of the directory of manifests.
    pub(crate) fn rename_manifests(&self, name: &str, to: &str) {
        let directory = self.root().join("manifests");
        let path = |name: &str, index: usize| directory.join(format!("{name}-{index}.yaml"));
        let mut indices = 0..;
        while indices.next().is_some_and(|it| fs::rename(path(name, it), path(to, it)).is_ok()) {}
    }

    /// The kubelet, if the node has one.
    pub(crate) fn kubelet(&self) -> Option<&Kubelet> {
        match &self.agent {
            NodeAgent::Crib(_) => None,
            NodeAgent::Kubelet(kubelet) => Some(kubelet),
        }
    }

    /// Replaces the objects that pods of crib's agent refer to.
    pub(crate) fn set_objects(&self, objects: ObjectMap) {
        if let NodeAgent::Crib(agent) = &self.agent {
            agent.set_objects(objects);
        }
    }

    /// Every status of the pods that crib's agent published or that was observed from a kubelet; `zero` is the same moment on both
    /// clocks.
    pub(crate) fn history(&mut self, zero: (Instant, Timestamp)) -> Vec<Value> {
        match &mut self.agent {
            NodeAgent::Crib(agent) => agent.history(zero.1),
            NodeAgent::Kubelet(kubelet) => kubelet.history(zero.0),
        }
    }

    /// Replaces the pods of crib's agent.
    pub(crate) fn set_pods(&mut self, pods: Vec<Pod>) {
        if let NodeAgent::Crib(agent) = &mut self.agent {
            agent.set_pods(pods);
        }
    }

    /// The states of the pods when the last agent stopped, if it is crib's.
    pub(crate) fn last_pods(&self) -> &[PodState] {
        match &self.agent {
            NodeAgent::Crib(agent) => agent.last_pods(),
            NodeAgent::Kubelet(_) => &[],
        }
    }

    /// The latest state of each pod.
    pub(crate) fn pods(&self) -> Vec<PodState> {
        match &self.agent {
            NodeAgent::Crib(agent) => agent.pods(),
            NodeAgent::Kubelet(kubelet) => kubelet.pods(),
        }
    }

    /// Waits until `found` returns true for the pods' states, for at most `limit`.
    pub(crate) async fn until(
        &self,
        limit: Duration,
        found: impl FnMut(&[PodState]) -> bool,
    ) -> bool {
        match &self.agent {
            NodeAgent::Crib(agent) => agent.until(limit, found).await,
            NodeAgent::Kubelet(kubelet) => kubelet.until(limit, found).await,
        }
    }

    /// The events about pods, in the form of `events.json`.
    pub(crate) fn events(&mut self, zero: Timestamp) -> Vec<Value> {
        match &mut self.agent {
            NodeAgent::Crib(agent) => agent.events(zero),
            NodeAgent::Kubelet(kubelet) => kubelet.events(zero),
        }
    }

    pub(crate) async fn start_agent(&mut self) {
        match &mut self.agent {
            NodeAgent::Crib(agent) => {
                let root = self.runtime.root();
                agent.start(&self.name, &root, self.proxy.socket()).await;
            }
            NodeAgent::Kubelet(kubelet) => kubelet.start(&self.name, self.proxy.socket()).await,
        }
    }

    pub(crate) async fn stop_agent(&mut self) {
        self.end_agent(Signal::SIGTERM).await;
    }

    pub(crate) async fn kill_agent(&mut self) {
        self.end_agent(Signal::SIGKILL).await;
    }

    /// The tasks of crib's agent, in this process, are always aborted.
    async fn end_agent(&mut self, signal: Signal) {
        match &mut self.agent {
            NodeAgent::Crib(agent) => agent.stop().await,
            NodeAgent::Kubelet(kubelet) => kubelet.stop(signal).await,
        }
    }

    pub(crate) async fn stop_runtime(&mut self) {
        self.runtime.stop().await;
    }

    pub(crate) async fn kill_runtime(&mut self) {
        self.runtime.kill().await;
    }

    pub(crate) async fn start_runtime(&mut self) {
        self.runtime.restart().await;
    }

    /// Sends a signal to the first process of the running container of this name.
    pub(crate) async fn kill_container(&self, name: &str, signal: &str) {
        let signal = Signal::from_str(signal).unwrap();
        let id = self.running(name).await;
        let request = v1::ContainerStatusRequest { container_id: id, verbose: true };
        let answer = self.runtime.client().runtime.clone().container_status(request).await.unwrap();
        kill_process(answer.into_inner().info.get("info"), signal);
    }

    /// Kills the process of the only ready sandbox, whose containers keep running. In crib's runtime they would end with it, so
    /// only the agent sees the sandbox as ended, unless it is compared with a kubelet on the same runtime.
    pub(crate) async fn kill_sandbox(&self) {
        let id = self.sandbox().await;
        if let (NodeAgent::Crib(agent), NodeRuntime::Crib(_), false) =
            (&self.agent, &self.runtime, self.reads_files)
        {
            return agent.lose_sandbox(&id);
        }
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id, verbose: true };
        let answer =
            self.runtime.client().runtime.clone().pod_sandbox_status(request).await.unwrap();
        kill_process(answer.into_inner().info.get("info"), Signal::SIGKILL);
    }

    pub(crate) async fn stop_container(&self, name: &str) {
        let id = self.running(name).await;
        self.runtime.client().stop(&id, 2).await.unwrap();
    }

    /// Removes the latest container of this name, running or not, between two observations of crib's agent.
    pub(crate) async fn remove_container(&self, name: &str) {
        let all = self.runtime.client().containers(Default::default());
        let mut all = all.await.unwrap();
        all.retain(|it| it.metadata.as_ref().is_some_and(|its| its.name == name));
        let latest = all.iter().max_by_key(|it| it.created_at).unwrap();
        let _unseen = self.unseen().await;
        self.runtime.client().remove(&latest.id).await.unwrap();
    }

    pub(crate) async fn remove_image(&self, name: &str) {
        self.runtime.client().remove_image(name).await.unwrap();
    }

    /// Stops the only ready sandbox in one call, which also stops its containers, between two observations of crib's agent.
    pub(crate) async fn stop_sandbox(&self) {
        let id = self.sandbox().await;
        let _unseen = self.unseen().await;
        self.runtime.client().stop_pod(&id).await.unwrap();
    }

    /// Removes the only ready sandbox in one call, which also stops its containers, between two observations of crib's agent.
    pub(crate) async fn remove_sandbox(&self) {
        let id = self.sandbox().await;
        let _unseen = self.unseen().await;
        self.runtime.client().remove_pod(&id).await.unwrap();
    }

    /// Blocks observations of crib's agent until the guard is dropped.
    async fn unseen(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match &self.agent {
            NodeAgent::Crib(agent) => Some(agent.unseen().await),
            NodeAgent::Kubelet(_) => None,
        }
    }

    async fn sandbox(&self) -> String {
        let state = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() };
        let filter = v1::PodSandboxFilter { state: Some(state), ..Default::default() };
        let found = within(SOON, "a ready sandbox", async || {
            let found = self.runtime.client().pods(filter.clone()).await.unwrap();
            found.first().map(|it| it.id.clone()).ok_or("none")
        });
        found.await.unwrap()
    }

    async fn running(&self, name: &str) -> String {
        let state = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
        let filter = v1::ContainerFilter { state: Some(state), ..Default::default() };
        let named = |c: &&v1::Container| c.metadata.as_ref().is_some_and(|m| m.name == name);
        let found = within(SOON, "the container to run", async || {
            let all = self.runtime.client().containers(filter.clone()).await;
            let all = all.unwrap();
            all.iter().find(named).map(|it| it.id.clone()).ok_or("none")
        });
        found.await.unwrap()
    }

    /// Stops everything. An error describes what failed.
    pub(crate) async fn end(mut self) -> Result<(), String> {
        self.stop_agent().await;
        let Self { agent, proxy, runtime, .. } = self;
        if let NodeAgent::Kubelet(kubelet) = agent {
            kubelet.end().await;
        }
        drop(proxy);
        runtime.end().await
    }
}

/// The parent cgroup of a node's pods. Each node has its own, because the same pod may run on several nodes concurrently.
pub(crate) fn cgroup_root(root: &Path) -> String {
    let name = root.file_name().unwrap_or_default();
    format!("/{}", name.to_string_lossy())
}

/// Creates the directory for hostPath volumes, like the recorded one.
fn host_directory(path: &Path) {
    fs::create_dir_all(path.join("b/in-b")).unwrap();
    fs::write(path.join("f.txt"), "f\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", path.join("link")).unwrap();
}

fn kill_process(info: Option<&String>, signal: Signal) {
    let info: Value = serde_json::from_str(info.unwrap()).unwrap();
    let pid = i32::try_from(info["pid"].as_i64().unwrap()).unwrap();
    assert!(pid > 1, "{info}");
    kill(Pid::from_raw(pid), signal).unwrap();
}
