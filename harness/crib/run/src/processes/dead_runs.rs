//! Directories of `crib run`s that were killed together with their runtimes, with the resources that the runtime's state names
//! (network links, cgroups). The next `crib run` removes both.
//!
//! The command and its runtime each hold a shared lock (flock(2)) on the file `lock` in the directory while they run. Only the
//! holder of the exclusive lock may remove the directory. A directory without the file is never removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crib_base::live::RunName;
use rustix::fs::{FlockOperation, flock};

use crate::processes::root::PREFIX;

/// The name of the lock file in a run's directory.
const LOCK: &str = "lock";
/// The file that contains the run's name, if it has one.
const NAME: &str = "name";
/// The file that marks a runtime that continues without the command (`--keep`).
const KEPT: &str = "kept";

/// The lock file of a run and its runtime.
pub(crate) fn lock(dir: &Path) -> PathBuf {
    dir.join(LOCK)
}

/// A shared lock on a run's directory. Dropping it releases the lock.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Creates the lock file of a new directory. The file is renamed to its final name once it is locked.
    pub fn make(dir: &Path) -> io::Result<Self> {
        let new = dir.join("lock.new");
        let file = File::create_new(&new)?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        std::fs::rename(new, dir.join(LOCK))?;
        Ok(Self { _file: file })
    }

    /// Acquires a shared lock.
    pub fn share(dir: &Path) -> io::Result<Self> {
        let file = File::open(dir.join(LOCK))?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { _file: file })
    }

    /// Locks the directory of a dead run; `None` if the run is alive or another process removes the directory.
    fn of_dead(dir: &Path) -> io::Result<Option<Self>> {
        Self::take(
            dir,
            [FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingLockShared],
        )
    }

    /// Waits until the run and its runtime have ended, then locks the directory; `None` if the directory was removed.
    pub fn wait_for_end(dir: &Path) -> io::Result<Option<Self>> {
        loop {
            let taken = Self::take(
                dir,
                [FlockOperation::LockExclusive, FlockOperation::NonBlockingLockShared],
            )?;
            // Another process that removes the directory may have held the exclusive lock between the two operations.
            if taken.is_some() || !dir.join(LOCK).exists() {
                return Ok(taken);
            }
        }
    }

    fn take(dir: &Path, operations: [FlockOperation; 2]) -> io::Result<Option<Self>> {
        let path = dir.join(LOCK);
        let file = match OpenOptions::new().read(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // An exclusive lock proves that the run is dead; it is downgraded because the runtime that cleans up shares it. During the
        // downgrade, another process may get the exclusive lock, and then removes the directory.
        for operation in operations {
            match rustix::io::retry_on_intr(|| flock(&file, operation)) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        // The file may have been removed after it was opened.
        let same = std::fs::metadata(&path).is_ok_and(|now| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (now.dev(), now.ino()))
        });
        Ok(same.then_some(Self { _file: file }))
    }
}

/// Writes the name of a run into its directory.
pub(crate) fn write_name(dir: &Path, name: &RunName) -> io::Result<()> {
    std::fs::write(dir.join(NAME), name.as_str())
}

/// Registers a name for a kept runtime, so that `crib down` finds it, and marks it as kept.
pub(crate) fn write_kept(dir: &Path, name: &RunName) -> io::Result<()> {
    std::fs::write(dir.join(KEPT), "")?;
    write_name(dir, name)
}

/// Whether the runtime was kept with `--keep`.
pub fn is_kept(dir: &Path) -> bool {
    dir.join(KEPT).exists()
}

/// The names and directories of this user's runs in `parent`, including dead ones.
pub fn with_names(parent: &Path) -> Vec<(RunName, PathBuf)> {
    let named = runs(parent).into_iter().filter_map(|path| {
        let name = std::fs::read_to_string(path.join(NAME)).ok()?;
        Some((name.parse().ok()?, path))
    });
    named.collect()
}

/// The directories of dead runs of this user in `parent`, each with its lock.
pub(crate) fn dead_runs(parent: &Path) -> Vec<(PathBuf, RunLock)> {
    dead_among(runs(parent))
}

/// The paths that are directories of dead runs of this user, each with its lock.
pub(crate) fn dead_among(paths: Vec<PathBuf>) -> Vec<(PathBuf, RunLock)> {
    let dead = paths.into_iter().filter(|path| is_own_run(path)).filter_map(|path| {
        let lock = RunLock::of_dead(&path).ok().flatten()?;
        Some((path, lock))
    });
    dead.collect()
}

/// The directories of this user's runs in `parent`.
fn runs(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = parent.read_dir() else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).filter(|path| is_own_run(path)).collect()
}

/// Whether a path is the directory of a run of this user, accessible to no other user.
fn is_own_run(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let named =
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    // Does not follow a symbolic link.
    named
        && std::fs::symlink_metadata(path)
            .is_ok_and(|data| data.is_dir() && data.uid() == own && data.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn run(parent: &Path, name: &str, mode: u32) -> PathBuf {
        let dir = parent.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        dir
    }

    #[test]
    fn only_unlocked_runs_are_dead() {
        let parent = tempfile::tempdir().unwrap();
        let dir = |name, mode| run(parent.path(), name, mode);
        let [dead, alive, shared] =
            ["crib-run-dead", "crib-run-alive", "crib-run-shared"].map(|name| dir(name, 0o700));
        drop(RunLock::make(&dead).unwrap());
        let _alive = RunLock::make(&alive).unwrap();
        let maker = RunLock::make(&shared).unwrap();
        let _sharer = RunLock::share(&shared).unwrap();
        drop(maker);
        // Not a run, not locked yet, accessible to other users.
        drop(RunLock::make(&dir("other", 0o700)).unwrap());
        dir("crib-run-new", 0o700);
        drop(RunLock::make(&dir("crib-run-open", 0o755)).unwrap());
        let found = dead_runs(parent.path());
        let paths: Vec<&PathBuf> = found.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [&dead]);
        assert_eq!(dead_runs(parent.path()).len(), 0, "one removes it at a time");
    }

    #[test]
    fn only_directories_of_unlocked_runs_are_dead_among_paths() {
        let parent = tempfile::tempdir().unwrap();
        let dir = |name, mode| run(parent.path(), name, mode);
        let [dead, alive, other] =
            ["crib-run-dead", "crib-run-alive", "other"].map(|name| dir(name, 0o700));
        drop(RunLock::make(&dead).unwrap());
        let _alive = RunLock::make(&alive).unwrap();
        drop(RunLock::make(&other).unwrap());
        let open = dir("crib-run-open", 0o755);
        drop(RunLock::make(&open).unwrap());
        let [link, missing] =
            ["crib-run-link", "crib-run-missing"].map(|name| parent.path().join(name));
        std::os::unix::fs::symlink(&dead, &link).unwrap();
        let found = dead_among(vec![link, missing, other, open, alive, dead.clone(), dead.clone()]);
        let paths: Vec<&PathBuf> = found.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [&dead], "and only once");
    }

    #[test]
    fn named_runs_are_found_and_waited_for() {
        let parent = tempfile::tempdir().unwrap();
        let [web, other] = ["crib-run-web", "crib-run-other"].map(|name| {
            let dir = run(parent.path(), name, 0o700);
            (RunLock::make(&dir).unwrap(), dir)
        });
        let name: RunName = "web".parse().unwrap();
        write_name(&web.1, &name).unwrap();
        std::fs::write(other.1.join(NAME), "Not a name").unwrap();
        assert_eq!(with_names(parent.path()), [(name, web.1.clone())]);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| RunLock::wait_for_end(&web.1).unwrap());
            drop(web.0);
            assert!(waiting.join().unwrap().is_some());
        });
        drop(other.0);
        std::fs::remove_file(other.1.join(LOCK)).unwrap();
        assert!(RunLock::wait_for_end(&other.1).unwrap().is_none());
    }
}
