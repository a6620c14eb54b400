//! An agent's view of the runtime after a sandbox's process was killed: the sandbox has ended, its containers keep running.
//!
//! The recorded runtime reports this state, because its sandboxes have a separate pause process. In crib's runtime the process of a
//! sandbox is the keeper, and its containers end with it, so the agent would have nothing left to stop.
//! `tests/interop/kubelet/compare` kills the keeper itself, with a kubelet for comparison.
//!
//! Other external changes of a node happen between two observations of the agent, because the recorded kubelet polled once a second
//! and saw them as a whole.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::cri::{
    Code, Cri, CriError, EventKind, EventStream, ExecOutput, FsUsage, Image, ListedContainer,
    ListedSandbox, RegistryAuth, RuntimeEvent, RuntimeStatus, StreamOptions, Version,
};
use agent::observed::{ContainerId, MemoryUsage, ObservedContainer, ObservedSandbox, SandboxId};
use agent::pod_spec::spec::{ContainerSpec, ImageSpec, Resources, SandboxSpec};
use api::pod::PodUid;
use async_trait::async_trait;
use tokio::sync::{RwLock, RwLockWriteGuard, broadcast};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;

/// How many events a client may be behind.
const EVENTS: usize = 16;

/// The lost sandboxes, for all clients of a node. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LostSandboxes {
    lost: Arc<Mutex<BTreeSet<String>>>,
    /// Held during each observation of the runtime.
    looks: Arc<RwLock<()>>,
    events: broadcast::Sender<RuntimeEvent>,
}

impl LostSandboxes {
    pub(crate) fn new() -> Self {
        Self { lost: Arc::default(), looks: Arc::default(), events: broadcast::channel(EVENTS).0 }
    }

    /// Marks the sandbox with this id as ended.
    pub(crate) fn lose(&self, id: &str) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(id.to_owned());
        // This fails if no agent is subscribed.
        let _ = self.events.send(RuntimeEvent {
            id: id.to_owned(),
            kind: EventKind::Stopped,
            pod: None,
            name: None,
            created_at: None,
        });
    }

    /// Blocks observations of the agent until the guard is dropped.
    pub(crate) async fn unseen(&self) -> RwLockWriteGuard<'_, ()> {
        self.looks.write().await
    }

    fn has(&self, id: &SandboxId) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.contains(id.as_str())
    }

    /// Wraps a client so that it reports these sandboxes as ended.
    pub(crate) fn hide(&self, cri: Arc<dyn Cri>) -> Arc<dyn Cri> {
        let lost = self.clone();
        Arc::new(WithoutLost { cri, lost })
    }
}

struct WithoutLost {
    cri: Arc<dyn Cri>,
    lost: LostSandboxes,
}

#[async_trait]
impl Cri for WithoutLost {
    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError> {
        let _look = self.lost.looks.read().await;
        let mut sandbox = self.cri.sandbox_status(id).await?;
        if self.lost.has(id) {
            sandbox.ready = false;
        }
        Ok(sandbox)
    }

    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError> {
        let _look = self.lost.looks.read().await;
        let mut all = self.cri.list_sandboxes(of).await?;
        for sandbox in all.iter_mut().filter(|sandbox| self.lost.has(&sandbox.id)) {
            sandbox.ready = false;
        }
        Ok(all)
    }

    async fn events(&self) -> Result<EventStream, CriError> {
        let lost = BroadcastStream::new(self.lost.events.subscribe());
        let lost = lost.filter_map(|event| event.ok().map(Ok));
        // The merged stream ends with the runtime's stream.
        let end = CriError {
            call: "GetContainerEvents",
            code: Code::Unavailable,
            message: "the stream has ended".to_owned(),
        };
        let events = self.cri.events().await?;
        let events = events.chain(tokio_stream::once(Err(end)));
        Ok(Box::pin(events.merge(lost)))
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        streams: StreamOptions,
    ) -> Result<String, CriError> {
        self.cri.exec(id, command, streams).await
    }

    async fn attach(&self, id: &ContainerId, streams: StreamOptions) -> Result<String, CriError> {
        self.cri.attach(id, streams).await
    }

    async fn port_forward(&self, id: &SandboxId, ports: &[u16]) -> Result<String, CriError> {
        self.cri.port_forward(id, ports).await
    }

    async fn version(&self) -> Result<Version, CriError> {
        self.cri.version().await
    }

    async fn status(&self) -> Result<RuntimeStatus, CriError> {
        self.cri.status().await
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError> {
        self.cri.run_sandbox(spec).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        self.cri.stop_sandbox(id).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        self.cri.remove_sandbox(id).await
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        of_pod: &SandboxSpec,
    ) -> Result<ContainerId, CriError> {
        self.cri.create_container(sandbox, spec, of_pod).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        self.cri.start_container(id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError> {
        self.cri.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        self.cri.remove_container(id).await
    }

    async fn container_status(
        &self,
        listed: &ListedContainer,
    ) -> Result<ObservedContainer, CriError> {
        let _look = self.lost.looks.read().await;
        self.cri.container_status(listed).await
    }

    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError> {
        let _look = self.lost.looks.read().await;
        self.cri.list_containers(of).await
    }

    async fn update_container(&self, id: &ContainerId, limits: &Resources) -> Result<(), CriError> {
        self.cri.update_container(id, limits).await
    }

    async fn update_sandbox(
        &self,
        id: &SandboxId,
        limits: &Resources,
        overhead: &Resources,
    ) -> Result<(), CriError> {
        self.cri.update_sandbox(id, limits, overhead).await
    }

    async fn memory_usage(&self, id: &SandboxId) -> Result<MemoryUsage, CriError> {
        self.cri.memory_usage(id).await
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError> {
        self.cri.image_status(image).await
    }

    async fn pull_image(
        &self,
        image: &ImageSpec,
        sandbox: &SandboxSpec,
        auth: Option<&RegistryAuth>,
    ) -> Result<String, CriError> {
        self.cri.pull_image(image, sandbox, auth).await
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        self.cri.list_images().await
    }

    async fn images_in_use(&self) -> Result<compact::Set<String>, CriError> {
        self.cri.images_in_use().await
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError> {
        self.cri.remove_image(image).await
    }

    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        self.cri.image_fs_info().await
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        self.cri.exec_sync(id, command, timeout).await
    }

    async fn writable_layer(&self, id: &ContainerId) -> Result<u64, CriError> {
        self.cri.writable_layer(id).await
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError> {
        self.cri.reopen_log(id).await
    }
}
