//! ◆ Whether pods have distinct names and uids: after a change of one pod among a thousand, only that one is checked.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use api::pod::Pod;

/// Pods with distinct names and uids, stored as hashes of both. Pods with colliding hashes count as equal, so that distinct pods
/// may be reported as duplicates, but never the reverse.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Distinct {
    /// `None` if two pods have the same name or uid.
    #[must_use]
    pub(crate) fn of(pods: &[Pod]) -> Option<Self> {
        Self::default().replaced(&[], pods)
    }

    /// Replaces the contained pods `before` by `after`. `None` if two pods then have the same name or uid.
    #[must_use]
    pub(crate) fn replaced(mut self, before: &[Pod], after: &[Pod]) -> Option<Self> {
        for pod in before {
            for hash in self.hashes_of(pod) {
                self.hashes.remove(&hash);
            }
        }
        for pod in after {
            for hash in self.hashes_of(pod) {
                self.hashes.insert(hash).then_some(())?;
            }
        }
        Some(self)
    }

    fn hashes_of(&self, pod: &Pod) -> [u64; 2] {
        let name = (pod.namespace(), pod.name());
        [self.hasher.hash_one(name), self.hasher.hash_one(pod.uid())]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    /// Pods of one namespace, each `NAME` or `NAME/UID`.
    fn pods(names: &str) -> Vec<Pod> {
        let pod = |written: &str| {
            let (name, uid) = written.split_once('/').unwrap_or((written, written));
            fixtures::pod_of(uid, name, json!({"containers": []}))
        };
        names.split_whitespace().map(pod).collect()
    }

    #[rstest]
    #[case::nothing("a b", "", "", true)]
    #[case::added("a b", "", "c", true)]
    #[case::removed("a b", "a", "", true)]
    #[case::changed("a b", "a", "a", true)]
    #[case::new_uid("a b", "b", "b/2", true)]
    #[case::name_of_one_that_goes("a b", "b", "c/b", true)]
    #[case::name_of_another("a b", "", "a/2", false)]
    #[case::uid_of_another("a b", "", "new/a", false)]
    #[case::name_of_a_new_one("a", "", "new new/2", false)]
    fn names_and_uids_stay_distinct_or_not(
        #[case] all: &str,
        #[case] before: &str,
        #[case] after: &str,
        #[case] expected: bool,
    ) {
        let distinct = Distinct::of(&pods(all)).unwrap();
        let replaced = distinct.replaced(&pods(before), &pods(after));
        assert_eq!(replaced.is_some(), expected);
    }

    #[test]
    fn twins_are_not_distinct() {
        assert!(Distinct::of(&pods("a b a/2")).is_none());
        assert!(Distinct::of(&pods("a/1 b/1")).is_none());
    }
}
