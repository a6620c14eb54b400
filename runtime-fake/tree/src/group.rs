//! Gives a tree to a group (`fsGroup`), even while processes that own it change it.

use std::ffi::CStr;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, chownat, fstat, openat};
use rustix::io::Errno;

use crate::walk::{Entry, Mounts, Visitor, open, walk};

/// The set-group-id bit of a directory: new files get its group.
const SET_GROUP: u32 = 0o2000;

/// Gives everything in the directory at `path`, and then the directory itself, to a group: the group may read it and, unless it
/// is read-only, write to it. Other mounts are skipped.
///
/// # Errors
/// The kernel's error.
pub fn give_to_group(path: &Path, group: u32, readonly: bool) -> io::Result<()> {
    GroupVisitor::new(group, readonly, false, &AtomicU64::new(0)).give_tree(path)
}

/// Like [`give_to_group`], but leaves files as they are whose group or mode the file system does not change. Returns the first of
/// these errors. Counts the files and directories in `visited` meanwhile.
///
/// # Errors
/// EINVAL if the group is not in the user namespace; the kernel's error if the tree cannot be read.
pub fn give_to_group_if_possible(
    path: &Path,
    group: u32,
    readonly: bool,
    visited: &AtomicU64,
) -> io::Result<Option<Errno>> {
    let mut giver = GroupVisitor::new(group, readonly, true, visited);
    giver.give_tree(path)?;
    Ok(giver.refused)
}

/// Whether the directory at `path` belongs to the group, with the permissions that [`give_to_group`] sets.
///
/// # Errors
/// The kernel's error.
pub fn is_of_group(path: &Path, group: u32, readonly: bool) -> io::Result<bool> {
    let stat = rustix::fs::stat(path)?;
    let wanted = added_mode(true, readonly);
    Ok(stat.st_gid == group && stat.st_mode & wanted == wanted)
}

const FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct GroupVisitor<'v> {
    group: Gid,
    readonly: bool,
    /// Whether a file that cannot be changed is left as it is.
    tolerates: bool,
    /// The first error that was tolerated.
    refused: Option<Errno>,
    visited: &'v AtomicU64,
}

impl<'v> GroupVisitor<'v> {
    fn new(group: u32, readonly: bool, tolerates: bool, visited: &'v AtomicU64) -> Self {
        Self { group: Gid::from_raw(group), readonly, tolerates, refused: None, visited }
    }

    fn give_tree(&mut self, path: &Path) -> io::Result<()> {
        walk(open(path)?, Mounts::Stay, self)?;
        let top = openat(CWD, path, FLAGS, Mode::empty())?;
        self.give(&top, &fstat(&top)?)?;
        Ok(())
    }

    fn tolerated(&mut self, changed: Result<(), Errno>) -> Result<(), Errno> {
        match changed {
            Err(errno) if self.tolerates && errno != Errno::INVAL => {
                self.refused.get_or_insert(errno);
                Ok(())
            }
            changed => changed,
        }
    }

    /// Changes the open file, without looking up its name again.
    fn give(&mut self, file: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
        self.visited.fetch_add(1, Ordering::Relaxed);
        self.tolerated(chownat(file, c"", None, Some(self.group), AtFlags::EMPTY_PATH))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            return Ok(());
        }
        let mode = stat.st_mode & 0o7777;
        let mode = mode | added_mode(kind == FileType::Directory, self.readonly);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let changed = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        self.tolerated(changed)
    }

    fn give_name(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let file = match openat(parent, name, FLAGS, Mode::empty()) {
            // It was removed meanwhile.
            Err(Errno::NOENT) => return Ok(()),
            file => file?,
        };
        self.give(&file, &fstat(&file)?)
    }
}

impl Visitor for GroupVisitor<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        match entry.is_directory() {
            // A directory is changed after its contents.
            true => Ok(()),
            false => self.give_name(entry.parent, entry.name),
        }
    }

    fn leave(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        self.give_name(parent, name)
    }
}

fn added_mode(directory: bool, readonly: bool) -> u32 {
    let files = if readonly { 0o440 } else { 0o660 };
    if directory { files | 0o110 | SET_GROUP } else { files }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn group_may_read_and_write() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir_all(volume.join("d")).unwrap();
        fs::write(volume.join("d/f"), "").unwrap();
        symlink("/nowhere", volume.join("l")).unwrap();
        for (path, mode) in [("", 0o700), ("d", 0o755), ("d/f", 0o600)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(volume.join(path), mode).unwrap();
        }
        // A group that every user may set on its own files.
        let group = volume.metadata().unwrap().gid();
        assert!(!is_of_group(&volume, group, true).unwrap());
        give_to_group(&volume, group, true).unwrap();
        let mode = |path: &str| volume.join(path).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode(""), mode("d"), mode("d/f")), (0o2750, 0o2755, 0o640));
        assert!(is_of_group(&volume, group, true).unwrap());
        assert!(!is_of_group(&volume, group, false).unwrap());
        give_to_group(&volume, group, false).unwrap();
        assert_eq!((mode(""), mode("d"), mode("d/f")), (0o2770, 0o2775, 0o660));
        assert!(is_of_group(&volume, group, false).unwrap());
    }

    #[test]
    fn group_that_cannot_be_set_leaves_modes_to_change() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("f"), "").unwrap();
        fs::set_permissions(volume.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
        let visited = AtomicU64::new(0);
        let refused = give_to_group_if_possible(&volume, 4242, false, &visited).unwrap();
        assert_eq!(visited.into_inner(), 2, "the file and its directory");
        let found = volume.join("f").metadata().unwrap();
        // Only root may give files to any group.
        let expected = (found.gid() != 4242).then_some(Errno::PERM);
        assert_eq!((refused, found.mode() & 0o777), (expected, 0o660));
    }

    #[test]
    fn group_applies_to_symlinks() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir(&volume).unwrap();
        symlink("/nowhere", volume.join("l")).unwrap();
        match give_to_group(&volume, 4242, true) {
            Ok(()) => {
                let group = |path: &Path| fs::symlink_metadata(path).unwrap().gid();
                assert_eq!((group(&volume), group(&volume.join("l"))), (4242, 4242));
            }
            // Only root may give files to any group.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
