//! The group of local volumes that several pods may use: the first of them gives the volume to its group, once.
//!
//! Source: Kubernetes 1.36, pkg/volume/local/local.go SetUpAt. A kubelet mounts the volume in the pod's directory, and looks for such
//! mounts of other pods. The agent creates an empty directory in the same place: it records that the pod uses the volume.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use api::pod::Pod;

use super::Claims;
use crate::pod_spec::spec::HostVolume;
use crate::storage::volumes::directory::make_dir;
use crate::storage::volumes::error::{VolumeError, failed};
use crate::storage::volumes::{component, group};

/// The directory of local volumes in that of a pod.
const LOCAL: &str = "volumes/kubernetes.io~local-volume";

/// What happens to the group of a local volume when a pod uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocalUse {
    /// The volume is given to the pod's group: no other pod uses it. This directory records the use.
    Give(PathBuf),
    /// Nothing.
    Keep,
    /// Nothing, because another pod uses the volume, which has another group. The message of an event reports it.
    Differs(String),
}

impl Claims {
    /// Records that a pod with this directory uses a local volume, and decides what happens to the volume's group.
    ///
    /// # Errors
    /// If the pods that use the volume cannot be determined.
    pub(crate) fn use_local(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &HostVolume,
    ) -> Result<LocalUse, VolumeError> {
        let name = volume.spec_name.as_deref().unwrap_or_default();
        let place = Path::new(LOCAL).join(component(name));
        let record = pod_dir.join(&place);
        let group = group::of_pod(pod)?;
        let path = &volume.host_path;
        let found = fs::metadata(path).map_err(failed("find the group of", path))?.gid();
        // One pod after the other, so that exactly one is the first.
        let _lock = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if record.is_dir() {
            return Ok(LocalUse::Keep);
        }
        let change = match group {
            Some(group) if is_used_by_others(pod_dir, &place)? => match found == group {
                true => LocalUse::Keep,
                false => LocalUse::Differs(format!(
                    "The requested fsGroup is {group}, but the volume {name} has GID {found}. The volume may not be shareable."
                )),
            },
            Some(_) if !volume.readonly => LocalUse::Give(record.clone()),
            Some(_) | None => LocalUse::Keep,
        };
        make_dir(&record, 0o750)?;
        Ok(change)
    }
}

/// Whether the directory of another pod has this directory in it.
fn is_used_by_others(pod_dir: &Path, place: &Path) -> Result<bool, VolumeError> {
    let Some(pods) = pod_dir.parent() else {
        return Ok(false);
    };
    for entry in fs::read_dir(pods).map_err(failed("list the pods in", pods))? {
        let path = entry.map_err(failed("list the pods in", pods))?.path();
        if path != pod_dir && path.join(place).is_dir() {
            return Ok(true);
        }
    }
    Ok(false)
}
