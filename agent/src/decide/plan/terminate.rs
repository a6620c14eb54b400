//! ◆ Plans container stops: order, preStop hooks and grace periods.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/{kuberuntime_container,kuberuntime_termination_order}.go.

use api::pod::{Pod, is_sidecar};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Container;

use crate::decide::plan::KillReason;
use crate::observed::ContainerId;

/// The minimum timeout of StopContainer, in seconds, even if the grace period is used up.
pub const MIN_STOP_SECONDS: i64 = 2;

/// How to stop containers of a pod: all targets concurrently, each after those it waits for.
#[must_use = "a kill plan stops nothing until it is carried out"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillPlan {
    /// The containers, in the given order.
    pub targets: Vec<StopTarget>,
}

/// How to stop one container:
/// 1. with `pre_stop`, run the preStop hook, for at most `grace`;
/// 2. wait until every target in `waits_for` has stopped, for at most [`StopTarget::wait_limit`]; a target whose stop
///    failed has not stopped;
/// 3. StopContainer with [`StopTarget::stop_timeout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopTarget {
    /// The container's id.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// Grace period in seconds for all three steps.
    pub grace: i64,
    /// Whether to run its preStop hook.
    pub pre_stop: bool,
    /// Names of targets that must have stopped before this one.
    pub waits_for: Vec<String>,
}

impl StopTarget {
    /// How long to wait for others after a hook that took `hook`, in whole seconds like the kubelet.
    pub fn wait_limit(&self, hook: SignedDuration) -> SignedDuration {
        SignedDuration::from_secs((self.grace - hook.as_secs()).max(0))
    }

    /// The timeout of StopContainer, in seconds, after a hook that took `hook` and a wait of `waited`.
    pub fn stop_timeout(&self, hook: SignedDuration, waited: SignedDuration) -> i64 {
        (self.grace - hook.as_secs() - waited.as_secs()).max(MIN_STOP_SECONDS)
    }
}

/// Plans the termination of the whole pod: `running` are the ids and names of its running containers.
/// `grace_override` replaces the pod's grace period, in seconds (0: immediately, as on the second Ctrl-C).
///
/// App containers stop concurrently; sidecars stop after all of them, in reverse order of the spec. A container that is not in the
/// spec is no target: see [`unnamed`].
pub fn end_pod(
    pod: &Pod,
    running: &[(ContainerId, String)],
    grace_override: Option<i64>,
) -> KillPlan {
    let runs = |name: &str| running.iter().any(|(_, running)| running == name);
    let sidecars: Vec<&str> = pod
        .init_containers()
        .iter()
        .filter(|init| is_sidecar(init))
        .map(|init| init.name.as_str())
        .collect();
    let named = running.iter().filter(|(_, name)| pod.container(name).is_some());
    let targets = named.map(|(id, name)| {
        let mut target = target(pod, id, name, KillReason::PodEnds, grace_override);
        let place = sidecars.iter().position(|sidecar| sidecar == name);
        if let Some(place) = place.filter(|_| target.grace > 0) {
            // Wait only for the next sidecar of the spec, if it is running.
            let next = sidecars.get(place + 1).copied();
            let earlier = pod.containers().iter().map(|app| app.name.as_str()).chain(next);
            target.waits_for = earlier.filter(|name| runs(name)).map(str::to_owned).collect();
        }
        target
    });
    KillPlan { targets: targets.collect() }
}

/// The running containers that are not in the pod's spec. Without a spec there is neither a hook nor a grace period: a kubelet
/// counts their stop as failed, and StopPodSandbox, which stops every container of a sandbox, stops them.
pub fn unnamed<'a>(
    pod: &Pod,
    running: &'a [(ContainerId, String)],
) -> impl Iterator<Item = &'a (ContainerId, String)> {
    running.iter().filter(|(_, name)| pod.container(name).is_none())
}

/// Plans the stop of a single container of a running pod.
pub fn stop_one(
    pod: &Pod,
    id: &ContainerId,
    name: &str,
    reason: KillReason,
    grace_override: Option<i64>,
) -> KillPlan {
    KillPlan { targets: vec![target(pod, id, name, reason, grace_override)] }
}

fn target(
    pod: &Pod,
    id: &ContainerId,
    name: &str,
    reason: KillReason,
    grace_override: Option<i64>,
) -> StopTarget {
    let container = pod.container(name).map(|(_, container)| container);
    let grace = grace_override.unwrap_or_else(|| grace(pod, container, reason));
    let has_hook = container
        .and_then(|container| container.lifecycle.as_ref())
        .is_some_and(|lifecycle| lifecycle.pre_stop.is_some());
    StopTarget {
        id: id.clone(),
        name: name.to_owned(),
        grace,
        pre_stop: has_hook && grace > 0,
        waits_for: Vec::new(),
    }
}

/// The grace period: the deletion's, else the failed probe's, else the pod's.
fn grace(pod: &Pod, container: Option<&Container>, reason: KillReason) -> i64 {
    let probe = container.and_then(|container| match reason {
        KillReason::LivenessProbe => container.liveness_probe.as_ref(),
        KillReason::StartupProbe => container.startup_probe.as_ref(),
        KillReason::DefinitionChanged
        | KillReason::Unknown
        | KillReason::FailedPostStartHook
        | KillReason::RestartAllContainers
        | KillReason::PodEnds => None,
    });
    let deletion = pod.api().metadata.deletion_grace_period_seconds;
    deletion
        .or_else(|| probe.and_then(|probe| probe.termination_grace_period_seconds))
        .unwrap_or_else(|| pod.grace_seconds())
}

// The grace period of a pod's termination.
//
// Source: Kubernetes 1.36, pkg/kubelet/pod_workers.go calculateEffectiveGracePeriod.

/// The grace period in seconds: the API server's (`metadata.deletionGracePeriodSeconds`), else the pod's own. It never grows while
/// the pod terminates, and is at least 1, so that preStop hooks run even if it is 0.
#[must_use]
pub fn effective_grace(before: Option<i64>, pod: &Pod) -> i64 {
    let deletion = pod.api().metadata.deletion_grace_period_seconds;
    let grace = match (before, deletion) {
        (Some(before), Some(deletion)) => before.min(deletion),
        (Some(before), None) => before,
        (None, Some(deletion)) => deletion,
        (None, None) => pod.grace_seconds(),
    };
    grace.max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn grace_period_of_termination_shrinks_down_to_one() {
        let pod = |deletion: Option<i64>, own: Option<i64>| {
            Pod::new(
                serde_json::from_value(json!({
                    "metadata": {"name": "p", "uid": "u", "deletionGracePeriodSeconds": deletion},
                    "spec": {"containers": [], "terminationGracePeriodSeconds": own},
                }))
                .unwrap(),
            )
        };
        let table = [
            (None, None, None, 30),
            (None, None, Some(5), 5),
            (None, None, Some(0), 1),
            (None, Some(3), Some(30), 3),
            (None, Some(60), Some(30), 60),
            (None, Some(0), Some(30), 1),
            (Some(40), Some(5), Some(30), 5),
            (Some(40), Some(50), Some(30), 40),
            (Some(40), None, Some(5), 40),
        ];
        for (before, deletion, own, expected) in table {
            let grace = effective_grace(before, &pod(deletion, own));
            assert_eq!(grace, expected, "{before:?} {deletion:?} {own:?}");
        }
    }
}
