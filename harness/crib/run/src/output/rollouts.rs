//! ◆ The progress of changed workloads until their rollouts are complete. Pure; it remembers what was printed.

use api::manifest::Workload;
use compact::{Map, Set};
use crib_base::columns::fields::number;
use crib_base::waiting;
use jiff::Timestamp;
use serde_json::Value;

use crate::snapshot::{PodEnd, PodSnapshot, RunSnapshot};

/// The workloads that a change of the manifests may have changed.
#[derive(Debug, Default)]
pub(crate) struct Rollouts {
    /// The last printed progress, by full name.
    all: Map<String, Option<Progress>>,
}

/// The progress of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Progress {
    wanted: i64,
    /// Pods that are not terminating, including old ones.
    replicas: i64,
    updated: i64,
    ready: i64,
    /// Terminating pods.
    ending: Set<String>,
    /// Other pods that are not ready, each with its STATUS.
    unready: Set<String>,
}

impl Progress {
    /// `None` for a kind without rollouts.
    fn of(workload: &Workload, status: &Value, pods: &[&PodSnapshot]) -> Option<Self> {
        let count = |field: &str| number(status, &format!("/{field}"));
        let object = workload.json();
        let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        let [wanted, replicas, updated, ready] = match workload.kind().1 {
            "Deployment" | "StatefulSet" => {
                [replicas, count("replicas"), count("updatedReplicas"), count("readyReplicas")]
            }
            // These kinds do not replace their pods.
            "ReplicaSet" | "ReplicationController" => {
                [replicas, count("replicas"), count("replicas"), count("readyReplicas")]
            }
            "DaemonSet" => [
                count("desiredNumberScheduled"),
                count("currentNumberScheduled"),
                count("updatedNumberScheduled"),
                count("numberReady"),
            ],
            _ => return None,
        };
        let ends = |pod: &&&PodSnapshot| matches!(pod.end, PodEnd::Ending(_));
        let ending = pods.iter().filter(ends).map(|pod| pod.full_name());
        let is_unready = |pod: &&&PodSnapshot| pod.summary.ready < pod.summary.containers;
        let unready = pods.iter().filter(|pod| !ends(pod)).filter(is_unready);
        let unready = unready.map(|pod| format!("{} ({})", pod.full_name(), pod.status()));
        let (ending, unready) = (ending.collect(), unready.collect());
        Some(Self { wanted, replicas, updated, ready, ending, unready })
    }

    fn is_complete(&self) -> bool {
        let has_all = self.updated >= self.wanted && self.ready >= self.wanted;
        has_all
            && self.replicas <= self.updated
            && self.ending.is_empty()
            && self.unready.is_empty()
    }

    fn sentence(&self, name: &str, pods: &[&PodSnapshot], now: Timestamp) -> String {
        let Self { wanted, updated, ready, .. } = self;
        let counts = format!("{name}: {updated} of {wanted} pods updated, {ready} ready");
        let ending: Vec<(String, Timestamp)> = pods
            .iter()
            .filter_map(|pod| match pod.end {
                PodEnd::Ending(until) => Some((pod.full_name(), until)),
                PodEnd::None | PodEnd::Stopped => None,
            })
            .collect();
        let ending = ending.iter().map(|(name, until)| (name.as_str(), *until));
        match (waiting::sentence(ending, now), self.unready.first()) {
            _ if self.is_complete() => format!("{counts}: rolled out"),
            (Some(waits), _) => format!("{counts}, {waits} to end"),
            (None, Some(pod)) => format!("{counts}, waiting for pod {pod} to be ready"),
            (None, None) => counts,
        }
    }
}

impl Rollouts {
    /// Starts to follow these workloads, which may have changed.
    pub(crate) fn begin(&mut self, names: Set<String>) {
        self.all = names.into_iter().map(|name| (name, None)).collect();
    }

    /// Whether all rollouts are complete.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A message for each workload whose progress has changed since the last message. `owner` returns the name of a pod's workload.
    pub(crate) fn on_statuses<'w>(
        &mut self,
        statuses: impl Iterator<Item = (&'w Workload, Value)>,
        snapshot: &RunSnapshot,
        owner: impl Fn(&PodSnapshot) -> Option<String>,
        now: Timestamp,
    ) -> Vec<String> {
        let mut pods: Map<String, Vec<&PodSnapshot>> = Map::new();
        for pod in &snapshot.pods {
            if let Some(name) = owner(pod) {
                pods.entry(name).or_default().push(pod);
            }
        }
        let (mut lines, mut before) = (Vec::new(), std::mem::take(&mut self.all));
        for (workload, status) in statuses {
            let name = workload.full_name();
            let Some(last) = before.remove(&name) else {
                continue;
            };
            let own = pods.remove(&name).unwrap_or_default();
            let Some(progress) = Progress::of(workload, &status, &own) else {
                continue;
            };
            // An unchanged workload is complete from the start, so it needs no message.
            let is_new = last.as_ref() != Some(&progress);
            if is_new && (last.is_some() || !progress.is_complete()) {
                lines.push(progress.sentence(&name, &own, now));
            }
            if !progress.is_complete() {
                self.all.insert(name, Some(progress));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::manifest::{Strictness, parse};
    use serde_json::json;

    use super::*;

    /// A pod of the Deployment with a STATUS; a terminating pod has 9 s left.
    fn pod(name: &str, status: &str) -> Arc<PodSnapshot> {
        let end = (status == "Terminating").then_some("1970-01-01T00:00:09Z");
        let (phase, ready) = match status {
            "Running" | "Terminating" => ("Running", true),
            _ => ("Pending", false),
        };
        Arc::new(PodSnapshot::of(&json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "deletionTimestamp": end},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": phase, "containerStatuses": [{
                "name": "c", "ready": ready,
                "state": if ready { json!({"running": {}}) } else { json!({"waiting": {"reason": status}}) },
            }]},
        })))
    }

    #[test]
    fn rollout_is_reported_step_by_step_until_complete() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 2\n  \
                    selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    \
                    spec: {containers: [{name: c, image: i}]}\n";
        let workload = parse("m.yaml", text, Strictness::Strict).workloads.remove(0);
        let mut rollouts = Rollouts::default();
        let mut progress = |updated: i64, ready: i64, pods: &[(&str, &str)]| {
            let replicas = pods.iter().filter(|(_, status)| *status != "Terminating").count();
            let status = json!({
                "replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready,
            });
            let pods = pods.iter().map(|(name, status)| pod(name, status)).collect();
            let snapshot = RunSnapshot { pods, ..RunSnapshot::default() };
            let owner = |_: &PodSnapshot| Some("deployment default/web".to_owned());
            let statuses = std::iter::once((&workload, status));
            if updated < 0 {
                rollouts.begin(Set::from(["deployment default/web".to_owned()]));
                return vec![];
            }
            rollouts.on_statuses(statuses, &snapshot, owner, Timestamp::UNIX_EPOCH)
        };
        let done = [("a", "Running"), ("b", "Running")];
        assert_eq!(progress(0, 2, &done), Vec::<String>::new(), "nothing has begun");
        progress(-1, 0, &[]);
        let creating = [("a", "Running"), ("b", "Running"), ("c", "ContainerCreating")];
        assert_eq!(
            progress(1, 2, &creating),
            [
                "deployment default/web: 1 of 2 pods updated, 2 ready, waiting for pod default/c (ContainerCreating) to be ready"
            ]
        );
        assert_eq!(progress(1, 2, &creating), Vec::<String>::new(), "it was told");
        let both = [("a", "Running"), ("b", "Running"), ("c", "Running")];
        let old = progress(2, 3, &both);
        assert_eq!(old, ["deployment default/web: 2 of 2 pods updated, 3 ready"]);
        let ending = [("a", "Terminating"), ("b", "Running"), ("c", "Running")];
        assert_eq!(
            progress(2, 2, &ending),
            [
                "deployment default/web: 2 of 2 pods updated, 2 ready, waiting for pod default/a (9 s left) to end"
            ]
        );
        assert_eq!(
            progress(2, 2, &done),
            ["deployment default/web: 2 of 2 pods updated, 2 ready: rolled out"]
        );
        assert_eq!(progress(0, 0, &done), Vec::<String>::new(), "it is complete");
    }
}
