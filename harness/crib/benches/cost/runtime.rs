//! The pods and containers of a scripted runtime, in memory: every call succeeds immediately, init containers exit immediately, and
//! all others run until they are stopped.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use compact::Map;
use cri::v1;
use tokio::sync::broadcast;
use tonic::Status;
use v1::ContainerEventType as Event;
use v1::ContainerState as State;

/// The label with a pod's uid (Kubernetes 1.36, k8s.io/kubelet/pkg/types).
const POD_UID: &str = "io.kubernetes.pod.uid";
/// The address of every pod, at which probes reach a server of the benchmark.
const POD_IP: &str = "127.0.0.1";
/// The number of events that a client may lag behind.
const EVENTS: usize = 1 << 16;

type CallResult<T> = Result<T, Status>;

struct Sandbox {
    status: v1::PodSandboxStatus,
    log_directory: String,
    containers: Vec<String>,
}

struct Container {
    sandbox: String,
    status: v1::ContainerStatus,
}

/// The runtime's state.
pub(crate) struct Runtime {
    sandboxes: Map<String, Sandbox>,
    containers: Map<String, Container>,
    /// The sandboxes of each pod.
    of_pod: HashMap<String, Vec<String>>,
    serial: u64,
    events: broadcast::Sender<v1::ContainerEventResponse>,
}

impl Runtime {
    pub(crate) fn new() -> Self {
        Self {
            sandboxes: Map::new(),
            containers: Map::new(),
            of_pod: HashMap::new(),
            serial: 0,
            events: broadcast::channel(EVENTS).0,
        }
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<v1::ContainerEventResponse> {
        self.events.subscribe()
    }

    fn id(&mut self) -> String {
        self.serial += 1;
        format!("{:064x}", self.serial)
    }

    pub(crate) fn run_sandbox(
        &mut self,
        request: v1::RunPodSandboxRequest,
    ) -> CallResult<v1::RunPodSandboxResponse> {
        let config = request.config.unwrap_or_default();
        let linux = config.linux.unwrap_or_default();
        let options = linux.security_context.unwrap_or_default().namespace_options;
        let id = self.id();
        let status = v1::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            created_at: now(),
            network: Some(v1::PodSandboxNetworkStatus {
                ip: POD_IP.to_owned(),
                ..Default::default()
            }),
            linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        let uid = uid(&status.labels);
        self.of_pod.entry(uid).or_default().push(id.clone());
        let sandbox =
            Sandbox { status, log_directory: config.log_directory, containers: Vec::new() };
        self.sandboxes.insert(id.clone(), sandbox);
        self.emit(&id, &id, Event::ContainerCreatedEvent);
        self.emit(&id, &id, Event::ContainerStartedEvent);
        Ok(v1::RunPodSandboxResponse { pod_sandbox_id: id })
    }

    pub(crate) fn stop_sandbox(
        &mut self,
        request: v1::StopPodSandboxRequest,
    ) -> CallResult<v1::StopPodSandboxResponse> {
        let id = request.pod_sandbox_id;
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return Ok(v1::StopPodSandboxResponse {});
        };
        let was_ready = sandbox.status.state() == v1::PodSandboxState::SandboxReady;
        sandbox.status.set_state(v1::PodSandboxState::SandboxNotready);
        for container in sandbox.containers.clone() {
            self.end(&container, 137);
        }
        if was_ready {
            self.emit(&id, &id, Event::ContainerStoppedEvent);
        }
        Ok(v1::StopPodSandboxResponse {})
    }

    pub(crate) fn remove_sandbox(
        &mut self,
        request: v1::RemovePodSandboxRequest,
    ) -> CallResult<v1::RemovePodSandboxResponse> {
        let id = request.pod_sandbox_id;
        if let Some(sandbox) = self.sandboxes.get(&id) {
            let uid = uid(&sandbox.status.labels);
            for container in sandbox.containers.clone() {
                self.drop_container(&container);
            }
            self.emit(&id, &id, Event::ContainerDeletedEvent);
            self.sandboxes.remove(&id);
            if let Some(ids) = self.of_pod.get_mut(&uid) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.of_pod.remove(&uid);
                }
            }
        }
        Ok(v1::RemovePodSandboxResponse {})
    }

    pub(crate) fn sandbox_status(
        &self,
        request: &v1::PodSandboxStatusRequest,
    ) -> CallResult<v1::PodSandboxStatusResponse> {
        let found = self.sandboxes.get(&request.pod_sandbox_id);
        let sandbox = found.ok_or_else(|| not_found(&request.pod_sandbox_id))?;
        Ok(v1::PodSandboxStatusResponse {
            status: Some(sandbox.status.clone()),
            ..Default::default()
        })
    }

    /// The sandboxes of the pod that a filter names, or all sandboxes.
    fn selected(&self, labels: Option<&HashMap<String, String>>) -> Vec<&Sandbox> {
        match labels.and_then(|labels| labels.get(POD_UID)) {
            Some(uid) => {
                let ids = self.of_pod.get(uid).into_iter().flatten();
                ids.filter_map(|id| self.sandboxes.get(id)).collect()
            }
            None => self.sandboxes.values().collect(),
        }
    }

    pub(crate) fn list_sandboxes(
        &self,
        request: &v1::ListPodSandboxRequest,
    ) -> CallResult<v1::ListPodSandboxResponse> {
        let labels = request.filter.as_ref().map(|filter| &filter.label_selector);
        let listed = |sandbox: &Sandbox| {
            let status = sandbox.status.clone();
            v1::PodSandbox {
                id: status.id,
                metadata: status.metadata,
                state: status.state,
                created_at: status.created_at,
                labels: status.labels,
                annotations: status.annotations,
                runtime_handler: status.runtime_handler,
            }
        };
        let items = self.selected(labels).into_iter().map(listed).collect();
        Ok(v1::ListPodSandboxResponse { items })
    }

    pub(crate) fn create_container(
        &mut self,
        request: v1::CreateContainerRequest,
    ) -> CallResult<v1::CreateContainerResponse> {
        let config = request.config.unwrap_or_default();
        let id = self.id();
        let found = self.sandboxes.get_mut(&request.pod_sandbox_id);
        let sandbox = found.ok_or_else(|| not_found(&request.pod_sandbox_id))?;
        sandbox.containers.push(id.clone());
        let log = Path::new(&sandbox.log_directory).join(&config.log_path);
        let image = config.image.clone().unwrap_or_default().image;
        let status = v1::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: State::ContainerCreated.into(),
            created_at: now(),
            image: config.image,
            image_ref: image.clone(),
            image_id: image,
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            log_path: log.display().to_string(),
            ..Default::default()
        };
        let container = Container { sandbox: request.pod_sandbox_id, status };
        self.containers.insert(id.clone(), container);
        self.changed(&id, Event::ContainerCreatedEvent);
        Ok(v1::CreateContainerResponse { container_id: id })
    }

    pub(crate) fn start_container(
        &mut self,
        request: v1::StartContainerRequest,
    ) -> CallResult<v1::StartContainerResponse> {
        let id = request.container_id;
        let found = self.containers.get_mut(&id);
        let container = found.ok_or_else(|| not_found(&id))?;
        write_log(Path::new(&container.status.log_path))
            .map_err(|error| Status::internal(error.to_string()))?;
        container.status.started_at = now();
        container.status.set_state(State::ContainerRunning);
        let name = container.status.metadata.as_ref().map(|of| of.name.clone());
        self.changed(&id, Event::ContainerStartedEvent);
        if name.is_some_and(|name| name.starts_with("init")) {
            self.end(&id, 0);
        }
        Ok(v1::StartContainerResponse {})
    }

    pub(crate) fn stop_container(
        &mut self,
        request: &v1::StopContainerRequest,
    ) -> CallResult<v1::StopContainerResponse> {
        self.end(&request.container_id, 143);
        Ok(v1::StopContainerResponse {})
    }

    pub(crate) fn remove_container(
        &mut self,
        request: &v1::RemoveContainerRequest,
    ) -> CallResult<v1::RemoveContainerResponse> {
        self.drop_container(&request.container_id);
        Ok(v1::RemoveContainerResponse {})
    }

    pub(crate) fn container_status(
        &self,
        request: &v1::ContainerStatusRequest,
    ) -> CallResult<v1::ContainerStatusResponse> {
        let found = self.containers.get(&request.container_id);
        let container = found.ok_or_else(|| not_found(&request.container_id))?;
        Ok(v1::ContainerStatusResponse {
            status: Some(container.status.clone()),
            ..Default::default()
        })
    }

    pub(crate) fn list_containers(
        &self,
        request: &v1::ListContainersRequest,
    ) -> CallResult<v1::ListContainersResponse> {
        let labels = request.filter.as_ref().map(|filter| &filter.label_selector);
        let sandboxes = self.selected(labels).into_iter();
        let ids = sandboxes.flat_map(|sandbox| &sandbox.containers);
        let listed = |container: &Container| {
            let status = container.status.clone();
            v1::Container {
                id: status.id,
                pod_sandbox_id: container.sandbox.clone(),
                metadata: status.metadata,
                image: status.image,
                image_ref: status.image_ref,
                state: status.state,
                created_at: status.created_at,
                labels: status.labels,
                annotations: status.annotations,
                image_id: status.image_id,
            }
        };
        let containers = ids.filter_map(|id| self.containers.get(id));
        Ok(v1::ListContainersResponse { containers: containers.map(listed).collect() })
    }

    fn end(&mut self, id: &str, code: i32) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.status.state() == State::ContainerRunning {
            let reason = if code == 0 { "Completed" } else { "Error" };
            container.status.set_state(State::ContainerExited);
            container.status.finished_at = now();
            container.status.exit_code = code;
            container.status.reason = reason.to_owned();
            self.changed(id, Event::ContainerStoppedEvent);
        }
    }

    fn drop_container(&mut self, id: &str) {
        self.changed(id, Event::ContainerDeletedEvent);
        if let Some(container) = self.containers.remove(id)
            && let Some(sandbox) = self.sandboxes.get_mut(&container.sandbox)
        {
            sandbox.containers.retain(|other| other != id);
        }
    }

    fn changed(&self, container: &str, event: Event) {
        if let Some(found) = self.containers.get(container) {
            self.emit(&found.sandbox, container, event);
        }
    }

    /// Sends an event with the statuses of the whole pod, as the CRI requires.
    fn emit(&self, sandbox: &str, id: &str, event: Event) {
        let Some(sandbox) = self.sandboxes.get(sandbox) else {
            return;
        };
        let containers = sandbox.containers.iter();
        let statuses = containers.filter_map(|id| Some(self.containers.get(id)?.status.clone()));
        // Fails if there is no subscriber yet.
        let _ = self.events.send(v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: event.into(),
            created_at: now(),
            pod_sandbox_status: Some(sandbox.status.clone()),
            containers_statuses: statuses.collect(),
        });
    }
}

/// Creates an empty log, in a directory that only a runtime creates.
fn write_log(log: &Path) -> std::io::Result<()> {
    if let Some(directory) = log.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(log, "")
}

fn uid(labels: &HashMap<String, String>) -> String {
    labels.get(POD_UID).cloned().unwrap_or_default()
}

fn not_found(id: &str) -> Status {
    Status::not_found(format!("{id} does not exist"))
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
