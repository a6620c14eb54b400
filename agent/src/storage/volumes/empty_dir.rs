//! emptyDir volumes: directories of the pod that are empty at first.
//!
//! Source: Kubernetes 1.36, pkg/volume/emptydir.

use std::fs;
use std::path::{Path, PathBuf};

use super::directory::make_dir;
use super::error::{VolumeError, failed};
use super::group;

const PLUGIN: &str = "kubernetes.io~empty-dir";

/// The volume's directory in that of its pod.
pub(super) fn path(pod: &Path, name: &str) -> PathBuf {
    pod.join("volumes").join(PLUGIN).join(name)
}

/// Makes the directory of a volume, once. A kubelet notes in the same place that a volume is ready: until then it has no
/// content, and its group may not be set.
pub(super) fn prepare(
    pod: &Path,
    name: &str,
    given_to: Option<u32>,
) -> Result<PathBuf, VolumeError> {
    let path = path(pod, name);
    let ready = pod.join("plugins").join(PLUGIN).join(name).join("ready");
    if ready.exists() && path.is_dir() {
        return Ok(path);
    }
    make_dir(&path, 0o777)?;
    if let Some(group) = given_to {
        group::give(&path, group, false)?;
    }
    if let Some(parent) = ready.parent() {
        make_dir(parent, 0o750)?;
    }
    fs::write(&ready, "").map_err(failed("create", &ready))?;
    Ok(path)
}
