//! ◆ The state machine of one probe of one container. Pure.
//!
//! ```text
//! tick:   no status, no container id                  -> Wait
//!         pod is Failed or Succeeded                  -> End
//!         another container id                        -> its results are reset, and the probe resumes
//!         on hold                                     -> Wait
//!         not running                                 -> Failure is recorded; End if it will not be restarted
//!         pod is being deleted (liveness, startup)    -> Success is recorded; End
//!         within initialDelaySeconds                  -> Wait
//!         started, and this is the startup probe      -> Wait
//!         not started, and this is another one        -> Wait
//!         otherwise                                   -> Run
//! finish: outcome as often in a row as the threshold  -> the result is recorded
//!         then: startup, or a failed liveness probe   -> on hold until there is another container id
//! ```
//!
//! Source: Kubernetes 1.36, pkg/kubelet/prober/worker.go.

use std::fmt;
use std::sync::Arc;

use api::pod::{ContainerKind, Pod, is_sidecar};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, PodStatus, Probe};

use crate::decide::plan::restart;
use crate::observed::{ContainerId, ProbeResult};

/// The maximum number of attempts of a check that cannot be made.
pub const ATTEMPTS: usize = 3;

/// A container that started this long before the agent was started before a restart of the agent.
const RESTART_GRACE: SignedDuration = SignedDuration::from_secs(10);

/// The kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// `startupProbe`
    Startup,
    /// `readinessProbe`
    Readiness,
    /// `livenessProbe`
    Liveness,
}

impl ProbeKind {
    /// All kinds, in the order in which the kubelet adds them.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    /// The container's probe of this kind.
    #[must_use]
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
        }
    }

    /// The result of a container before its first check.
    fn initial(self) -> ProbeResult {
        match self {
            Self::Startup => ProbeResult::Unknown,
            Self::Readiness => ProbeResult::Failure,
            Self::Liveness => ProbeResult::Success,
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        })
    }
}

/// The target of a probe.
#[derive(Clone, Debug)]
pub struct Target {
    /// The pod, as it was when the probe was added.
    pub pod: Pod,
    /// The container in its spec.
    pub container: Arc<Container>,
    /// Which probe of the container.
    pub kind: ProbeKind,
    /// When the agent was started.
    pub agent_started_at: Timestamp,
}

impl Target {
    /// The probe.
    #[must_use]
    pub fn probe(&self) -> Option<&Probe> {
        self.kind.of(&self.container)
    }

    fn is_sidecar(&self) -> bool {
        let name = self.container.name.as_str();
        let is_init = matches!(self.pod.container(name), Some((ContainerKind::Init, _)));
        is_init && is_sidecar(&self.container)
    }
}

/// The action at a tick.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing; the next tick decides again.
    Wait,
    /// The check runs.
    Run,
    /// The probe ends for good.
    End,
}

/// The state of one probe.
#[derive(Clone, Debug, Default)]
pub struct ProbeState {
    /// The container id as in the status: prefixed with the runtime's name.
    seen: String,
    recorded: Option<ProbeResult>,
    /// The last outcome, and how often in a row it occurred.
    last: Option<ProbeResult>,
    run: u32,
    on_hold: bool,
    changes: Vec<ProbeResult>,
}

impl ProbeState {
    /// The container that results are recorded for; `None` before the first.
    #[must_use]
    pub fn container_id(&self) -> Option<ContainerId> {
        let (_, id) = self.seen.split_once("://")?;
        Some(ContainerId::new(id))
    }

    /// The recorded result.
    #[must_use]
    pub fn recorded(&self) -> Option<ProbeResult> {
        self.recorded
    }

    /// Whether the probe makes no more checks until there is another container id.
    #[must_use]
    pub fn is_on_hold(&self) -> bool {
        self.on_hold
    }

    /// How often in a row the last outcome has occurred.
    #[must_use]
    pub fn run(&self) -> u32 {
        self.run
    }

    /// The results recorded since the last call, each different from the one before it.
    pub fn take_changes(&mut self) -> Vec<ProbeResult> {
        std::mem::take(&mut self.changes)
    }

    fn record(&mut self, result: ProbeResult) {
        if self.recorded.replace(result) != Some(result) {
            self.changes.push(result);
        }
    }

    /// Decides at a tick, from the pod's latest status.
    pub fn tick(&mut self, target: &Target, status: Option<&PodStatus>, now: Timestamp) -> Next {
        let Some(status) = status else {
            return Next::Wait;
        };
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            return Next::End;
        }
        let Some((container, id)) = status_of(status, &target.container.name) else {
            return Next::Wait;
        };
        let state = container.state.clone().unwrap_or_default();
        let started = container.started == Some(true);
        if self.seen != id {
            self.begin(target, id, &state, started);
        }
        if self.on_hold {
            return Next::Wait;
        }
        let Some(running) = &state.running else {
            self.record(ProbeResult::Failure);
            return self.not_running(target, status, &state);
        };
        let is_readiness = target.kind == ProbeKind::Readiness;
        if target.pod.is_deleted() && !is_readiness {
            self.record(ProbeResult::Success);
            return Next::End;
        }
        let delay = target.probe().and_then(|probe| probe.initial_delay_seconds);
        let ran =
            running.started_at.as_ref().map(|since| now.duration_since(whole_second(since.0)));
        if ran.is_some_and(|ran| ran.as_secs() < i64::from(delay.unwrap_or_default())) {
            return Next::Wait;
        }
        // The startup probe keeps ticking in case the container is restarted.
        if started == (target.kind == ProbeKind::Startup) {
            return Next::Wait;
        }
        Next::Run
    }

    /// Another container: its results are reset. A container that an earlier agent started gets no result yet, because a failure
    /// would make a ready container unready.
    fn begin(&mut self, target: &Target, id: &str, state: &ContainerState, started: bool) {
        id.clone_into(&mut self.seen);
        self.recorded = None;
        self.on_hold = false;
        if started && target.kind == ProbeKind::Startup && target.is_sidecar() {
            self.record(ProbeResult::Success);
        }
        let since = state.running.as_ref().and_then(|running| running.started_at.as_ref());
        let is_older = since.is_some_and(|since| {
            whole_second(since.0).duration_until(target.agent_started_at) > RESTART_GRACE
        });
        if !is_older {
            self.record(target.kind.initial());
        }
    }

    fn not_running(&self, target: &Target, status: &PodStatus, state: &ContainerState) -> Next {
        let Some(exit) = &state.terminated else {
            return Next::Wait;
        };
        let again = restart::policy_allows(&target.pod, &target.container, exit.exit_code)
            || restart::restarts_all_reported(&target.pod, status);
        if again { Next::Wait } else { Next::End }
    }

    /// Records the outcome of a check: success or failure. Do not call it for a check that could not be made.
    pub fn finish(&mut self, target: &Target, succeeded: bool) {
        let result = if succeeded { ProbeResult::Success } else { ProbeResult::Failure };
        self.run = if self.last == Some(result) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(result);
        let threshold = target.probe().and_then(|probe| {
            if succeeded { probe.success_threshold } else { probe.failure_threshold }
        });
        if i64::from(self.run) < i64::from(threshold.unwrap_or_default()) {
            return;
        }
        self.record(result);
        let is_fatal = target.kind == ProbeKind::Liveness && !succeeded;
        if is_fatal || target.kind == ProbeKind::Startup {
            self.on_hold = true;
            self.run = 0;
        }
    }
}

/// The container's status and its id, once it has one.
fn status_of<'a>(status: &'a PodStatus, name: &str) -> Option<(&'a ContainerStatus, &'a str)> {
    let with_id = |statuses: &'a Option<Vec<ContainerStatus>>| {
        let found = statuses.iter().flatten().find(|status| status.name == name)?;
        let id = found.container_id.as_deref().filter(|id| !id.is_empty())?;
        Some((found, id))
    };
    with_id(&status.container_statuses).or_else(|| with_id(&status.init_container_statuses))
}

/// Times in a status of the kubelet are whole seconds.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
