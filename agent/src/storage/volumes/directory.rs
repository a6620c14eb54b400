//! Volumes that are directories: emptyDir and hostPath; and directories with exact modes.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource};

use super::error::{VolumeError, failed};
use super::group;

/// Sets a mode, regardless of the umask.
pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(failed("set the mode of", path))
}

/// Creates a directory and its parents. A new directory gets exactly this mode, regardless of the umask.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<(), VolumeError> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path).map_err(failed("create", path))?;
    set_mode(path, mode)
}

// emptyDir volumes: directories of the pod that are empty at first.
//
// Source: Kubernetes 1.36, pkg/volume/emptydir.

const EMPTY_DIR: &str = "kubernetes.io~empty-dir";

/// The volume's directory in that of its pod.
pub(super) fn empty_dir(pod: &Path, name: &str) -> PathBuf {
    pod.join("volumes").join(EMPTY_DIR).join(name)
}

/// Checks that a volume that is not in memory is on the node's disk: another medium must not silently become the disk.
pub(super) fn check_medium(source: &EmptyDirVolumeSource) -> Result<(), VolumeError> {
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(()),
        medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
            Err(VolumeError::HugePages)
        }
        medium => Err(VolumeError::UnknownMedium { medium: medium.to_owned() }),
    }
}

/// Creates the directory of a volume, once. Like a kubelet, it records in the same place that the volume is ready: before, the
/// volume has no content, and its group may not be set.
pub(super) fn prepare_empty_dir(
    pod: &Path,
    name: &str,
    given_to: Option<u32>,
) -> Result<PathBuf, VolumeError> {
    let path = empty_dir(pod, name);
    let ready = pod.join("plugins").join(EMPTY_DIR).join(name).join("ready");
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

// hostPath volumes: checks the file at their path, or creates it.
//
// Source: Kubernetes 1.36, pkg/volume/hostpath.

/// Checks the path of a hostPath volume, and creates it if its type requires it.
pub(super) fn prepare_host_path(source: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    let found = fs::metadata(&path).ok().map(|found| found.file_type());
    match (kind, &found) {
        ("DirectoryOrCreate", None) => make_dir(&path, 0o755)?,
        ("FileOrCreate", None) => {
            fs::write(&path, "").map_err(failed("create", &path))?;
            set_mode(&path, 0o644)?;
        }
        _ => {}
    }
    let is = |test: fn(&fs::FileType) -> bool| found.as_ref().is_some_and(test);
    let (fits, expected) = match kind {
        "" => (true, ""),
        "DirectoryOrCreate" => (found.is_none() || is(fs::FileType::is_dir), "a directory"),
        "Directory" => (is(fs::FileType::is_dir), "a directory"),
        "FileOrCreate" => (found.is_none() || is(fs::FileType::is_file), "a file"),
        "File" => (is(fs::FileType::is_file), "a file"),
        "Socket" => (is(fs::FileType::is_socket), "a socket file"),
        "CharDevice" => (is(fs::FileType::is_char_device), "a character device"),
        "BlockDevice" => (is(fs::FileType::is_block_device), "a block device"),
        other => {
            return Err(VolumeError::UnknownType { kind: other.to_owned() });
        }
    };
    if fits {
        Ok(path)
    } else {
        Err(VolumeError::WrongType { path: source.path.clone(), expected })
    }
}
