//! The pods that the cluster binds to the node, as a source: converts changes to sets.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use async_trait::async_trait;

use super::PodSource;
use crate::cluster::{Cluster, PodChange, PodWatch};

/// A source of the pods that a cluster binds to the node.
pub(crate) struct BoundPods {
    cluster: Arc<dyn Cluster>,
    watch: Box<dyn PodWatch>,
    /// In order of arrival.
    pods: Vec<Pod>,
    /// The changes that are not in a set yet.
    changes: VecDeque<PodChange>,
}

impl BoundPods {
    /// `None` if the cluster binds no pods.
    pub(crate) fn of(cluster: &Arc<dyn Cluster>) -> Option<Self> {
        let watch = cluster.watch_pods()?;
        Some(Self {
            cluster: Arc::clone(cluster),
            watch,
            pods: Vec::new(),
            changes: VecDeque::new(),
        })
    }

    /// Takes the changes up to the second one of a pod: an object that is deleted may change and disappear at the same time, and
    /// the change specifies how it ends. Returns the new and changed pods.
    fn take_changes(&mut self) -> Vec<Pod> {
        let (mut seen, mut new) = (HashSet::new(), Vec::new());
        while let Some(change) = self.changes.front() {
            let is_second = match change {
                PodChange::Listed(_) => !seen.is_empty(),
                PodChange::Set(pod) => !seen.insert(pod.uid().clone()),
                PodChange::Removed(uid) => !seen.insert(uid.clone()),
            };
            if is_second {
                break;
            }
            match self.changes.pop_front() {
                Some(PodChange::Listed(pods)) => {
                    let is_listed = |old: &&Pod| pods.iter().any(|pod| pod.uid() == old.uid());
                    let gone = self.pods.iter().filter(|old| !is_listed(old));
                    gone.for_each(|pod| self.cluster.unregister(pod.uid()));
                    new.clone_from(&pods);
                    self.pods = pods;
                    break;
                }
                Some(PodChange::Set(pod)) => {
                    match self.place(pod.uid()) {
                        Some(place) => place.clone_from(&pod),
                        None => self.pods.push(pod.clone()),
                    }
                    new.push(pod);
                }
                Some(PodChange::Removed(uid)) => {
                    self.pods.retain(|pod| *pod.uid() != uid);
                    self.cluster.unregister(&uid);
                }
                None => {}
            }
        }
        new
    }

    fn place(&mut self, uid: &PodUid) -> Option<&mut Pod> {
        self.pods.iter_mut().find(|pod| pod.uid() == uid)
    }
}

#[async_trait]
impl PodSource for BoundPods {
    fn name(&self) -> String {
        self.cluster.name()
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        while self.changes.is_empty() {
            self.changes.extend(self.watch.next().await?);
        }
        let (ended, needing): (Vec<Pod>, Vec<Pod>) =
            self.take_changes().into_iter().partition(Pod::has_ended);
        ended.iter().for_each(|pod| self.cluster.unregister(pod.uid()));
        if !needing.is_empty() {
            self.cluster.register(&needing).await;
        }
        Some(self.pods.as_slice().into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{Mutex, PoisonError};

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::objects::ObjectStore;

    /// A cluster with these changes, which records the registered pods.
    #[derive(Default)]
    struct Scripted {
        batches: Mutex<Vec<Vec<PodChange>>>,
        notes: Mutex<Vec<String>>,
    }

    impl Scripted {
        fn note(&self, text: String) {
            self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }

    #[async_trait]
    impl Cluster for Scripted {
        fn name(&self) -> String {
            "scripted".to_owned()
        }

        fn objects(&self) -> Arc<ObjectStore> {
            Arc::default()
        }

        fn watch_pods(&self) -> Option<Box<dyn PodWatch>> {
            Some(Box::new(Batches(std::mem::take(&mut *self.batches.lock().unwrap()))))
        }

        async fn register(&self, pods: &[Pod]) {
            pods.iter().for_each(|pod| self.note(format!("+{}", pod.uid())));
        }

        fn unregister(&self, uid: &PodUid) {
            self.note(format!("-{uid}"));
        }
    }

    struct Batches(Vec<Vec<PodChange>>);

    #[async_trait]
    impl PodWatch for Batches {
        async fn next(&mut self) -> Option<Vec<PodChange>> {
            (!self.0.is_empty()).then(|| self.0.remove(0))
        }
    }

    /// A pod `uid` or, with `!`, one that has ended; its image is `image`.
    fn pod(uid: &str, image: &str) -> Pod {
        let name = uid.trim_end_matches('!');
        let container = json!({"name": "c", "image": image});
        let phase = if uid.ends_with('!') { "Failed" } else { "Running" };
        fixtures::pod(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [container]}, "status": {"phase": phase},
        }))
    }

    /// `=a b` is a list, `a` a new pod, `a:2` its second state, `-a` its end.
    fn changes(text: &str) -> Vec<PodChange> {
        let of = |word: &str| {
            let (uid, image) = word.split_once(':').unwrap_or((word, "1"));
            pod(uid, image)
        };
        if let Some(list) = text.strip_prefix('=') {
            return vec![PodChange::Listed(list.split_whitespace().map(of).collect())];
        }
        let change = |word: &str| match word.strip_prefix('-') {
            Some(uid) => PodChange::Removed(PodUid::new(uid)),
            None => PodChange::Set(of(word)),
        };
        text.split_whitespace().map(change).collect()
    }

    #[rstest]
    #[case::list(&["=a b"], &["a1 b1"], "+a +b")]
    #[case::empty_list(&["="], &[""], "")]
    #[case::one_set_for_a_batch(&["=", "a b"], &["", "a1 b1"], "+a +b")]
    #[case::changed_pod_keeps_its_place(&["=a b", "a:2"], &["a1 b1", "a2 b1"], "+a +b +a")]
    #[case::last_change_of_a_removed_pod_is_seen(&["=a", "a:2 -a"], &["a1", "a2", ""], "+a +a -a")]
    #[case::removed_before_it_was_seen(&["=", "a -a b"], &["", "a1", "b1"], "+a -a +b")]
    #[case::list_after_missed_changes(&["=a b", "=b:2 c"], &["a1 b1", "b2 c1"], "+a +b -a +b +c")]
    #[case::ended_pod_needs_nothing(&["=a", "a!"], &["a1", "a1"], "+a -a")]
    #[tokio::test]
    async fn sets_follow_changes(
        #[case] batches: &[&str],
        #[case] sets: &[&str],
        #[case] registered: &str,
    ) {
        let script = Arc::new(Scripted::default());
        *script.batches.lock().unwrap() = batches.iter().map(|text| changes(text)).collect();
        let cluster: Arc<dyn Cluster> = script.clone();
        let mut source = BoundPods::of(&cluster).unwrap();
        let mut seen = Vec::new();
        while let Some(set) = source.next().await {
            let shown = |pod: &Pod| {
                let image = pod.spec().containers[0].image.as_deref().unwrap_or_default();
                format!("{}{image}", pod.uid())
            };
            seen.push(set.iter().map(shown).collect::<Vec<_>>().join(" "));
        }
        assert_eq!(seen, sets);
        assert_eq!(script.notes.lock().unwrap().join(" "), registered);
    }
}
