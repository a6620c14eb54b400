//! ◆ Decides the next actions for a pod from its observed state, without side effects.
//!
//! The executor processes a [`PodPlan`] in this order: `stops`, `stop_sandboxes`, `resets`, `removes`, `sandbox`,
//! `start_ephemeral`, `start_init`, `resize`, `start_apps` (Kubernetes 1.36, kubelet SyncPod).

mod apps;
pub mod effects;
pub mod holds;
mod init;
pub mod resize;
pub mod restart;
mod sandbox;
mod schedule;
pub(crate) mod stop;
pub mod terminate;

use std::fmt;
use std::sync::Arc;

use api::pod::{ContainerKind, Pod};
use jiff::{SignedDuration, Timestamp};

use crate::decide::backoff::Backoff;
use crate::decide::plan::restart::RuleAction;
use crate::decide::resize::actuated::{Actuated, CpuMemory};
use crate::observed::{ContainerId, Observed, SandboxId};

pub use holds::{HoldKey, Holds};
pub use resize::Resize;
pub(crate) use schedule::backoff_key;
pub use stop::{Stop, end_pod};

/// State of a pod that the runtime does not report, owned by the pod's worker.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Restart series of the pod's containers.
    pub backoff: Backoff,
    /// Actions that are deferred because they failed or had no effect.
    pub holds: Holds,
    /// Whether a RestartAllContainers rule has fired and the reset is not complete.
    pub restart_all: bool,
    /// The CPU and memory last actuated at the runtime; `None`: those of the pod's spec.
    pub actuated: Option<Arc<Actuated>>,
}

impl History {
    /// Records that `start` is executed at `now`, which starts the crash back-off.
    /// Call it for every executed start, before the image is pulled.
    pub fn started(&mut self, start: &Start, now: Timestamp) {
        if let Some(ended_at) = start.previous_end {
            self.backoff.started(&start.backoff_key, ended_at, now);
        }
    }
}

/// The next actions for a pod, each with its reason.
#[must_use = "a plan does nothing until it is carried out"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// Why every container and sandbox of the pod is stopped first; `None` if not.
    pub kill_pod: Option<String>,
    /// The sandbox to use.
    pub sandbox: SandboxStep,
    /// Containers to stop individually.
    pub kills: Vec<Kill>,
    /// The stops that carry out `kill_pod` or `kills`, in order. If a stop fails, nothing else is done.
    pub stops: Vec<Stop>,
    /// The sandboxes to stop afterwards, if the whole pod is stopped.
    pub stop_sandboxes: Vec<SandboxId>,
    /// Containers to remove from the runtime, in order, because the whole pod restarts.
    pub resets: Vec<Reset>,
    /// Exited init containers to remove before the next attempt is created.
    pub removes: Vec<ContainerId>,
    /// Ephemeral containers to start.
    pub start_ephemeral: Vec<Start>,
    /// Init containers to start, in order; if one that is not a sidecar fails, the following ones are not started.
    pub start_init: Vec<Start>,
    /// Running containers whose CPU and memory change.
    pub resize: Option<Resize>,
    /// App containers to start, one after the other.
    pub start_apps: Vec<Start>,
    /// Why there is nothing to do; `None` if there is.
    pub idle: Option<String>,
    /// Every app container has exited and none will be restarted: terminate the pod.
    pub finished: bool,
}

impl PodPlan {
    /// All starts in execution order.
    pub fn starts(&self) -> impl Iterator<Item = &Start> {
        self.start_ephemeral.iter().chain(&self.start_init).chain(&self.start_apps)
    }

    /// The containers to remove.
    pub fn removed(&self) -> impl Iterator<Item = &ContainerId> {
        let resets = self.resets.iter().map(|reset| &reset.id);
        self.removes.iter().chain(resets)
    }

    /// Whether there is anything to do now; delayed starts do not count.
    pub fn does_something(&self) -> bool {
        self.kill_pod.is_some()
            || matches!(self.sandbox, SandboxStep::Create { .. })
            || !(self.kills.is_empty() && self.resets.is_empty())
            || self.resize.is_some()
            || self.starts().any(|start| start.when == When::Now)
    }

    /// The earliest time of a delayed start.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.starts()
            .filter_map(|start| match &start.when {
                When::Now => None,
                When::Wait { until, .. } => Some(*until),
            })
            .min()
    }
}

/// The sandbox to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxStep {
    /// Keep the present sandbox.
    Keep {
        /// Its id.
        id: SandboxId,
        /// Its attempt number.
        attempt: u32,
    },
    /// Create a new sandbox.
    Create {
        /// Its attempt number.
        attempt: u32,
        /// The sandbox that it replaces, if any.
        replaces: Option<SandboxId>,
        /// Why the pod needs a new one.
        reason: String,
    },
    /// No sandbox: no container of the pod should run any more.
    None {
        /// The newest observed sandbox, dead or about to be killed.
        last: Option<SandboxId>,
        /// The attempt number of the next sandbox.
        attempt: u32,
    },
}

impl Default for SandboxStep {
    fn default() -> Self {
        Self::None { last: None, attempt: 0 }
    }
}

/// One container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The container's id.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// The reason, which determines the grace period and the events.
    pub reason: KillReason,
    /// The reason as a sentence.
    pub message: String,
    /// Whether it is restarted (the same name is in a start list).
    pub restarts: bool,
}

/// Why a single container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its spec changed.
    DefinitionChanged,
    /// Its liveness probe failed.
    LivenessProbe,
    /// Its startup probe failed.
    StartupProbe,
    /// Its state is unknown.
    Unknown,
    /// Its postStart hook failed.
    FailedPostStartHook,
    /// A RestartAllContainers rule fired.
    RestartAllContainers,
    /// The pod terminates.
    PodEnds,
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DefinitionChanged | Self::PodEnds => "",
            Self::LivenessProbe => "LivenessProbe",
            Self::StartupProbe => "StartupProbe",
            Self::Unknown => "Unknown",
            Self::FailedPostStartHook => "FailedPostStartHook",
            Self::RestartAllContainers => "RestartAllContainers",
        })
    }
}

/// A container to remove when the whole pod restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The container's id.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// It is still running: stop it first, without a grace period.
    pub kill: bool,
    /// How to stop it.
    pub stop: Option<Stop>,
}

/// One container to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its name in the spec.
    pub name: String,
    /// Its list in the spec.
    pub kind: ContainerKind,
    /// Restart count (and attempt number) of the new container; `None`: the runtime has no earlier attempt, so
    /// derive it from the log files `<n>.log` of earlier attempts, or use 0.
    pub restart_count: Option<u32>,
    /// When it may start.
    pub when: When,
    /// The reason for the start.
    pub reason: String,
    /// When the newest exited attempt exited: the crash back-off is counted from there.
    pub previous_end: Option<Timestamp>,
    /// The key of its restart series in [`History::backoff`].
    pub backoff_key: String,
    /// Its image.
    pub image: String,
    /// When to pull the image (`imagePullPolicy`).
    pub pull_policy: Option<String>,
    /// The container whose process namespace an ephemeral container joins.
    pub target: Option<ProcessTarget>,
    /// The starts that its failure prevents.
    pub blocks: Blocks,
}

/// The target of an ephemeral container (`targetContainerName`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessTarget {
    /// The newest container of this name, whatever its state.
    Container(ContainerId),
    /// The runtime has no container of this name: there is no namespace to join.
    Missing(String),
}

/// The starts that the failure of a start prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Nothing.
    Nothing,
    /// Every later start: the container is an init container, not a sidecar.
    LaterStarts,
}

/// When a container may start.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// Now.
    Now,
    /// After its crash back-off, or when a failed start is retried.
    Wait {
        /// The earliest time of the start.
        until: Timestamp,
        /// The recorded delay.
        delay: SignedDuration,
        /// The kubelet's message for the waiting state `CrashLoopBackOff`; empty if a failed start is retried.
        message: String,
    },
}

/// Plans the next actions for `pod`, which should run.
///
/// Pure: the same arguments yield the same plan. Agrees with `computePodActions` of Kubernetes 1.36.2, as
/// docs/kubelet-parity.md shows.
pub fn plan(pod: &Pod, observed: &Observed, history: &History, now: Timestamp) -> PodPlan {
    if history.restart_all {
        return plan_reset(pod, observed, history, now);
    }
    let seen = sandbox::look(pod, observed);
    let mut choice = match seen.change {
        Some(reason) => sandbox::start_over(pod, observed, &seen, reason),
        None => work_in_sandbox(pod, observed, &seen, history.actuated.as_deref()),
    };
    choice.drop_deferred(&history.holds, now);
    schedule::schedule(pod, observed, history, now, choice)
}

/// The start of the named container if it were chosen now; its recorded back-off decides when it may start. `None` if the pod has
/// no such container.
pub fn start_of(
    pod: &Pod,
    observed: &Observed,
    history: &History,
    now: Timestamp,
    name: &str,
) -> Option<Start> {
    let (kind, container) = pod.container(name)?;
    Some(schedule::start(pod, observed, history, now, kind, container, "requested"))
}

/// Whether the pod needs a new sandbox before any container can start.
pub fn needs_sandbox(pod: &Pod, observed: &Observed) -> bool {
    sandbox::look(pod, observed).change.is_some()
}

/// The sandbox is usable: plan its containers.
fn work_in_sandbox(
    pod: &Pod,
    observed: &Observed,
    seen: &sandbox::Seen,
    actuated: Option<&Actuated>,
) -> Choice {
    let mut choice = Choice::with(seen.step());
    choice.ephemeral = pod
        .ephemeral_containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| observed.container(&container.name).is_none())
        .map(|(index, _)| Pick::new(index, "an ephemeral container starts once"))
        .collect();

    let init = init::decide(pod, observed, actuated);
    choice.kills.extend(init.kills);
    choice.init = init.start;
    if let Some(reason) = init.failed_for_good {
        choice.kill_pod = Some(reason);
        return choice;
    }
    choice.resize = init.resize;
    if !init.initialized {
        choice.waits_for = init.waits_for;
        return choice;
    }

    let apps = apps::decide(pod, observed, actuated, &mut choice.resize);
    choice.resize.of_pod = actuated.is_some_and(|now| now.pod != CpuMemory::of_pod(pod));
    choice.kills.extend(apps.kills);
    if apps.kept == 0 && apps.start.is_empty() {
        // Sidecars must not keep a pod alive in which no other container will run.
        choice.init.clear();
        choice.resize = Resize::default();
        choice.kill_pod = Some("no app container is running or will be restarted".to_owned());
    } else if apps.kept > 0 {
        choice.waits_for = Some("its containers are running".to_owned());
    }
    choice.apps = apps.start;
    choice
}

/// The chosen actions, before the starts are scheduled.
#[derive(Debug, Default)]
struct Choice {
    kill_pod: Option<String>,
    sandbox: SandboxStep,
    kills: Vec<Kill>,
    ephemeral: Vec<Pick>,
    init: Vec<Pick>,
    resize: Resize,
    apps: Vec<Pick>,
    waits_for: Option<String>,
}

impl Choice {
    fn with(sandbox: SandboxStep) -> Self {
        Self { sandbox, ..Self::default() }
    }

    /// Removes the deferred actions. Deferred starts are handled when the start is scheduled.
    fn drop_deferred(&mut self, holds: &Holds, now: Timestamp) {
        let ends = self.kill_pod.is_some() && !matches!(self.sandbox, SandboxStep::Create { .. });
        if !ends && holds.until(&HoldKey::Pod, now).is_some() {
            *self = Self {
                kills: std::mem::take(&mut self.kills),
                waits_for: Some("an action on the pod failed and is repeated later".to_owned()),
                ..Self::default()
            };
        }
        if holds.until(&HoldKey::Resize, now).is_some() {
            self.resize = Resize::default();
        }
        self.kills.retain(|kill| !holds.holds_container(&kill.id, now));
    }
}

/// A container chosen to be started: its index in its list of the spec, and why.
#[derive(Clone, Debug)]
struct Pick {
    index: usize,
    reason: String,
}

impl Pick {
    fn new(index: usize, reason: impl Into<String>) -> Self {
        Self { index, reason: reason.into() }
    }
}

// Restarts the whole pod after a RestartAllContainers rule fired: its containers are removed, then created again.
//
// Source: Kubernetes 1.36, gate RestartAllContainersOnContainerExits (on by default).

/// Removes every attempt of every app and init container. Containers whose exit fired the rule are removed last, because until then
/// they are the record of the cause.
fn plan_reset(pod: &Pod, observed: &Observed, history: &History, now: Timestamp) -> PodPlan {
    let seen = sandbox::look(pod, observed);
    let mut resets = Vec::new();
    let mut causes = Vec::new();
    for container in pod.containers().iter().chain(pod.init_containers()) {
        for seen in observed.containers.iter().filter(|seen| seen.name == container.name) {
            let exit = seen.state.exit();
            let fired = exit.and_then(|exit| restart::matched_rule(container, exit.code));
            let list = match fired {
                Some((_, RuleAction::RestartAllContainers)) => &mut causes,
                Some((_, RuleAction::Restart)) | None => &mut resets,
            };
            let plan = || {
                let reason = KillReason::RestartAllContainers;
                terminate::stop_one(pod, &seen.id, &seen.name, reason, Some(0))
            };
            list.push(Reset {
                id: seen.id.clone(),
                name: seen.name.clone(),
                kill: exit.is_none(),
                stop: exit.is_none().then(|| Stop { plan: plan(), message: "killing".to_owned() }),
            });
        }
    }
    resets.append(&mut causes);
    let held = history.holds.until(&HoldKey::Pod, now).is_some()
        || resets.iter().any(|reset| history.holds.holds_container(&reset.id, now));
    if held {
        return PodPlan {
            idle: Some("an action on the pod failed and is repeated later".to_owned()),
            ..PodPlan::default()
        };
    }
    let kill_pod = seen.change.map(str::to_owned);
    let (stops, stop_sandboxes) = stop::stops(pod, observed, kill_pod.is_some(), &[]);
    PodPlan { kill_pod, sandbox: seen.step(), stops, stop_sandboxes, resets, ..PodPlan::default() }
}
