//! ◆ The current objects of manifests, and the uids of all earlier ones. Pure.

use std::collections::BTreeSet;

use api::manifest::Workload;
use api::pod::{Pod, PodUid};
use cluster::apply::{self, Applied, ManifestObject};
use cluster::controllers::Controllers;
use compact::Set;

/// The pods or the workloads of manifests, without the pods that controllers create.
#[derive(Debug)]
pub(crate) struct ManifestObjects<T> {
    all: Vec<T>,
    /// The uids of the current objects.
    uids: Set<PodUid>,
    /// The uids of all current and earlier objects.
    used: BTreeSet<String>,
}

impl<T: ManifestObject> ManifestObjects<T> {
    /// The objects of the first manifests.
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
    /// The uids of the current pods.
    pub(crate) fn uids(&self) -> &Set<PodUid> {
        &self.uids
    }

    /// Applies changed manifests; `has_ended` returns whether an earlier pod has ended.
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
    /// Applies changed manifests; the controllers determine which earlier workloads have ended.
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
