//! The sandbox machine: pure.
//!
//! ```text
//! Creating ──Ready──▶ Ready ──Stopped/Lost──▶ NotReady
//!     └───────────Lost─────────────────────────▶
//! ```
//!
//! A sandbox that is being created is in the store, so that a daemon that dies meanwhile finds what it has begun, but no
//! client sees it.

use std::net::IpAddr;

use cri::v1::{LinuxContainerResources, PodSandboxConfig, SeLinuxOption};
use jiff::Timestamp;
use keeper::cgroup::CgroupPath;
use serde::{Deserialize, Serialize};

use crate::{id::SandboxId, launch::selinux::Labels, unknown_reason::UnknownReason};

/// A sandbox's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// What the client asked for, word by word.
    pub config: PodSandboxConfig,
    /// The runtime handler that the client asked for.
    pub runtime_handler: String,
    /// Where it is in its life.
    pub state: SandboxState,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// Its addresses, the primary one first; none in the host's network.
    pub addresses: Vec<IpAddr>,
    /// Its cgroup, where there can be one.
    #[serde(default)]
    pub cgroup: Option<CgroupPath>,
    /// The SELinux labels that its containers begin with, where the box has labels.
    #[serde(default)]
    pub labels: Option<Labels>,
    /// Why its state is unknown, if it is: then it does not count as ready.
    #[serde(skip)]
    pub unknown_reason: Option<UnknownReason>,
}

/// What of a sandbox's record changes in its life.
#[derive(Serialize)]
pub(crate) struct SandboxLife<'a> {
    state: SandboxState,
    addresses: &'a [IpAddr],
}

/// The SELinux label that a sandbox's client asks for.
#[must_use]
pub(crate) fn selinux_options(config: &PodSandboxConfig) -> Option<&SeLinuxOption> {
    let linux = config.linux.as_ref()?;
    linux.security_context.as_ref()?.selinux_options.as_ref()
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxState {
    /// Being set up.
    Creating,
    /// It runs.
    Ready,
    /// It ran.
    NotReady,
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SandboxEvent {
    /// It is set up, with these addresses.
    Ready(Vec<IpAddr>),
    /// What its containers may use, and what the sandbox itself uses.
    Resources(
        Box<(
            Option<LinuxContainerResources>,
            Option<LinuxContainerResources>,
        )>,
    ),
    /// It was stopped, or its keeper is gone.
    Stopped,
}

impl Sandbox {
    /// Whether a request for `other` may return this one: it is, or is becoming, the same.
    pub(crate) fn is_asked_for_by(&self, other: &Self) -> bool {
        self.state != SandboxState::NotReady
            && self.config == other.config
            && self.runtime_handler == other.runtime_handler
    }

    /// The sandbox after `event`; `false` when that changes nothing.
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
            // A sandbox that was stopped while it was set up stays stopped.
            (SandboxState::Ready | SandboxState::NotReady, SandboxEvent::Ready(_))
            | (SandboxState::Creating | SandboxState::NotReady, SandboxEvent::Resources(_))
            | (SandboxState::NotReady, SandboxEvent::Stopped) => false,
        }
    }

    /// What of its record changes in its life, as the record has it.
    pub(crate) fn life(&self) -> SandboxLife<'_> {
        SandboxLife {
            state: self.state,
            addresses: &self.addresses,
        }
    }

    /// Whether clients see it.
    #[must_use]
    pub(crate) fn visible(&self) -> bool {
        self.state != SandboxState::Creating
    }

    /// What makes it the only one: two sandboxes never share all four.
    #[must_use]
    pub(crate) fn key(&self) -> (&str, &str, &str, u32) {
        self.config.metadata.as_ref().map_or(("", "", "", 0), |m| {
            (&m.name, &m.namespace, &m.uid, m.attempt)
        })
    }
}
