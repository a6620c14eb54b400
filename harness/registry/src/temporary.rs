//! The temporary directory of a registry. If the process is killed, the user's next registry removes it.
//!
//! The registry holds a lock (flock(2)) on the file `lock` in the directory. Another process removes the directory only if it gets
//! this lock. A directory without the file is left alone: it is being created, or belongs to another program.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// The name prefix of the directories.
const PREFIX: &str = "crib-registry-";
/// The file with the lock.
const LOCK: &str = "lock";
/// The subdirectory of the images.
const IMAGES: &str = "images";

/// A temporary directory. Dropping it removes the directory.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    directory: TempDir,
    /// Dropped last, after the directory is removed.
    _lock: File,
}

impl TemporaryDirectory {
    /// Creates a directory in `parent` that only its owner can enter.
    pub(super) fn make(parent: &Path) -> io::Result<Self> {
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent);
        let directory = made?;
        // The file gets its final name after it is locked, so that no other process removes the directory before.
        let new = directory.path().join("lock.new");
        let lock = File::create_new(&new)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(new, directory.path().join(LOCK))?;
        Ok(Self { directory, _lock: lock })
    }

    /// The directory of the images.
    pub(super) fn images(&self) -> PathBuf {
        self.directory.path().join(IMAGES)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // The images are removed before the lock file: if this process is killed in between, the next one removes the rest.
        if let Err(error) = file_tree::remove(&self.images()) {
            tracing::debug!(%error, "failed to remove the images of a registry");
        }
    }
}

/// Removes the directories in `parent` whose registries were killed. A directory that cannot be removed stays.
pub(super) fn remove_dead(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let directory = entry.path();
        let Some(_lock) = lock_dead(&directory) else { continue };
        let removed = file_tree::remove(&directory.join(IMAGES));
        if let Err(error) = removed.and_then(|()| file_tree::remove(&directory)) {
            tracing::warn!(directory = %directory.display(), %error, "failed to remove the directory of a killed registry");
        }
    }
}

/// Takes the lock of a directory, if it belongs to a killed registry of this user.
fn lock_dead(directory: &Path) -> Option<File> {
    let name = directory.file_name()?;
    if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
        return None;
    }
    // Do not follow a symbolic link, and skip directories that another user can enter.
    let found = fs::symlink_metadata(directory).ok()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !is_own || found.mode() & 0o077 != 0 {
        return None;
    }
    let path = directory.join(LOCK);
    // Opening a FIFO would block.
    if !fs::symlink_metadata(&path).ok()?.is_file() {
        return None;
    }
    let file = File::open(&path).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    // Another process may have removed or replaced the file since it was opened.
    let (locked, now) = (file.metadata().ok()?, fs::symlink_metadata(&path).ok()?);
    ((locked.dev(), locked.ino()) == (now.dev(), now.ino())).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a lock that no process holds.
    fn dead(path: &Path, mode: u32) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        fs::write(path.join(LOCK), "").unwrap();
        fs::create_dir(path.join(IMAGES)).unwrap();
    }

    #[test]
    fn only_unlocked_directories_of_registries_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        let living = TemporaryDirectory::make(parent.path()).unwrap();
        fs::create_dir(living.images()).unwrap();
        dead(&path("crib-registry-dead"), 0o700);
        // Accessible to others, of another program, a link, and one without a lock.
        dead(&path("crib-registry-open"), 0o755);
        dead(&path("other"), 0o700);
        std::os::unix::fs::symlink(path("other"), path("crib-registry-link")).unwrap();
        dead(&path("crib-registry-new"), 0o700);
        fs::remove_file(path("crib-registry-new").join(LOCK)).unwrap();
        let count = || fs::read_dir(parent.path()).unwrap().count();
        assert_eq!(count(), 6);
        remove_dead(parent.path());
        assert!(!path("crib-registry-dead").exists());
        assert_eq!(count(), 5);
        assert!(living.images().exists() && path("other").join(IMAGES).exists());
        drop(living);
        assert_eq!(count(), 4);
    }
}
