//! Removes one dead container.

use std::time::Duration;

use crate::cri::{Cri, CriError};
use crate::decide::plan::terminate::MIN_STOP_SECONDS;
use crate::observed::ContainerId;

/// Removes a dead container. One in an unknown state may be running, so it is stopped first (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/kuberuntime_gc.go removeOldestN).
pub(crate) async fn remove_dead(
    cri: &dyn Cri,
    id: &ContainerId,
    state_is_unknown: bool,
) -> Result<(), CriError> {
    if state_is_unknown {
        let grace = Duration::from_secs(MIN_STOP_SECONDS.unsigned_abs());
        cri.stop_container(id, grace).await?;
    }
    cri.remove_container(id).await
}
