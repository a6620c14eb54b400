//! Locks a subnet against the other daemons of the same network namespace.
//!
//! The lock is a locked file (`flock(2)`) in a directory that only the daemon's own user can enter, so that no other user can
//! create one. The kernel releases it when the process that holds it ends. A subnet in use without a lock, such as another user's
//! daemon's in the same namespace, is found by its addresses and routes.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

/// Why the directory of locks is unusable.
#[derive(Debug, thiserror::Error)]
pub enum SubnetLockError {
    /// Another user could have created its contents.
    #[error(
        "{path} belongs to user {owner} with mode {mode:03o}: it has to be a directory that only user {own} can write to; remove it"
    )]
    NotOwn {
        /// The directory, or its parent.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// The user that must own it.
        own: u32,
    },
    /// A system call failed.
    #[error("failed to lock a file in {directory}")]
    Io {
        /// The directory of locks.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The directory of subnet locks.
#[derive(Debug, Clone)]
pub struct SubnetLocks {
    directory: PathBuf,
}

/// Holds the lock of a subnet until dropped.
#[derive(Debug)]
pub(crate) struct SubnetLock {
    path: PathBuf,
    _locked: File,
}

impl SubnetLocks {
    /// Opens the directory of lock files. Creates `directory`, and its parent, if missing.
    ///
    /// # Errors
    /// When it cannot be created, or another user could write to it.
    pub fn open(directory: &Path) -> Result<SubnetLocks, SubnetLockError> {
        let locks = SubnetLocks { directory: directory.to_owned() };
        let failed = |source| locks.failed(source);
        let mut made = DirBuilder::new();
        made.mode(0o755);
        for path in directory.parent().into_iter().chain([directory]) {
            match made.create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created.map_err(failed)?,
            }
            let own = nix::unistd::geteuid().as_raw();
            let meta = fs::symlink_metadata(path).map_err(failed)?;
            if !meta.is_dir() || meta.uid() != own || meta.mode() & 0o022 != 0 {
                return Err(SubnetLockError::NotOwn {
                    path: path.to_owned(),
                    owner: meta.uid(),
                    mode: meta.mode() & 0o7777,
                    own,
                });
            }
        }
        fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(failed)?;
        locks.sweep();
        Ok(locks)
    }

    /// Locks the subnet for the calling thread's network namespace; `None` if another daemon holds it.
    pub(crate) fn take(&self, subnet: impl Display) -> Result<Option<SubnetLock>, SubnetLockError> {
        let take = || {
            let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
            let name = format!("{namespace}-{subnet}").replace('/', "_");
            lock(&self.directory.join(name), OFlags::CREATE)
        };
        take().map_err(|source| self.failed(source))
    }

    /// Removes the lock files of killed daemons.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            // Taking a lock that no process holds, and dropping it, removes the file.
            drop(lock(&entry.path(), OFlags::empty()));
        }
    }

    fn failed(&self, source: io::Error) -> SubnetLockError {
        SubnetLockError::Io { directory: self.directory.clone(), source }
    }
}

/// Locks the file; `None` if another process holds it.
fn lock(path: &Path, create: OFlags) -> io::Result<Option<SubnetLock>> {
    loop {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
        let file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // The last holder may have removed the file between open and lock: then this lock is on a deleted file and protects
        // nothing.
        let linked = match fs::metadata(path) {
            Ok(meta) => meta.ino() == file.metadata()?.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if linked {
            return Ok(Some(SubnetLock { path: path.to_owned(), _locked: file }));
        }
    }
}

impl Drop for SubnetLock {
    fn drop(&mut self) {
        // Remove the file while it is locked, so that no other daemon can have created it again.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn locks() -> (tempfile::TempDir, SubnetLocks) {
        let root = tempfile::tempdir().unwrap();
        let locks = SubnetLocks::open(&root.path().join("crib/subnets")).unwrap();
        (root, locks)
    }

    #[test]
    fn subnet_lock_is_exclusive() {
        let (root, locks) = locks();
        let directory = root.path().join("crib/subnets");
        let claim = locks.take("10.0.0.0/24").unwrap().unwrap();
        let again = SubnetLocks::open(&directory).unwrap();
        assert!(again.take("10.0.0.0/24").unwrap().is_none());
        assert!(again.take("10.0.1.0/24").unwrap().is_some());
        drop(claim);
        assert!(again.take("10.0.0.0/24").unwrap().is_some());
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    }

    #[test]
    fn open_removes_stale_locks_and_keeps_held_ones() {
        let (root, locks) = locks();
        let directory = root.path().join("crib/subnets");
        let _held = locks.take("10.0.0.0/24").unwrap().unwrap();
        fs::write(directory.join("1-10.0.1.0_24"), "").unwrap();
        let again = SubnetLocks::open(&directory).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert!(again.take("10.0.0.0/24").unwrap().is_none());
    }

    #[test]
    fn open_rejects_directory_writable_by_others() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("crib/subnets");
        fs::create_dir_all(&directory).unwrap();
        for open in [directory.parent().unwrap(), &directory] {
            fs::set_permissions(open, Permissions::from_mode(0o777)).unwrap();
            let error = SubnetLocks::open(&directory).unwrap_err().to_string();
            let expected = format!("{} belongs to user ", open.display());
            assert!(error.starts_with(&expected), "{error}");
            fs::set_permissions(open, Permissions::from_mode(0o755)).unwrap();
        }
        fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/tmp", &directory).unwrap();
        assert!(SubnetLocks::open(&directory).is_err());
    }

    /// A user that can read a lock file can lock it.
    #[test]
    fn open_closes_directory_to_other_users() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("crib/subnets");
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        SubnetLocks::open(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn concurrent_locks_have_one_holder() {
        let (_root, locks) = locks();
        for _ in 0..50 {
            let won = std::thread::scope(|scope| {
                let all: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| locks.take("10.0.0.0/24").unwrap())).collect();
                let all: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
                all.iter().flatten().count()
            });
            assert_eq!(won, 1);
        }
    }
}
