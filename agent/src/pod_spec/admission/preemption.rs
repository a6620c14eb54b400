//! ◆ Which pods are preempted for a critical pod if the node lacks resources for it.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/preemption/preemption.go, pkg/kubelet/types/pod_update.go. Guaranteed pods are chosen as if
//! all others were evicted, burstable ones as if the best-effort ones and the chosen guaranteed ones were, and so on: few pods are
//! evicted, and those of the lowest QoS class first.

use api::pod::{Pod, PodUid};
use api::qos::{QosClass, qos_class};

use super::Rejection;
use super::admitted::request;
use super::resources::Shortage;

/// A pod of at least this priority is critical (Kubernetes 1.36, pkg/apis/scheduling/types.go).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// The annotation of mirror pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The amount of a resource that must still be freed.
#[derive(Clone, Debug)]
struct Requirement {
    resource: String,
    amount: i64,
}

/// Whether other pods may be preempted for the pod.
pub(super) fn is_critical(pod: &Pod) -> bool {
    pod.is_static()
        || pod.annotations().any(|(key, _)| key == MIRROR)
        || pod.spec().priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

fn is_preemptable(other: &Pod, pod: &Pod) -> bool {
    let higher = pod.spec().priority.zip(other.spec().priority);
    (is_critical(pod) && !is_critical(other)) || higher.is_some_and(|(own, other)| own > other)
}

/// The pods that are evicted for a critical pod.
///
/// # Errors
///
/// If the pods that may be evicted do not free enough.
pub(super) fn victims(
    pod: &Pod,
    others: &[&Pod],
    shortages: &[Shortage],
) -> Result<Vec<PodUid>, Rejection> {
    let of_class = |class: QosClass| -> Vec<&Pod> {
        let class =
            others.iter().filter(|other| is_preemptable(other, pod) && qos_class(other) == class);
        class.copied().collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);

    let all: Vec<Requirement> = shortages.iter().map(Requirement::of).collect();
    let weak = [best_effort.as_slice(), &burstable].concat();
    let left = without(&all, &[weak.as_slice(), &guaranteed].concat());
    if !left.is_empty() {
        return Err(no_victims(&left));
    }
    let guaranteed = nearest(guaranteed, without(&all, &weak))?;
    let others = [best_effort.as_slice(), &guaranteed].concat();
    let burstable = nearest(burstable, without(&all, &others))?;
    let others = [burstable.as_slice(), &guaranteed].concat();
    let best_effort = nearest(best_effort, without(&all, &others))?;
    let victims = [best_effort, burstable, guaranteed].concat();
    Ok(victims.iter().map(|victim| victim.uid().clone()).collect())
}

/// Chooses pods that meet the requirements: repeatedly the one that leaves the smallest distance, or else the smaller one.
fn nearest(mut pods: Vec<&Pod>, mut left: Vec<Requirement>) -> Result<Vec<&Pod>, Rejection> {
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, pod) in pods.iter().enumerate() {
            let distance = distance(&left, pod);
            let is_better = best.is_none_or(|(at, least)| {
                distance < least || (distance <= least && is_smaller(pod, pods[at]))
            });
            if is_better {
                best = Some((index, distance));
            }
        }
        let Some((index, _)) = best else {
            return Err(no_victims(&left));
        };
        let pod = pods.swap_remove(index);
        left = without(&left, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The distance to the requirements if a pod is evicted: the squares of the fractions that are left, added up.
#[expect(clippy::cast_precision_loss, reason = "a kubelet compares the same fractions")]
fn distance(requirements: &[Requirement], pod: &Pod) -> f64 {
    let part = |requirement: &Requirement| {
        let left = requirement.amount - request(pod, &requirement.resource);
        (left > 0).then(|| (left as f64 / requirement.amount as f64).powi(2))
    };
    requirements.iter().filter_map(part).sum()
}

/// The requirements that are left without these pods.
fn without(requirements: &[Requirement], pods: &[&Pod]) -> Vec<Requirement> {
    let left = |requirement: &Requirement| {
        let freed = pods.iter().map(|pod| request(pod, &requirement.resource));
        let amount = freed.fold(requirement.amount, i64::saturating_sub);
        (amount > 0).then(|| Requirement { amount, ..requirement.clone() })
    };
    requirements.iter().filter_map(left).collect()
}

/// Whether the first pod requests less memory, or as much and less CPU. Of equal pods the first counts as smaller.
fn is_smaller(pod: &Pod, other: &Pod) -> bool {
    let amounts = |pod: &Pod| (request(pod, "memory"), request(pod, "cpu"));
    amounts(pod) <= amounts(other)
}

fn no_victims(left: &[Requirement]) -> Rejection {
    let left: String =
        left.iter().map(|left| format!("(res: {}, q: {}), ", left.resource, left.amount)).collect();
    Rejection::new(
        "UnexpectedAdmissionError",
        format!(
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to \
             preempt: no set of running pods found to reclaim resources: [{left}]"
        ),
    )
}

impl Requirement {
    fn of(shortage: &Shortage) -> Self {
        Self { resource: shortage.resource.clone(), amount: shortage.lacking() }
    }
}

#[cfg(test)]
mod tests;
