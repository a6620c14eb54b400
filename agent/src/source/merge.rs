//! ◆ Compares a source's new set of pods with its previous one: which pods are added, updated and removed.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/config/config.go.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use api::pod::{Pod, PodUid};
use compact::{Map, Set};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as ApiPod;

/// The annotation that names a pod's source.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The annotation with the time at which a pod was first seen.
const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// The annotation of mirror pods.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// The annotations that the agent sets itself; they are ignored when pods are compared.
const LOCAL: [&str; 3] = [CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR];

/// When the agent first saw a pod.
pub(crate) fn first_seen(pod: &Pod) -> Option<Timestamp> {
    pod.api().metadata.annotations.as_ref()?.get(CONFIG_SEEN)?.parse().ok()
}

/// The operation on the pods of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodOp {
    /// They are new.
    Add,
    /// They changed.
    Update,
    /// They are to be deleted gracefully (`metadata.deletionTimestamp`).
    Delete,
    /// The source no longer has them.
    Remove,
    /// Only their status changed.
    Reconcile,
}

impl fmt::Display for PodOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "ADD",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Remove => "REMOVE",
            Self::Reconcile => "RECONCILE",
        })
    }
}

/// A kind of source of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A directory or a file, of static pods.
    File,
    /// A URL, of static pods.
    Http,
    /// An API server.
    Api,
}

impl SourceKind {
    /// Its name in annotations.
    fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }

    /// A kubelet stores files by the names of their pods, where a later one replaces an earlier one.
    fn duplicate_policy(self) -> DuplicatePolicy {
        match self {
            Self::File => DuplicatePolicy::Last,
            Self::Http | Self::Api => DuplicatePolicy::First,
        }
    }
}

/// Which of several pods with the same name is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicatePolicy {
    /// The first one.
    First,
    /// The last one.
    Last,
}

/// A change of a source's pods.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceUpdate {
    /// The operation.
    pub op: PodOp,
    /// The pods; removed ones in their last version.
    pub pods: Vec<Pod>,
}

/// A pod that is rejected because another one has the same namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{rejected}: pod {pod} is also defined in {kept}, which is run instead")]
pub struct DuplicatePod {
    /// `namespace/name`.
    pub pod: String,
    /// The origin of the rejected pod.
    pub rejected: String,
    /// The origin of the pod that keeps the name.
    pub kept: String,
}

/// The pods of one source, with the annotations that a kubelet gives them.
#[derive(Debug, Default)]
pub struct SourcePods {
    /// `None` before the first set. There may be tens of thousands; each change takes them out and puts them back.
    pods: Option<BTreeMap<PodUid, Merged>>,
    /// The pods of the last set, in its order.
    order: Vec<PodUid>,
}

/// A pod of a source.
#[derive(Debug)]
struct Merged {
    /// The pod as its source last provided it.
    given: Pod,
    /// The pod with the fields that a kubelet preserves and adds.
    pod: Pod,
}

impl SourcePods {
    /// Merges the source's full set; of pods with the same name all but one are rejected. The first set always yields an update, to
    /// report that the source is ready.
    pub fn merge(
        &mut self,
        source: SourceKind,
        pods: Vec<Pod>,
        now: Timestamp,
    ) -> (Vec<SourceUpdate>, Vec<DuplicatePod>) {
        let (pods, rejected) = reject_duplicates(pods, source.duplicate_policy());
        let source = source.as_str();
        let is_first = self.pods.is_none();
        let mut before = self.pods.take().unwrap_or_default();
        let mut after = BTreeMap::new();
        let mut changes: Map<PodOp, Vec<Pod>> = Map::new();
        self.order.clear();
        for given in pods {
            let (pod, op) = match before.remove(given.uid()) {
                // Most files of a directory have not changed: their pods are not compared.
                Some(known) if known.given.is_same(&given) => (known.pod, None),
                Some(known) => update(&known.pod, &given, source),
                None => (added(&given, source, now), Some(PodOp::Add)),
            };
            if let Some(op) = op {
                changes.entry(op).or_default().push(pod.clone());
            }
            self.order.push(pod.uid().clone());
            after.insert(pod.uid().clone(), Merged { given, pod });
        }
        if !before.is_empty() {
            let removed = before.into_values().map(|known| known.pod);
            changes.insert(PodOp::Remove, removed.collect());
        }
        self.pods = Some(after);
        let order = [PodOp::Remove, PodOp::Add, PodOp::Update, PodOp::Delete, PodOp::Reconcile];
        let silent =
            !changes.keys().any(|op| matches!(op, PodOp::Add | PodOp::Update | PodOp::Delete));
        if is_first && silent {
            changes.insert(PodOp::Add, Vec::new());
        }
        let updates = order
            .into_iter()
            .filter_map(|op| {
                let pods = changes.remove(&op)?;
                Some(SourceUpdate { op, pods })
            })
            .collect();
        (updates, rejected)
    }

    /// The pods of the last set, in its order.
    #[must_use]
    pub fn pods(&self) -> Vec<Pod> {
        let pods = self.pods.as_ref();
        self.order.iter().filter_map(|uid| Some(pods?.get(uid)?.pod.clone())).collect()
    }
}

/// Keeps one pod of each namespace and name.
#[must_use]
pub fn reject_duplicates(pods: Vec<Pod>, policy: DuplicatePolicy) -> (Vec<Pod>, Vec<DuplicatePod>) {
    let mut kept: HashMap<(&str, &str), usize> = HashMap::with_capacity(pods.len());
    for (index, pod) in pods.iter().enumerate() {
        let name = (pod.namespace(), pod.name());
        match policy {
            DuplicatePolicy::First => {
                kept.entry(name).or_insert(index);
            }
            DuplicatePolicy::Last => {
                kept.insert(name, index);
            }
        }
    }
    if kept.len() == pods.len() {
        return (pods, Vec::new());
    }
    let mut rejected = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        let winner = kept.get(&(pod.namespace(), pod.name()));
        let winner = winner.filter(|winner| **winner != index);
        if let Some(winner) = winner.and_then(|winner| pods.get(*winner)) {
            rejected.push(DuplicatePod {
                pod: pod.full_name(),
                rejected: pod.origin().to_owned(),
                kept: winner.origin().to_owned(),
            });
        }
    }
    let kept: Set<usize> = kept.into_values().collect();
    let pods = pods.into_iter().enumerate();
    let accepted = pods.filter(|(index, _)| kept.contains(index)).map(|(_, pod)| pod);
    (accepted.collect(), rejected)
}

/// The maximum number of pods of a [`small_change`].
const FEW: usize = 16;

/// The range in which two sets of pods differ, before and after: mostly one pod among a thousand. `None` if it is large.
pub(crate) fn small_change<'a, 'b>(
    before: &'a [Pod],
    after: &'b [Pod],
) -> Option<(&'a [Pod], &'b [Pod])> {
    let is_same = |(one, other): &(&Pod, &Pod)| one.is_same(other);
    let head = before.iter().zip(after).take_while(is_same).count();
    let (before, rest) = (before.get(head..)?, after.get(head..)?);
    let ends = before.iter().rev().zip(rest.iter().rev());
    let tail = ends.take_while(is_same).count();
    let (before, rest) = (before.get(..before.len() - tail)?, rest.get(..rest.len() - tail)?);
    let is_small = before.len() <= FEW && rest.len() <= FEW;
    is_small.then_some((before, rest))
}

/// The duplicates that are not in `known`; sets `known` to `now`.
pub(crate) fn new_duplicates(
    known: &mut Set<DuplicatePod>,
    now: Vec<DuplicatePod>,
) -> Vec<DuplicatePod> {
    let new = now.iter().filter(|duplicate| !known.contains(duplicate)).cloned().collect();
    *known = now.into_iter().collect();
    new
}

fn with_annotations(pod: &Pod, change: impl FnOnce(&mut BTreeMap<String, String>)) -> Pod {
    let mut api = pod.api().clone();
    change(api.metadata.annotations.get_or_insert_default());
    Pod::new(api).with_origin(pod.origin())
}

/// Annotates a new pod of `source`.
fn added(pod: &Pod, source: &str, now: Timestamp) -> Pod {
    with_annotations(pod, |annotations| {
        annotations.insert(CONFIG_SOURCE.to_owned(), source.to_owned());
        annotations.insert(CONFIG_SEEN.to_owned(), now.to_string());
    })
}

/// Updates `existing` to `wanted`. Returns the result, and the operation if there is a change.
fn update(existing: &Pod, wanted: &Pod, source: &str) -> (Pod, Option<PodOp>) {
    let (old, new) = (existing.api(), wanted.api());
    if !differs(old, new) {
        if old.status == new.status {
            return (existing.clone(), None);
        }
        let mut api = old.clone();
        api.status.clone_from(&new.status);
        let pod = Pod::new(api).with_origin(wanted.origin());
        return (pod, Some(PodOp::Reconcile));
    }
    let mut api = old.clone();
    api.spec.clone_from(&new.spec);
    api.status.clone_from(&new.status);
    let (from, to) = (&new.metadata, &mut api.metadata);
    to.labels.clone_from(&from.labels);
    to.deletion_timestamp.clone_from(&from.deletion_timestamp);
    to.deletion_grace_period_seconds = from.deletion_grace_period_seconds;
    to.generation = from.generation;
    let mut annotations = from.annotations.clone().unwrap_or_default();
    annotations.insert(CONFIG_SOURCE.to_owned(), source.to_owned());
    for key in LOCAL {
        if let Some(value) = to.annotations.iter().flatten().find(|(own, _)| *own == key) {
            annotations.insert(key.to_owned(), value.1.clone());
        }
    }
    to.annotations = Some(annotations);
    let op = if from.deletion_timestamp.is_some() { PodOp::Delete } else { PodOp::Update };
    (Pod::new(api).with_origin(wanted.origin()), Some(op))
}

/// Whether two pods differ in a field that is applied to a running pod.
fn differs(old: &ApiPod, new: &ApiPod) -> bool {
    let (of, to) = (&old.metadata, &new.metadata);
    old.spec != new.spec
        || of.labels.iter().flatten().ne(to.labels.iter().flatten())
        || of.deletion_timestamp != to.deletion_timestamp
        || of.deletion_grace_period_seconds != to.deletion_grace_period_seconds
        || !own_annotations(old).eq(own_annotations(new))
}

/// The annotations of the manifest.
fn own_annotations(pod: &ApiPod) -> impl Iterator<Item = (&String, &String)> {
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| !LOCAL.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn pod(uid: &str, name: &str, image: &str) -> Pod {
        let spec = json!({"containers": [{"name": "app", "image": image}]});
        fixtures::pod_of(uid, name, spec).with_origin(&format!("{uid}.yaml"))
    }

    /// The updates as `OP uid…`.
    fn merged(source: &mut SourcePods, pods: &[Pod]) -> Vec<String> {
        let (updates, _) = source.merge(SourceKind::File, pods.to_vec(), Timestamp::UNIX_EPOCH);
        let show = |update: &SourceUpdate| {
            let uids = update.pods.iter().map(|pod| format!(" {}", pod.uid()));
            format!("{}{}", update.op, uids.collect::<String>())
        };
        updates.iter().map(show).collect()
    }

    #[test]
    fn first_set_is_an_update_even_if_empty() {
        let mut source = SourcePods::default();
        assert_eq!(merged(&mut source, &[]), ["ADD"]);
        assert_eq!(merged(&mut source, &[]), [""; 0]);
    }

    #[test]
    fn sets_are_compared_by_uid() {
        let mut source = SourcePods::default();
        let first = [pod("u1", "a", "one"), pod("u2", "b", "one")];
        assert_eq!(merged(&mut source, &first), ["ADD u1 u2"]);
        let second = [pod("u2", "b", "two"), pod("u3", "c", "one")];
        assert_eq!(merged(&mut source, &second), ["REMOVE u1", "ADD u3", "UPDATE u2"]);
        assert_eq!(merged(&mut source, &second), [""; 0]);
        let images: Vec<_> =
            source.pods().iter().map(|pod| pod.containers()[0].image.clone().unwrap()).collect();
        assert_eq!(images, ["two", "one"]);
    }

    #[test]
    fn changed_status_is_reconciled_and_deletion_is_graceful() {
        let mut source = SourcePods::default();
        let change = |change: fn(&mut ApiPod)| {
            let mut api = pod("u1", "a", "one").api().clone();
            change(&mut api);
            Pod::new(api)
        };
        let _ = merged(&mut source, &[pod("u1", "a", "one")]);
        let status = change(|api| {
            api.status.get_or_insert_default().phase = Some("Running".to_owned());
        });
        assert_eq!(merged(&mut source, &[status]), ["RECONCILE u1"]);
        let deleted = change(|api| {
            api.metadata.deletion_grace_period_seconds = Some(1);
            let at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
            api.metadata.deletion_timestamp = Some(at);
        });
        assert_eq!(merged(&mut source, &[deleted]), ["DELETE u1"]);
    }

    #[test]
    fn pods_keep_the_time_at_which_they_were_first_seen() {
        let mut source = SourcePods::default();
        let _ = merged(&mut source, &[pod("u1", "a", "one")]);
        let later = Timestamp::from_second(60).unwrap();
        let (updates, _) = source.merge(SourceKind::File, vec![pod("u1", "a", "two")], later);
        let seen: Vec<_> = updates[0].pods[0].annotations().collect();
        assert_eq!(seen, [(CONFIG_SEEN, "1970-01-01T00:00:00Z"), (CONFIG_SOURCE, "file")]);
    }

    #[test]
    fn one_pod_of_a_name_is_rejected_with_both_files() {
        let mut source = SourcePods::default();
        let duplicates = vec![pod("u1", "a", "one"), pod("u2", "a", "two")];
        let (updates, rejected) = source.merge(SourceKind::File, duplicates, Timestamp::UNIX_EPOCH);
        assert_eq!(updates[0].pods.len(), 1);
        assert_eq!(
            rejected[0].to_string(),
            "u1.yaml: pod default/a is also defined in u2.yaml, which is run instead"
        );
        let duplicates = vec![pod("u1", "a", "one"), pod("u2", "a", "two")];
        let (kept, rejected) = reject_duplicates(duplicates, DuplicatePolicy::First);
        assert_eq!(kept[0].uid().as_str(), "u1");
        assert_eq!(
            rejected[0].to_string(),
            "u2.yaml: pod default/a is also defined in u1.yaml, which is run instead"
        );
    }

    /// Pods of one namespace, `NAME` or `NAME/UID`; equal texts share one pod in memory.
    fn set(of: &mut Map<String, Pod>, names: &str) -> Vec<Pod> {
        let names = names.split_whitespace().map(|written| {
            let (name, uid) = written.split_once('/').unwrap_or((written, written));
            let known = of.entry(written.to_owned());
            known.or_insert_with(|| pod(uid, name, "i")).clone()
        });
        names.collect()
    }

    #[rstest]
    #[case::none("a b c", "a b c", Some(("", "")))]
    #[case::added("a b c", "a b new c", Some(("", "new")))]
    #[case::first("", "a b", Some(("", "a b")))]
    #[case::removed("a b c", "b c", Some(("a", "")))]
    #[case::replaced("a b c", "a b/2 c", Some(("b", "b/2")))]
    #[case::moved("a b c d", "a c b d", Some(("b c", "c b")))]
    #[case::many("a", "b c d e f g h i j k l m n o p q r s", None)]
    fn small_change_is_where_sets_differ(
        #[case] before: &str,
        #[case] after: &str,
        #[case] expected: Option<(&str, &str)>,
    ) {
        let mut pods = Map::new();
        let (before, after) = (set(&mut pods, before), set(&mut pods, after));
        let expected = expected.map(|(old, new)| (set(&mut pods, old), set(&mut pods, new)));
        let found = small_change(&before, &after);
        let found = found.map(|(old, new)| (old.to_vec(), new.to_vec()));
        assert_eq!(found, expected);
    }
}
