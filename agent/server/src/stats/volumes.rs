//! Usage of the pods' volumes. They are measured periodically, because that reads every file, or waits for the file system of a
//! claim. CSI drivers are called concurrently, so that one without an answer delays nothing else.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/stats/volume_stat_calculator.go.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent::histogram::{DEFAULT_BOUNDS, Histogram};
use agent::storage::volumes::{VolumeUsage, of_volumes};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_node::{ClusterVolume, VolumeLocation};

use super::driver_volumes::claim;
use super::machine::Machine;
use super::summary::VolumeStats;

/// The shortest interval between measurements (`volumeStatsAggPeriod`).
const PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// The greatest age of a kubelet's measurements, which it repeats after one to two periods.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(2);

/// The latest measurements.
#[derive(Debug, Default)]
pub(super) struct Volumes(Mutex<Known>);

#[derive(Debug)]
struct Known {
    is_measuring: bool,
    measured_at: Option<Timestamp>,
    by_uid: HashMap<String, Measured>,
    /// The last answers of drivers, by pod uid.
    from_drivers: HashMap<String, Vec<VolumeStats>>,
    /// The uids of pods with a pending call of a driver.
    in_progress: HashSet<String>,
    /// How long it took to measure each volume in the agent's own directory.
    durations: Histogram,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            is_measuring: false,
            measured_at: None,
            by_uid: HashMap::new(),
            from_drivers: HashMap::new(),
            in_progress: HashSet::new(),
            durations: Histogram::new(DEFAULT_BOUNDS),
        }
    }
}

/// The measurements of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// The volumes in the agent's own directory.
    pub(super) own: Vec<VolumeUsage>,
    /// The other volumes: local ones of the cluster, and those of CSI drivers.
    pub(super) from_cluster: Vec<VolumeStats>,
}

/// A pod with its local volumes and its CSI volumes.
pub(super) type PodVolumes = (Pod, Vec<ClusterVolume>);

impl Volumes {
    /// Whether a measurement is due. If it returns true, the caller must measure.
    pub(super) fn begin(&self, now: Timestamp) -> bool {
        let mut known = self.lock();
        let is_due = known.measured_at.is_none_or(|at| now.duration_since(at) >= PERIOD);
        let begins = is_due && !known.is_measuring;
        known.is_measuring |= begins;
        begins
    }

    /// Whether the last measurement is older than a kubelet's can be, or there is none.
    pub(super) fn is_outdated(&self, now: Timestamp) -> bool {
        self.lock().measured_at.is_none_or(|at| now.duration_since(at) > MAX_AGE)
    }

    /// Measures all volumes on file systems, pod by pod.
    pub(super) fn measure(&self, root_dir: &Path, machine: &dyn Machine, pods: &[PodVolumes]) {
        let measured = pods.iter().map(|(pod, volumes)| {
            let own = of_volumes(root_dir, pod);
            let local = volumes.iter().filter_map(|volume| {
                let VolumeLocation::Local(path) = &volume.location else {
                    return None;
                };
                let (fs, name) = (machine.fs(path)?, volume.volume.clone());
                Some(VolumeStats { fs, name, claim: claim(pod, volume), health: None })
            });
            (uid(pod), Measured { own, from_cluster: local.collect() })
        });
        let by_uid: HashMap<String, Measured> = measured.collect();
        let mut known = self.lock();
        for volume in by_uid.values().flat_map(|measured| &measured.own) {
            known.durations.observe(volume.took.as_secs_f64());
        }
        known.by_uid = by_uid;
        (known.is_measuring, known.measured_at) = (false, Some(Timestamp::now()));
    }

    /// The pods with CSI volumes and without a pending call. Removes the results of other pods. The caller must call
    /// [`Volumes::finish_request`] for each.
    pub(super) fn begin_requests(&self, pods: &[PodVolumes]) -> Vec<PodVolumes> {
        let known = &mut *self.lock();
        let is_of_driver =
            |volume: &ClusterVolume| matches!(volume.location, VolumeLocation::Driver(_));
        let with_drivers = pods.iter().filter(|(_, volumes)| volumes.iter().any(is_of_driver));
        let with_drivers: Vec<&PodVolumes> = with_drivers.collect();
        let uids: HashSet<String> = with_drivers.iter().map(|(pod, _)| uid(pod)).collect();
        known.from_drivers.retain(|uid, _| uids.contains(uid));
        let due = with_drivers.into_iter().filter(|(pod, _)| known.in_progress.insert(uid(pod)));
        due.cloned().collect()
    }

    /// Records the measurements of a pod's drivers.
    pub(super) fn finish_request(&self, pod: &Pod, volumes: Vec<VolumeStats>) {
        let mut known = self.lock();
        known.in_progress.remove(&uid(pod));
        known.from_drivers.insert(uid(pod), volumes);
    }

    /// The last measurements of a pod, and their time.
    pub(super) fn of(&self, uid: &str) -> (Measured, Option<Timestamp>) {
        let known = self.lock();
        let mut measured = known.by_uid.get(uid).cloned().unwrap_or_default();
        measured.from_cluster.extend(known.from_drivers.get(uid).into_iter().flatten().cloned());
        (measured, known.measured_at)
    }

    /// The last measurements of all volumes outside the agent's own directory.
    pub(super) fn cluster_volumes(&self) -> Vec<VolumeStats> {
        let known = self.lock();
        let local = known.by_uid.values().flat_map(|measured| &measured.from_cluster);
        local.chain(known.from_drivers.values().flatten()).cloned().collect()
    }

    /// How long it took to measure each volume in the agent's own directory.
    pub(super) fn durations(&self) -> Histogram {
        self.lock().durations.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::stats::machine::ProcMachine;
    use crate::stats::summary::ClaimReference;

    fn pod(uid: &str) -> Pod {
        let volumes = json!([{"name": "data", "emptyDir": {}}]);
        let pod = json!({"metadata": {"uid": uid, "namespace": "ns"}, "spec": {"containers": [], "volumes": volumes}});
        serde_json::from_value(pod).unwrap()
    }

    fn volume(claim: &str, location: VolumeLocation) -> ClusterVolume {
        ClusterVolume { volume: "disk".to_owned(), claim: Some(claim.to_owned()), location }
    }

    #[test]
    fn volumes_are_measured_once_a_minute() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("pods/u1/volumes/kubernetes.io~empty-dir/data");
        std::fs::create_dir_all(data).unwrap();
        let volumes = Volumes::default();
        let now = Timestamp::now();
        assert_eq!(volumes.of("u1"), (Measured::default(), None));
        assert_eq!((volumes.begin(now), volumes.begin(now)), (true, false));
        let local = |path: &Path| volume("c", VolumeLocation::Local(path.to_owned()));
        let found = vec![local(root.path()), local(&root.path().join("none"))];
        volumes.measure(root.path(), &ProcMachine::new(), &[(pod("u1"), found)]);
        let (found, measured_at) = volumes.of("u1");
        assert_eq!((found.own.len(), found.own[0].name.as_str()), (1, "data"));
        assert_eq!(volumes.durations().count(), 1);
        assert_eq!(found.from_cluster, volumes.cluster_volumes());
        assert_eq!((found.from_cluster.len(), found.from_cluster[0].name.as_str()), (1, "disk"));
        let claim = ClaimReference { name: "c".to_owned(), namespace: "ns".to_owned() };
        assert_eq!(found.from_cluster[0].claim, Some(claim));
        assert!(found.from_cluster[0].fs.capacity_bytes > Some(0));
        let measured_at = measured_at.unwrap();
        assert!(!volumes.is_outdated(measured_at + SignedDuration::from_mins(2)));
        assert!(volumes.is_outdated(measured_at + SignedDuration::from_secs(121)));
        assert!(!volumes.begin(measured_at + SignedDuration::from_secs(59)));
        assert!(volumes.begin(measured_at + SignedDuration::from_secs(60)));
    }

    #[test]
    fn hanging_driver_gets_no_second_request() {
        let volumes = Volumes::default();
        let of = |uid: &str| {
            let own = volume("c", VolumeLocation::Driver("pv".to_owned()));
            (pod(uid), vec![own])
        };
        let local = (pod("u3"), vec![volume("c", VolumeLocation::Local("/".into()))]);
        let uids = |pods: Vec<PodVolumes>| pods.iter().map(|(pod, _)| uid(pod)).collect::<Vec<_>>();
        let all = [of("u1"), of("u2"), local];
        assert_eq!(uids(volumes.begin_requests(&all)), ["u1", "u2"]);
        let measured = VolumeStats { name: "disk".to_owned(), ..VolumeStats::default() };
        volumes.finish_request(&pod("u1"), vec![measured.clone()]);
        assert_eq!(uids(volumes.begin_requests(&all)), ["u1"]);
        assert_eq!(volumes.of("u1").0.from_cluster, std::slice::from_ref(&measured));
        assert_eq!(volumes.cluster_volumes(), [measured]);
        // A pod that no longer exists has no volumes.
        assert_eq!(uids(volumes.begin_requests(&[of("u2")])), [""; 0]);
        assert_eq!(volumes.cluster_volumes(), []);
    }
}
