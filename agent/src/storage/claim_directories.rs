//! The directories of claims: they outlive pods and agents, and `crib volume` lists and removes them.
//!
//! Containers see `BASE/NAMESPACE/NAME/volume`. An agent whose pods use it holds a shared lock on `lock` beside it. A removal takes
//! an exclusive lock, so that nothing is removed while a pod uses it. Pods may outlive their agent: `users` has a link to a file
//! that their runtime locks as long as they run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use api::claims::ClaimName;
use file_tree::private::{self, PrivateError};

use crate::node::component;

const LOCK: &str = "lock";
const VOLUME: &str = "volume";
const USERS: &str = "users";

/// The prefix of directories whose claim was removed; no namespace has such a name.
const REMOVED: &str = ".removed-";

/// Why a claim's directory could not be used or removed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory of all claims cannot be made private.
    #[error("failed to prepare the directory of volumes")]
    Private(#[from] PrivateError),
    /// An operation failed.
    #[error("failed to {action} {}", .path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Pods use the volume.
    #[error("volume {0} is in use: stop the pods that use it first")]
    InUse(ClaimName),
    /// There is no such volume.
    #[error("volume {0} not found")]
    NotFound(ClaimName),
}

impl DirectoryError {
    pub(super) fn io<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// The directories of all claims below a base directory.
#[derive(Clone, Debug)]
pub struct ClaimDirectories {
    base: PathBuf,
}

/// The directory of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDirectory {
    /// The claim.
    pub claim: ClaimName,
    /// The path that containers see.
    pub path: PathBuf,
    /// When it was created.
    pub created: Option<SystemTime>,
    /// Whether pods use it.
    pub is_in_use: bool,
}

/// A claim's directory that cannot be removed until this is dropped, or its process ends.
#[derive(Debug)]
pub struct HeldDirectory {
    /// The path that containers see.
    pub path: PathBuf,
    _lock: File,
}

impl ClaimDirectories {
    /// The directories below `base`, which need not exist.
    #[must_use]
    pub fn new(base: PathBuf) -> Self {
        Self { base }
    }

    /// The path of a claim's volume, which need not exist.
    #[must_use]
    pub fn path(&self, claim: &ClaimName) -> PathBuf {
        self.directory(claim).join(VOLUME)
    }

    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    pub(super) fn directory(&self, claim: &ClaimName) -> PathBuf {
        let namespace = self.base.join(component(&claim.namespace));
        namespace.join(component(&claim.name))
    }

    /// Creates the directory of a claim if there is none, and prevents its removal until the result is dropped, and as long as
    /// another process locks (flock(2)) the file `pods`.
    ///
    /// # Errors
    /// If it cannot be created, or is being removed.
    pub fn hold(
        &self,
        claim: &ClaimName,
        pods: Option<&Path>,
    ) -> Result<HeldDirectory, DirectoryError> {
        private::make(&self.base)?;
        let (directory, path) = (self.directory(claim), self.path(claim));
        let lock = directory.join(LOCK);
        loop {
            fs::create_dir_all(&directory).map_err(DirectoryError::io("create", &directory))?;
            let file = open_lock(&lock);
            let file = match file {
                // Another process has just removed the directory.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.map_err(DirectoryError::io("create", &lock))?,
            };
            file.lock_shared().map_err(DirectoryError::io("lock", &lock))?;
            if is_same(&file, &lock) {
                make_volume(&path)?;
                if let Some(pods) = pods {
                    let users = directory.join(USERS);
                    add_user(&users, pods).map_err(DirectoryError::io("write", &users))?;
                }
                return Ok(HeldDirectory { path, _lock: file });
            }
        }
    }

    /// All directories, in the order of the claims' names.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&self) -> Result<Vec<ClaimDirectory>, DirectoryError> {
        let mut found = Vec::new();
        for namespace in names(&self.base)? {
            if namespace.starts_with(REMOVED) {
                continue;
            }
            for name in names(&self.base.join(&namespace))? {
                let claim = ClaimName::new(namespace.clone(), name);
                let path = self.path(&claim);
                let Ok(made) = fs::metadata(&path) else {
                    continue;
                };
                found.push(ClaimDirectory {
                    is_in_use: self.is_in_use(&claim),
                    created: made.created().ok(),
                    claim,
                    path,
                });
            }
        }
        compact::sort_by(&mut found, |one, other| one.claim.cmp(&other.claim));
        Ok(found)
    }

    fn is_in_use(&self, claim: &ClaimName) -> bool {
        let directory = self.directory(claim);
        is_locked(&directory.join(LOCK)) || has_users(&directory.join(USERS))
    }

    /// Removes the directory of an unused claim. A mount in it is kept, and is an error.
    ///
    /// # Errors
    /// If there is none, pods use it, or part of it cannot be removed.
    pub fn remove(&self, claim: &ClaimName) -> Result<(), DirectoryError> {
        let directory = self.directory(claim);
        if !directory.is_dir() {
            return Err(DirectoryError::NotFound(claim.clone()));
        }
        let lock = directory.join(LOCK);
        let file = open_lock(&lock).map_err(DirectoryError::io("lock", &lock))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::InUse(claim.clone())),
            Err(TryLockError::Error(error)) => {
                return Err(DirectoryError::io("lock", &lock)(error));
            }
        }
        if !is_same(&file, &lock) {
            return Err(DirectoryError::NotFound(claim.clone()));
        }
        if has_users(&directory.join(USERS)) {
            return Err(DirectoryError::InUse(claim.clone()));
        }
        let removed = self.base.join(format!(
            "{REMOVED}{}-{}",
            component(&claim.namespace),
            component(&claim.name)
        ));
        // An earlier removal may have been interrupted.
        self.delete(&removed)?;
        fs::rename(&directory, &removed).map_err(DirectoryError::io("remove", &directory))?;
        // Fails if the namespace has other claims.
        let _ = fs::remove_dir(self.base.join(component(&claim.namespace)));
        self.delete(&removed)
    }

    fn delete(&self, directory: &Path) -> Result<(), DirectoryError> {
        file_tree::remove(directory)
            .map_err(|error| DirectoryError::io("remove", directory)(error.into()))
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Whether another process locks the file.
fn is_locked(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Whether a link in the directory refers to a locked file.
fn has_users(directory: &Path) -> bool {
    let links = fs::read_dir(directory).into_iter().flatten().flatten();
    links.into_iter().any(|link| is_locked(&link.path()))
}

/// Adds a link to a locked file, and removes links to files that are no longer locked.
fn add_user(directory: &Path, lock: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for link in fs::read_dir(directory)?.flatten() {
        if !is_locked(&link.path()) {
            let _ = fs::remove_file(link.path());
        }
    }
    let of = fs::metadata(lock)?;
    let lock = std::path::absolute(lock)?;
    match symlink(lock, directory.join(format!("{}-{}", of.dev(), of.ino()))) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Whether an open lock file is still the one at its path: its directory may have been removed since it was opened.
fn is_same(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(named)) = (file.metadata(), fs::metadata(path)) else {
        return false;
    };
    (own.dev(), own.ino()) == (named.dev(), named.ino())
}

/// Creates the directory that containers see, writable by all their users.
fn make_volume(path: &Path) -> Result<(), DirectoryError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        made => made.map_err(DirectoryError::io("create", path))?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))
        .map_err(DirectoryError::io("set the mode of", path))
}

/// The names in a directory; none if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>, DirectoryError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(DirectoryError::io("list", directory))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(DirectoryError::io("list", directory))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn claim(name: &str) -> ClaimName {
        ClaimName::new("default", name)
    }

    #[test]
    fn directories_are_kept_listed_and_removed_unless_held() {
        let root = tempfile::tempdir().unwrap();
        let directories = ClaimDirectories::new(root.path().join("volumes"));
        assert_eq!(directories.list().unwrap(), []);
        let held = directories.hold(&claim("a"), None).unwrap();
        assert_eq!(held.path, directories.path(&claim("a")));
        let mode = fs::metadata(&held.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o777);
        fs::write(held.path.join("f"), "kept").unwrap();
        // Pods may share it.
        drop(directories.hold(&claim("a"), None).unwrap());
        let error = directories.remove(&claim("a")).unwrap_err();
        assert!(matches!(error, DirectoryError::InUse(_)), "{error}");
        let in_use = |name: &str| {
            let listed = directories.list().unwrap();
            let found = listed.iter().find(|found| found.claim == claim(name));
            found.map(|found| found.is_in_use)
        };
        assert_eq!(in_use("a"), Some(true));
        drop(held);
        assert_eq!(in_use("a"), Some(false));
        let again = directories.hold(&claim("a"), None).unwrap();
        assert_eq!(fs::read_to_string(again.path.join("f")).unwrap(), "kept");
        drop(again);
        drop(directories.hold(&claim("b"), None).unwrap());
        directories.remove(&claim("a")).unwrap();
        assert_eq!((in_use("a"), in_use("b")), (None, Some(false)));
        let error = directories.remove(&claim("a")).unwrap_err();
        assert!(matches!(error, DirectoryError::NotFound(_)), "{error}");
        directories.remove(&claim("b")).unwrap();
        assert_eq!(names(&root.path().join("volumes")).unwrap(), [""; 0]);
    }

    #[test]
    fn directory_is_in_use_while_pods_outlive_their_agent() {
        let root = tempfile::tempdir().unwrap();
        let directories = ClaimDirectories::new(root.path().join("volumes"));
        let in_use = || directories.list().unwrap()[0].is_in_use;
        let pods = root.path().join("lock");
        let runtime = File::create(&pods).unwrap();
        runtime.lock_shared().unwrap();
        for _ in 0..2 {
            drop(directories.hold(&claim("a"), Some(&pods)).unwrap());
        }
        assert!(in_use());
        let error = directories.remove(&claim("a")).unwrap_err();
        assert!(matches!(error, DirectoryError::InUse(_)), "{error}");
        drop(runtime);
        assert!(!in_use());
        // Links of ended runs do not accumulate.
        let other = root.path().join("other");
        let runtime = File::create(&other).unwrap();
        runtime.lock_shared().unwrap();
        drop(directories.hold(&claim("a"), Some(&other)).unwrap());
        let users = directories.directory(&claim("a")).join(USERS);
        assert_eq!(fs::read_dir(users).unwrap().count(), 1);
        assert!(in_use());
        drop(runtime);
        directories.remove(&claim("a")).unwrap();
    }

    #[test]
    fn names_cannot_leave_the_base() {
        let directories = ClaimDirectories::new(PathBuf::from("/base"));
        let path = directories.path(&ClaimName::new("..", "a/../../b"));
        assert_eq!(path, Path::new("/base/_../a_.._.._b/volume"));
    }
}
