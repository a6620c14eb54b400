//! What the agent tells the outside about its pods: reports (the latest state) and transitions (what changed, in order).

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

pub use crate::pod::ContainerKind;
use crate::pod::PodUid;

pub(crate) mod status_store;
pub(crate) mod transitions;

/// The latest state of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodReport {
    /// The pod's identity.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What a Kubernetes API server would be told.
    pub status: PodStatus,
    /// Nothing of it runs and nothing of it will: its phase is terminal, or it was ended.
    pub finished: bool,
    /// Its containers, sandboxes and directories are gone.
    pub removed: bool,
    /// Init, app and ephemeral containers in the order of the spec.
    pub containers: Vec<ContainerReport>,
}

/// The latest state of one container of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerReport {
    /// Its name in the spec.
    pub name: String,
    /// Which list of the spec it stands in.
    pub kind: ContainerKind,
    /// What it does.
    pub state: ContainerPhase,
    /// Why, as one word (`CrashLoopBackOff`, `Completed`); may be empty.
    pub reason: String,
    /// Why, in words; may be empty.
    pub message: String,
    /// How its latest run ended.
    pub exit_code: Option<i32>,
    /// How many times it was started again.
    pub restarts: u32,
    /// The image as the spec names it.
    pub image: String,
    /// The runtime's id of the latest attempt; empty before the first.
    pub container_id: String,
    /// The log of the latest attempt.
    pub log_path: Option<PathBuf>,
    /// How long getting the image took, when this agent got it.
    pub pull: Option<Duration>,
    /// How long the latest CreateContainer took.
    pub create: Option<Duration>,
    /// How long the latest StartContainer took.
    pub start: Option<Duration>,
}

/// What a container does, as in `v1.ContainerState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerPhase {
    /// Not started (yet, or again).
    Waiting,
    /// Its process runs.
    Running,
    /// Its process has ended and is not to run again.
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

/// One change of one pod or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When the agent saw it.
    pub at: Timestamp,
    /// `namespace/name`
    pub pod: String,
    /// The pod's identity.
    pub uid: PodUid,
    /// The container; `None` for the pod as a whole.
    pub container: Option<String>,
    /// The state before: `Waiting`, `Waiting(CrashLoopBackOff)`, `Running`, `Terminated(Completed)`; for a pod its phase, `Terminating`, `Removed`; empty when it is new.
    pub from: String,
    /// The state now, written the same way.
    pub to: String,
    /// What brought it about.
    pub cause: String,
    /// For a container that ended.
    pub exit_code: Option<i32>,
}
