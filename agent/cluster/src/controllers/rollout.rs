//! ◆ Plans how a changed Deployment, DaemonSet or StatefulSet replaces the pods of its earlier template. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/deployment/rolling.go and util/deployment_util.go, pkg/controller/daemon/update.go,
//! pkg/controller/statefulset/stateful_set_control.go.

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSetSpec, DeploymentSpec, StatefulSetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::owned::{Action, OwnedPod, Plan};
use super::replica_set::{self, Failures};

/// Why a pod is deleted.
const ROLLED: &str = "replaced by a pod of the changed template";

/// How many more and how many fewer pods than desired may exist during a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RolloutLimits {
    surge: usize,
    unavailable: usize,
}

/// Plans `wanted` pods of a Deployment with pods of an earlier template, at most `capacity` new ones now; `revision` is the current
/// template's. `None` without such pods: then the plan is that of its ReplicaSet.
pub fn deployment(
    spec: &DeploymentSpec,
    wanted: usize,
    revision: &str,
    pods: &[OwnedPod],
    failures: Failures,
    capacity: usize,
    now: Timestamp,
) -> Option<Plan> {
    let (new, old): (Vec<&OwnedPod>, Vec<&OwnedPod>) =
        pods.iter().partition(|pod| pod.revision == revision);
    if old.is_empty() {
        return None;
    }
    let ended = pods.iter().filter(|pod| pod.ended.is_some() && !pod.is_deleted);
    let mut actions: Vec<Action> = ended.map(delete).collect();
    let (active_new, active_old) = (active(&new), active(&old));
    let strategy = spec.strategy.as_ref();
    let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
    if kind == Some("Recreate") {
        actions.extend(active_old.into_iter().map(delete));
        // New pods start once nothing of the old ones is left.
        return Some(Plan::open(actions, None));
    }
    let available_at = |pod: &OwnedPod| pod.available_at(spec.min_ready_seconds);
    let is_available = |pod: &OwnedPod| available_at(pod).is_some_and(|at| at <= now);
    let available_new = active_new.iter().filter(|pod| is_available(pod)).count();
    let (healthy, unhealthy): (Vec<&OwnedPod>, Vec<&OwnedPod>) =
        active_old.iter().partition(|pod| is_available(pod));

    let limits = limits(spec, wanted);
    let all = active_new.len() + active_old.len();
    let most = (wanted + limits.surge).saturating_sub(all);
    let missing = wanted.saturating_sub(active_new.len()).min(most);
    let least = wanted.saturating_sub(limits.unavailable);
    // Unavailable pods are deleted first, except new ones that may become available.
    let unavailable_new = active_new.len() - available_new;
    let surplus = all.saturating_sub(least + unavailable_new);
    let cleaned = unhealthy.len().min(surplus);
    actions.extend(unhealthy.into_iter().take(cleaned).map(delete));
    let spare = (available_new + healthy.len()).saturating_sub(least);
    let spare = spare.min(surplus - cleaned);
    actions.extend(healthy.into_iter().take(spare).map(delete));
    // The Deployment may have been scaled down in the meantime.
    let excess = active_new.len().saturating_sub(wanted);
    actions.extend(active_new.into_iter().rev().take(excess).map(delete));

    Some(replica_set::create(actions, missing, failures, capacity, now))
}

/// The pod of a DaemonSet's earlier template, which ends before the next one starts.
pub fn daemon_set(spec: &DaemonSetSpec, revision: &str, pods: &[OwnedPod]) -> Option<Plan> {
    let strategy = spec.update_strategy.as_ref();
    if strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete")) {
        return None;
    }
    let mut old = pods.iter().filter(|pod| pod.revision != revision);
    old.clone().next()?;
    let actions = old.by_ref().filter(|pod| !pod.is_deleted).map(delete);
    Some(Plan::open(actions.collect(), None))
}

/// The next pod of a StatefulSet's earlier template: the one with the highest ordinal, if all others are ready.
pub fn stateful_set(spec: &StatefulSetSpec, revision: &str, pods: &[OwnedPod]) -> Option<Plan> {
    let strategy = spec.update_strategy.as_ref();
    if strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete")) {
        return None;
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition);
    let partition = u32::try_from(partition.unwrap_or_default()).unwrap_or_default();
    let mut own: Vec<&OwnedPod> = pods.iter().collect();
    own.sort_by_key(|pod| std::cmp::Reverse(pod.index));
    for pod in own {
        if pod.index.is_none_or(|index| index < partition) {
            return None;
        }
        if pod.revision != revision && pod.is_active() {
            return Some(Plan::open(vec![delete(pod)], None));
        }
        // One after the other: this pod must be removed, and its successor ready.
        if !pod.is_active() || pod.ready_since.is_none() {
            return None;
        }
    }
    None
}

fn active<'a>(pods: &[&'a OwnedPod]) -> Vec<&'a OwnedPod> {
    let active = pods.iter().filter(|pod| pod.is_active());
    active.copied().collect()
}

fn delete(pod: &OwnedPod) -> Action {
    pod.delete(ROLLED)
}

/// The maximum number of unavailable pods of a Deployment with `wanted` pods.
pub(super) fn max_unavailable(spec: &DeploymentSpec, wanted: usize) -> usize {
    let kind = spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    match kind == Some("Recreate") || wanted == 0 {
        true => 0,
        false => limits(spec, wanted).unavailable,
    }
}

/// The maximum number of pods of a Deployment beyond `wanted`.
pub(super) fn max_surge(spec: &DeploymentSpec, wanted: usize) -> usize {
    let kind = spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    match kind == Some("Recreate") || wanted == 0 {
        true => 0,
        false => limits(spec, wanted).surge,
    }
}

fn limits(spec: &DeploymentSpec, wanted: usize) -> RolloutLimits {
    let strategy = spec.strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let surge = amount(surge, wanted, |part| part.div_ceil(100));
    let unavailable = amount(unavailable, wanted, |part| part / 100).min(wanted);
    // If both were zero, nothing could ever be replaced.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    RolloutLimits { surge, unavailable }
}

/// A number of pods; 25% of `wanted` by default. `divide` rounds hundredths.
fn amount(value: Option<&IntOrString>, wanted: usize, divide: fn(usize) -> usize) -> usize {
    match value {
        Some(IntOrString::Int(number)) => usize::try_from(*number).unwrap_or_default(),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
            divide(wanted.saturating_mul(percent.unwrap_or(25)))
        }
        None => divide(wanted.saturating_mul(25)),
    }
}
