//! ◆ Compares the published statuses of an agent with those of a kubelet, independently of the moment of the pods' removal.
//!
//! A restarting pod is at some point of its sequence when it is removed, and retries have a jitter. So both sides must go through
//! the same statuses: the last status of one side may be one that the other side had within the tolerance of a retry before, and
//! crib's pod must have had every status that the kubelet's pod had for some time.

use serde_json::{Value, json};

use crate::comparison::difference::{self, Difference};

/// A published status, in its normal form.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) at: f64,
    pub(crate) status: Value,
}

/// The statuses of one pod until it was removed.
pub(crate) struct Histories<'a> {
    pub(crate) pod: &'a str,
    pub(crate) kubelet: &'a [Entry],
    pub(crate) crib: &'a [Entry],
    /// When the pod was removed on each side.
    pub(crate) removed_at: (f64, f64),
}

/// The minimum duration, in seconds, of a status that crib's pod must have, too. A container with a shorter runtime may exit before
/// it is observed.
const LASTING: f64 = 2.0;
/// How much earlier or later than the kubelet's a status may come, in seconds.
const DIRECT: f64 = 2.0;
/// The same for a status after a retry, and an additional share of the time that it waited.
const RETRY: (f64, f64) = (6.0, 0.2);

impl Histories<'_> {
    /// Every difference.
    pub(crate) fn differences(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        let Some(wanted) = self.kubelet.last() else {
            return found;
        };
        let nothing = Value::Null;
        let ours = self.crib.last().map_or(&nothing, |entry| &entry.status);
        let Some(reached) = self.reached(&wanted.status, ours) else {
            // A differing field is more informative than another point of the sequence.
            let alike =
                |entry: &&Entry| entry.status != *ours && outline(&entry.status) == outline(ours);
            let wanted = self.kubelet.iter().rfind(alike).unwrap_or(wanted);
            difference::values("status", self.pod, &wanted.status, ours, &mut found);
            return found;
        };
        for (index, entry) in self.kubelet.iter().enumerate().take(reached) {
            let until = self.kubelet[index + 1].at;
            let had = self.crib.iter().any(|ours| ours.status == entry.status);
            if had || until - entry.at < LASTING || self.looked_once_more(index) {
                continue;
            }
            let place = format!("{} at {:.1}", self.pod, entry.at);
            let nearest = self.nearest(entry);
            difference::values("history", &place, &entry.status, nearest, &mut found);
        }
        found
    }

    /// How far crib's pod came in the kubelet's sequence; `None` if its last status is not compatible with the kubelet's.
    fn reached(&self, wanted: &Value, ours: &Value) -> Option<usize> {
        let end = self.kubelet.len() - 1;
        if wanted == ours {
            return Some(end);
        }
        let behind = (0..end).rev().find(|index| {
            self.kubelet[*index].status == *ours
                && may_differ(self.kubelet, *index, self.removed_at.0)
        });
        let is_ahead = || {
            let last = self.crib.len().saturating_sub(1);
            let mut earlier = (0..last).rev();
            earlier.any(|index| {
                self.crib[index].status == *wanted
                    && may_differ(self.crib, index, self.removed_at.1)
            })
        };
        behind.or_else(|| is_ahead().then_some(end))
    }

    /// Whether the kubelet's status only adds that a container waits for its retry, and crib's pod was not synced again to report
    /// that. Whether a kubelet syncs again is a race between its events and its pod worker.
    fn looked_once_more(&self, index: usize) -> bool {
        let entry = &self.kubelet[index].status;
        let Some(before) = index.checked_sub(1).map(|at| &self.kubelet[at].status) else {
            return false;
        };
        let is_like = |status: &Value| {
            restarts(status) == restarts(entry) && running(status) == running(entry)
        };
        let mut ours = self.crib.iter().map(|ours| &ours.status);
        waits_for_retry(entry)
            && is_like(before)
            && ours.clone().any(|ours| ours == before)
            && !ours.any(|ours| is_like(ours) && waits_for_retry(ours))
    }

    /// The status of crib's pod that is most similar to one of the kubelet's.
    fn nearest(&self, entry: &Entry) -> &Value {
        let alike = |ours: &&Entry| outline(&ours.status) == outline(&entry.status);
        let in_lap = |ours: &&Entry| restarts(&ours.status) == restarts(&entry.status);
        let mut ours = self.crib.iter();
        let alike = ours.clone().find(alike).or_else(|| ours.rfind(in_lap));
        alike.or(self.crib.last()).map_or(&Value::Null, |ours| &ours.status)
    }
}

/// Whether the other side may have stopped at this status, or may have gone beyond it.
fn may_differ(entries: &[Entry], index: usize, removed_at: f64) -> bool {
    let (entry, last) = (&entries[index], &entries[entries.len() - 1]);
    let until = entries[index + 1].at;
    let passed = removed_at - until;
    // The time of the next sync decides about the waiting reason of a container that waits for a retry.
    let waits = restarts(&entry.status) == restarts(&last.status)
        && is_retried(&last.status)
        && running(&entry.status) == running(&last.status);
    let retried = is_retried(&entry.status) || is_retried(&last.status);
    let tolerance = match retried {
        true => RETRY.0 + RETRY.1 * (until - entry.at),
        false => DIRECT,
    };
    waits || passed <= tolerance
}

/// The statuses of all containers.
pub(crate) fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    lists.into_iter().filter_map(|list| status[list].as_array()).flatten()
}

fn restarts(status: &Value) -> Vec<&Value> {
    containers(status).map(|container| &container["restartCount"]).collect()
}

fn running(status: &Value) -> Vec<bool> {
    containers(status).map(|container| container["state"]["running"].is_object()).collect()
}

/// Whether a container has been restarted, or waits after a failure.
fn is_retried(status: &Value) -> bool {
    containers(status).any(is_restarted) || waits_for_retry(status)
}

/// Whether a container waits after a failure.
fn waits_for_retry(status: &Value) -> bool {
    containers(status).any(|container| {
        let reason = &container["state"]["waiting"]["reason"];
        let begins = ["ContainerCreating", "PodInitializing"].map(Value::from);
        reason.is_string() && !begins.contains(reason)
    })
}

/// Whether a container has been restarted, by its status.
pub(crate) fn is_restarted(container: &Value) -> bool {
    container["restartCount"].as_u64() > Some(0)
}

/// The essential state of a pod: its phase, and the state, reason, restart count and readiness of each container.
pub(crate) fn outline(status: &Value) -> Value {
    let containers: Vec<Value> = containers(status)
        .map(|container| {
            let state = container["state"].as_object();
            let (kind, inner) = state.and_then(|state| state.iter().next()).unzip();
            json!([
                container["name"],
                kind,
                inner.map(|inner| &inner["reason"]),
                container["restartCount"],
                container["ready"],
            ])
        })
        .collect();
    json!([status["phase"], containers])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status of a pod with one container: its state, its reason, and its restarts.
    fn entry(at: f64, state: &str, reason: &str, restarts: u64) -> Entry {
        let container =
            json!({"name": "c", "state": {state: {"reason": reason}}, "restartCount": restarts});
        let status = json!({"phase": "Running", "containerStatuses": [container]});
        Entry { at, status }
    }

    fn differences(kubelet: &[Entry], crib: &[Entry], removed_at: f64) -> Vec<String> {
        let histories = Histories { pod: "p", kubelet, crib, removed_at: (removed_at, removed_at) };
        let found = histories.differences();
        found.iter().map(|found| format!("{} {}", found.kind, found.place)).collect()
    }

    fn loops(waits: &str) -> Vec<Entry> {
        vec![
            entry(0.0, "running", "", 0),
            entry(1.0, "terminated", "Error", 0),
            entry(1.1, "running", "", 1),
            entry(2.0, "terminated", "Error", 1),
            entry(5.0, "waiting", waits, 1),
            entry(12.0, "running", "", 2),
            entry(13.0, "terminated", "Error", 2),
        ]
    }

    #[test]
    fn pods_that_restart_agree_at_any_point_of_the_same_sequence() {
        let kubelet = loops("CrashLoopBackOff");
        // Removed at 14: crib's restart is late by the tolerance of a retry.
        assert!(differences(&kubelet, &kubelet[..5], 14.0).is_empty());
        assert!(differences(&kubelet[..5], &kubelet, 14.0).is_empty());
        assert!(differences(&kubelet, &kubelet, 14.0).is_empty());
        // It may or may not have been synced again since it ended.
        assert!(differences(&kubelet[..5], &kubelet[..4], 100.0).is_empty());
        let stuck = differences(&kubelet, &kubelet[..5], 40.0);
        assert!(!stuck.is_empty(), "it never restarts");
    }

    #[test]
    fn kubelet_may_look_once_more_at_a_container_that_waits() {
        let kubelet = loops("CrashLoopBackOff");
        let mut crib = kubelet.clone();
        crib.remove(4);
        assert!(differences(&kubelet, &crib, 14.0).is_empty());
        crib.remove(3);
        assert!(!differences(&kubelet, &crib, 14.0).is_empty());
    }

    #[test]
    fn status_that_only_one_side_has_is_a_difference() {
        let (kubelet, crib) = (loops("CrashLoopBackOff"), loops("Error"));
        let place = "p at 5.0.containerStatuses[0].state.waiting.reason";
        assert_eq!(differences(&kubelet, &crib, 14.0), [format!("history {place}")]);
        let place = "status p.containerStatuses[0].state.waiting.reason";
        assert_eq!(differences(&kubelet[..5], &crib[..5], 14.0), [place]);
        assert!(!differences(&kubelet, &[], 14.0).is_empty());
    }

    #[test]
    fn pod_without_restart_reaches_same_state_as_with_kubelet() {
        let kubelet = [entry(0.0, "waiting", "ContainerCreating", 0), entry(1.0, "running", "", 0)];
        assert!(differences(&kubelet, &kubelet[..1], 2.0).is_empty());
        assert!(!differences(&kubelet, &kubelet[..1], 4.0).is_empty());
    }
}
