//! ◆ The objects of manifests, as these have them: the ones that there are, and the uids of all that there ever were. Pure.

use std::collections::BTreeSet;

use api::manifest::Workload;
use api::pod::{Pod, PodUid};
use cluster::apply::{self, Applied, ManifestObject};
use cluster::controllers::Controllers;
use compact::Set;

/// The pods of manifests, or their objects with controllers. What controllers create is not among them.
#[derive(Debug)]
pub(crate) struct ManifestObjects<T> {
    all: Vec<T>,
    /// Their uids.
    uids: Set<PodUid>,
    /// The uids of all that there ever were.
    used: BTreeSet<String>,
}

impl<T: ManifestObject> ManifestObjects<T> {
    /// The first ones.
    pub(crate) fn new(objects: Vec<T>) -> Self {
        let mut all = Self { all: Vec::new(), uids: Set::new(), used: BTreeSet::new() };
        all.set(objects);
        all
    }

    fn set(&mut self, objects: Vec<T>) {
        self.uids = objects.iter().map(|object| PodUid::new(object.uid())).collect();
        self.used.extend(objects.iter().map(|object| object.uid().to_owned()));
        self.all = objects;
    }
}

impl ManifestObjects<Pod> {
    /// The uids of the pods.
    pub(crate) fn uids(&self) -> &Set<PodUid> {
        &self.uids
    }

    /// Takes the pods of changed manifests; `has_ended` tells which of the earlier ones have.
    pub(crate) fn apply(
        &mut self,
        after: Vec<Pod>,
        has_ended: impl Fn(&PodUid) -> bool,
    ) -> Applied<Pod> {
        let applied = apply::apply(&self.all, after, &self.used, |pod| has_ended(Pod::uid(pod)));
        self.set(applied.all.clone());
        applied
    }
}

impl ManifestObjects<Workload> {
    /// Takes the objects of changed manifests; the controllers know which of the earlier ones are over.
    pub(crate) fn apply(
        &mut self,
        after: Vec<Workload>,
        controllers: &Controllers,
    ) -> Applied<Workload> {
        let applied = controllers.applied(&self.all, after, &self.used);
        self.set(applied.all.clone());
        applied
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
        let mut all = ManifestObjects::new(vec![of("a"), of("b")]);
        let applied = all.apply(vec![of("b")], |_| false);
        assert_eq!(applied.ended.len(), 1);
        assert_eq!(all.uids().len(), 1);
        let applied = all.apply(vec![of("a"), of("b")], |_| false);
        assert_eq!(applied.started[0].uid().as_str(), "a-1");
    }
}
