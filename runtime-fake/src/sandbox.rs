//! ◆ The sandbox state machine. Pure.
//!
//! ```text
//! Creating ──Ready──▶ Ready ──Stopped──▶ NotReady
//!     └──────────────Stopped────────────────▲
//! ```
//!
//! The store has a sandbox while it is being created, so that a restarted daemon finds an unfinished one, but clients do not see
//! it yet.

use std::fmt;
use std::net::IpAddr;

use cri::v1::{LinuxContainerResources, PodSandboxConfig, SeLinuxOption};
use jiff::Timestamp;
use keeper::kernel::cgroup::CgroupPath;
use serde::{Deserialize, Serialize};

use crate::id::SandboxId;
use crate::launch::selinux::Labels;

/// A sandbox's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// The client's configuration, unchanged.
    pub config: PodSandboxConfig,
    /// The requested runtime handler.
    pub runtime_handler: String,
    /// Its state.
    pub state: SandboxState,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its addresses, the primary one first; none in the host's network.
    pub addresses: Vec<IpAddr>,
    /// Its cgroup, if cgroups are available.
    #[serde(default)]
    pub cgroup: Option<CgroupPath>,
    /// The default SELinux labels of its containers, if the machine has SELinux.
    #[serde(default)]
    pub labels: Option<Labels>,
    /// Why its state is unknown, if it is; the sandbox then counts as not ready.
    #[serde(skip)]
    pub unknown_reason: Option<UnknownReason>,
}

/// The fields of a sandbox's record that change during its life.
#[derive(Serialize)]
pub(crate) struct SandboxLife<'a> {
    state: SandboxState,
    addresses: &'a [IpAddr],
}

/// The SELinux label that a sandbox's client requests.
#[must_use]
pub(crate) fn selinux_options(config: &PodSandboxConfig) -> Option<&SeLinuxOption> {
    let linux = config.linux.as_ref()?;
    linux.security_context.as_ref()?.selinux_options.as_ref()
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxState {
    /// It is being set up.
    Creating,
    /// It runs.
    Ready,
    /// It has stopped.
    NotReady,
}

/// A transition of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SandboxEvent {
    /// It is set up, with these addresses.
    Ready(Vec<IpAddr>),
    /// Its containers' resources, and the pod's overhead.
    Resources(Box<(Option<LinuxContainerResources>, Option<LinuxContainerResources>)>),
    /// It was stopped, or its keeper has ended.
    Stopped,
}

impl Sandbox {
    /// Whether a repeated request, for `other`, may return this sandbox: it has the same configuration and handler and
    /// is not stopped.
    pub(crate) fn is_same_request(&self, other: &Self) -> bool {
        self.state != SandboxState::NotReady
            && self.config == other.config
            && self.runtime_handler == other.runtime_handler
    }

    /// Applies `event`; returns `false` if nothing changes.
    #[must_use]
    pub(crate) fn on(&mut self, event: SandboxEvent) -> bool {
        match (self.state, event) {
            (SandboxState::Creating, SandboxEvent::Ready(addresses)) => {
                self.addresses = addresses;
                self.state = SandboxState::Ready;
                true
            }
            (SandboxState::Creating | SandboxState::Ready, SandboxEvent::Stopped) => {
                self.state = SandboxState::NotReady;
                true
            }
            (SandboxState::Ready, SandboxEvent::Resources(new)) => {
                let linux = self.config.linux.get_or_insert_default();
                (linux.resources, linux.overhead) = *new;
                true
            }
            // A sandbox stopped during set-up stays stopped.
            (SandboxState::Ready | SandboxState::NotReady, SandboxEvent::Ready(_))
            | (SandboxState::Creating | SandboxState::NotReady, SandboxEvent::Resources(_))
            | (SandboxState::NotReady, SandboxEvent::Stopped) => false,
        }
    }

    /// The fields of its record that change during its life.
    pub(crate) fn life(&self) -> SandboxLife<'_> {
        SandboxLife { state: self.state, addresses: &self.addresses }
    }

    /// Whether clients see it.
    #[must_use]
    pub(crate) fn visible(&self) -> bool {
        self.state != SandboxState::Creating
    }

    /// Its unique key: two sandboxes never share all four.
    #[must_use]
    pub(crate) fn key(&self) -> (&str, &str, &str, u32) {
        self.config
            .metadata
            .as_ref()
            .map_or(("", "", "", 0), |m| (&m.name, &m.namespace, &m.uid, m.attempt))
    }
}

/// Why the state of a pod or container is unknown. The runtime does not change it; the client decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnknownReason {
    /// Its record is unreadable: its state was derived from other sources, and the record is not replaced.
    Record(String),
    /// Its keeper cannot be reached.
    Keeper(String),
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(why) => write!(f, "its record {why}"),
            Self::Keeper(why) => write!(f, "its keeper is unreachable: {why}"),
        }
    }
}
