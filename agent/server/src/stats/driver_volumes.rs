//! Volumes of CSI drivers: the driver measures them, not the agent.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_metrics.go; pkg/kubelet/server/stats/volume_stat_calculator.go.

use std::path::Path;
use std::sync::Arc;

use agent::AgentView;
use agent::storage::drivers::{DriverUsage, VolumeDrivers};
use api::pod::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_node::{ClusterVolume, VolumeLocation};

use super::summary::{ClaimReference, FsStats, VolumeHealth, VolumeStats};

/// The CSI drivers of a node, for its statistics.
pub(crate) struct DriverVolumes {
    pub(crate) drivers: Arc<dyn VolumeDrivers>,
    /// Records events about abnormal volumes.
    pub(crate) view: AgentView,
    /// Whether to include the conditions of volumes (gate CSIVolumeHealth).
    pub(crate) shows_health: bool,
}

impl DriverVolumes {
    /// Requests the usage of a pod's volumes from their drivers, one after another. Volumes without a measurement are omitted.
    pub(super) async fn measure(
        &self,
        root_dir: &Path,
        pod: &Pod,
        volumes: &[ClusterVolume],
    ) -> Vec<VolumeStats> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let pod_dir = root_dir.join("pods").join(uid);
        let mut measured = Vec::new();
        for volume in volumes {
            let VolumeLocation::Driver(spec_name) = &volume.location else {
                continue;
            };
            match self.drivers.usage(&pod_dir, spec_name).await {
                Ok(Some(usage)) => {
                    let reported = if self.shows_health { usage.condition.as_ref() } else { None };
                    if let Some(condition) = reported.filter(|condition| condition.is_abnormal) {
                        let text = format!("Volume {}: {}", volume.volume, condition.message);
                        self.view.record_pod_warning(
                            &PodUid::new(uid),
                            "VolumeConditionAbnormal",
                            &text,
                        );
                    }
                    let health = reported.map(|it| VolumeHealth { is_abnormal: it.is_abnormal });
                    let fs = fs(&usage, Timestamp::now());
                    let (name, claim) = (volume.volume.clone(), claim(pod, volume));
                    measured.push(VolumeStats { fs, name, claim, health });
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(
                        uid,
                        volume = volume.volume,
                        error,
                        "failed to get the statistics of a CSI volume"
                    );
                }
            }
        }
        measured
    }
}

/// ◆ Converts a driver's measurement. Missing values are absent; the kubelet reports them as 0.
fn fs(usage: &DriverUsage, at: Timestamp) -> FsStats {
    FsStats {
        time: at.into(),
        available_bytes: usage.bytes.map(|bytes| bytes.available),
        capacity_bytes: usage.bytes.map(|bytes| bytes.total),
        used_bytes: usage.bytes.map(|bytes| bytes.used),
        inodes_free: usage.inodes.map(|inodes| inodes.available),
        inodes: usage.inodes.map(|inodes| inodes.total),
        inodes_used: usage.inodes.map(|inodes| inodes.used),
    }
}

/// ◆ The claim of a pod's volume.
pub(super) fn claim(pod: &Pod, volume: &ClusterVolume) -> Option<ClaimReference> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    Some(ClaimReference { name: volume.claim.clone()?, namespace })
}

#[cfg(test)]
mod tests {
    use agent::storage::drivers::Amount;

    use super::*;

    #[test]
    fn unit_that_the_driver_does_not_measure_is_absent() {
        let bytes = Some(Amount { available: 1, total: 3, used: 2 });
        let found = fs(&DriverUsage { bytes, ..DriverUsage::default() }, Timestamp::UNIX_EPOCH);
        let of_bytes = (found.available_bytes, found.capacity_bytes, found.used_bytes);
        assert_eq!(of_bytes, (Some(1), Some(3), Some(2)));
        assert_eq!((found.inodes, found.inodes_free, found.inodes_used), (None, None, None));
    }
}
