//! hostPath volumes: checks what is at their path, or makes it.
//!
//! Source: Kubernetes 1.36, pkg/volume/hostpath.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::directory::{make_dir, set_mode};
use super::error::{VolumeError, failed};

/// Checks the path of a hostPath volume, and creates it if its type says so.
pub(super) fn prepare(source: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
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
