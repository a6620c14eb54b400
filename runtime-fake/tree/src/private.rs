//! Directories with mode 0700, which no other user can enter.
//!
//! Containers write below such a directory: a container's root could hold a set-user-ID program for a local user
//! to run.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::directory;

/// Why a directory cannot be made private.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// Another user owns it, and could change everything in it.
    #[error(
        "{} belongs to user {owner}, who could change what is kept in it: {}choose another directory",
        path.display(),
        if may_remove(*owner) { "remove it, or " } else { "" }
    )]
    NotOurs {
        /// The directory, or the symbolic link in its place.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The kernel refused.
    #[error("failed to {doing} {}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// Creates the directory at `path` and its parents with mode 0700. An existing directory must belong to this
/// user, and its mode is set to 0700.
///
/// # Errors
/// When another user owns it, or when it cannot be created or its mode cannot be set.
pub fn make(path: &Path) -> Result<(), PrivateError> {
    let io = |doing| move |source| PrivateError::Io { doing, path: path.to_owned(), source };
    if let Ok(found) = fs::symlink_metadata(path)
        && found.is_symlink()
    {
        // A symbolic link may belong to root too: an administrator may keep the directory on another disk.
        own(path, found.uid(), &[0])?;
    }
    directory::make(path, 0o700).map_err(io("make the directory"))?;
    close(path)
}

/// Sets mode 0700 on the directory at `path`, which must belong to this user.
///
/// # Errors
/// When another user owns it, or when its mode cannot be set.
pub fn close(path: &Path) -> Result<(), PrivateError> {
    let io = |doing| move |source| PrivateError::Io { doing, path: path.to_owned(), source };
    let found = fs::metadata(path).map_err(io("look at the directory"))?;
    own(path, found.uid(), &[])?;
    if found.mode() & 0o7777 == 0o700 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io("close the directory"))
}

/// Whether this process may remove files of `owner`, even in a sticky directory: as their owner, or as root of the machine. Root
/// of a user namespace has no privileges over other users' files.
#[must_use]
pub fn may_remove(owner: u32) -> bool {
    owner == rustix::process::geteuid().as_raw() || is_root_of_machine()
}

/// Whether this process is root of the machine, not of a user namespace.
#[must_use]
pub fn is_root_of_machine() -> bool {
    let all_ids = || {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    rustix::process::geteuid().is_root() && all_ids()
}

fn own(path: &Path, owner: u32, besides: &[u32]) -> Result<(), PrivateError> {
    if owner == rustix::process::geteuid().as_raw() || besides.contains(&owner) {
        return Ok(());
    }
    Err(PrivateError::NotOurs { path: path.to_owned(), owner })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn make_closes_new_and_existing_directories() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        make(&path).unwrap();
        assert_eq!((mode(&path), mode(&place.path().join("a"))), (0o700, 0o700));
        for earlier in [0o755, 0o711, 0o777, 0o2770, 0o000] {
            fs::set_permissions(&path, Permissions::from_mode(earlier)).unwrap();
            make(&path).unwrap();
            assert_eq!(mode(&path), 0o700, "{earlier:o}");
        }
    }

    #[test]
    fn make_follows_own_symlinks_only() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        make(&link).unwrap();
        assert_eq!(mode(&real), 0o700);
        if rustix::process::geteuid().is_root() {
            lchown(&link, Some(12345), None).unwrap();
            assert!(matches!(make(&link), Err(PrivateError::NotOurs { owner: 12345, .. })));
            lchown(&real, Some(12345), None).unwrap();
            assert!(matches!(make(&real), Err(PrivateError::NotOurs { .. })));
        }
    }
}
