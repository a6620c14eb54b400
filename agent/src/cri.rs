//! The container runtime in the agent's own words. Nothing outside `cri/` names a protobuf type.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_stream::Stream;

use crate::observed::{ContainerId, ObservedContainer, ObservedSandbox, SandboxId};
use crate::pod::PodUid;
use crate::spec::{ContainerSpec, ImageSpec, SandboxSpec};

#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod grpc;
mod wire;

/// The container runtime: one method a CRI call, each answered or failed within the kubelet's deadline for it.
#[async_trait]
pub trait Cri: Send + Sync {
    /// Who is it? (Version)
    async fn version(&self) -> Result<Version, CriError>;
    /// Is it well, and what can it do? (Status)
    async fn status(&self) -> Result<RuntimeStatus, CriError>;

    /// Makes a pod's sandbox and starts it. (RunPodSandbox)
    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError>;
    /// Ends everything in a sandbox and gives its network back; no error when it is stopped or unknown. (StopPodSandbox)
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError>;
    /// Forgets a sandbox and its containers; no error when it is unknown. (RemovePodSandbox)
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError>;
    /// One sandbox in full; [`Code::NotFound`] when it is unknown. (PodSandboxStatus)
    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError>;
    /// All sandboxes, or those of one pod. (ListPodSandbox)
    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError>;

    /// Makes a container, not yet running. (CreateContainer)
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        sandbox_spec: &SandboxSpec,
    ) -> Result<ContainerId, CriError>;
    /// Starts a container. (StartContainer)
    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError>;
    /// Asks a container to end and kills it after `grace`; returns when it has ended. (StopContainer)
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError>;
    /// Forgets a container, killing it if it runs; no error when it is unknown. (RemoveContainer)
    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError>;
    /// One container in full; [`Code::NotFound`] when it is unknown. (ContainerStatus)
    async fn container_status(
        &self,
        listed: &ListedContainer,
    ) -> Result<ObservedContainer, CriError>;
    /// All containers, or those of one pod. (ListContainers)
    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError>;

    /// The image of that name, if it is there. (ImageStatus)
    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError>;
    /// Gets an image and returns the reference to make containers from. It has no deadline; drop it to give up. (PullImage)
    async fn pull_image(
        &self,
        image: &ImageSpec,
        sandbox: &SandboxSpec,
    ) -> Result<String, CriError>;
    /// Forgets an image; no error when it is unknown. (RemoveImage)
    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError>;
    /// What the image file systems hold. (ImageFsInfo)
    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError>;

    /// Runs a command in a container to its end; `timeout` `None` waits for ever. (ExecSync)
    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError>;
    /// Makes the runtime open a container's log file anew. (ReopenContainerLog)
    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError>;

    /// News of containers and sandboxes from now on. (GetContainerEvents)
    async fn events(&self) -> Result<EventStream, CriError>;
}

/// News of containers and sandboxes; an error is its last item.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<RuntimeEvent, CriError>> + Send>>;

/// Something happened to a container or sandbox. It is a hint to look at the pod, not a fact to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEvent {
    /// The container or sandbox.
    pub id: String,
    /// What happened.
    pub kind: EventKind,
    /// The pod, when the event says which.
    pub pod: Option<PodUid>,
    /// The container's name, when the event says it.
    pub name: Option<String>,
}

/// What happened to a container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was made.
    Created,
    /// It was started.
    Started,
    /// It ended.
    Stopped,
    /// It was removed.
    Deleted,
}

/// Who the runtime is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Its name: `crib`, `containerd`.
    pub runtime_name: String,
    /// Its version.
    pub runtime_version: String,
    /// The version of CRI that it speaks: `v1`.
    pub api_version: String,
}

/// How the runtime is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `RuntimeReady`, `NetworkReady` and others.
    pub conditions: Vec<RuntimeCondition>,
}

impl RuntimeStatus {
    /// What a required condition says against running pods: `None` when both RuntimeReady and NetworkReady are true.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        ["RuntimeReady", "NetworkReady"]
            .into_iter()
            .find_map(|kind| {
                match self
                    .conditions
                    .iter()
                    .find(|condition| condition.kind == kind)
                {
                    Some(condition) if condition.status => None,
                    Some(condition) => Some(format!(
                        "{kind} is false: {} {}",
                        condition.reason, condition.message
                    )),
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
    /// Does it hold?
    pub status: bool,
    /// Why, as one word.
    pub reason: String,
    /// Why, in words.
    pub message: String,
}

/// A sandbox of a pod, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// The pod it is for.
    pub pod: PodRef,
    /// SANDBOX_READY.
    pub ready: bool,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A container of a pod, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox it was made in.
    pub sandbox_id: SandboxId,
    /// The pod it is of.
    pub pod: PodRef,
    /// Its name in the pod's spec.
    pub name: String,
    /// What it does.
    pub state: ListedState,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Which pod a sandbox or container is of, from its labels `io.kubernetes.pod.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its identity.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The state of a listed container, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedState {
    /// Made, not started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// An image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// What containers are made from.
    pub id: String,
    /// Its names with tags.
    pub repo_tags: Vec<String>,
    /// Its names with digests.
    pub repo_digests: Vec<String>,
    /// In bytes.
    pub size: u64,
    /// Not to be removed to free space.
    pub pinned: bool,
    /// The numeric user it runs as, if it says one.
    pub uid: Option<i64>,
    /// The user name it runs as; may be empty.
    pub username: String,
}

/// What a file system of images or containers holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Where it is mounted.
    pub mountpoint: String,
    /// In bytes.
    pub used_bytes: u64,
    /// Number of inodes.
    pub inodes_used: u64,
}

/// How a command in a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub exit_code: i32,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {code}: {message}")]
pub struct CriError {
    /// The CRI call.
    pub call: &'static str,
    /// What kind of failure.
    pub code: Code,
    /// What the runtime said.
    pub message: String,
}

impl CriError {
    /// Is the thing that was asked for unknown to the runtime?
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// Was the runtime not there to answer?
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }
}

/// What kind of failure, as in gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The thing is unknown.
    NotFound,
    /// The call is unknown.
    Unimplemented,
    /// It took too long.
    DeadlineExceeded,
    /// Nobody answers.
    Unavailable,
    /// The request makes no sense.
    InvalidArgument,
    /// The name is taken.
    AlreadyExists,
    /// The state of the thing does not allow it.
    FailedPrecondition,
    /// It may not.
    PermissionDenied,
    /// There is no room, or a message is too large.
    ResourceExhausted,
    /// The caller gave up.
    Cancelled,
    /// The runtime says no more.
    Unknown,
    /// The runtime broke.
    Internal,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::Unimplemented => "not implemented by the runtime",
            Self::DeadlineExceeded => "no answer in time",
            Self::Unavailable => "the runtime does not answer",
            Self::InvalidArgument => "refused as invalid",
            Self::AlreadyExists => "already exists",
            Self::FailedPrecondition => "refused in this state",
            Self::PermissionDenied => "not permitted",
            Self::ResourceExhausted => "too much",
            Self::Cancelled => "cancelled",
            Self::Unknown => "failed",
            Self::Internal => "internal error of the runtime",
        })
    }
}

/// Why no runtime could be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It is no unix socket's address.
    #[error(
        "the runtime endpoint {endpoint:?} is not a unix socket; write it as unix:///path/of/the.sock"
    )]
    NotUnix {
        /// As it was given.
        endpoint: String,
    },
    /// The kernel takes no longer path than 107 bytes.
    #[error(
        "the socket path {path} is {length} bytes long and a unix socket's can have 107; choose a shorter one"
    )]
    PathTooLong {
        /// As it was given.
        path: String,
        /// In bytes.
        length: usize,
    },
    /// Nobody listens.
    #[error(
        "no container runtime listens at {path}; start one with `crib runtime --listen unix://{path}`, or name another with --runtime-endpoint"
    )]
    NotReachable {
        /// Where it was looked for.
        path: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The socket may not be used.
    #[error(
        "the runtime's socket {path} may not be used by this user; run as the user that started the runtime, or name another with --runtime-endpoint"
    )]
    NotPermitted {
        /// The socket.
        path: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// Somebody listens, who is no container runtime.
    #[error(
        "what listens at {path} does not speak the Container Runtime Interface v1; name a container runtime's socket with --runtime-endpoint"
    )]
    NotCri {
        /// The socket.
        path: String,
        /// What it answered to Version.
        #[source]
        source: CriError,
    },
    /// Somebody listens and says nothing.
    #[error("what listens at {path} did not answer within {} s; see whether the runtime there is well", waited.as_secs())]
    Silent {
        /// The socket.
        path: String,
        /// How long it was waited for.
        waited: Duration,
    },
}
