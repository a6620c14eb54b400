//! What volumes of pods take: measured now and then, for that reads every file of theirs.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/stats/volume_stat_calculator.go.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent::storage::volumes::{VolumeUsage, of_volumes};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

/// How often volumes are measured at most (`volumeStatsAggPeriod`).
const PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// The latest measurements.
#[derive(Debug, Default)]
pub(super) struct Volumes(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    is_measuring: bool,
    measured_at: Option<Timestamp>,
    by_uid: HashMap<String, Vec<VolumeUsage>>,
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
    pub(super) fn measure(&self, root_dir: &Path, pods: &[Pod]) {
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let by_uid = pods.iter().map(|pod| (uid(pod), of_volumes(root_dir, pod))).collect();
        let measured_at = Some(Timestamp::now());
        *self.lock() = Known { is_measuring: false, measured_at, by_uid };
    }

    /// What was measured last of a pod, and when.
    pub(super) fn of(&self, uid: &str) -> (Vec<VolumeUsage>, Option<Timestamp>) {
        let known = self.lock();
        (known.by_uid.get(uid).cloned().unwrap_or_default(), known.measured_at)
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

    #[test]
    fn volumes_are_measured_once_a_minute() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("pods/u1/volumes/kubernetes.io~empty-dir/data");
        std::fs::create_dir_all(data).unwrap();
        let volumes = json!([{"name": "data", "emptyDir": {}}]);
        let pod =
            json!({"metadata": {"uid": "u1"}, "spec": {"containers": [], "volumes": volumes}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let volumes = Volumes::default();
        let now = Timestamp::now();
        assert_eq!(volumes.of("u1"), (Vec::new(), None));
        assert_eq!((volumes.begin(now), volumes.begin(now)), (true, false));
        volumes.measure(root.path(), &[pod]);
        let (found, measured_at) = volumes.of("u1");
        assert_eq!((found.len(), found[0].name.as_str()), (1, "data"));
        let measured_at = measured_at.unwrap();
        assert!(!volumes.begin(measured_at + SignedDuration::from_secs(59)));
        assert!(volumes.begin(measured_at + SignedDuration::from_secs(60)));
    }
}
