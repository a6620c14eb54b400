//! The scripted runtime for an agent that is killed during one of its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::pod::PodUid;
use async_trait::async_trait;
use compact::Set;
use tokio::sync::watch;

use super::FakeCri;
use crate::cri::{
    Cri, CriError, EventStream, ExecOutput, FsUsage, Image, ListedContainer, ListedSandbox,
    RegistryAuth, RuntimeStatus, StreamOptions, Version,
};
use crate::observed::{ContainerId, MemoryUsage, ObservedContainer, ObservedSandbox, SandboxId};
use crate::pod_spec::spec::{ContainerSpec, ImageSpec, Resources, SandboxSpec};

/// The moment within a call at which its client is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The call does not reach the runtime.
    Before,
    /// The runtime has just received the call, and carries it out.
    During,
    /// The runtime has carried out the call; its response is lost.
    After,
}

/// The call, and the moment in it, at which a client is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillPoint {
    /// The number of the call, from 1.
    pub call: u64,
    /// The moment within the call. For a call that changes nothing it is always [`Moment::Before`].
    pub moment: Moment,
}

/// The runtime until the client is killed; from then on it answers no call. Like a runtime in another process, it completes a call
/// whose client has ended. Clones share it.
#[derive(Clone)]
pub struct KilledCri {
    fake: FakeCri,
    point: KillPoint,
    calls: Arc<AtomicU64>,
    paused: Arc<AtomicBool>,
    /// The call at which the client was killed.
    killed: Arc<watch::Sender<Option<KilledAt>>>,
}

/// The call at which a client was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KilledAt {
    /// The name of the call.
    pub call: &'static str,
    /// Whether it changes something.
    pub changes: bool,
}

/// Whether a call changes state. Only then it matters whether the runtime carried it out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    Changes,
}

impl KilledCri {
    /// A client of `fake` that is killed at `point`.
    #[must_use]
    pub fn new(fake: FakeCri, point: KillPoint) -> Self {
        Self {
            fake,
            point,
            calls: Arc::default(),
            paused: Arc::default(),
            killed: Arc::new(watch::Sender::new(None)),
        }
    }

    /// Waits until the client is killed.
    pub async fn killed(&self) -> KilledAt {
        let mut killed = self.killed.subscribe();
        // The send side is in `self`.
        let at = killed.wait_for(Option::is_some).await;
        match at.ok().and_then(|at| *at) {
            Some(at) => at,
            None => std::future::pending().await,
        }
    }

    /// Stops or resumes counting calls.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Counts a call. Returns the moment at which the client is killed, if it is killed in this call.
    async fn count_call(&self, name: &'static str, kind: Kind) -> Option<Moment> {
        if self.killed.borrow().is_some() {
            return std::future::pending().await;
        }
        if self.paused.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if number != self.point.call {
            return None;
        }
        if kind == Kind::Reads || self.point.moment == Moment::Before {
            return self.die(name, kind).await;
        }
        Some(self.point.moment)
    }

    async fn die<T>(&self, call: &'static str, kind: Kind) -> T {
        let changes = kind == Kind::Changes;
        self.killed.send_replace(Some(KilledAt { call, changes }));
        std::future::pending().await
    }

    async fn reads<T>(&self, name: &'static str, work: impl Future<Output = T> + Send) -> T {
        self.count_call(name, Kind::Reads).await;
        work.await
    }

    async fn changes<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(FakeCri) -> F + Send,
    ) -> T {
        let moment = self.count_call(name, Kind::Changes).await;
        let work = tasks::spawn(work(self.fake.clone()));
        if moment == Some(Moment::During) {
            return self.die(name, Kind::Changes).await;
        }
        let answer = work.await;
        if moment == Some(Moment::After) {
            return self.die(name, Kind::Changes).await;
        }
        match answer {
            Ok(answer) => answer,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

#[async_trait]
impl Cri for KilledCri {
    async fn version(&self) -> Result<Version, CriError> {
        self.reads("Version", self.fake.version()).await
    }

    async fn status(&self) -> Result<RuntimeStatus, CriError> {
        self.reads("Status", self.fake.status()).await
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError> {
        let spec = spec.clone();
        self.changes("RunPodSandbox", |fake| async move { fake.run_sandbox(&spec).await }).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let id = id.clone();
        self.changes("StopPodSandbox", |fake| async move { fake.stop_sandbox(&id).await }).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let id = id.clone();
        self.changes("RemovePodSandbox", |fake| async move { fake.remove_sandbox(&id).await }).await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError> {
        self.reads("PodSandboxStatus", self.fake.sandbox_status(id)).await
    }

    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError> {
        self.reads("ListPodSandbox", self.fake.list_sandboxes(of)).await
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        sandbox_spec: &SandboxSpec,
    ) -> Result<ContainerId, CriError> {
        let (id, spec, of_pod) = (sandbox.clone(), spec.clone(), sandbox_spec.clone());
        self.changes("CreateContainer", |fake| async move {
            fake.create_container(&id, &spec, &of_pod).await
        })
        .await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let id = id.clone();
        self.changes("StartContainer", |fake| async move { fake.start_container(&id).await }).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError> {
        let id = id.clone();
        self.changes("StopContainer", |fake| async move { fake.stop_container(&id, grace).await })
            .await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let id = id.clone();
        self.changes("RemoveContainer", |fake| async move { fake.remove_container(&id).await })
            .await
    }

    async fn container_status(
        &self,
        listed: &ListedContainer,
    ) -> Result<ObservedContainer, CriError> {
        self.reads("ContainerStatus", self.fake.container_status(listed)).await
    }

    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError> {
        self.reads("ListContainers", self.fake.list_containers(of)).await
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError> {
        self.reads("ImageStatus", self.fake.image_status(image)).await
    }

    async fn pull_image(
        &self,
        image: &ImageSpec,
        sandbox: &SandboxSpec,
        auth: Option<&RegistryAuth>,
    ) -> Result<String, CriError> {
        let (image, sandbox, auth) = (image.clone(), sandbox.clone(), auth.cloned());
        self.changes("PullImage", |fake| async move {
            fake.pull_image(&image, &sandbox, auth.as_ref()).await
        })
        .await
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        self.reads("ListImages", self.fake.list_images()).await
    }

    async fn images_in_use(&self) -> Result<Set<String>, CriError> {
        self.reads("ListContainers", self.fake.images_in_use()).await
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError> {
        let image = image.clone();
        self.changes("RemoveImage", |fake| async move { fake.remove_image(&image).await }).await
    }

    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        self.reads("ImageFsInfo", self.fake.image_fs_info()).await
    }

    async fn update_container(&self, id: &ContainerId, limits: &Resources) -> Result<(), CriError> {
        let (id, limits) = (id.clone(), limits.clone());
        self.changes("UpdateContainerResources", |fake| async move {
            fake.update_container(&id, &limits).await
        })
        .await
    }

    async fn update_sandbox(
        &self,
        id: &SandboxId,
        limits: &Resources,
        overhead: &Resources,
    ) -> Result<(), CriError> {
        let id = id.clone();
        let (limits, overhead) = (limits.clone(), overhead.clone());
        self.changes("UpdatePodSandboxResources", |fake| async move {
            fake.update_sandbox(&id, &limits, &overhead).await
        })
        .await
    }

    async fn memory_usage(&self, id: &SandboxId) -> Result<MemoryUsage, CriError> {
        self.reads("PodSandboxStats", self.fake.memory_usage(id)).await
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        let (id, command) = (id.clone(), command.to_vec());
        self.changes("ExecSync", |fake| async move { fake.exec_sync(&id, &command, timeout).await })
            .await
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        streams: StreamOptions,
    ) -> Result<String, CriError> {
        self.reads("Exec", Cri::exec(&self.fake, id, command, streams)).await
    }

    async fn attach(&self, id: &ContainerId, streams: StreamOptions) -> Result<String, CriError> {
        self.reads("Attach", self.fake.attach(id, streams)).await
    }

    async fn port_forward(&self, id: &SandboxId, ports: &[u16]) -> Result<String, CriError> {
        self.reads("PortForward", self.fake.port_forward(id, ports)).await
    }

    async fn writable_layer(&self, id: &ContainerId) -> Result<u64, CriError> {
        self.reads("ContainerStats", self.fake.writable_layer(id)).await
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError> {
        let id = id.clone();
        self.changes("ReopenContainerLog", |fake| async move { fake.reopen_log(&id).await }).await
    }

    async fn events(&self) -> Result<EventStream, CriError> {
        self.reads("GetContainerEvents", self.fake.events()).await
    }
}
