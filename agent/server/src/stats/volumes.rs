//! What volumes of pods take: measured now and then, for that reads every file of theirs, or waits for the file system of a claim.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/stats/volume_stat_calculator.go.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent::storage::volumes::{VolumeUsage, of_volumes};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_node::ClaimedVolume;

use super::machine::Machine;
use super::summary::{ClaimReference, VolumeStats};

/// How often volumes are measured at most (`volumeStatsAggPeriod`).
const PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// The latest measurements.
#[derive(Debug, Default)]
pub(super) struct Volumes(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    is_measuring: bool,
    measured_at: Option<Timestamp>,
    by_uid: HashMap<String, Measured>,
}

/// What was measured of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// The volumes that the agent keeps.
    pub(super) own: Vec<VolumeUsage>,
    /// Those that claims are bound to.
    pub(super) claimed: Vec<VolumeStats>,
}

impl Volumes {
    /// Whether it is time to measure. The caller that gets true has to measure.
    pub(super) fn begin(&self, now: Timestamp) -> bool {
        let mut known = self.lock();
        let is_due = known.measured_at.is_none_or(|at| now.duration_since(at) >= PERIOD);
        let begins = is_due && !known.is_measuring;
        known.is_measuring |= begins;
        begins
    }

    /// Measures the volumes of all pods, one after another.
    pub(super) fn measure(
        &self,
        root_dir: &Path,
        machine: &dyn Machine,
        pods: &[(Pod, Vec<ClaimedVolume>)],
    ) {
        let measured = pods.iter().map(|(pod, claimed)| {
            let own = of_volumes(root_dir, pod);
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let of_claim = |volume: &ClaimedVolume| {
                let claim =
                    ClaimReference { name: volume.claim.clone(), namespace: namespace.clone() };
                let fs = machine.fs(&volume.path)?;
                Some(VolumeStats { fs, name: volume.volume.clone(), claim: Some(claim) })
            };
            let claimed = claimed.iter().filter_map(of_claim).collect();
            (pod.metadata.uid.clone().unwrap_or_default(), Measured { own, claimed })
        });
        let by_uid = measured.collect();
        let measured_at = Some(Timestamp::now());
        *self.lock() = Known { is_measuring: false, measured_at, by_uid };
    }

    /// What was measured last of a pod, and when.
    pub(super) fn of(&self, uid: &str) -> (Measured, Option<Timestamp>) {
        let known = self.lock();
        (known.by_uid.get(uid).cloned().unwrap_or_default(), known.measured_at)
    }

    /// What was measured last of all claims.
    pub(super) fn claimed(&self) -> Vec<VolumeStats> {
        let known = self.lock();
        known.by_uid.values().flat_map(|measured| measured.claimed.iter().cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::stats::machine::ProcMachine;

    #[test]
    fn volumes_are_measured_once_a_minute() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("pods/u1/volumes/kubernetes.io~empty-dir/data");
        std::fs::create_dir_all(data).unwrap();
        let volumes = json!([{"name": "data", "emptyDir": {}}]);
        let pod = json!({"metadata": {"uid": "u1", "namespace": "ns"}, "spec": {"containers": [], "volumes": volumes}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let volumes = Volumes::default();
        let now = Timestamp::now();
        assert_eq!(volumes.of("u1"), (Measured::default(), None));
        assert_eq!((volumes.begin(now), volumes.begin(now)), (true, false));
        let claimed = |path: &Path| ClaimedVolume {
            volume: "disk".to_owned(),
            claim: "c".to_owned(),
            path: path.to_owned(),
        };
        let claims = vec![claimed(root.path()), claimed(&root.path().join("none"))];
        volumes.measure(root.path(), &ProcMachine::new(), &[(pod, claims)]);
        let (found, measured_at) = volumes.of("u1");
        assert_eq!((found.own.len(), found.own[0].name.as_str()), (1, "data"));
        assert_eq!(found.claimed, volumes.claimed());
        assert_eq!((found.claimed.len(), found.claimed[0].name.as_str()), (1, "disk"));
        let claim = ClaimReference { name: "c".to_owned(), namespace: "ns".to_owned() };
        assert_eq!(found.claimed[0].claim, Some(claim));
        assert!(found.claimed[0].fs.capacity_bytes > Some(0));
        let measured_at = measured_at.unwrap();
        assert!(!volumes.begin(measured_at + SignedDuration::from_secs(59)));
        assert!(volumes.begin(measured_at + SignedDuration::from_secs(60)));
    }
}
