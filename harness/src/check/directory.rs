//! The directory of a run, with a lock that tells whether the run still lives.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The file in the directory that the run holds locked.
const LOCK: &str = "lock";

/// A directory that this process holds locked until it ends.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Makes a directory for temporary files whose name begins with `prefix`.
    pub(crate) fn make(prefix: &str) -> io::Result<Self> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = crate::fixture::unique(&format!("{prefix}{:x}", since.as_micros()));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        Ok(Self { path, _lock: lock })
    }

    /// Its name, which is that of the run.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with everything in it.
    pub(crate) fn remove(self) {
        remove_directory(&self.path);
    }
}

/// Whether the run with this directory holds its lock.
pub(super) fn lives(directory: &Path) -> bool {
    File::open(directory.join(LOCK))
        .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes the directory of a run.
pub(super) fn remove_directory(directory: &Path) {
    if let Err(error) = file_tree::remove(directory) {
        tracing::warn!(%error, directory = %directory.display(), "failed to remove directory");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn directory_lives_until_its_run_ends() {
        let run = RunDirectory::make("crib-check-test-").unwrap();
        let path = run.path().to_owned();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), run.name());
        assert!(lives(&path));
        let RunDirectory { _lock: lock, .. } = run;
        drop(lock);
        assert!(!lives(&path), "the lock is free");
        remove_directory(&path);
        assert!(!path.exists());
    }
}
