//! A runtime, and an agent in this process that runs the manifests in a directory on it.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use agent::checks::dialer::SystemDialer;
use agent::clock::SystemClock;
use agent::cluster::Standalone;
use agent::{Agent, Config, Parts, ReadinessChange, Transition};
use machine::HostMachine;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::Failed;
use crate::counted::Counted;
use crate::server::Server;
use crate::usage::Usage;

/// A pod with an init container and an app container.
const MANIFEST: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: init, image: crib.local/host, imagePullPolicy: IfNotPresent, command: [\"true\"]}
  containers:
  - {name: app, image: crib.local/host, imagePullPolicy: IfNotPresent, command: [sleep, infinity]PROBE}
";

/// The measured node. The fields are dropped in order.
pub(crate) struct Node {
    agent: Option<Agent>,
    ready: UnboundedReceiver<ReadinessChange>,
    transitions: UnboundedReceiver<Transition>,
    pub(crate) cri: Arc<Counted>,
    /// The usage of this process that is not the agent's.
    foreign: Usage,
    /// The YAML field with the containers' probe; may be empty.
    pub(crate) probe: String,
    /// The port of the server that probes reach.
    pub(crate) port: u16,
    /// Returns freed memory to the kernel, as `crib agent` does.
    _heap: JoinSet<()>,
    root: TempDir,
    _scripted: Option<Server>,
}

impl Node {
    /// Uses the runtime at `CRI_ENDPOINT`, or a scripted one.
    pub(crate) async fn start() -> Result<Self, Failed> {
        let root = directory()?;
        let (endpoint, scripted) = match std::env::var("CRI_ENDPOINT") {
            Ok(endpoint) => (endpoint, None),
            Err(_) => {
                let socket = root.path().join("runtime.sock");
                let server = Server::start(&socket)?;
                (format!("unix://{}", socket.display()), Some(server))
            }
        };
        let cri = agent::cri::grpc::connect(&endpoint).await?;
        let cri = Arc::new(Counted::new(cri));
        fs::create_dir(root.path().join("manifests"))?;
        log_to(File::options().write(true).open("/dev/null")?);
        let agent = start_agent(root.path(), Arc::clone(&cri));
        let mut heap = JoinSet::new();
        heap.spawn(crate::heap::trim_periodically());
        Ok(Self {
            _heap: heap,
            ready: agent.readiness(),
            transitions: agent.transitions(),
            agent: Some(agent),
            cri,
            foreign: Usage::default(),
            probe: String::new(),
            port: scripted.as_ref().map_or(0, |server| server.port),
            root,
            _scripted: scripted,
        })
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.root.path().join("manifests").join(format!("{name}.yaml"))
    }

    /// Writes a manifest atomically.
    pub(crate) fn write(&self, name: &str) -> Result<(), Failed> {
        let draft = self.root.path().join(name);
        let text = MANIFEST.replace("NAME", name).replace("PROBE", &self.probe);
        fs::write(&draft, text)?;
        Ok(fs::rename(draft, self.manifest(name))?)
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), Failed> {
        Ok(fs::remove_file(self.manifest(name))?)
    }

    /// Changes the manifests of many pods; not counted as the agent's usage.
    pub(crate) fn each(
        &mut self,
        numbers: Range<usize>,
        change: impl Fn(&Self, &str) -> Result<(), Failed> + Sync,
    ) -> Result<(), Failed> {
        let node = &*self;
        let changing = || {
            for number in numbers {
                change(node, &format!("pod-{number:04}"))?;
            }
            Usage::of_thread()
        };
        let used = std::thread::scope(|scope| scope.spawn(changing).join());
        let used = used.map_err(|_| "the thread panicked")??;
        self.foreign = self.foreign + used;
        Ok(())
    }

    /// Waits until the app containers of this many pods have become ready. Init containers also become ready, when they exit.
    pub(crate) async fn until_ready(&mut self, pods: usize) -> Result<(), Failed> {
        let mut left = pods;
        while left > 0 {
            let change = self.ready.recv().await.ok_or("the agent has ended")?;
            left -= usize::from(change.ready && change.container == "app");
        }
        Ok(())
    }

    /// Waits until this many pods are removed.
    pub(crate) async fn until_removed(&mut self, pods: usize) -> Result<(), Failed> {
        let mut left = pods;
        while left > 0 {
            let change = self.transitions.recv().await.ok_or("the agent has ended")?;
            left -= usize::from(change.container.is_none() && change.to == "Removed");
        }
        Ok(())
    }

    /// Replaces the agent; the new agent adopts the pods.
    pub(crate) async fn restart_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
        let agent = start_agent(self.root.path(), Arc::clone(&self.cri));
        self.ready = agent.readiness();
        self.transitions = agent.transitions();
        self.agent = Some(agent);
    }

    /// The agent's usage so far.
    pub(crate) fn used(&self) -> Result<Used, Failed> {
        Ok(Used {
            usage: Usage::of_process()? - self.foreign,
            calls: self.cri.count(),
            at: Instant::now(),
        })
    }
}

/// The agent's usage up to a time, or during an interval.
pub(crate) struct Used {
    usage: Usage,
    calls: u64,
    at: Instant,
}

impl Used {
    /// CPU time since `earlier` in ms, divided by `each`.
    pub(crate) fn cpu(&self, earlier: &Self, each: usize) -> f64 {
        (self.usage - earlier.usage).cpu.as_secs_f64() * 1e3 / count(each)
    }

    /// CPU usage since `earlier`, in percent of a core.
    pub(crate) fn share(&self, earlier: &Self) -> f64 {
        (self.usage - earlier.usage).cpu.as_secs_f64() * 1e2 / self.seconds(earlier)
    }

    /// The number of calls since `earlier`, divided by `each`.
    pub(crate) fn calls(&self, earlier: &Self, each: usize) -> f64 {
        (self.calls - earlier.calls) as f64 / count(each)
    }

    /// Wake-ups per second since `earlier`.
    pub(crate) fn wakes(&self, earlier: &Self) -> f64 {
        (self.usage - earlier.usage).waits as f64 / self.seconds(earlier)
    }

    /// The time since `earlier`.
    pub(crate) fn seconds(&self, earlier: &Self) -> f64 {
        (self.at - earlier.at).as_secs_f64()
    }
}

fn count(number: usize) -> f64 {
    number as f64
}

/// A directory on a tmpfs if there is one: the time that a disk takes to create a file is not a cost of the agent.
fn directory() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() && std::env::var_os("TMPDIR").is_none() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
}

/// Writes the log as `crib agent` does by default, to a file that is not read.
fn log_to(file: File) {
    tracing_subscriber::fmt()
        .with_writer(std::sync::Mutex::new(file))
        .with_max_level(tracing::Level::INFO)
        .init();
}

fn start_agent(root: &Path, cri: Arc<Counted>) -> Agent {
    let mut config = Config::new(root.join("agent"), root.join("logs"));
    config.agent_id = Some("bench".to_owned());
    let manifests = agent::source::directory(root.join("manifests"));
    agent::start(
        config,
        Parts {
            cri,
            clock: Arc::new(SystemClock),
            dialer: Arc::new(SystemDialer),
            machine: Arc::new(HostMachine::default()),
            node: agent::NodeParts::default(),
            managers: Arc::new(agent::managers::NoManagers),
            cluster: Arc::new(Standalone::default()),
            sources: vec![Box::new(manifests)],
            drivers: None,
        },
    )
}
