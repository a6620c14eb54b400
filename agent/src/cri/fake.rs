//! A scripted runtime for tests: the image name selects the behaviour of a container. It uses tokio's clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::pod::PodUid;
use compact::{Map, Set};
use jiff::Timestamp;
use tokio::sync::{broadcast, watch};

use super::{
    Code, CriError, EventKind, ExecOutput, Image, ListedContainer, ListedSandbox, ListedState,
    PodRef, RuntimeEvent,
};
use crate::clock::Clock;
use crate::labels;
use crate::observed::{ContainerId, Exit, MemoryUsage, SandboxId};
use crate::pod_spec::spec::{ContainerSpec, SandboxSpec};

mod containers;
pub mod killed;
mod service;

/// The behaviour of an image's containers.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Run time and exit code; `None`: runs until it is stopped.
    pub ends: Option<(Duration, i32)>,
    /// The delay of its exit after the stop signal; `None`: it ignores the signal.
    pub yields_after: Option<Duration>,
    /// The error of CreateContainer.
    pub create_fails: Option<String>,
    /// The error of StartContainer.
    pub start_fails: Option<String>,
    /// Whether the image is present before a pull.
    pub present: bool,
    /// The duration of a pull, and its error.
    pub pull: (Duration, Option<String>),
    /// The size of the image, in bytes.
    pub size: u64,
    /// Whether the runtime reports the image as pinned.
    pub pinned: bool,
    /// After this many starts of the image's containers, later containers run until they are stopped.
    pub heals_after: Option<u64>,
}

impl Behaviour {
    /// Runs until it is stopped, and then exits immediately. The image is present.
    #[must_use]
    pub fn forever() -> Self {
        Self {
            ends: None,
            yields_after: Some(Duration::ZERO),
            create_fails: None,
            start_fails: None,
            present: true,
            pull: (Duration::ZERO, None),
            size: 1,
            pinned: false,
            heals_after: None,
        }
    }

    /// Exits by itself.
    #[must_use]
    pub fn ends(after: Duration, code: i32) -> Self {
        Self { ends: Some((after, code)), ..Self::forever() }
    }
}

/// The usage of each container of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Memory, in bytes.
    pub memory: u64,
    /// Its writable layer, in bytes, with an inode for each MiB.
    pub layer: u64,
    /// Processes.
    pub processes: u64,
}

/// A recorded call, such as `CreateContainer app/2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The time of the call.
    pub at: Timestamp,
    /// The call and its object.
    pub text: String,
}

struct Container {
    listed: ListedContainer,
    spec: ContainerSpec,
    started_at: Option<Timestamp>,
    exit: Option<Exit>,
    ended: watch::Sender<bool>,
}

struct Sandbox {
    listed: ListedSandbox,
    spec: SandboxSpec,
}

#[derive(Default)]
struct Inner {
    images: Map<String, Behaviour>,
    pulled: Set<String>,
    removed: Set<String>,
    sandboxes: Map<SandboxId, Sandbox>,
    containers: Map<ContainerId, Container>,
    calls: Vec<Call>,
    failing: Map<&'static str, (u32, CriError)>,
    /// Calls that succeed without effect, each with the remaining number.
    idle: Map<&'static str, u32>,
    delays: Map<&'static str, Duration>,
    counts: Map<&'static str, u64>,
    /// Commands with their duration and result.
    commands: Map<String, (Duration, ExecOutput)>,
    /// The duration and result of commands, by container.
    execs: Map<String, (Duration, ExecOutput)>,
    memory: MemoryUsage,
    /// The usage of an image's containers.
    usage: Map<String, ContainerUsage>,
    serial: u64,
    /// The number of started containers of each image.
    starts: Map<String, u64>,
    /// Containers that were started while another attempt of the same container was running.
    duplicate_attempts: Vec<String>,
    writes_logs: bool,
    down: bool,
    no_events: bool,
    no_network: bool,
    /// The name that Version returns instead of `fake`.
    name: Option<&'static str>,
    drops_events: bool,
}

impl Inner {
    /// The present images, with their names as ids.
    fn listed_images(&self) -> Vec<Image> {
        let present = self.images.iter().filter(|(name, behaviour)| {
            self.pulled.contains(*name) || (behaviour.present && !self.removed.contains(*name))
        });
        present
            .map(|(name, behaviour)| Image {
                id: name.clone(),
                repo_tags: vec![name.clone()],
                size: behaviour.size,
                pinned: behaviour.pinned,
                ..Image::default()
            })
            .collect()
    }
}

/// The scripted runtime. Clones share it.
#[derive(Clone)]
pub struct FakeCri {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<dyn Clock>,
    events: Arc<Mutex<broadcast::Sender<RuntimeEvent>>>,
}

impl FakeCri {
    /// A runtime with no images.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::default(),
            clock,
            events: Arc::new(Mutex::new(broadcast::channel(4096).0)),
        }
    }

    /// Defines an image; its name needs no `:latest`.
    pub fn image(&self, name: &str, behaviour: Behaviour) {
        self.lock().images.insert(name.trim_end_matches(":latest").to_owned(), behaviour);
    }

    /// All calls so far that change state.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// The times of the calls with this text.
    #[must_use]
    pub fn times(&self, text: &str) -> Vec<Timestamp> {
        self.lock().calls.iter().filter(|call| call.text == text).map(|call| call.at).collect()
    }

    /// The numbers of existing sandboxes and containers.
    #[must_use]
    pub fn object_counts(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.sandboxes.len(), inner.containers.len())
    }

    /// The size of all images that are present.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        let images = self.lock().listed_images();
        images.iter().map(|image| image.size).sum()
    }

    /// Containers that were started while another attempt of the same container was running, with their attempts.
    #[must_use]
    pub fn duplicate_attempts(&self) -> Vec<String> {
        self.lock().duplicate_attempts.clone()
    }

    /// The names and states of all containers and how many sandboxes are ready and not ready.
    #[must_use]
    pub fn contents(&self) -> (Vec<(String, String)>, (usize, usize)) {
        let inner = self.lock();
        let state = |listed: &ListedContainer| (listed.name.clone(), format!("{:?}", listed.state));
        let containers = inner.containers.values();
        let mut containers: Vec<_> = containers.map(|seen| state(&seen.listed)).collect();
        containers.sort();
        let ready = inner.sandboxes.values().filter(|seen| seen.listed.ready);
        let ready = ready.count();
        (containers, (ready, inner.sandboxes.len() - ready))
    }

    /// Sets the usage of an image's containers.
    pub fn uses(&self, image: &str, usage: ContainerUsage) {
        self.lock().usage.insert(image.to_owned(), usage);
    }

    /// Makes the runtime create a log file for each container that is started from now on.
    pub fn write_logs(&self) {
        self.lock().writes_logs = true;
    }

    /// Removes all records of an image's containers.
    pub fn remove_containers_of(&self, image: &str) {
        self.lock().containers.retain(|_, container| container.spec.image.image != image);
    }

    /// The spec with which the newest container of this name was created.
    #[must_use]
    pub fn spec(&self, name: &str) -> Option<ContainerSpec> {
        let inner = self.lock();
        let named = inner.containers.values().filter(|container| container.spec.name == name);
        named.max_by_key(|container| container.spec.attempt).map(|container| container.spec.clone())
    }

    /// The specs with which sandboxes were created.
    #[must_use]
    pub fn sandbox_specs(&self) -> Vec<SandboxSpec> {
        self.lock().sandboxes.values().map(|sandbox| sandbox.spec.clone()).collect()
    }

    /// Removes all records of sandboxes and containers, as after a reboot of the machine.
    pub fn forget_all(&self) {
        let mut inner = self.lock();
        inner.containers.clear();
        inner.sandboxes.clear();
    }

    /// The names of running containers, sorted.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        let inner = self.lock();
        let running = inner
            .containers
            .values()
            .filter(|container| container.listed.state == ListedState::Running);
        let mut names: Vec<String> =
            running.map(|container| container.listed.name.clone()).collect();
        names.sort();
        names
    }

    /// Makes the next `times` calls of one kind fail.
    pub fn fail(&self, call: &'static str, times: u32, code: Code, message: &str) {
        self.lock()
            .failing
            .insert(call, (times, CriError { call, code, message: message.to_owned() }));
    }

    /// Makes the next `times` calls of one kind succeed without effect: RunPodSandbox, StopPodSandbox, StartContainer,
    /// StopContainer or RemoveContainer.
    pub fn idle(&self, call: &'static str, times: u32) {
        self.lock().idle.insert(call, times);
    }

    /// Makes every later call of one kind take this long: RunPodSandbox, StartContainer or ListPodSandboxStats.
    pub fn delay(&self, call: &'static str, takes: Duration) {
        self.lock().delays.insert(call, takes);
    }

    /// Defines the result of a command that ExecSync runs. Other commands succeed immediately.
    pub fn command(&self, command: &[&str], takes: Duration, output: ExecOutput) {
        let command = command.join(" ");
        self.lock().commands.insert(command, (takes, output));
    }

    /// The number of calls with this name.
    #[must_use]
    pub fn count(&self, call: &str) -> u64 {
        self.lock().counts.get(call).copied().unwrap_or_default()
    }

    /// The number of all calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.lock().counts.values().sum()
    }

    /// Defines the duration and result of later commands in containers of this name.
    pub fn exec(&self, container: &str, takes: Duration, exit_code: i32, stdout: &str) {
        let output =
            ExecOutput { stdout: stdout.as_bytes().to_vec(), stderr: Vec::new(), exit_code };
        self.lock().execs.insert(container.to_owned(), (takes, output));
    }

    /// Sets the condition NetworkReady.
    pub fn set_network_ready(&self, ready: bool) {
        self.lock().no_network = !ready;
    }

    /// Sets the runtime name that Version returns.
    pub fn set_name(&self, name: &'static str) {
        self.lock().name = Some(name);
    }

    /// Makes the runtime unreachable, or reachable again.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
        self.close_event_streams();
    }

    /// Answers GetContainerEvents with Unimplemented from now on, and closes existing streams.
    pub fn disable_events(&self) {
        self.lock().no_events = true;
        self.close_event_streams();
    }

    /// Keeps streams open but drops all events.
    pub fn drop_events(&self) {
        self.lock().drops_events = true;
    }

    /// Closes existing event streams; clients can subscribe again.
    pub fn close_event_streams(&self) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = broadcast::channel(4096).0;
    }

    /// Kills a running container.
    pub fn kill(&self, name: &str, code: i32) {
        let running = |container: &&Container| {
            container.listed.name == name && container.listed.state == ListedState::Running
        };
        let id = self
            .lock()
            .containers
            .values()
            .find(running)
            .map(|container| container.listed.id.clone());
        if let Some(id) = id {
            self.end(&id, code);
        }
    }

    /// Ends the ready sandboxes; their containers keep running.
    pub fn end_sandboxes(&self) {
        let ready = self.ready_sandboxes();
        for (id, pod) in ready {
            if let Some(sandbox) = self.lock().sandboxes.get_mut(&id) {
                sandbox.listed.ready = false;
            }
            self.emit(id.as_str(), EventKind::Stopped, Some(pod));
        }
    }

    /// The ready sandboxes, each with its pod.
    #[must_use]
    pub fn ready_sandboxes(&self) -> Vec<(SandboxId, PodUid)> {
        let inner = self.lock();
        let ready = inner.sandboxes.values().filter(|it| it.listed.ready);
        ready.map(|it| (it.listed.id.clone(), it.listed.pod.uid.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call, and returns an error if one is set for it.
    fn called(&self, call: &'static str, about: &str) -> Result<(), CriError> {
        let at = self.clock.now();
        let mut inner = self.lock();
        *inner.counts.entry(call).or_default() += 1;
        if inner.down {
            return Err(CriError {
                call,
                code: Code::Unavailable,
                message: "connection refused".to_owned(),
            });
        }
        if !about.is_empty() {
            inner.calls.push(Call { at, text: format!("{call} {about}") });
        }
        match inner.failing.get_mut(call) {
            Some((times, error)) if *times > 0 => {
                *times -= 1;
                Err(error.clone())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether this call must have no effect.
    fn is_idle(&self, call: &'static str) -> bool {
        match self.lock().idle.get_mut(call) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            Some(_) | None => false,
        }
    }

    async fn take_time(&self, call: &'static str) {
        let takes = self.lock().delays.get(call).copied();
        if let Some(takes) = takes {
            tokio::time::sleep(takes).await;
        }
    }

    fn emit(&self, id: &str, kind: EventKind, pod: Option<PodUid>) {
        if !self.lock().drops_events {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let (id, created_at) = (id.to_owned(), Some(self.clock.now()));
            // Sending fails if there is no subscriber.
            let _ = events.send(RuntimeEvent { id, kind, pod, name: None, created_at });
        }
    }

    fn end(&self, id: &ContainerId, code: i32) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Some(container) = inner.containers.get_mut(id) else {
            return;
        };
        if container.listed.state != ListedState::Running {
            return;
        }
        container.listed.state = ListedState::Exited;
        container.exit = Some(Exit {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: String::new(),
            started_at: container.started_at,
            finished_at: now,
        });
        container.ended.send_replace(true);
        let pod = container.listed.pod.uid.clone();
        drop(inner);
        self.emit(id.as_str(), EventKind::Stopped, Some(pod));
    }

    /// The container's name in recorded calls.
    fn about(&self, id: &ContainerId) -> String {
        match self.lock().containers.get(id) {
            Some(container) => format!("{}/{}", container.spec.name, container.spec.attempt),
            None => format!("unknown {id}"),
        }
    }

    fn behaviour(&self, image: &str) -> Option<Behaviour> {
        self.lock().images.get(image.trim_end_matches(":latest")).cloned()
    }
}

fn not_found(call: &'static str, what: &str) -> CriError {
    CriError { call, code: Code::NotFound, message: format!("{what} is not there") }
}

fn failed(call: &'static str, message: String) -> CriError {
    CriError { call, code: Code::Unknown, message }
}

fn pod_of(labels: &BTreeMap<String, String>) -> PodRef {
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    PodRef {
        uid: PodUid::new(label(labels::POD_UID)),
        namespace: label(labels::POD_NAMESPACE),
        name: label(labels::POD_NAME),
        agent: labels.get(labels::AGENT).cloned(),
    }
}
