//! The agent's output about its pods: reports (the latest state) and transitions (the changes, in order).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

use api::pod::{ContainerKind, PodUid};

pub(crate) mod status_store;
pub(crate) mod transitions;

/// The latest report of every pod. Clones are cheap, and so are changes while clones exist.
pub type Reports = rpds::RedBlackTreeMapSync<PodUid, PodReport>;

/// The latest state of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodReport {
    /// The pod's identity.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The current status: it shows the progress of a running sync.
    pub status: Arc<PodStatus>,
    /// The status for an API server, as a kubelet's status manager has it: that of the beginning of the latest sync.
    pub published: Arc<PodStatus>,
    /// Nothing of the pod runs or will run: its phase is terminal, or it was terminated.
    pub finished: bool,
    /// Its containers, sandboxes and directories are removed.
    pub removed: bool,
    /// Init, app and ephemeral containers in the order of the spec.
    pub containers: Vec<ContainerReport>,
}

/// The latest state of one container of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerReport {
    /// Its name in the spec.
    pub name: String,
    /// Its list in the spec.
    pub kind: ContainerKind,
    /// Its state.
    pub state: ContainerPhase,
    /// The reason of the state (`CrashLoopBackOff`, `Completed`); may be empty.
    pub reason: String,
    /// The message of the state; may be empty.
    pub message: String,
    /// The exit code of its latest run.
    pub exit_code: Option<i32>,
    /// Whether it waits after a failure that every retry repeats: the runtime rejects the manifest's request.
    pub refused: bool,
    /// Whether it runs and is ready according to its probes.
    pub ready: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// The image as the spec names it.
    pub image: String,
    /// The runtime's id of the latest attempt; empty before the first.
    pub container_id: String,
    /// The log of the latest attempt.
    pub log_path: Option<PathBuf>,
    /// The id and the log of an attempt whose postStart hook runs: it does not count as the latest one until its hook has ended.
    pub in_hook: Option<(String, PathBuf)>,
    /// How long the image pull took, if this agent pulled it.
    pub pull: Option<Duration>,
    /// How long the latest CreateContainer took.
    pub create: Option<Duration>,
    /// How long the latest StartContainer took.
    pub start: Option<Duration>,
}

/// A container's state, as in `v1.ContainerState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerPhase {
    /// Not started yet, or waiting for its restart.
    Waiting,
    /// Its process is running.
    Running,
    /// Its process exited and is not restarted.
    Terminated,
}

impl ContainerPhase {
    /// The state's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Terminated => "Terminated",
        }
    }
}

/// A status for an API server, as a kubelet's status manager records it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedStatus {
    /// When it was published.
    pub at: Timestamp,
    /// The pod's identity.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The status.
    pub status: Arc<PodStatus>,
}

/// A change of a container's readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadinessChange {
    /// When the agent observed it.
    pub at: Timestamp,
    /// `namespace/name`
    pub pod: String,
    /// The pod's identity.
    pub uid: PodUid,
    /// The container.
    pub container: String,
    /// Whether it is ready now.
    pub ready: bool,
}

/// A state change of a pod or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When the agent observed it.
    pub at: Timestamp,
    /// `namespace/name`
    pub pod: String,
    /// The pod's identity.
    pub uid: PodUid,
    /// The container; `None` for the pod as a whole.
    pub container: Option<String>,
    /// The state before: `Waiting`, `Waiting(CrashLoopBackOff)`, `Running`, `Terminated(Completed)`; for a pod its phase,
    /// `Terminating`, `Removed`; empty for a new one.
    pub from: String,
    /// The state now, in the same form.
    pub to: String,
    /// The cause of the change.
    pub cause: String,
    /// The exit code of a container that exited.
    pub exit_code: Option<i32>,
}
