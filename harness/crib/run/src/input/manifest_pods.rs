//! ◆ The pods of manifests, as these have them: the ones that there are, and the uids of all that there ever were. Pure.

use std::collections::BTreeSet;

use api::pod::{Pod, PodUid};
use cluster::apply::{self, Applied};

/// The pods of manifests. Those of controllers are not among them.
#[derive(Debug)]
pub(crate) struct ManifestPods {
    pods: Vec<Pod>,
    /// Their uids.
    uids: BTreeSet<PodUid>,
    /// The uids of all that there ever were.
    used: BTreeSet<String>,
}

impl ManifestPods {
    /// The first ones.
    pub(crate) fn new(pods: Vec<Pod>) -> Self {
        let mut all = Self { pods: Vec::new(), uids: BTreeSet::new(), used: BTreeSet::new() };
        all.set(pods);
        all
    }

    /// Their uids.
    pub(crate) fn uids(&self) -> &BTreeSet<PodUid> {
        &self.uids
    }

    /// Takes the pods of changed manifests; `has_ended` tells which of the earlier ones have.
    pub(crate) fn apply(
        &mut self,
        after: Vec<Pod>,
        has_ended: impl Fn(&PodUid) -> bool,
    ) -> Applied<Pod> {
        let applied = apply::apply(&self.pods, after, &self.used, |pod| has_ended(pod.uid()));
        self.set(applied.all.clone());
        applied
    }

    fn set(&mut self, pods: Vec<Pod>) {
        self.uids = pods.iter().map(|pod| pod.uid().clone()).collect();
        self.used.extend(self.uids.iter().map(|uid| uid.as_str().to_owned()));
        self.pods = pods;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_that_comes_back_gets_an_unused_uid() {
        let of = |uid: &str| {
            let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": []}});
            Pod::new(serde_json::from_value(pod).unwrap())
        };
        let mut all = ManifestPods::new(vec![of("a"), of("b")]);
        let applied = all.apply(vec![of("b")], |_| false);
        assert_eq!(applied.ended.len(), 1);
        assert_eq!(all.uids().len(), 1);
        let applied = all.apply(vec![of("a"), of("b")], |_| false);
        assert_eq!(applied.started[0].uid().as_str(), "a-1");
    }
}
