//! ◆ Plans a StatefulSet: numbered pods, one after the other. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/statefulset/stateful_set_control.go.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::StatefulSetSpec;

use super::owned::{Action, OwnedPod, Plan, earlier};
use super::replica_set::Failures;

/// Plans `replicas` pods, which is the spec's number unless the set is ending. Ended pods are deleted immediately and replaced
/// after the back-off of `failures`, at most `capacity` of them now.
pub fn plan(
    spec: &StatefulSetSpec,
    replicas: u32,
    pods: &[OwnedPod],
    failures: Failures,
    capacity: usize,
    now: Timestamp,
) -> Plan {
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    let start = u32::try_from(start.unwrap_or_default()).unwrap_or_default();
    let end = start.saturating_add(replicas);
    let is_ordered = spec.pod_management_policy.as_deref() != Some("Parallel");
    let settle = SignedDuration::from_secs(i64::from(spec.min_ready_seconds.unwrap_or_default()));
    let until = failures.until(now);
    let capacity = if until.is_none() { capacity } else { 0 };
    let own: BTreeMap<u32, &OwnedPod> = pods
        .iter()
        .filter_map(|pod| Some((pod.index?, pod)))
        .filter(|(index, _)| (start..end).contains(index))
        .collect();
    // At most as many ordinals without a pod are created as there is capacity for: `replicas` may be any number.
    let missing = usize::try_from(end - start).unwrap_or(usize::MAX) - own.len();
    let created: Vec<u32> = (start..end)
        .filter(|ordinal| !own.contains_key(ordinal))
        .take(if is_ordered { 1 } else { missing.min(capacity) })
        .collect();
    let unplaced = if until.is_none() { missing.saturating_sub(capacity) } else { 0 };
    let (mut actions, mut again) = (Vec::new(), until.filter(|_| missing > 0));
    let open = |actions, again| Plan { unplaced, ..Plan::open(actions, again) };
    let mut ordinals: Vec<u32> = own.keys().copied().chain(created).collect();
    ordinals.sort_unstable();
    for ordinal in ordinals {
        let is_available = match own.get(&ordinal) {
            None => {
                if capacity > 0 {
                    actions.push(Action::Create(Some(ordinal)));
                }
                false
            }
            // Its successor has the same name, so it waits until this pod is removed.
            Some(pod) if pod.is_deleted => false,
            Some(pod) if pod.ended.is_some() => {
                actions.push(pod.delete("replaced"));
                false
            }
            Some(pod) => match pod.ready_since.and_then(|since| since.checked_add(settle).ok()) {
                Some(at) if at <= now => true,
                Some(at) => {
                    again = earlier(again, Some(at));
                    false
                }
                None => false,
            },
        };
        if is_ordered && !is_available {
            return open(actions, again);
        }
    }
    let mut surplus: Vec<&OwnedPod> = pods
        .iter()
        .filter(|pod| pod.index.is_some_and(|index| !(start..end).contains(&index)))
        .collect();
    surplus.sort_by_key(|pod| std::cmp::Reverse(pod.index));
    for pod in surplus {
        if !pod.is_deleted {
            actions.push(pod.delete("scaled down"));
        }
        // The next pod ends once this one is removed.
        if is_ordered {
            break;
        }
    }
    open(actions, again)
}
