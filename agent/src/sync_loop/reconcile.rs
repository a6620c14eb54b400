//! ◆ Decides which workers to start and update, from the sources' pods, the present workers, and the runtime's pods.

use std::collections::{BTreeMap, BTreeSet};

use crate::cri::PodRef;
use crate::pod::{Pod, PodUid};

/// The last update sent to a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerState {
    /// The worker's pod.
    pub(crate) pod: PodRef,
    /// The pod it was last told to run; `None` once it was told to terminate, and for orphans.
    pub(crate) desired: Option<Pod>,
}

/// A message for one worker, with its cause.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WorkerAction {
    /// Start a worker for a new pod.
    Start(Pod),
    /// Update a worker's pod.
    Update(Pod),
    /// Terminate a worker's pod.
    Terminate(PodUid, &'static str),
    /// Start a worker that terminates an orphaned pod.
    StartOrphan(PodRef),
}

/// The pods of all sources without duplicates, in the order of the sources and of their lists.
pub(crate) fn desired_pods(sources: &[Option<Vec<Pod>>]) -> Vec<Pod> {
    let mut seen = BTreeSet::new();
    sources
        .iter()
        .flatten()
        .flatten()
        .filter(|pod| seen.insert(pod.uid().clone()))
        .cloned()
        .collect()
}

/// Compares the desired pods with the workers. A pod waits while a live pod has its name or its worker is terminating.
pub(crate) fn reconcile(
    desired: &[Pod],
    workers: &BTreeMap<PodUid, WorkerState>,
) -> Vec<WorkerAction> {
    let mut actions = Vec::new();
    let uids: BTreeSet<&PodUid> = desired.iter().map(Pod::uid).collect();
    for (uid, worker) in workers {
        if worker.desired.is_some() && !uids.contains(uid) {
            actions.push(WorkerAction::Terminate(
                uid.clone(),
                "removed from its source",
            ));
        }
    }
    let mut names: BTreeSet<(&str, &str)> = workers
        .values()
        .map(|worker| (worker.pod.namespace.as_str(), worker.pod.name.as_str()))
        .collect();
    for pod in desired {
        match workers.get(pod.uid()) {
            Some(WorkerState {
                desired: Some(current),
                ..
            }) if current != pod => actions.push(WorkerAction::Update(pod.clone())),
            Some(_) => {}
            None => {
                if names.insert((pod.namespace(), pod.name())) {
                    actions.push(WorkerAction::Start(pod.clone()));
                }
            }
        }
    }
    actions
}

/// Finds pods of the runtime that neither a source nor a worker has. Call it only after every
/// source's first update, and with a listing that is newer than the last pod's removal.
pub(crate) fn orphans<'a>(
    runtime: impl IntoIterator<Item = &'a PodRef>,
    desired: &[Pod],
    workers: &BTreeMap<PodUid, WorkerState>,
) -> Vec<WorkerAction> {
    let uids: BTreeSet<&PodUid> = desired.iter().map(Pod::uid).collect();
    let orphan = |of: &&PodRef| !uids.contains(&of.uid) && !workers.contains_key(&of.uid);
    runtime
        .into_iter()
        .filter(orphan)
        .map(|of| WorkerAction::StartOrphan(of.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, name: &str, image: &str) -> Pod {
        let container = json!({"name": "app", "image": image});
        let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": {"containers": [container]}});
        Pod::new(serde_json::from_value(pod).unwrap())
    }

    fn pod_ref(uid: &str, name: &str) -> PodRef {
        PodRef {
            uid: PodUid::new(uid),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }
    }

    /// Workers by uid and name, each with the image of its desired pod; `None` for one that is terminating.
    fn workers(list: &[(&str, &str, Option<&str>)]) -> BTreeMap<PodUid, WorkerState> {
        let known = |(uid, name, image): &(&str, &str, Option<&str>)| {
            (
                PodUid::new(*uid),
                WorkerState {
                    pod: pod_ref(uid, name),
                    desired: image.map(|image| pod(uid, name, image)),
                },
            )
        };
        list.iter().map(known).collect()
    }

    fn shown(actions: &[WorkerAction]) -> Vec<String> {
        let show = |action: &WorkerAction| match action {
            WorkerAction::Start(pod) => format!("start {}", pod.uid()),
            WorkerAction::Update(pod) => format!("update {}", pod.uid()),
            WorkerAction::Terminate(uid, _) => format!("end {uid}"),
            WorkerAction::StartOrphan(of) => format!("orphan {}", of.uid),
        };
        actions.iter().map(show).collect()
    }

    #[test]
    fn reconcile_starts_updates_and_terminates() {
        let desired = [
            pod("u1", "a", "one"),
            pod("u2", "b", "two"),
            pod("u3", "c", "three"),
        ];
        let workers = workers(&[
            ("u1", "a", Some("one")),
            ("u2", "b", Some("old")),
            ("u9", "z", Some("x")),
        ]);
        assert_eq!(
            shown(&reconcile(&desired, &workers)),
            ["end u9", "update u2", "start u3"]
        );
        assert_eq!(
            shown(&reconcile(&[], &self::workers(&[]))),
            Vec::<String>::new()
        );
    }

    #[test]
    fn terminating_pod_gets_no_update_and_restarts_when_gone() {
        let desired = [pod("u1", "a", "new")];
        assert_eq!(
            shown(&reconcile(&desired, &workers(&[("u1", "a", None)]))),
            Vec::<String>::new()
        );
        assert_eq!(
            shown(&reconcile(&[], &workers(&[("u1", "a", None)]))),
            Vec::<String>::new()
        );
        assert_eq!(shown(&reconcile(&desired, &workers(&[]))), ["start u1"]);
    }

    #[test]
    fn pods_of_same_name_run_one_at_a_time() {
        let desired = [pod("u2", "a", "new")];
        assert_eq!(
            shown(&reconcile(&desired, &workers(&[("u1", "a", Some("old"))]))),
            ["end u1"]
        );
        assert_eq!(
            shown(&reconcile(&desired, &workers(&[("u1", "a", None)]))),
            Vec::<String>::new()
        );
        let twins = [pod("u1", "a", "x"), pod("u2", "a", "x")];
        assert_eq!(shown(&reconcile(&twins, &workers(&[]))), ["start u1"]);
    }

    #[test]
    fn pods_without_source_and_worker_are_orphans() {
        let runtime = [pod_ref("u1", "a"), pod_ref("u2", "b"), pod_ref("u3", "c")];
        let workers = workers(&[("u2", "b", None)]);
        assert_eq!(
            shown(&orphans(&runtime, &[pod("u1", "a", "x")], &workers)),
            ["orphan u3"]
        );
    }

    #[test]
    fn first_source_wins_for_same_uid() {
        let sources = [
            Some(vec![pod("u1", "a", "first")]),
            None,
            Some(vec![pod("u1", "a", "second"), pod("u2", "b", "x")]),
        ];
        let merged = desired_pods(&sources);
        assert_eq!(
            merged
                .iter()
                .map(|pod| pod.uid().as_str())
                .collect::<Vec<_>>(),
            ["u1", "u2"]
        );
        assert_eq!(merged[0].containers()[0].image.as_deref(), Some("first"));
    }
}
