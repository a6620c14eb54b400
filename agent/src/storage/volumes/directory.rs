//! Directories with exact modes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::error::{VolumeError, failed};

/// Sets a mode, whatever the umask.
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
