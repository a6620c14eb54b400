//! ◆ What a StatefulSet wants: pods with numbers, one after the other. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/statefulset/stateful_set_control.go.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::StatefulSetSpec;

use super::owned::{Action, OwnedPod, Plan, earlier};

/// What to do for `replicas` pods, which is the spec's number unless the set is to end.
pub fn plan(spec: &StatefulSetSpec, replicas: u32, pods: &[OwnedPod], now: Timestamp) -> Plan {
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    let start = u32::try_from(start.unwrap_or_default()).unwrap_or_default();
    let end = start.saturating_add(replicas);
    let is_ordered = spec.pod_management_policy.as_deref() != Some("Parallel");
    let settle = SignedDuration::from_secs(i64::from(spec.min_ready_seconds.unwrap_or_default()));
    let (mut actions, mut again) = (Vec::new(), None);
    for ordinal in start..end {
        let own = pods.iter().find(|pod| pod.index == Some(ordinal));
        let is_available = match own {
            None => {
                actions.push(Action::Create(Some(ordinal)));
                false
            }
            // Its successor has the same name, so it waits until this one is gone.
            Some(pod) if pod.is_deleted => false,
            Some(pod) if pod.ended.is_some() => {
                actions.push(Action::Delete(pod.pod.uid().clone(), "replaced"));
                false
            }
            Some(pod) => match pod
                .ready_since
                .and_then(|since| since.checked_add(settle).ok())
            {
                Some(at) if at <= now => true,
                Some(at) => {
                    again = earlier(again, Some(at));
                    false
                }
                None => false,
            },
        };
        if is_ordered && !is_available {
            return Plan::open(actions, again);
        }
    }
    let mut surplus: Vec<&OwnedPod> = pods
        .iter()
        .filter(|pod| {
            pod.index
                .is_some_and(|index| !(start..end).contains(&index))
        })
        .collect();
    surplus.sort_by_key(|pod| std::cmp::Reverse(pod.index));
    for pod in surplus {
        if !pod.is_deleted {
            actions.push(Action::Delete(pod.pod.uid().clone(), "scaled down"));
        }
        // The next one ends when this one is gone.
        if is_ordered {
            break;
        }
    }
    Plan::open(actions, again)
}
