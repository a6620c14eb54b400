//! What the runtime said about one pod at one moment: data, no judgement.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;

macro_rules! runtime_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The id from the text that the runtime gave.
            pub fn new(id: impl Into<String>) -> Self {
                Self(id.into())
            }

            /// The text that the runtime gave.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

runtime_id!(
    /// A sandbox, as the runtime names it.
    SandboxId
);
runtime_id!(
    /// A container, as the runtime names it.
    ContainerId
);

/// Everything the runtime reports for one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When this was asked; everything below is at least as new.
    pub at: Timestamp,
    /// What the runtime calls itself (`containerd`, `crib`), the scheme of container ids in statuses.
    pub runtime_name: String,
    /// Newest first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Newest first by creation; several of one name are successive attempts.
    pub containers: Vec<ObservedContainer>,
    /// Latest probe results by container; nothing for containers never probed.
    pub probes: BTreeMap<ContainerId, ProbeResults>,
}

impl Observed {
    /// Nothing at all, seen at `at`.
    pub fn nothing(at: Timestamp) -> Self {
        Self {
            at,
            runtime_name: String::new(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            probes: BTreeMap::new(),
        }
    }

    /// The newest attempt of the container of that name.
    pub fn container(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers
            .iter()
            .find(|container| container.name == name)
    }

    /// Does anything of the pod still run: a container, or a sandbox that is ready?
    pub fn anything_runs(&self) -> bool {
        self.containers
            .iter()
            .any(|container| container.state.is_running())
            || self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }
}

/// One sandbox of the pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// SANDBOX_READY or SANDBOX_NOTREADY.
    pub ready: bool,
    /// Attempt number from its metadata, from 0.
    pub attempt: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// Whose network namespace it is in.
    pub network: NetworkMode,
    /// Addresses, the primary one first. `None`: the runtime reports no network; an empty primary address is kept as `""`.
    pub ips: Option<Vec<String>>,
}

/// Whose network namespace a sandbox is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own.
    Pod,
    /// The node's (`hostNetwork`).
    Node,
}

/// One attempt at one container.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedContainer {
    /// Its id.
    pub id: ContainerId,
    /// The name in the pod spec (label `io.kubernetes.container.name`).
    pub name: String,
    /// The sandbox it was made in.
    pub sandbox_id: SandboxId,
    /// Its state, with what belongs to that state.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: Timestamp,
    /// Annotation `io.kubernetes.container.restartCount`; the attempt number where the annotation is absent.
    pub restart_count: u32,
    /// The image as the runtime's status names it.
    pub image: String,
    /// The image reference (digest) that it runs, for `imageID`.
    pub image_ref: String,
    /// Annotation `io.kubernetes.container.hash`, raw; empty where absent. Compare with [`crate::labels::container_hash`].
    pub hash: String,
    /// Where the runtime writes its log.
    pub log_path: Option<PathBuf>,
    /// The user its first process got, where the runtime says.
    pub user: Option<ContainerUser>,
    /// Mounts, for finding the termination message file: container path and host path.
    pub mounts: Vec<(PathBuf, PathBuf)>,
}

/// State of a container, with what only that state has.
#[derive(Clone, Debug, PartialEq)]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Its process runs.
    Running {
        /// When it was started.
        started_at: Timestamp,
    },
    /// Its process ended, or never came to be.
    Exited(Exit),
    /// The runtime cannot say.
    Unknown,
}

impl ContainerState {
    /// Does its process run?
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Created | Self::Running { .. } | Self::Unknown => None,
        }
    }
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// Exit code; 128 + signal number for a signal.
    pub code: i32,
    /// The runtime's one word (`Completed`, `Error`, `OOMKilled`).
    pub reason: String,
    /// The runtime's sentence, or the termination message once it is read.
    pub message: String,
    /// When it was started; `None` where it never was.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// The user a container's first process got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Further group ids.
    pub supplemental_groups: Vec<i64>,
}

/// The latest results of a container's probes; `None`: nothing recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    /// Startup probe.
    pub startup: Option<ProbeResult>,
    /// Liveness probe.
    pub liveness: Option<ProbeResult>,
    /// Readiness probe.
    pub readiness: Option<ProbeResult>,
}

/// One recorded probe result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The probe succeeded often enough.
    Success,
    /// The probe failed often enough.
    Failure,
    /// Not decided.
    Unknown,
}
