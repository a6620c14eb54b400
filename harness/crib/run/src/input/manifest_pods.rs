//! ◆ The pods of manifests, as these have them: the ones that there are, and what is known of all that there ever were. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::pod::{Pod, PodUid};

use crate::input::apply::{self, Applied};
use crate::reports::Reports;

/// The pods of manifests. Those of controllers are not among them.
#[derive(Debug)]
pub(crate) struct ManifestPods {
    pods: Vec<Pod>,
    /// Their uids.
    uids: BTreeSet<PodUid>,
    /// The grace periods of all that there ever were.
    graces: BTreeMap<PodUid, Duration>,
}

impl ManifestPods {
    /// The first ones.
    pub(crate) fn new(pods: Vec<Pod>) -> Self {
        let mut all = Self { pods: Vec::new(), uids: BTreeSet::new(), graces: BTreeMap::new() };
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
    ) -> Applied {
        let used = self.graces.keys().cloned().collect();
        let applied = apply::pods(&self.pods, after, &used, has_ended);
        self.set(applied.pods.clone());
        applied
    }

    /// How long those that have not ended may take.
    pub(crate) fn longest_grace(&self, reports: &Reports) -> Duration {
        let has_ended = |uid: &PodUid| reports.get(uid).is_some_and(|report| report.finished);
        let left = self.graces.iter().filter(|(uid, _)| !has_ended(uid));
        left.map(|(_, grace)| *grace).max().unwrap_or_default()
    }

    fn set(&mut self, pods: Vec<Pod>) {
        self.uids = pods.iter().map(|pod| pod.uid().clone()).collect();
        let grace = |pod: &Pod| {
            let seconds = u64::try_from(pod.grace_seconds()).unwrap_or_default();
            (pod.uid().clone(), Duration::from_secs(seconds))
        };
        self.graces.extend(pods.iter().map(grace));
        self.pods = pods;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::view::tests::{pod, reports};

    #[test]
    fn ended_pods_have_no_grace_period_left() {
        let of = |uid: &str, grace: i64| {
            let pod = json!({
                "metadata": {"name": uid, "uid": uid},
                "spec": {"containers": [], "terminationGracePeriodSeconds": grace},
            });
            Pod::new(serde_json::from_value(pod).unwrap())
        };
        let mut all = ManifestPods::new(vec![of("ended", 30), of("runs", 2)]);
        let report = |name: &str, phase: &str| {
            let mut report = pod(name, phase);
            report.uid = PodUid::new(name);
            report
        };
        let runs = report("runs", "Running");
        let both = reports(vec![report("ended", "Failed"), runs.clone()]);
        let alone = reports(vec![runs]);
        assert_eq!(all.longest_grace(&both).as_secs(), 2);
        assert_eq!(all.longest_grace(&alone).as_secs(), 30, "one not seen yet");
        let applied = all.apply(vec![of("runs", 2)], |_| false);
        assert_eq!(applied.ended.len(), 1);
        assert_eq!(all.uids().len(), 1);
        assert_eq!(all.longest_grace(&alone).as_secs(), 30, "removed, and not seen yet");
    }
}
