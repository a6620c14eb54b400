//! A node with a scripted runtime, an agent and its managers.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::checks::dialer::SystemDialer;
use agent::clock::SystemClock;
use agent::cluster::Standalone;
use agent::cri::fake::{Behaviour, FakeCri};
use agent::machine::{FileSystem, KernelMemory, Machine, MemoryThreshold, MemoryUse, ProcessIds};
use agent::source::{self, PodsSender};
use agent::{Agent, AgentView, CgroupVersion, Config, NodeParts, Parts, PodReport};
use api::pod::{Pod, PodUid};
use managers::{NodeManagers, Settings};
use plugins::{PluginWatcher, REGISTRY};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The timeout of all waits.
const LONGEST: Duration = Duration::from_secs(20);

thread_local! {
    /// The directories of this thread's nodes, removed when the thread of a test ends. It cannot be sooner: the blocking tasks of a
    /// dropped agent continue until the end of tokio's runtime, and would re-create directories.
    static ROOTS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Node {
    root: PathBuf,
    pub(crate) fake: FakeCri,
    running: Option<Running>,
    settings: Settings,
}

struct Running {
    agent: Agent,
    pods: PodsSender,
    serving: JoinHandle<()>,
}

impl Node {
    /// A node with a running agent.
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    /// A node with these settings of managers, and a running agent.
    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let fake = FakeCri::new(Arc::new(SystemClock));
        fake.image("app", Behaviour::forever());
        fake.image("job", Behaviour::ends(Duration::ZERO, 0));
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        ROOTS.with_borrow_mut(|roots| roots.push(directory));
        let mut settings = Settings::new(root.join("root"));
        change(&mut settings);
        let mut node = Self { root, fake, running: None, settings };
        node.start_agent();
        node
    }

    pub(crate) fn start_agent(&mut self) {
        let (source, pods) = source::fixed();
        let managers = NodeManagers::open(&self.settings, Arc::new(self.fake.clone())).unwrap();
        let config = Config {
            resolv_conf: None,
            log_rotation: None,
            ..Config::new(self.root_dir(), self.root.join("logs"))
        };
        let agent = agent::start(
            config,
            Parts {
                cri: Arc::new(self.fake.clone()),
                clock: Arc::new(SystemClock),
                dialer: Arc::new(SystemDialer),
                machine: Arc::new(SmallMachine),
                managers: Arc::new(managers.clone()),
                sources: vec![Box::new(source)],
                cluster: Arc::new(Standalone::default()),
                drivers: None,
                node: NodeParts::default(),
            },
        );
        let view = agent.view();
        let handlers = managers.plugin_handler().into_iter().collect();
        let watcher = PluginWatcher::new(self.registry(), handlers);
        let serving = tokio::spawn(async move {
            tokio::join!(managers.serve(view), watcher.run());
        });
        self.running = Some(Running { agent, pods, serving });
    }

    /// Stops the agent as if it were killed; pods continue to run.
    pub(crate) async fn kill_agent(&mut self) {
        let Running { agent, serving, .. } = self.running.take().unwrap();
        serving.abort();
        let _ = serving.await;
        agent.stop().await;
    }

    pub(crate) fn root_dir(&self) -> PathBuf {
        self.root.join("root")
    }

    /// The directory of device plugins.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.root_dir().join("device-plugins")
    }

    /// The directory of the sockets for the plugin watcher.
    pub(crate) fn registry(&self) -> PathBuf {
        self.root_dir().join(REGISTRY)
    }

    pub(crate) fn view(&self) -> AgentView {
        self.running.as_ref().unwrap().agent.view()
    }

    pub(crate) fn want(&self, pods: &[&Pod]) {
        let pods = pods.iter().map(|pod| (*pod).clone()).collect();
        self.running.as_ref().unwrap().pods.set(pods);
    }

    /// Waits until a report of the pod satisfies a condition.
    pub(crate) async fn until(&self, pod: &Pod, is_so: impl Fn(&PodReport) -> bool) -> PodReport {
        let mut reports = self.view().reports();
        let found = reports.wait_for(|all| all.get(pod.uid()).is_some_and(&is_so));
        match timeout(LONGEST, found).await {
            Ok(all) => all.unwrap().get(pod.uid()).unwrap().clone(),
            Err(_) => {
                let reports = self.view().reports();
                let last = reports.borrow().get(pod.uid()).map(|report| report.containers.clone());
                panic!("last seen: {last:?}");
            }
        }
    }

    pub(crate) async fn until_running(&self, pod: &Pod) {
        self.until(pod, |report| {
            let mut containers = report.status.container_statuses.iter().flatten();
            containers.all(|it| it.state.as_ref().is_some_and(|state| state.running.is_some()))
                && report.status.container_statuses.is_some()
        })
        .await;
    }

    /// Waits until the pod is rejected. Returns the reason and the message.
    pub(crate) async fn until_rejected(&self, pod: &Pod) -> (String, String) {
        let report = self.until(pod, |report| report.finished).await;
        let status = report.status.clone();
        (status.reason.clone().unwrap_or_default(), status.message.clone().unwrap_or_default())
    }

    /// Waits until the node has this many devices, healthy and in total.
    pub(crate) async fn until_devices(&self, resource: &str, healthy: &str, all: &str) {
        let mut view = self.view();
        let seen = async {
            loop {
                let has = |amounts: std::collections::BTreeMap<String, String>, count: &str| {
                    amounts.get(resource).is_some_and(|known| known == count)
                };
                // The condition may change between its two parts, so check again soon.
                if has(view.allocatable(), healthy) && has(view.capacity(), all) {
                    return;
                }
                let _ = timeout(Duration::from_millis(20), view.readiness_changed()).await;
            }
        };
        if timeout(LONGEST, seen).await.is_err() {
            let view = self.view();
            panic!("{healthy}/{all}: {:?} {:?}", view.allocatable(), view.capacity());
        }
    }
}

/// A pod whose only container requests devices.
pub(crate) fn pod(uid: &str, resource: &str, count: u32) -> Pod {
    let app = container("app", "app", resource, count);
    pod_of(uid, json!({"containers": [app]}))
}

pub(crate) fn container(name: &str, image: &str, resource: &str, count: u32) -> Value {
    let amounts = json!({resource: count.to_string()});
    json!({"name": name, "image": image, "resources": {"requests": amounts, "limits": amounts}})
}

pub(crate) fn pod_of(uid: &str, mut spec: Value) -> Pod {
    // Similar to the API server's defaults.
    spec["enableServiceLinks"] = json!(false);
    let metadata = json!({"name": format!("pod-{uid}"), "namespace": "default", "uid": uid});
    let pod = json!({"metadata": metadata, "spec": spec});
    let pod = Pod::new(serde_json::from_value(pod).unwrap());
    assert_eq!(pod.uid(), &PodUid::new(uid));
    pod
}

struct SmallMachine;

impl Machine for SmallMachine {
    fn kernel(&self) -> KernelMemory {
        KernelMemory {
            capacity: 8 << 30,
            swap_capacity: 0,
            cgroup_version: CgroupVersion::V2,
            swap_controller: false,
        }
    }

    fn mounts_below(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn memory(&self) -> io::Result<MemoryUse> {
        Ok(MemoryUse { capacity: 8 << 30, usage: 1 << 30, working_set: 1 << 30 })
    }

    fn cgroup_memory(&self, _: &str) -> io::Result<Option<MemoryUse>> {
        Ok(None)
    }

    fn memory_threshold(&self, _: &str, _: u64) -> io::Result<Option<Box<dyn MemoryThreshold>>> {
        Ok(None)
    }

    fn processes(&self) -> io::Result<ProcessIds> {
        Ok(ProcessIds { limit: 32_768, running: 100 })
    }

    fn file_system(&self, _: &Path) -> io::Result<FileSystem> {
        Ok(FileSystem {
            device: 1,
            capacity: 100 << 30,
            available: 90 << 30,
            inodes: 1_000_000,
            inodes_free: 900_000,
        })
    }
}
