//! The container runtime as the agent sees it. No file outside `cri/` names a protobuf type.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use api::pod::PodUid;
use async_trait::async_trait;
use compact::{Map, Set};
use jiff::Timestamp;
use tokio_stream::Stream;

use crate::observed::{ContainerId, MemoryUsage, ObservedContainer, ObservedSandbox, SandboxId};
use crate::pod_spec::spec::{
    CgroupDriver, ContainerSpec, HandlerFeatures, ImageSpec, Resources, SandboxSpec,
};

pub mod fake;
pub mod grpc;
mod lists;
mod operations;
pub mod stats;
mod wire;

pub use grpc::ConnectError;
pub use lists::{LastLists, ListedContainer, ListedSandbox, Lists};
pub use operations::Operation;
use stats::{ContainerStats, Metric, MetricDescriptor, SandboxStats};

/// The container runtime: one method per CRI call, each with the kubelet's deadline.
#[async_trait]
pub trait Cri: Send + Sync {
    /// The runtime's name and version. (Version)
    async fn version(&self) -> Result<Version, CriError>;
    /// The runtime's conditions. (Status)
    async fn status(&self) -> Result<RuntimeStatus, CriError>;
    /// How the runtime creates cgroups; `None` if it does not report it. (RuntimeConfig)
    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, CriError> {
        Err(CriError::unimplemented("RuntimeConfig"))
    }

    /// Passes the address ranges of later pods, one for each family, separated by commas. (UpdateRuntimeConfig)
    async fn update_pod_cidr(&self, _cidrs: &str) -> Result<(), CriError> {
        Err(CriError::unimplemented("UpdateRuntimeConfig"))
    }

    /// Creates and starts a pod's sandbox. (RunPodSandbox)
    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError>;
    /// Stops the containers of a sandbox and releases its network; idempotent. (StopPodSandbox)
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError>;
    /// Removes a sandbox and its containers; idempotent. (RemovePodSandbox)
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError>;
    /// The status of a sandbox; [`Code::NotFound`] for unknown ids. (PodSandboxStatus)
    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError>;
    /// All sandboxes, or those of one pod. (ListPodSandbox)
    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError>;

    /// Creates a container without starting it. (CreateContainer)
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        sandbox_spec: &SandboxSpec,
    ) -> Result<ContainerId, CriError>;
    /// Starts a container. (StartContainer)
    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError>;
    /// Sends the stop signal, kills after `grace`, and returns when the container has exited. (StopContainer)
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError>;
    /// Removes a container, killing it if it is running; idempotent. (RemoveContainer)
    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError>;
    /// The status of a container; [`Code::NotFound`] for unknown ids. (ContainerStatus)
    async fn container_status(
        &self,
        listed: &ListedContainer,
    ) -> Result<ObservedContainer, CriError>;
    /// All containers, or those of one pod. (ListContainers)
    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError>;

    /// All sandboxes and containers; `None` if the answer equals `last`, which this call updates.
    async fn list_all(&self, _last: &mut LastLists) -> Result<Option<Lists>, CriError> {
        let lists = tokio::try_join!(self.list_sandboxes(None), self.list_containers(None))?;
        Ok(Some(lists))
    }

    /// Changes the limits of a container. (UpdateContainerResources)
    async fn update_container(&self, id: &ContainerId, limits: &Resources) -> Result<(), CriError>;
    /// Passes the new limits and overhead of a sandbox. (UpdatePodSandboxResources)
    async fn update_sandbox(
        &self,
        id: &SandboxId,
        limits: &Resources,
        overhead: &Resources,
    ) -> Result<(), CriError>;
    /// The memory that a sandbox and its containers use. (PodSandboxStats)
    async fn memory_usage(&self, id: &SandboxId) -> Result<MemoryUsage, CriError>;

    /// The usage of all sandboxes and their containers; [`Code::Unimplemented`] if the runtime does not measure it.
    /// (ListPodSandboxStats)
    async fn sandbox_stats(&self) -> Result<Vec<SandboxStats>, CriError> {
        Err(CriError::unimplemented("ListPodSandboxStats"))
    }
    /// The usage of all containers. (ListContainerStats)
    async fn container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        Err(CriError::unimplemented("ListContainerStats"))
    }
    /// The metrics that the runtime supports. (ListMetricDescriptors)
    async fn metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, CriError> {
        Err(CriError::unimplemented("ListMetricDescriptors"))
    }
    /// The metrics' values for all sandboxes and containers. (ListPodSandboxMetrics)
    async fn metrics(&self) -> Result<Vec<Metric>, CriError> {
        Err(CriError::unimplemented("ListPodSandboxMetrics"))
    }

    /// The image, if present. (ImageStatus)
    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError>;
    /// Pulls an image and returns the reference for CreateContainer. It has no deadline; drop it to cancel. (PullImage)
    async fn pull_image(
        &self,
        image: &ImageSpec,
        sandbox: &SandboxSpec,
        auth: Option<&RegistryAuth>,
    ) -> Result<String, CriError>;
    /// All images. (ListImages)
    async fn list_images(&self) -> Result<Vec<Image>, CriError>;
    /// The ids of images that containers run or mount. (ListContainers, ContainerStatus)
    async fn images_in_use(&self) -> Result<Set<String>, CriError>;
    /// Removes an image; idempotent. (RemoveImage)
    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError>;
    /// Usage of the image file systems. (ImageFsInfo)
    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError>;
    /// Usage of the file systems of writable layers; empty if the runtime reports none apart from those of images. (ImageFsInfo)
    async fn container_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        Ok(Vec::new())
    }

    /// Runs a command in a container; `timeout` `None`: no limit. (ExecSync)
    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError>;
    /// The URL of a stream that runs a command in a container. (Exec)
    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        streams: StreamOptions,
    ) -> Result<String, CriError>;
    /// The URL of a stream of a container's first process. (Attach)
    async fn attach(&self, id: &ContainerId, streams: StreamOptions) -> Result<String, CriError>;
    /// The URL of a stream that forwards ports of a sandbox. (PortForward)
    async fn port_forward(&self, id: &SandboxId, ports: &[u16]) -> Result<String, CriError>;
    /// The size of a container's writable layer in bytes; 0 if the runtime does not report it. (ContainerStats)
    async fn writable_layer(&self, id: &ContainerId) -> Result<u64, CriError>;
    /// Writes a checkpoint of a container to a file. (CheckpointContainer)
    async fn checkpoint(
        &self,
        _id: &ContainerId,
        _location: &Path,
        _timeout: Duration,
    ) -> Result<(), CriError> {
        Err(CriError::unimplemented("CheckpointContainer"))
    }
    /// Reopens a container's log file. (ReopenContainerLog)
    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError>;

    /// Subscribes to events of containers and sandboxes. (GetContainerEvents)
    async fn events(&self) -> Result<EventStream, CriError>;

    /// Statistics of the completed calls, by the kubelet's operation names.
    fn operations(&self) -> Map<&'static str, Operation> {
        Map::new()
    }
    /// The process that serves the socket, if known.
    async fn server_process(&self) -> Option<u32> {
        None
    }
}

/// Events of containers and sandboxes; an error is the last item.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<RuntimeEvent, CriError>> + Send>>;

/// An event of a container or sandbox. It only triggers an inspection of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEvent {
    /// The container or sandbox.
    pub id: String,
    /// The kind of event.
    pub kind: EventKind,
    /// The pod, if the event has it.
    pub pod: Option<PodUid>,
    /// The container's name, if the event has it.
    pub name: Option<String>,
    /// When the runtime created the event, if the event has it.
    pub created_at: Option<Timestamp>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Created.
    Created,
    /// Started.
    Started,
    /// Stopped.
    Stopped,
    /// Removed.
    Deleted,
}

/// Name and version of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Its name: `crib`, `containerd`.
    pub runtime_name: String,
    /// Its version.
    pub runtime_version: String,
    /// The version of the CRI that it implements: `v1`.
    pub api_version: String,
}

/// The status of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `RuntimeReady`, `NetworkReady` and others.
    pub conditions: Vec<RuntimeCondition>,
    /// The runtime's features.
    pub capabilities: Capabilities,
}

/// The features that a runtime reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The features of its handlers, by name; `None`: not reported.
    pub handlers: Option<Map<String, HandlerFeatures>>,
    /// Whether it supports `supplementalGroupsPolicy: Strict`.
    pub strict_supplemental_groups: bool,
    /// Whether pods in the host's network namespace can have their own user namespaces.
    pub user_namespaces_host_network: bool,
}

impl RuntimeStatus {
    /// The first required condition that is not true; `None` if both RuntimeReady and NetworkReady are true.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        ["RuntimeReady", "NetworkReady"].into_iter().find_map(|kind| {
            match self.conditions.iter().find(|condition| condition.kind == kind) {
                Some(condition) if condition.status => None,
                Some(condition) => {
                    Some(format!("{kind} is false: {} {}", condition.reason, condition.message))
                }
                None => Some(format!("the runtime does not report {kind}")),
            }
        })
    }
}

/// One condition of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// Its name.
    pub kind: String,
    /// Whether the condition is true.
    pub status: bool,
    /// The reason, as one CamelCase word.
    pub reason: String,
    /// The reason, as a message.
    pub message: String,
}

/// The pod of a sandbox or container, from its labels `io.kubernetes.pod.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its identity.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The id of the agent that created its sandbox, if known.
    pub agent: Option<String>,
}

/// The state of a listed container, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// Unknown to the runtime.
    Unknown,
}

/// An image in the runtime's store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The image id.
    pub id: String,
    /// Its names with tags.
    pub repo_tags: Vec<String>,
    /// Its names with digests.
    pub repo_digests: Vec<String>,
    /// In bytes.
    pub size: u64,
    /// Not to be removed to free space.
    pub pinned: bool,
    /// The numeric user of the image, if any.
    pub uid: Option<i64>,
    /// The user name of the image; may be empty.
    pub username: String,
}

/// A login at a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryAuth {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug ends up in logs.
        write!(f, "RegistryAuth({})", self.username)
    }
}

/// Usage of a file system of images or containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Where it is mounted.
    pub mountpoint: String,
    /// In bytes.
    pub used_bytes: u64,
    /// Number of inodes.
    pub inodes_used: u64,
}

/// The result of a command in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its output.
    pub stdout: Vec<u8>,
    /// Its output.
    pub stderr: Vec<u8>,
    /// Its exit code.
    pub exit_code: i32,
}

/// The streams of a process to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Its standard input.
    pub stdin: bool,
    /// Its standard output.
    pub stdout: bool,
    /// Its standard error; not with a terminal.
    pub stderr: bool,
    /// Whether the streams are a terminal.
    pub tty: bool,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {code}: {message}")]
pub struct CriError {
    /// The CRI call.
    pub call: &'static str,
    /// The kind of failure.
    pub code: Code,
    /// The runtime's message.
    pub message: String,
}

impl CriError {
    /// The error for a call that the runtime does not implement.
    fn unimplemented(call: &'static str) -> Self {
        Self { call, code: Code::Unimplemented, message: format!("unknown method {call}") }
    }

    /// True if the object is unknown to the runtime.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// True if the runtime rejects the request itself, so that the same request fails again in any state of the system.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self.code, Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented)
    }

    /// The error as gRPC's Go library formats it, as in the messages of a kubelet.
    #[must_use]
    pub fn go_text(&self) -> String {
        let code = match self.code {
            Code::NotFound => "NotFound",
            Code::Unimplemented => "Unimplemented",
            Code::DeadlineExceeded => "DeadlineExceeded",
            Code::Unavailable => "Unavailable",
            Code::InvalidArgument => "InvalidArgument",
            Code::AlreadyExists => "AlreadyExists",
            Code::FailedPrecondition => "FailedPrecondition",
            Code::PermissionDenied => "PermissionDenied",
            Code::ResourceExhausted => "ResourceExhausted",
            Code::Cancelled => "Canceled",
            Code::Unauthenticated => "Unauthenticated",
            Code::Aborted => "Aborted",
            Code::OutOfRange => "OutOfRange",
            Code::DataLoss => "DataLoss",
            Code::Unknown => "Unknown",
            Code::Internal => "Internal",
            Code::InvalidResponse => return self.message.clone(),
        };
        format!("rpc error: code = {code} desc = {}", self.message)
    }

    /// True if the runtime is unreachable.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }
}

/// The kind of failure, as in gRPC, or an invalid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The object is unknown.
    NotFound,
    /// The call is unknown.
    Unimplemented,
    /// The deadline has passed.
    DeadlineExceeded,
    /// The runtime is unreachable.
    Unavailable,
    /// The request is invalid.
    InvalidArgument,
    /// The name is taken.
    AlreadyExists,
    /// The state of the object does not allow the call.
    FailedPrecondition,
    /// The caller lacks permission.
    PermissionDenied,
    /// The caller, or the identity it acts for, is not authenticated.
    Unauthenticated,
    /// The call conflicted with a concurrent call.
    Aborted,
    /// A value is out of its range.
    OutOfRange,
    /// Data is lost or damaged.
    DataLoss,
    /// A limit is reached, or a message is too large.
    ResourceExhausted,
    /// The caller cancelled the call.
    Cancelled,
    /// The runtime returns no specific code.
    Unknown,
    /// The runtime failed.
    Internal,
    /// The response lacks a required field: no code of gRPC.
    InvalidResponse,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::Unimplemented => "not implemented by the runtime",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::Unavailable => "runtime unavailable",
            Self::InvalidArgument => "invalid argument",
            Self::AlreadyExists => "already exists",
            Self::FailedPrecondition => "failed precondition",
            Self::PermissionDenied => "permission denied",
            Self::Unauthenticated => "unauthenticated",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out of range",
            Self::DataLoss => "data loss",
            Self::ResourceExhausted => "resource exhausted",
            Self::Cancelled => "cancelled",
            Self::Unknown => "failed",
            Self::Internal => "internal error of the runtime",
            Self::InvalidResponse => "invalid response",
        })
    }
}
