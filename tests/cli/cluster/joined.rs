//! An agent that is the node `n1` of an API server's cluster, with its own runtime.

use api::manifest::{Strictness, parse, to_json};
use cluster::{DeleteOptions, Key, Kind};
use jiff::Timestamp;

use super::api_server::ApiServer;
use crate::command::*;

/// The name of the node.
pub(crate) const NODE: &str = "n1";

/// The beginning of a kubelet's configuration.
pub(crate) const KUBELET_CONFIGURATION: &str =
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A runtime, and one agent after another that uses it.
pub(crate) struct Joined {
    pub(crate) place: Place,
    pub(crate) server: ApiServer,
    runtime: Running,
    endpoint: String,
}

impl Joined {
    /// Starts an API server, a runtime, and the agent without further arguments.
    pub(crate) async fn start() -> (Self, Running) {
        let joined = Self::new(ApiServer::start()).await;
        let agent = joined.agent(&[]);
        (joined, agent)
    }

    /// Starts a runtime for the server's node, and no agent.
    pub(crate) async fn new(server: ApiServer) -> Self {
        Self::with(server, "").await
    }

    /// Like [`Self::new`], with this configuration of the runtime.
    pub(crate) async fn with(server: ApiServer, config: &str) -> Self {
        let place = Place::unchecked();
        place.file("kubeconfig", &server.kubeconfig());
        let config = place.file("runtime.yaml", config);
        let (runtime, endpoint) = place.runtime_with(&["--config", &config]).await;
        Self { place, server, runtime, endpoint }
    }

    /// Starts the agent without its HTTPS server, unless the arguments set its port. Unless they set a configuration, it evicts no
    /// pods, however full this machine is, and does not use the health port, which other tests need.
    pub(crate) fn agent(&self, more: &[&str]) -> Running {
        let no_server = if more.contains(&"--port") { &[][..] } else { &["--port", "0"] };
        self.agent_with_server(&[no_server, more].concat())
    }

    /// Starts the agent with its HTTPS server, unless the arguments disable it.
    pub(crate) fn agent_with_server(&self, more: &[&str]) -> Running {
        let path = |name: &str| self.place.path(name).to_str().unwrap().to_owned();
        let (root, kubeconfig) = (path("root"), path("kubeconfig"));
        let args = [
            "agent",
            "--runtime-endpoint",
            &self.endpoint,
            "--root-dir",
            &root,
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            NODE,
            "--adopt-node",
        ];
        let calm = self.place.file(
            "calm.yaml",
            &format!("{KUBELET_CONFIGURATION}evictionHard: {{}}\nhealthzPort: 0\n"),
        );
        let calm = ["--config", calm.as_str()];
        let calm = if more.contains(&"--config") { &[][..] } else { &calm };
        self.place.start(&[&args[..], calm, more].concat())
    }

    /// Kills the runtime, but not its pods, and starts another one.
    pub(crate) async fn replace_runtime(&mut self) {
        self.runtime.signal(Signal::SIGKILL);
        self.runtime.child.wait().await.unwrap();
        let config = self.place.path("runtime.yaml");
        let (runtime, _) = self.place.runtime_with(&["--config", config.to_str().unwrap()]).await;
        self.runtime = runtime;
    }

    /// Stops the agent and the runtime, which stops its pods.
    pub(crate) async fn end(self, agent: Running) {
        agent.stop().await;
        self.end_runtime().await;
    }

    /// Stops the runtime, which no agent uses any more.
    pub(crate) async fn end_runtime(self) {
        self.runtime.stop().await;
    }

    /// The runtime's endpoint.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Creates a manifest's pod, bound to the node. Returns its uid.
    pub(crate) fn create_pod(&self, manifest: &str) -> String {
        self.create_pod_on(NODE, manifest)
    }

    /// Like [`Self::create_pod`], on any node.
    pub(crate) fn create_pod_on(&self, node: &str, manifest: &str) -> String {
        let parsed = parse("pod.yaml", manifest, Strictness::Strict);
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
        self.create_object(node, to_json(parsed.pods[0].api()))
    }

    /// Like [`Self::create_pod_on`], with an object, which may contain fields that crib's manifests may not.
    pub(crate) fn create_object(&self, node: &str, mut pod: Value) -> String {
        // The server assigns a unique uid.
        pod["metadata"].as_object_mut().unwrap().remove("uid");
        let now = Timestamp::now();
        let created = self.server.store().create(pod, now).unwrap();
        self.server.store().bind(&created.key, node, now).unwrap();
        created.uid().to_owned()
    }

    /// Deletes a pod as kubectl does.
    pub(crate) fn delete_pod(&self, name: &str, grace: Option<i64>) {
        let options = DeleteOptions { grace_seconds: grace, ..DeleteOptions::default() };
        let key = Key::pod("default", name);
        self.server.store().delete(&key, &options, Timestamp::now()).unwrap();
    }

    /// An object of the server; null if it does not exist.
    pub(crate) fn object(&self, kind: Kind, namespace: &str, name: &str) -> Value {
        let object = self.server.store().get(&Key::new(kind, namespace, name));
        object.map(|object| object.value.clone()).unwrap_or_default()
    }

    pub(crate) fn node(&self) -> Value {
        self.object(Kind::of("v1", "Node"), "", NODE)
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.object(Kind::pod(), "default", name)
    }

    /// Waits until a pod of the server meets a condition.
    pub(crate) async fn wait_for_pod(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        wait(&format!("pod {name}: {what}"), || self.pod(name), is_so).await
    }

    pub(crate) async fn wait_for_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_for_pod(name, phase, |pod| pod["status"]["phase"] == phase).await
    }

    pub(crate) async fn wait_until_gone(&self, name: &str) {
        self.wait_for_pod(name, "gone", Value::is_null).await;
    }

    pub(crate) async fn wait_for_ready_node(&self) -> Value {
        let is_ready = |node: &Value| condition(node, "Ready")["status"] == "True";
        wait("the node is ready", || self.node(), is_ready).await
    }

    /// The ids of the runtime's running containers.
    pub(crate) async fn running(&self) -> Vec<String> {
        let args = ["ps", "--runtime-endpoint", &self.endpoint, "-o", "json"];
        let ended = self.place.crib(&args).await.exits(0);
        let listed: Value = serde_json::from_str(&ended.out).unwrap();
        let containers = listed["containers"].as_array().cloned().unwrap_or_default();
        containers.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the runtime has this many running containers, and returns them.
    pub(crate) async fn wait_for_running(&self, count: usize) -> Vec<String> {
        harness::eventually(WAIT_LIMIT, "containers that run", async || {
            let running = self.running().await;
            if running.len() == count { Ok(running) } else { Err(running) }
        })
        .await
    }
}

/// Waits until a value meets a condition.
pub(crate) async fn wait(
    what: &str,
    look: impl Fn() -> Value,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    harness::eventually(WAIT_LIMIT, what, async || {
        let seen = look();
        if is_so(&seen) { Ok(seen) } else { Err(seen) }
    })
    .await
}

/// A condition in an object's status; null if it does not exist.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// A pod that is ready when its script has created the file `/dev/shm/set`. The script does so after setting its trap, because
/// before its shell handles SIGTERM, the kernel ignores the signal.
pub(crate) fn pod_with_handler(name: &str, script: &str) -> String {
    let probe = "exec: {command: [test, -e, /dev/shm/set]}, periodSeconds: 1, timeoutSeconds: 30";
    pod(name, script) + &format!("    readinessProbe: {{{probe}}}\n")
}

/// A pod whose container runs this script.
pub(crate) fn pod(name: &str, script: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  containers:
  - name: app
    image: crib.local/host
    command: [sh, -c, \"{script}\"]
"
    )
}
