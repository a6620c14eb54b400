//! ◆ Decides which workers to start and update, from the sources' pods and the current workers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use compact::Map;
use jiff::Timestamp;

use crate::cri::PodRef;
use crate::source::REMOVED;
use crate::source::merge::{DuplicatePod, DuplicatePolicy, reject_duplicates};

/// The last update sent to a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerState {
    /// The worker's pod.
    pub(crate) pod: PodRef,
    /// The pod of its last update; `None` after an update to terminate, and for orphans.
    pub(crate) desired: Option<Pod>,
    /// Which other pods with the same namespace and name must wait for it.
    pub(crate) name: Name,
}

impl WorkerState {
    /// The state of a worker that was just started.
    pub(crate) fn of(pod: &Pod, pod_ref: PodRef) -> Self {
        Self { pod: pod_ref, desired: Some(pod.clone()), name: Name::of(pod) }
    }

    /// The state of a worker for the rest of a pod that no source has.
    pub(crate) fn orphan(pod: PodRef) -> Self {
        Self { pod, desired: None, name: Name::Shared }
    }
}

/// How a pod shares its namespace and name with others (Kubernetes 1.36, pkg/kubelet/pod_workers.go allowPodStart).
///
/// | pod | another pod with its name | the pod starts |
/// |---|---|---|
/// | of an API server | has not ended | immediately |
/// | static | static, has not ended | if that has ended at the next attempt, 10 to 15 s later, and so on |
/// | static | static, has ended | immediately |
/// | of another source | has anything left | when nothing of the other is left |
/// | any | an orphan | immediately |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Pods of an API server, and orphans.
    Shared,
    /// Static pods.
    Static,
    /// Pods of a source that a kubelet does not have.
    Exclusive,
}

impl Name {
    fn of(pod: &Pod) -> Self {
        match pod.source() {
            Some("api") => Self::Shared,
            Some(_) => Self::Static,
            None => Self::Exclusive,
        }
    }
}

/// How long a pod without a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartWait {
    /// Until the next attempt at this time.
    Until(Timestamp),
    /// Until the next housekeeping, because its earlier worker has ended.
    Housekeeping,
}

/// A message for one worker, with its cause.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WorkerAction {
    /// Start a worker for a new pod.
    Start(Pod),
    /// Try later to start a worker for a new pod.
    TryLater(PodUid),
    /// Update a worker's pod.
    Update(Pod),
    /// Terminate a worker's pod.
    Terminate(PodUid, &'static str),
}

/// The pods of all sources without duplicates, and the pods that are rejected because an earlier one has the same namespace and
/// name. They are in the order of the sources and of their lists; those that an API server created are sorted by creation
/// (Kubernetes 1.36, pkg/kubelet, HandlePodAdditions), then by name, so that a restarted agent admits the same ones.
pub(crate) fn desired_pods(sources: &[Option<Arc<[Pod]>>]) -> (Vec<Pod>, Vec<DuplicatePod>) {
    let mut seen = HashSet::new();
    let pods = sources
        .iter()
        .flatten()
        .flat_map(|pods| pods.iter())
        .filter(|pod| seen.insert(pod.uid()))
        .cloned()
        .collect();
    let (mut pods, duplicates) = reject_duplicates(pods, DuplicatePolicy::First);
    compact::sort_by(&mut pods, |one, other| created(one).cmp(&created(other)));
    (pods, duplicates)
}

fn created(pod: &Pod) -> Option<(Timestamp, &str, &str)> {
    let at = pod.api().metadata.creation_timestamp.as_ref()?;
    Some((at.0, pod.namespace(), pod.name()))
}

/// Compares the desired pods with the workers. `finished` are the pods of which nothing runs any more, `waiting` the desired pods
/// whose start is deferred.
pub(crate) fn reconcile(
    desired: &[Pod],
    workers: &Map<&PodUid, &WorkerState>,
    finished: impl Fn(&PodUid) -> bool,
    waiting: &Map<PodUid, StartWait>,
    now: Timestamp,
) -> Vec<WorkerAction> {
    let mut actions = Vec::new();
    let uids: HashSet<&PodUid> = desired.iter().map(Pod::uid).collect();
    for (uid, worker) in workers {
        if worker.desired.is_some() && !uids.contains(uid) {
            actions.push(WorkerAction::Terminate((*uid).clone(), REMOVED));
        }
    }
    // Usually one pod among a thousand is new: only the names of new pods are looked up.
    let new = desired.iter().filter(|pod| !workers.contains_key(pod.uid()));
    let mut names: HashMap<(&str, &str), Vec<(&PodUid, Name)>> =
        new.map(|pod| ((pod.namespace(), pod.name()), Vec::new())).collect();
    if !names.is_empty() {
        for worker in workers.values() {
            let of = &worker.pod;
            if let Some(named) = names.get_mut(&(of.namespace.as_str(), of.name.as_str())) {
                named.push((&of.uid, worker.name));
            }
        }
    }
    for pod in desired {
        match workers.get(pod.uid()) {
            Some(WorkerState { desired: Some(current), .. }) if current != pod => {
                actions.push(WorkerAction::Update(pod.clone()))
            }
            Some(_) => {}
            None => {
                let is_deferred = match waiting.get(pod.uid()) {
                    Some(StartWait::Until(until)) => now < *until,
                    Some(StartWait::Housekeeping) => true,
                    None => false,
                };
                if is_deferred {
                    continue;
                }
                let others = names.get(&(pod.namespace(), pod.name()));
                let mut others = others.into_iter().flatten();
                match Name::of(pod) {
                    Name::Static
                        if others.any(|(uid, name)| *name == Name::Static && !finished(uid)) =>
                    {
                        actions.push(WorkerAction::TryLater(pod.uid().clone()));
                    }
                    Name::Exclusive if others.any(|(_, name)| *name != Name::Shared) => {}
                    Name::Shared | Name::Static | Name::Exclusive => {
                        actions.push(WorkerAction::Start(pod.clone()));
                    }
                }
            }
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, pod_ref};

    fn pod(uid: &str, name: &str, image: &str) -> Pod {
        let container = json!({"name": "app", "image": image});
        fixtures::pod_of(uid, name, json!({"containers": [container]}))
    }

    /// Workers by uid and name, each with the image of its desired pod; `None` for one that is terminating.
    fn workers(list: &[(&str, &str, Option<&str>)]) -> Map<PodUid, WorkerState> {
        workers_of(Name::Exclusive, list)
    }

    fn workers_of(name_of: Name, list: &[(&str, &str, Option<&str>)]) -> Map<PodUid, WorkerState> {
        let known = |(uid, name, image): &(&str, &str, Option<&str>)| {
            (
                PodUid::new(*uid),
                WorkerState {
                    pod: pod_ref(uid, name),
                    desired: image.map(|image| pod(uid, name, image)),
                    name: name_of,
                },
            )
        };
        list.iter().map(known).collect()
    }

    fn refs(workers: &Map<PodUid, WorkerState>) -> Map<&PodUid, &WorkerState> {
        workers.iter().collect()
    }

    fn from(source: &str, pod: &Pod) -> Pod {
        let mut api = pod.api().clone();
        let annotations = api.metadata.annotations.get_or_insert_default();
        annotations.insert("kubernetes.io/config.source".to_owned(), source.to_owned());
        Pod::new(api)
    }

    fn shown(actions: &[WorkerAction]) -> Vec<String> {
        let show = |action: &WorkerAction| match action {
            WorkerAction::Start(pod) => format!("start {}", pod.uid()),
            WorkerAction::TryLater(uid) => format!("later {uid}"),
            WorkerAction::Update(pod) => format!("update {}", pod.uid()),
            WorkerAction::Terminate(uid, _) => format!("end {uid}"),
        };
        actions.iter().map(show).collect()
    }

    fn reconcile(desired: &[Pod], workers: &Map<PodUid, WorkerState>) -> Vec<String> {
        let waiting = Map::new();
        let now = Timestamp::UNIX_EPOCH;
        shown(&super::reconcile(desired, &refs(workers), |_| false, &waiting, now))
    }

    #[test]
    fn reconcile_starts_updates_and_terminates() {
        let desired = [pod("u1", "a", "one"), pod("u2", "b", "two"), pod("u3", "c", "three")];
        let workers =
            workers(&[("u1", "a", Some("one")), ("u2", "b", Some("old")), ("u9", "z", Some("x"))]);
        assert_eq!(reconcile(&desired, &workers), ["end u9", "update u2", "start u3"]);
        assert_eq!(reconcile(&[], &self::workers(&[])), Vec::<String>::new());
    }

    #[test]
    fn terminating_pod_is_not_updated_and_restarts_after_removal() {
        let desired = [pod("u1", "a", "new")];
        let ending = workers(&[("u1", "a", None)]);
        assert_eq!(reconcile(&desired, &ending), Vec::<String>::new());
        assert_eq!(reconcile(&[], &ending), Vec::<String>::new());
        assert_eq!(reconcile(&desired, &workers(&[])), ["start u1"]);
    }

    #[test]
    fn pods_of_same_name_wait_by_their_source() {
        let api = from("api", &pod("u2", "a", "new"));
        let file = from("file", &pod("u2", "a", "new"));
        let own = pod("u2", "a", "new");
        // The pod, the worker with its name, whether that worker's pod has ended, and the actions.
        let table = [
            (&api, Some(Name::Shared), false, "start u2"),
            (&api, Some(Name::Static), false, "start u2"),
            (&file, None, false, "start u2"),
            (&file, Some(Name::Shared), false, "start u2"),
            (&file, Some(Name::Static), false, "later u2"),
            (&file, Some(Name::Static), true, "start u2"),
            (&own, None, false, "start u2"),
            (&own, Some(Name::Shared), false, "start u2"),
            (&own, Some(Name::Exclusive), false, ""),
            (&own, Some(Name::Exclusive), true, ""),
        ];
        for (pod, other, ended, expected) in table {
            let workers =
                other.map_or_else(Map::new, |name| workers_of(name, &[("u1", "a", None)]));
            let waiting = Map::new();
            let actions = super::reconcile(
                std::slice::from_ref(pod),
                &refs(&workers),
                |_| ended,
                &waiting,
                Timestamp::UNIX_EPOCH,
            );
            assert_eq!(shown(&actions).concat(), expected, "{pod:?} {other:?}");
        }
        let workers = workers(&[("u1", "a", Some("old"))]);
        assert_eq!(reconcile(&[own], &workers), ["end u1"]);
    }

    #[test]
    fn deferred_pod_start_is_retried_at_its_time() {
        let desired = [from("file", &pod("u2", "a", "new"))];
        let second = |second| Timestamp::from_second(second).unwrap();
        let holds = workers_of(Name::Static, &[("u1", "a", None)]);
        let free = Map::new();
        let until = StartWait::Until(second(10));
        let table = [
            (until, 9, &free, ""),
            (until, 10, &free, "start u2"),
            (until, 9, &holds, ""),
            (until, 10, &holds, "later u2"),
            (StartWait::Housekeeping, 99, &free, ""),
        ];
        for (wait, now, workers, expected) in table {
            let waiting = Map::from([(PodUid::new("u2"), wait)]);
            let now = second(now);
            let actions = super::reconcile(&desired, &refs(workers), |_| false, &waiting, now);
            assert_eq!(shown(&actions).concat(), expected, "{wait:?} {now}");
        }
    }

    #[test]
    fn first_source_wins_for_same_uid() {
        let sources = [
            Some(Arc::from([pod("u1", "a", "first")])),
            None,
            Some(Arc::from([pod("u1", "a", "second"), pod("u2", "b", "x")])),
        ];
        let (merged, rejected) = desired_pods(&sources);
        assert_eq!(merged.iter().map(|pod| pod.uid().as_str()).collect::<Vec<_>>(), ["u1", "u2"]);
        assert_eq!(merged[0].containers()[0].image.as_deref(), Some("first"));
        assert_eq!(rejected, []);
    }

    #[test]
    fn pods_of_an_api_server_are_in_the_order_of_their_creation() {
        let created = |uid: &str, name: &str, at: Option<&str>| {
            let mut api = pod(uid, name, "x").api().clone();
            let at = at.map(|at| json!(format!("2026-11-28T10:00:{at}Z")));
            api.metadata.creation_timestamp = serde_json::from_value(at.into()).unwrap();
            Pod::new(api)
        };
        let pods = [
            created("u1", "late", Some("01")),
            created("u2", "b", Some("00")),
            created("u3", "z", None),
            created("u4", "a", Some("00")),
            created("u5", "y", None),
        ];
        let (merged, _) = desired_pods(&[Some(Arc::from(pods))]);
        let uids: Vec<&str> = merged.iter().map(|pod| pod.uid().as_str()).collect();
        assert_eq!(uids, ["u3", "u5", "u4", "u2", "u1"]);
    }

    #[test]
    fn second_pod_of_a_name_is_rejected_over_all_sources() {
        let sources = [
            Some(Arc::from([pod("u1", "a", "x").with_origin("pods/a.yaml")])),
            Some(Arc::from([pod("u2", "a", "x").with_origin("http://h/pods")])),
        ];
        let (merged, rejected) = desired_pods(&sources);
        assert_eq!(merged.len(), 1);
        assert_eq!(
            rejected[0].to_string(),
            "http://h/pods: pod default/a is also defined in pods/a.yaml, which is run instead"
        );
    }
}
