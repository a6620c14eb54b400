//! The group that a pod's volumes are given to (`fsGroup`).

use super::error::VolumeError;
use crate::pod::Pod;

/// The group, if the pod has one.
pub(super) fn of_pod(pod: &Pod) -> Result<Option<u32>, VolumeError> {
    let security = pod.spec().security_context.as_ref();
    let group = security.and_then(|security| security.fs_group);
    group
        .map(|group| u32::try_from(group).map_err(|_| VolumeError::Group { group }))
        .transpose()
}
