//! The tmpfs directory for volumes that a kubelet keeps in memory, such as Secret volumes.
//!
//! Its path is `memory` in the agent's root directory. Root mounts a tmpfs there, as a kubelet does for each volume. If root cannot
//! mount, and for all other users, the path is a symbolic link into an existing tmpfs: a mount by another user would be in a mount
//! namespace that the runtime does not see.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use agent::MakeInMemory;
use agent::storage::volumes::in_memory::directory;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::FsFlags;
use nix::unistd::geteuid;
use rustix::fs::{FlockOperation, flock};

/// The prefix of the names of linked directories.
const PREFIX: &str = "crib-memory-";
/// The suffix of the link next to a linked directory, which points back to the path of the first link.
const ORIGIN: &str = ".origin";

/// The function that creates the directory. Must be called before the process enters a user namespace, which changes the user's id.
#[must_use]
pub fn maker() -> MakeInMemory {
    if geteuid().is_root() { mounted_at } else { linked_from }
}

fn mounted_at(at: &Path) -> Result<PathBuf, String> {
    let made = found(at).or_else(|| made(at)).or_else(|| mounted(at));
    made.map_or_else(|| linked_from(at), Ok)
}

/// The parents of linked directories.
fn parents() -> Vec<PathBuf> {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    of_user.into_iter().chain([PathBuf::from("/dev/shm")]).collect()
}

fn linked_from(at: &Path) -> Result<PathBuf, String> {
    let parents = parents();
    let made = found(at).or_else(|| made(at)).or_else(|| linked(at, &parents));
    made.inspect(|directory| hold_lock(directory)).ok_or_else(|| {
        let parents: Vec<String> = parents.iter().map(|path| path.display().to_string()).collect();
        format!(
            "{} is not a writable tmpfs that allows execution: set XDG_RUNTIME_DIR to a directory on a tmpfs that is writable and not mounted noexec",
            parents.join(" or ")
        )
    })
}

/// The directory of an earlier process, if it is usable.
fn found(at: &Path) -> Option<PathBuf> {
    let real = at.canonicalize().ok()?;
    let metadata = fs::symlink_metadata(&real).ok()?;
    let is_own =
        metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
    (is_own && is_usable(&real)).then_some(real)
}

/// Mounts a tmpfs, with noswap if the kernel supports it (Linux 6.4).
fn mounted(at: &Path) -> Option<PathBuf> {
    fresh(at).ok()?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let try_with = |options: &str| mount(Some("crib"), at, Some("tmpfs"), flags, Some(options));
    let made = try_with("mode=0700,noswap").or_else(|_| try_with("mode=0700"));
    made.ok()?;
    at.canonicalize().ok()
}

/// Creates an ordinary directory if its parent is on a tmpfs.
fn made(at: &Path) -> Option<PathBuf> {
    fs::create_dir_all(at.parent()?).ok()?;
    if !is_usable(at.parent()?) {
        return None;
    }
    fresh(at).ok()?;
    at.canonicalize().ok()
}

fn linked(at: &Path, parents: &[PathBuf]) -> Option<PathBuf> {
    parents.iter().filter(|parent| parent.is_absolute() && is_usable(parent)).find_map(|parent| {
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(PREFIX).permissions(fs::Permissions::from_mode(0o700));
        let made = made.tempdir_in(parent).ok()?;
        let real = made.path().canonicalize().ok()?;
        fresh(at).and_then(|()| fs::remove_dir(at)).ok()?;
        symlink(&real, at).ok()?;
        // Without this link, the directory is never recognised as an orphan.
        if let Ok(at) = std::path::absolute(at) {
            let _ = symlink(at, origin(&real));
        }
        let _ = made.keep();
        Some(real)
    })
}

fn origin(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(ORIGIN);
    name.into()
}

/// Holds a lock on a directory until this process ends.
fn hold_lock(directory: &Path) {
    if let Ok(file) = File::open(directory)
        && flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
    {
        std::mem::forget(file);
    }
}

/// Removes orphaned directories of this user: no process uses them, and their root directory was removed without them, for example
/// with the temporary directory of a CI job.
pub fn remove_orphans() {
    for parent in parents() {
        remove_orphans_in(&parent);
    }
}

fn remove_orphans_in(parent: &Path) {
    for directory in with_origins(parent) {
        let Some(_lock) = lock_orphan(&directory) else { continue };
        let removed = file_tree::remove(&directory).map_err(io::Error::from);
        if let Err(error) = removed.and_then(|()| fs::remove_file(origin(&directory))) {
            tracing::warn!(directory = %directory.display(), %error, "failed to remove orphaned volumes in memory");
        }
    }
}

/// The paths of directories in `parent` that have an origin link next to them.
fn with_origins(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let directories = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str().filter(|name| name.starts_with(PREFIX))?;
        Some(parent.join(name.strip_suffix(ORIGIN)?))
    });
    directories.collect()
}

/// The root directories of this user's agents that keep such volumes in a linked directory. The agents may have ended, and their
/// root directories may have been removed.
#[must_use]
pub fn roots() -> Vec<PathBuf> {
    parents().iter().flat_map(|parent| roots_in(parent)).collect()
}

fn roots_in(parent: &Path) -> Vec<PathBuf> {
    let own = geteuid().as_raw();
    let roots = with_origins(parent).into_iter().filter_map(|linked| {
        let origin = origin(&linked);
        // Other users may write to /dev/shm too, and their links can point anywhere.
        if fs::symlink_metadata(&origin).ok()?.uid() != own {
            return None;
        }
        let at = fs::read_link(&origin).ok()?;
        let root = at.parent()?;
        (at.is_absolute() && directory(root) == at).then(|| root.to_owned())
    });
    roots.collect()
}

/// Locks a directory if it is orphaned.
fn lock_orphan(directory: &Path) -> Option<File> {
    let origin = origin(directory);
    let own = geteuid().as_raw();
    for path in [directory, origin.as_path()] {
        if fs::symlink_metadata(path).ok()?.uid() != own {
            return None;
        }
    }
    // The root directory must be missing: a path that this user cannot follow may be accessible to another user.
    let root = fs::symlink_metadata(fs::read_link(&origin).ok()?);
    if root.err()?.kind() != io::ErrorKind::NotFound {
        return None;
    }
    let file = File::open(directory).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

/// Creates an empty directory, and replaces a dangling link.
fn fresh(at: &Path) -> io::Result<()> {
    fs::create_dir_all(at.parent().unwrap_or(at))?;
    let _ = fs::remove_file(at);
    let made = fs::DirBuilder::new().mode(0o700).create(at);
    made.or_else(|error| if at.is_dir() { Ok(()) } else { Err(error) })
}

/// Whether a directory is on a tmpfs without noexec, so that scripts in volumes can be executed.
fn is_usable(directory: &Path) -> bool {
    statfs(directory).is_ok_and(|found| {
        found.filesystem_type() == TMPFS_MAGIC && !found.flags().contains(FsFlags::ST_NOEXEC)
    })
}

/// Removes the memory directory of the agent with this root directory, including its contents, if it exists.
///
/// # Errors
/// Fails if a file cannot be removed.
pub fn remove(root: &Path) -> io::Result<()> {
    let at = directory(root);
    if let Ok(target) = fs::read_link(&at) {
        let name = target.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(PREFIX)) {
            file_tree::remove(&target)?;
            let _ = fs::remove_file(origin(&target));
        }
        return fs::remove_file(&at);
    }
    if is_mount_point(&at) {
        umount2(&at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    Ok(file_tree::remove(&at)?)
}

/// Like [`remove`], unless a pod has volumes there.
///
/// # Errors
/// Fails if a file cannot be removed.
pub fn remove_if_empty(root: &Path) -> io::Result<()> {
    let first = fs::read_dir(directory(root)).ok().and_then(|mut entries| entries.next());
    // The link may be dangling.
    if first.is_some() { Ok(()) } else { remove(root) }
}

fn is_mount_point(at: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).map(|metadata| metadata.dev()).ok();
    let (own, above) = (device(at), at.parent().and_then(device));
    own.is_some() && own != above
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphan_is_removed_once_its_root_is_gone_and_no_process_holds_it() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        // The test needs a tmpfs.
        let Ok(parent) = tempfile::tempdir_in("/dev/shm") else { return };
        let parents = [parent.path().to_owned()];
        let Some(directory) = linked(&directory(&root), &parents) else { return };
        fs::write(directory.join("secret"), "s").unwrap();
        remove_orphans_in(parent.path());
        assert!(directory.exists(), "its root is there");
        assert_eq!(roots_in(parent.path()), [root.as_path()]);
        let holder = File::open(&directory).unwrap();
        flock(&holder, FlockOperation::NonBlockingLockShared).unwrap();
        file_tree::remove(&root).unwrap();
        remove_orphans_in(parent.path());
        assert!(directory.exists(), "it is held");
        drop(holder);
        remove_orphans_in(parent.path());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn directory_goes_with_its_origin() {
        let place = tempfile::tempdir().unwrap();
        let Ok(parent) = tempfile::tempdir_in("/dev/shm") else { return };
        let parents = [parent.path().to_owned()];
        if linked(&directory(place.path()), &parents).is_none() {
            return;
        }
        remove(place.path()).unwrap();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
