//! The directory of a run, with a lock that tells whether the run still lives.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::libc;
use nix::unistd::geteuid;

/// The file in the directory that the run holds locked.
const LOCK: &str = "lock";

/// A directory that this process holds locked until it ends.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    opened: File,
    _lock: File,
}

impl RunDirectory {
    /// Makes a directory for temporary files whose name begins with `prefix`.
    pub fn make(prefix: &str) -> io::Result<Self> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = harness::fixture::unique(&format!("{prefix}{:x}", since.as_micros()));
        let path = harness::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        Ok(Self { opened: File::open(&path)?, path, _lock: lock })
    }

    /// Its name, which is that of the run.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory by a path that is short enough for sockets, whatever the one of the temporary directory: only for this
    /// process, and until the directory is removed.
    pub(crate) fn sockets(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.opened.as_raw_fd()))
    }

    /// Removes it with everything in it.
    pub fn remove(self) {
        remove_directory(&self.path);
    }
}

/// Whether the run with this directory holds its lock. Another user may have made the directory: a FIFO does not hold this up.
pub(crate) fn lives(directory: &Path) -> bool {
    File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join(LOCK))
        .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes the directory of a run of this user. Anybody can make one with such a name in a temporary directory.
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
    fn what_another_user_made_neither_holds_up_nor_is_removed() {
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
