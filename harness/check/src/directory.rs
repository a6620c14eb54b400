//! The directory of a run. The run holds a lock in it while it is alive.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::libc;
use nix::unistd::geteuid;

/// The file that the run locks.
const LOCK: &str = "lock";

/// A directory that this process keeps locked until it exits.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    opened: File,
    _lock: File,
}

impl RunDirectory {
    /// Creates a temporary directory whose name begins with `prefix`.
    pub fn make(prefix: &str) -> io::Result<Self> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = harness::fixture::unique(&format!("{prefix}{:x}", since.as_micros()));
        let path = harness::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        Ok(Self { opened: File::open(&path)?, path, _lock: lock })
    }

    /// Its name, which is also the run's name.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path of the directory that is short enough for sockets, however long the temporary directory's path is. It is valid only
    /// in this process, until the directory is removed.
    pub(crate) fn sockets(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.opened.as_raw_fd()))
    }

    /// Removes the directory with its content.
    pub fn remove(self) {
        remove_directory(&self.path);
    }
}

/// Whether the run of this directory is alive, which means that it holds its lock. Another user may have created the directory:
/// O_NONBLOCK prevents a FIFO from blocking the open call.
pub(crate) fn lives(directory: &Path) -> bool {
    File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join(LOCK))
        .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes a run's directory if it belongs to this user: any user can create a directory of such a name in the temporary directory.
pub(crate) fn remove_directory(directory: &Path) {
    let own = |found: Metadata| found.is_dir() && found.uid() == geteuid().as_raw();
    if !directory.symlink_metadata().is_ok_and(own) {
        return;
    }
    if let Err(error) = file_tree::remove(directory) {
        tracing::warn!(%error, directory = %directory.display(), "failed to remove directory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_lives_until_its_run_ends() {
        let run = RunDirectory::make("crib-check-test-").unwrap();
        let path = run.path().to_owned();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), run.name());
        assert!(lives(&path));
        assert!(run.sockets().join(LOCK).is_file());
        let RunDirectory { _lock: lock, .. } = run;
        drop(lock);
        assert!(!lives(&path), "the lock is free");
        remove_directory(&path);
        assert!(!path.exists());
    }

    #[test]
    fn directory_of_other_user_is_skipped_and_kept() {
        let temporary = tempfile::tempdir().unwrap();
        let planted = temporary.path().join("crib-check-64ab-12-0");
        std::fs::create_dir(&planted).unwrap();
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
        nix::unistd::mkfifo(&planted.join(LOCK), mode).unwrap();
        assert!(!lives(&planted));
        let link = temporary.path().join("crib-check-64ab-12-1");
        std::os::unix::fs::symlink(&planted, &link).unwrap();
        remove_directory(&link);
        assert!(link.is_symlink() && planted.is_dir());
        if geteuid().is_root() {
            std::os::unix::fs::chown(&planted, Some(12345), None).unwrap();
            remove_directory(&planted);
            assert!(planted.is_dir());
            std::os::unix::fs::chown(&planted, Some(0), None).unwrap();
        }
        remove_directory(&planted);
        assert!(!planted.exists());
    }
}
