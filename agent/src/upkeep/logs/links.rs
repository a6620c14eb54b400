//! Links to the logs of all containers in one directory, for log collectors.
//!
//! `POD_NAMESPACE_CONTAINER-ID.log` (Kubernetes 1.36, pkg/kubelet/kuberuntime/legacy.go).

use std::ffi::OsString;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use api::pod::Pod;
use compact::Set;

use crate::observed::ContainerId;

/// The maximum length of a file name, in bytes.
const LONGEST_NAME: usize = 255;
const SUFFIX: &str = ".log";

/// The link's name. A name that is too long is cut before its suffix.
pub(crate) fn name(pod: &Pod, container: &str, id: &ContainerId) -> OsString {
    let mut name = format!("{}_{}_{container}-{id}", pod.name(), pod.namespace());
    let mut end = name.len().min(LONGEST_NAME - SUFFIX.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name.push_str(SUFFIX);
    name.into()
}

/// Creates a link to an existing log.
///
/// # Errors
///
/// If the directory or the link cannot be created.
pub(crate) fn make(directory: &Path, name: &OsString, log: &Path) -> io::Result<()> {
    if !log.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(directory)?;
    match std::os::unix::fs::symlink(log, directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Removes the link to the log of a removed container. Blocks on the file system.
pub(crate) fn remove(directory: &Path, name: &OsString) {
    let link = directory.join(name);
    match std::fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(link = %link.display(), %error, "failed to remove log link");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Removes the links whose logs no longer exist. Other files are kept, and the links of the containers in `live`, which have not
/// exited: the log of such a container is missing only until the runtime reopens it, during a rotation or after another program
/// removed it (Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_gc.go evictPodLogsDirectories). Blocks on the file system.
pub(crate) fn remove_dangling(directory: &Path, live: &Set<String>) {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "failed to list log links");
            return;
        }
    };
    let is_link = |entry: &DirEntry| entry.file_type().is_ok_and(|it| it.is_symlink());
    let links = entries.flatten().filter(is_link);
    let links = links.map(|entry| entry.path());
    let dangling =
        links.filter(|link| is_gone(link) && id_of(link).is_none_or(|id| !live.contains(id)));
    for link in dangling.collect::<Vec<PathBuf>>() {
        if let Err(error) = std::fs::remove_file(&link) {
            tracing::warn!(link = %link.display(), %error, "failed to remove dangling log link");
        }
    }
}

/// The container's id in the name of a link; cut if the name was too long.
fn id_of(link: &Path) -> Option<&str> {
    let name = link.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    Some(name.rsplit_once('-')?.1)
}

fn is_gone(link: &Path) -> bool {
    matches!(std::fs::metadata(link), Err(error) if error.kind() == io::ErrorKind::NotFound)
}
