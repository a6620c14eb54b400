//! Keeps a second agent from a root directory: it would take the pods of the first one for orphans, and remove them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The file that is locked, for the life of the agent.
const LOCK: &str = "lock";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SoleError {
    /// Another agent uses it.
    #[error(
        "the root directory {} is in use by another agent: stop that one, or give this one another --root-dir", .0.display()
    )]
    InUse(PathBuf),
    /// It cannot be locked.
    #[error("failed to lock the root directory {}", path.display())]
    Lock {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Locks the directory until the file is closed, also when the agent is killed.
pub(super) fn lock(root_dir: &Path) -> Result<File, SoleError> {
    let failed = |source| SoleError::Lock { path: root_dir.to_owned(), source };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(root_dir.join(LOCK))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(SoleError::InUse(root_dir.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}
