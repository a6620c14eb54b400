//! A scripted runtime for tests: containers do what the name of their image says, on tokio's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::{broadcast, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

use super::{
    Code, Cri, CriError, EventKind, EventStream, ExecOutput, FsUsage, Image, ListedContainer, ListedSandbox, ListedState, PodRef,
    RuntimeCondition, RuntimeEvent, RuntimeStatus, Version,
};
use crate::clock::Clock;
use crate::labels;
use crate::observed::{
    ContainerId, ContainerState, Exit, NetworkMode, ObservedContainer, ObservedSandbox, SandboxId,
};
use crate::pod::PodUid;
use crate::spec::{ContainerSpec, ImageSpec, NamespaceMode, SandboxSpec};

/// What containers of an image do.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// How long a container runs and with what code it ends; `None` runs until it is stopped.
    pub ends: Option<(Duration, i32)>,
    /// How long it takes to end when asked to; `None` never listens.
    pub yields_after: Option<Duration>,
    /// What CreateContainer answers instead.
    pub create_fails: Option<String>,
    /// What StartContainer answers instead.
    pub start_fails: Option<String>,
    /// Is the image there before it is pulled?
    pub present: bool,
    /// How long a pull takes, and what it answers instead of success.
    pub pull: (Duration, Option<String>),
}

impl Behaviour {
    /// Runs until it is stopped, and ends at once then. The image is there.
    #[must_use]
    pub fn forever() -> Self {
        Self {
            ends: None,
            yields_after: Some(Duration::ZERO),
            create_fails: None,
            start_fails: None,
            present: true,
            pull: (Duration::ZERO, None),
        }
    }

    /// Ends by itself.
    #[must_use]
    pub fn ends(after: Duration, code: i32) -> Self {
        Self { ends: Some((after, code)), ..Self::forever() }
    }
}

/// One call the fake has had: when, and what, as `CreateContainer app/2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it came.
    pub at: Timestamp,
    /// The call and what it was about.
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
    images: BTreeMap<String, Behaviour>,
    pulled: BTreeSet<String>,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    containers: BTreeMap<ContainerId, Container>,
    calls: Vec<Call>,
    failing: BTreeMap<&'static str, (u32, CriError)>,
    serial: u64,
    down: bool,
    no_events: bool,
    mute: bool,
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
        Self { inner: Arc::default(), clock, events: Arc::new(Mutex::new(broadcast::channel(4096).0)) }
    }

    /// Defines an image.
    pub fn image(&self, name: &str, behaviour: Behaviour) {
        self.lock().images.insert(name.to_owned(), behaviour);
    }

    /// Every call so far that changes something.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// The times of the calls with that text.
    #[must_use]
    pub fn times(&self, text: &str) -> Vec<Timestamp> {
        self.lock().calls.iter().filter(|call| call.text == text).map(|call| call.at).collect()
    }

    /// Number of sandboxes and containers there are.
    #[must_use]
    pub fn population(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.sandboxes.len(), inner.containers.len())
    }

    /// Names of the containers that run, sorted.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        let inner = self.lock();
        let running = inner.containers.values().filter(|container| container.listed.state == ListedState::Running);
        let mut names: Vec<String> = running.map(|container| container.listed.name.clone()).collect();
        names.sort();
        names
    }

    /// Lets the next `times` calls of one kind fail.
    pub fn fail(&self, call: &'static str, times: u32, code: Code, message: &str) {
        self.lock().failing.insert(call, (times, CriError { call, code, message: message.to_owned() }));
    }

    /// Lets nobody answer, or somebody again.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
        self.break_events();
    }

    /// Answers GetContainerEvents with Unimplemented from now on, and ends the streams there are.
    pub fn without_events(&self) {
        self.lock().no_events = true;
        self.break_events();
    }

    /// Keeps streams open and loses every event.
    pub fn lose_events(&self) {
        self.lock().mute = true;
    }

    /// Ends the event streams there are; new ones can be had.
    pub fn break_events(&self) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = broadcast::channel(4096).0;
    }

    /// Ends a running container from outside.
    pub fn kill(&self, name: &str, code: i32) {
        let running = |container: &&Container| container.listed.name == name && container.exit.is_none();
        let id = self.lock().containers.values().find(running).map(|container| container.listed.id.clone());
        if let Some(id) = id {
            self.end(&id, code);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call and says whether it fails.
    fn called(&self, call: &'static str, about: &str) -> Result<(), CriError> {
        let at = self.clock.now();
        let mut inner = self.lock();
        if inner.down {
            return Err(CriError { call, code: Code::Unavailable, message: "connection refused".to_owned() });
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

    fn emit(&self, id: &str, kind: EventKind, pod: Option<PodUid>) {
        if !self.lock().mute {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            // Without a subscriber there is nobody to tell.
            let _ = events.send(RuntimeEvent { id: id.to_owned(), kind, pod });
        }
    }

    fn end(&self, id: &ContainerId, code: i32) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Some(container) = inner.containers.get_mut(id) else { return };
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

    /// What is said about a container in the list of calls.
    fn about(&self, id: &ContainerId) -> String {
        match self.lock().containers.get(id) {
            Some(container) => format!("{}/{}", container.spec.name, container.spec.attempt),
            None => format!("unknown {id}"),
        }
    }

    fn behaviour(&self, image: &str) -> Option<Behaviour> {
        self.lock().images.get(image).cloned()
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
    PodRef { uid: PodUid::new(label(labels::POD_UID)), namespace: label(labels::POD_NAMESPACE), name: label(labels::POD_NAME) }
}

#[async_trait]
impl Cri for FakeCri {
    async fn version(&self) -> Result<Version, CriError> {
        self.called("Version", "")?;
        Ok(Version { runtime_name: "fake".to_owned(), runtime_version: "1.0.0".to_owned(), api_version: "v1".to_owned() })
    }

    async fn status(&self) -> Result<RuntimeStatus, CriError> {
        self.called("Status", "")?;
        let condition = |kind: &str| RuntimeCondition { kind: kind.to_owned(), status: true, ..RuntimeCondition::default() };
        Ok(RuntimeStatus { conditions: vec![condition("RuntimeReady"), condition("NetworkReady")] })
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError> {
        self.called("RunPodSandbox", &format!("{}/{}", spec.name, spec.attempt))?;
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.serial += 1;
        let id = SandboxId::new(format!("sandbox-{}", inner.serial));
        let listed = ListedSandbox { id: id.clone(), pod: pod_of(&spec.labels), ready: true, created_at: now };
        let pod = listed.pod.uid.clone();
        inner.sandboxes.insert(id.clone(), Sandbox { listed, spec: spec.clone() });
        drop(inner);
        self.emit(id.as_str(), EventKind::Started, Some(pod));
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let Some(name) = self.lock().sandboxes.get(id).map(|sandbox| sandbox.spec.name.clone()) else { return Ok(()) };
        self.called("StopPodSandbox", &name)?;
        let members: Vec<ContainerId> = {
            let mut inner = self.lock();
            if let Some(sandbox) = inner.sandboxes.get_mut(id) {
                sandbox.listed.ready = false;
            }
            inner.containers.values().filter(|c| c.listed.sandbox_id == *id).map(|c| c.listed.id.clone()).collect()
        };
        for member in members {
            self.end(&member, 137);
        }
        Ok(())
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let Some(name) = self.lock().sandboxes.get(id).map(|sandbox| sandbox.spec.name.clone()) else { return Ok(()) };
        self.called("RemovePodSandbox", &name)?;
        let mut inner = self.lock();
        inner.containers.retain(|_, container| container.listed.sandbox_id != *id);
        inner.sandboxes.remove(id);
        Ok(())
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError> {
        self.called("PodSandboxStatus", "")?;
        let inner = self.lock();
        let sandbox = inner.sandboxes.get(id).ok_or_else(|| not_found("PodSandboxStatus", id.as_str()))?;
        let node = sandbox.spec.security.namespaces.network == NamespaceMode::Node;
        Ok(ObservedSandbox {
            id: id.clone(),
            ready: sandbox.listed.ready,
            attempt: sandbox.spec.attempt,
            created_at: sandbox.listed.created_at,
            network: if node { NetworkMode::Node } else { NetworkMode::Pod },
            ips: (!node).then(|| vec!["10.0.0.2".to_owned()]),
        })
    }

    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError> {
        self.called("ListPodSandbox", "")?;
        let inner = self.lock();
        let all = inner.sandboxes.values().map(|sandbox| sandbox.listed.clone());
        Ok(all.filter(|sandbox| of.is_none_or(|uid| sandbox.pod.uid == *uid)).collect())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        _sandbox_spec: &SandboxSpec,
    ) -> Result<ContainerId, CriError> {
        self.called("CreateContainer", &format!("{}/{}", spec.name, spec.attempt))?;
        let behaviour = self.behaviour(&spec.image.image).ok_or_else(|| not_found("CreateContainer", &spec.image.image))?;
        if let Some(message) = behaviour.create_fails {
            return Err(failed("CreateContainer", message));
        }
        let now = self.clock.now();
        let mut inner = self.lock();
        let pod = match inner.sandboxes.get(sandbox) {
            Some(sandbox) if sandbox.listed.ready => sandbox.listed.pod.clone(),
            Some(_) | None => return Err(not_found("CreateContainer", sandbox.as_str())),
        };
        inner.serial += 1;
        let id = ContainerId::new(format!("container-{}", inner.serial));
        let listed = ListedContainer {
            id: id.clone(),
            sandbox_id: sandbox.clone(),
            pod,
            name: spec.name.clone(),
            state: ListedState::Created,
            created_at: now,
        };
        let container =
            Container { listed, spec: spec.clone(), started_at: None, exit: None, ended: watch::channel(false).0 };
        inner.containers.insert(id.clone(), container);
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        self.called("StartContainer", &self.about(id))?;
        let now = self.clock.now();
        let (behaviour, pod) = {
            let mut inner = self.lock();
            let Inner { containers, images, .. } = &mut *inner;
            let container = containers.get_mut(id).ok_or_else(|| not_found("StartContainer", id.as_str()))?;
            let behaviour = images.get(&container.spec.image.image).cloned().unwrap_or_else(Behaviour::forever);
            if let Some(message) = behaviour.start_fails {
                return Err(failed("StartContainer", message));
            }
            container.listed.state = ListedState::Running;
            container.started_at = Some(now);
            (behaviour, container.listed.pod.uid.clone())
        };
        self.emit(id.as_str(), EventKind::Started, Some(pod));
        if let Some((after, code)) = behaviour.ends {
            let (fake, id) = (self.clone(), id.clone());
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                fake.end(&id, code);
            });
        }
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError> {
        self.called("StopContainer", &format!("{} {}s", self.about(id), grace.as_secs()))?;
        let (mut ended, yields_after) = {
            let inner = self.lock();
            let Some(container) = inner.containers.get(id) else { return Ok(()) };
            if container.listed.state != ListedState::Running {
                return Ok(());
            }
            let behaviour = inner.images.get(&container.spec.image.image);
            (container.ended.subscribe(), behaviour.and_then(|behaviour| behaviour.yields_after))
        };
        let (wait, code) = match yields_after {
            Some(after) if after <= grace => (after, 143),
            Some(_) | None => (grace, 137),
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => self.end(id, code),
            _ = ended.wait_for(|ended| *ended) => {}
        }
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        if !self.lock().containers.contains_key(id) {
            return Ok(());
        }
        self.called("RemoveContainer", &self.about(id))?;
        let pod = self.lock().containers.remove(id).map(|container| container.listed.pod.uid);
        self.emit(id.as_str(), EventKind::Deleted, pod);
        Ok(())
    }

    async fn container_status(&self, listed: &ListedContainer) -> Result<ObservedContainer, CriError> {
        self.called("ContainerStatus", "")?;
        let inner = self.lock();
        let container =
            inner.containers.get(&listed.id).ok_or_else(|| not_found("ContainerStatus", listed.id.as_str()))?;
        let spec = &container.spec;
        let state = match (container.listed.state, &container.exit, container.started_at) {
            (ListedState::Created, _, _) => ContainerState::Created,
            (ListedState::Running, _, Some(started_at)) => ContainerState::Running { started_at },
            (ListedState::Exited, Some(exit), _) => ContainerState::Exited(exit.clone()),
            (ListedState::Running | ListedState::Exited | ListedState::Unknown, _, _) => ContainerState::Unknown,
        };
        let logs = inner.sandboxes.get(&container.listed.sandbox_id).map(|sandbox| sandbox.spec.log_directory.clone());
        Ok(ObservedContainer {
            id: listed.id.clone(),
            name: listed.name.clone(),
            sandbox_id: listed.sandbox_id.clone(),
            state,
            created_at: container.listed.created_at,
            restart_count: spec.attempt,
            image: spec.image.user_specified.clone(),
            image_ref: spec.image.image.clone(),
            hash: spec.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
            log_path: logs.map(|logs| logs.join(&spec.log_path)),
            user: None,
            mounts: spec.mounts.iter().map(|m| (m.container_path.clone().into(), m.host_path.clone())).collect(),
        })
    }

    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError> {
        self.called("ListContainers", "")?;
        let inner = self.lock();
        let all = inner.containers.values().map(|container| container.listed.clone());
        Ok(all.filter(|container| of.is_none_or(|uid| container.pod.uid == *uid)).collect())
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError> {
        self.called("ImageStatus", "")?;
        let inner = self.lock();
        let present = inner.images.get(&image.image).is_some_and(|behaviour| behaviour.present);
        let found = present || inner.pulled.contains(&image.image);
        Ok(found.then(|| Image { id: image.image.clone(), size: 1, ..Image::default() }))
    }

    async fn pull_image(&self, image: &ImageSpec, _sandbox: &SandboxSpec) -> Result<String, CriError> {
        self.called("PullImage", &image.image)?;
        let behaviour = self.behaviour(&image.image).ok_or_else(|| not_found("PullImage", &image.image))?;
        tokio::time::sleep(behaviour.pull.0).await;
        match behaviour.pull.1 {
            Some(message) => Err(failed("PullImage", message)),
            None => {
                self.lock().pulled.insert(image.image.clone());
                Ok(image.image.clone())
            }
        }
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError> {
        self.called("RemoveImage", &image.image)?;
        self.lock().pulled.remove(&image.image);
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        self.called("ImageFsInfo", "")?;
        Ok(Vec::new())
    }

    async fn exec_sync(&self, id: &ContainerId, _: &[String], _: Option<Duration>) -> Result<ExecOutput, CriError> {
        self.called("ExecSync", &self.about(id))?;
        Ok(ExecOutput::default())
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError> {
        self.called("ReopenContainerLog", &self.about(id))
    }

    async fn events(&self) -> Result<EventStream, CriError> {
        self.called("GetContainerEvents", "")?;
        if self.lock().no_events {
            let message = "this fake was told to give none".to_owned();
            return Err(CriError { call: "GetContainerEvents", code: Code::Unimplemented, message });
        }
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner).subscribe();
        Ok(Box::pin(BroadcastStream::new(receiver).map(|event| {
            event.map_err(|error| failed("GetContainerEvents", error.to_string()))
        })))
    }
}
