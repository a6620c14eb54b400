//! ◆ The container state machine. Pure.
//!
//! ```text
//! Creating ──Created──▶ Created ──Started──▶ Running ──Exited──▶ Exited
//!     │                    └──────────────Exited────────────────────▲
//!     └──(removed: a container that failed to be created has no record)
//! ```
//!
//! `Exited` may arrive before `Started`: a program can end before the daemon learns that it ran. `Exited` carries the
//! start time, so nothing is lost.
//!
//! `Lost` ends a container whose keeper ended without recording an exit: its state is then Lost instead of Exited.

use cri::v1::{ContainerConfig, LinuxContainerResources};
use jiff::Timestamp;
use keeper::contract::plan::{Confinement, UserIds};
use keeper::contract::protocol::Exit;
use keeper::kernel::cgroup::CgroupPath;
use serde::{Deserialize, Serialize};

use crate::cdi::ProcessEdits;
use crate::id::{ContainerId, SandboxId};
use crate::launch::ImageDefaults;
use crate::sandbox::UnknownReason;

/// A container's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Container {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The client's configuration, unchanged.
    pub config: ContainerConfig,
    /// Its image's ID.
    pub image_id: String,
    /// A tag of its image at creation; without tags, the name in the client's request.
    #[serde(default)]
    pub image_name: String,
    /// A repository digest of its image at creation; without one, the ID.
    #[serde(default)]
    pub image_reference: String,
    /// The image's container defaults, for later execs.
    pub image: ImageDefaults,
    /// Its stop signal.
    pub stop_signal: i32,
    /// Its log file; empty if it has none.
    pub log_path: String,
    /// Its state.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// The user that it runs as.
    pub user: Option<UserIds>,
    /// Its exit.
    pub exit: Option<Exit>,
    /// Its cgroup, if cgroups are available.
    #[serde(default)]
    pub cgroup: Option<CgroupPath>,
    /// Requested limits that this machine cannot apply, with reasons.
    #[serde(default)]
    pub not_applied: Vec<String>,
    /// Its AppArmor and SELinux confinement.
    #[serde(default)]
    pub confinement: Confinement,
    /// The edits of its CDI devices to its processes (older versions had them in `config`).
    #[serde(default)]
    pub device_edits: ProcessEdits,
    /// Why its state is unknown, if it is.
    #[serde(skip)]
    pub unknown_reason: Option<UnknownReason>,
}

/// The fields of a container's record that change during its life.
#[derive(Serialize)]
pub(crate) struct ContainerLife<'a> {
    state: ContainerState,
    started_at: Option<Timestamp>,
    user: Option<&'a UserIds>,
    exit: Option<&'a Exit>,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContainerState {
    /// It is being set up.
    Creating,
    /// It waits at its barrier.
    Created,
    /// Its program runs.
    Running,
    /// Its program has ended.
    Exited,
    /// Its exit was not observed.
    Lost,
}

/// A transition of a container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ContainerEvent {
    /// It has reached its barrier, with this user.
    Created(UserIds),
    /// Its program has started.
    Started(Timestamp),
    /// It has exited.
    Exited(Exit),
    /// Its limits have changed: all of its limits, and the limits that cannot be applied.
    Limited(Box<LinuxContainerResources>, Vec<String>),
    /// Its keeper has ended without recording its exit. The time is when this was detected.
    Lost(Timestamp),
}

/// The kind of a container event (CRI).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// It was created.
    Created,
    /// It was started.
    Started,
    /// It has exited.
    Stopped,
    /// It was removed.
    Deleted,
}

/// The exit code of a container whose exit was not observed (containerd reports the same).
pub(crate) const LOST_EXIT_CODE: i32 = 255;

impl Container {
    /// The fields of its record that change during its life.
    pub(crate) fn life(&self) -> ContainerLife<'_> {
        ContainerLife {
            state: self.state,
            started_at: self.started_at,
            user: self.user.as_ref(),
            exit: self.exit.as_ref(),
        }
    }

    /// Whether a repeated request, for `other`, may return this container: it has the same configuration and image and
    /// has not been started.
    pub(crate) fn is_same_request(&self, other: &Self) -> bool {
        matches!(self.state, ContainerState::Creating | ContainerState::Created)
            && self.config == other.config
            && self.image_id == other.image_id
    }

    /// Applies `event` and returns the events for subscribers, in order: none if nothing changes.
    #[must_use]
    pub(crate) fn on(&mut self, event: ContainerEvent) -> Vec<EventKind> {
        use ContainerState as S;
        match (self.state, event) {
            (S::Creating, ContainerEvent::Created(user)) => {
                self.user = Some(user);
                self.state = S::Created;
                vec![EventKind::Created]
            }
            (S::Created, ContainerEvent::Started(at)) => {
                self.started_at = Some(at);
                self.state = S::Running;
                vec![EventKind::Started]
            }
            (S::Created | S::Running | S::Lost, ContainerEvent::Exited(exit)) => {
                let overtaken = self.state == S::Created && exit.started.is_some();
                self.started_at = self.started_at.or(exit.started);
                self.exit = Some(exit);
                let told =
                    if self.state == S::Lost { Vec::new() } else { vec![EventKind::Stopped] };
                self.state = S::Exited;
                if overtaken { [vec![EventKind::Started], told].concat() } else { told }
            }
            (S::Creating | S::Created | S::Running, ContainerEvent::Lost(at)) => {
                self.exit = Some(Exit {
                    code: LOST_EXIT_CODE,
                    at,
                    started: self.started_at,
                    start_error: None,
                    oom_killed: false,
                });
                self.state = S::Lost;
                vec![EventKind::Stopped]
            }
            (S::Created | S::Running, ContainerEvent::Limited(resources, not_applied)) => {
                let linux = self.config.linux.get_or_insert_default();
                linux.resources = Some(*resources);
                self.not_applied = not_applied;
                Vec::new()
            }
            (S::Creating | S::Exited | S::Lost, ContainerEvent::Limited(..))
            | (S::Creating | S::Exited, ContainerEvent::Exited(_))
            | (S::Creating | S::Running | S::Exited | S::Lost, ContainerEvent::Started(_))
            | (S::Created | S::Running | S::Exited | S::Lost, ContainerEvent::Created(_))
            | (S::Exited | S::Lost, ContainerEvent::Lost(_)) => Vec::new(),
        }
    }

    /// Whether clients see it.
    #[must_use]
    pub(crate) fn visible(&self) -> bool {
        self.state != ContainerState::Creating
    }

    /// Why its state is unknown, if it is.
    pub(crate) fn unknown_reason(&self) -> Option<&UnknownReason> {
        self.unknown_reason.as_ref().filter(|_| !self.ended())
    }

    /// Whether it has ended, with or without an observed exit.
    #[must_use]
    pub(crate) fn ended(&self) -> bool {
        matches!(self.state, ContainerState::Exited | ContainerState::Lost)
    }

    /// Name and attempt, which are unique within a sandbox.
    #[must_use]
    pub(crate) fn key(&self) -> (&str, u32) {
        self.config.metadata.as_ref().map_or(("", 0), |m| (&m.name, m.attempt))
    }

    /// The reason of its exit in one word (`Completed`, `Error`, `StartError`, `OOMKilled`, `Unknown`), and a
    /// message.
    #[must_use]
    pub(crate) fn reason(&self) -> (&'static str, String) {
        if let Some(unknown_reason) = self.unknown_reason() {
            return ("Unknown", unknown_reason.to_string());
        }
        match (self.state, &self.exit) {
            (ContainerState::Lost, _) => (
                "Unknown",
                "the container was lost: its keeper ended without a record of it".to_owned(),
            ),
            (_, Some(Exit { start_error: Some(error), .. })) => ("StartError", error.clone()),
            (_, Some(Exit { oom_killed: true, .. })) => {
                ("OOMKilled", "the kernel killed it: its memory was used up".to_owned())
            }
            (_, Some(Exit { code: 0, .. })) => ("Completed", String::new()),
            (_, Some(_)) => ("Error", String::new()),
            (_, None) => ("", String::new()),
        }
    }
}

#[cfg(test)]
impl Container {
    /// A container with these fields only.
    pub(crate) fn of_test(id: &str, sandbox: SandboxId, state: ContainerState) -> Self {
        Self {
            id: ContainerId::from_record(id),
            sandbox,
            config: ContainerConfig::default(),
            image_id: String::new(),
            image_name: String::new(),
            image_reference: String::new(),
            image: ImageDefaults::default(),
            stop_signal: 15,
            log_path: String::new(),
            state,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            user: None,
            exit: None,
            cgroup: None,
            not_applied: Vec::new(),
            confinement: Confinement::default(),
            device_edits: ProcessEdits::default(),
            unknown_reason: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn container(state: ContainerState) -> Container {
        Container::of_test("c", SandboxId::random(), state)
    }

    fn exit(code: i32, started: Option<Timestamp>, start_error: Option<&str>) -> Exit {
        Exit {
            code,
            at: Timestamp::UNIX_EPOCH,
            started,
            start_error: start_error.map(Into::into),
            oom_killed: false,
        }
    }

    const T: Timestamp = Timestamp::UNIX_EPOCH;

    #[rstest]
    #[case::created(ContainerState::Creating, ContainerEvent::Created(UserIds::default()), ContainerState::Created, &[EventKind::Created])]
    #[case::started(ContainerState::Created, ContainerEvent::Started(T), ContainerState::Running, &[EventKind::Started])]
    #[case::ended(ContainerState::Running, ContainerEvent::Exited(exit(0, Some(T), None)), ContainerState::Exited, &[EventKind::Stopped])]
    #[case::overtaken(ContainerState::Created, ContainerEvent::Exited(exit(0, Some(T), None)), ContainerState::Exited, &[EventKind::Started, EventKind::Stopped])]
    #[case::never_ran(ContainerState::Created, ContainerEvent::Exited(exit(137, None, None)), ContainerState::Exited, &[EventKind::Stopped])]
    #[case::late_start(ContainerState::Exited, ContainerEvent::Started(T), ContainerState::Exited, &[])]
    #[case::twice(ContainerState::Exited, ContainerEvent::Exited(exit(1, None, None)), ContainerState::Exited, &[])]
    #[case::lost(ContainerState::Running, ContainerEvent::Lost(T), ContainerState::Lost, &[EventKind::Stopped])]
    #[case::limited(ContainerState::Created, ContainerEvent::Limited(Box::default(), Vec::new()), ContainerState::Created, &[])]
    #[case::limited_late(ContainerState::Exited, ContainerEvent::Limited(Box::default(), Vec::new()), ContainerState::Exited, &[])]
    #[case::found_again(ContainerState::Lost, ContainerEvent::Exited(exit(3, Some(T), None)), ContainerState::Exited, &[])]
    fn container_events_change_state_as_specified(
        #[case] from: ContainerState,
        #[case] event: ContainerEvent,
        #[case] to: ContainerState,
        #[case] told: &[EventKind],
    ) {
        let mut container = container(from);
        assert_eq!(container.on(event), told);
        assert_eq!(container.state, to);
    }

    #[rstest]
    #[case(ContainerState::Exited, exit(0, None, None), "Completed")]
    #[case(ContainerState::Exited, exit(7, None, None), "Error")]
    #[case(ContainerState::Exited, exit(128, None, Some("no such file")), "StartError")]
    #[case(
        ContainerState::Exited,
        Exit { oom_killed: true, ..exit(137, Some(T), None) },
        "OOMKilled"
    )]
    #[case(ContainerState::Exited, exit(137, Some(T), None), "Error")]
    #[case(ContainerState::Lost, exit(255, None, None), "Unknown")]
    fn container_reason_follows_state_and_exit(
        #[case] state: ContainerState,
        #[case] exit: Exit,
        #[case] reason: &str,
    ) {
        assert_eq!(Container { exit: Some(exit), ..container(state) }.reason().0, reason);
    }
}
