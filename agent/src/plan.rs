//! The heart of the agent: what has to be done next for a pod, decided from what was seen, without doing any of it.
//!
//! The order in which an executor walks a [`PodPlan`]: `kill_pod`, `kills`, `resets`, `removes`, `sandbox`,
//! `start_ephemeral`, `start_init`, `start_apps` (Kubernetes 1.36, kubelet SyncPod).

mod apps;
mod init;
mod reset;
pub mod restart;
mod sandbox;
mod schedule;
pub mod terminate;

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::backoff::Backoff;
use crate::observed::{ContainerId, Observed, SandboxId};
use crate::pod::{ContainerKind, Pod};

/// What the agent remembers of a pod beside what it sees: owned by the pod's worker.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Restart series of the pod's containers.
    pub backoff: Backoff,
    /// A RestartAllContainers rule has fired and the containers are still to be reset.
    pub restart_all: bool,
}

impl History {
    /// Records that `start` is being carried out at `now`: this is what makes the next crash wait.
    /// Call it for every start that is carried out, before the image is pulled.
    pub fn started(&mut self, start: &Start, now: Timestamp) {
        if let Some(ended_at) = start.previous_end {
            self.backoff.started(&start.backoff_key, ended_at, now);
        }
    }
}

/// What to do next for one pod, with the reason for each action and for none.
#[must_use = "a plan does nothing until it is carried out"]
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlan {
    /// Stop every container and every sandbox of the pod first, and why.
    pub kill_pod: Option<String>,
    /// Which sandbox to work in.
    pub sandbox: SandboxStep,
    /// Containers to stop one by one.
    pub kills: Vec<Kill>,
    /// Containers to remove from the runtime, in order, because the whole pod starts again.
    pub resets: Vec<Reset>,
    /// Old ended init containers to remove before the next attempt is made.
    pub removes: Vec<ContainerId>,
    /// Ephemeral containers to start.
    pub start_ephemeral: Vec<Start>,
    /// Init containers to start, in order; after a failure of one that is no sidecar the following are left alone.
    pub start_init: Vec<Start>,
    /// App containers to start, together.
    pub start_apps: Vec<Start>,
    /// Why there is nothing to do, where there is nothing to do.
    pub idle: Option<String>,
    /// Every app container has ended for good and nothing will be restarted: the pod is to be ended.
    pub finished: bool,
}

impl PodPlan {
    /// All starts in the order of execution.
    pub fn starts(&self) -> impl Iterator<Item = &Start> {
        self.start_ephemeral
            .iter()
            .chain(&self.start_init)
            .chain(&self.start_apps)
    }

    /// Is there anything to do now (a start that still waits is not)?
    pub fn does_something(&self) -> bool {
        self.kill_pod.is_some()
            || matches!(self.sandbox, SandboxStep::Create { .. })
            || !(self.kills.is_empty() && self.resets.is_empty())
            || self.starts().any(|start| start.when == When::Now)
    }

    /// The first moment at which a waiting start may go.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.starts()
            .filter_map(|start| match &start.when {
                When::Now => None,
                When::Wait { until, .. } => Some(*until),
            })
            .min()
    }
}

/// Which sandbox to work in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxStep {
    /// The one there is.
    Keep {
        /// Its id.
        id: SandboxId,
        /// Its attempt number.
        attempt: u32,
    },
    /// A new one.
    Create {
        /// Its attempt number.
        attempt: u32,
        /// The one it takes the place of, if there is one.
        replaces: Option<SandboxId>,
        /// Why the pod needs a new one.
        reason: String,
    },
    /// None: nothing of the pod is to run any more.
    None {
        /// The newest one seen, dead or about to be killed.
        last: Option<SandboxId>,
        /// The attempt number that a next one would have.
        attempt: u32,
    },
}

/// One container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Which.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// Why, as far as the grace period and the events depend on it.
    pub reason: KillReason,
    /// Why, as a sentence for people.
    pub message: String,
    /// It is to be started again (the same name is in a start list).
    pub restarts: bool,
}

/// Why a single container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its definition changed.
    DefinitionChanged,
    /// Its liveness probe failed.
    LivenessProbe,
    /// Its startup probe failed.
    StartupProbe,
    /// The runtime does not know its state.
    Unknown,
    /// Its postStart hook failed.
    FailedPostStartHook,
    /// A RestartAllContainers rule fired.
    RestartAllContainers,
    /// No reason of its own: the pod ends.
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

/// One container to remove so that the pod starts afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Which.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// It still runs: stop it first, with no grace.
    pub kill: bool,
}

/// One container to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its name in the spec.
    pub name: String,
    /// In which list of the spec it is.
    pub kind: ContainerKind,
    /// Restart count (and attempt number) of the new container; `None`: nothing of it is left in the runtime, so
    /// count the log files `<n>.log` that earlier attempts left, or 0.
    pub restart_count: Option<u32>,
    /// Now, or not before some moment.
    pub when: When,
    /// Why it is started.
    pub reason: String,
    /// When the newest ended attempt ended: its crash back-off is counted from there.
    pub previous_end: Option<Timestamp>,
    /// The key of its restart series in [`History::backoff`].
    pub backoff_key: String,
}

/// When a container may start.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// Now.
    Now,
    /// After its crash back-off.
    Wait {
        /// The first moment at which it may start.
        until: Timestamp,
        /// The waiting time on record.
        delay: SignedDuration,
        /// The kubelet's message for the waiting state `CrashLoopBackOff`.
        message: String,
    },
}

/// Decides what to do next for `pod`, which is meant to run.
///
/// Pure: the same arguments give the same plan. Agrees with Kubernetes 1.36.2 `computePodActions`; what differs is
/// listed beside the vectors in `tests/vectors/`.
pub fn plan(pod: &Pod, observed: &Observed, history: &History, now: Timestamp) -> PodPlan {
    if history.restart_all {
        return reset::plan(pod, observed);
    }
    let seen = sandbox::look(pod, observed);
    let choice = match seen.change {
        Some(reason) => sandbox::start_over(pod, observed, &seen, reason),
        None => work_in_sandbox(pod, observed, &seen),
    };
    schedule::schedule(pod, observed, history, now, choice)
}

/// The start of one container of the pod by its name, if it were chosen now: what is on record decides when it may go.
/// `None`: the pod has no such container.
pub fn start_of(
    pod: &Pod,
    observed: &Observed,
    history: &History,
    now: Timestamp,
    name: &str,
) -> Option<Start> {
    let (kind, container) = pod.container(name)?;
    Some(schedule::start(
        pod,
        observed,
        history,
        now,
        kind,
        container,
        "requested",
    ))
}

/// Does the pod need a new sandbox before anything in it can be started?
pub fn needs_sandbox(pod: &Pod, observed: &Observed) -> bool {
    sandbox::look(pod, observed).change.is_some()
}

/// The sandbox is good: go on with what is in it.
fn work_in_sandbox(pod: &Pod, observed: &Observed, seen: &sandbox::Seen) -> Choice {
    let mut choice = Choice::with(seen.step());
    choice.ephemeral = pod
        .ephemeral_containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| observed.container(&container.name).is_none())
        .map(|(index, _)| Pick::new(index, "an ephemeral container starts once"))
        .collect();

    let init = init::decide(pod, observed);
    choice.kills.extend(init.kills);
    choice.init = init.start;
    if let Some(reason) = init.failed_for_good {
        choice.kill_pod = Some(reason);
        return choice;
    }
    if !init.initialized {
        choice.waits_for = init.waits_for;
        return choice;
    }

    let apps = apps::decide(pod, observed);
    choice.kills.extend(apps.kills);
    if apps.kept == 0 && apps.start.is_empty() {
        // Sidecars must not keep a pod alive in which nothing else will run.
        choice.init.clear();
        choice.kill_pod = Some("no app container is running or will be restarted".to_owned());
    } else if apps.kept > 0 {
        choice.waits_for = Some("its containers are running".to_owned());
    }
    choice.apps = apps.start;
    choice
}

/// What was chosen, before it is decided which starts have to wait.
#[derive(Debug)]
struct Choice {
    kill_pod: Option<String>,
    sandbox: SandboxStep,
    kills: Vec<Kill>,
    ephemeral: Vec<Pick>,
    init: Vec<Pick>,
    apps: Vec<Pick>,
    waits_for: Option<String>,
}

impl Choice {
    fn with(sandbox: SandboxStep) -> Self {
        Self {
            kill_pod: None,
            sandbox,
            kills: Vec::new(),
            ephemeral: Vec::new(),
            init: Vec::new(),
            apps: Vec::new(),
            waits_for: None,
        }
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
        Self {
            index,
            reason: reason.into(),
        }
    }
}
