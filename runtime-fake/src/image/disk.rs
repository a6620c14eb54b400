//! Files that are there whole or not at all, and directories that go for certain.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Replaces `path` by `bytes`: a reader, or whoever comes after a SIGKILL, finds the old or the
/// new content. The temporary file is made in `temporary`, on the same file system.
pub(crate) fn write(path: &Path, bytes: &[u8], temporary: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(temporary)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    sync_parent(path)
}

/// Like [`write`], for what need not survive the machine.
pub(crate) fn replace(path: &Path, bytes: &[u8], temporary: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(temporary)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Makes renames and removals in the directory of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes a file, if it is there.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes whatever is at `path`, if anything: also directories that their own modes protect from
/// an ordinary user. Links are removed, never followed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a root directory cannot be removed",
        ));
    };
    let parent = match rustix::fs::open(
        parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    remove_at(&parent, name.as_encoded_bytes()).map_err(Into::into)
}

/// One directory on the way down: its descriptor, its name above, and the names left in it.
struct Level {
    fd: OwnedFd,
    name: Vec<u8>,
    names: Vec<Vec<u8>>,
}

/// Removes whatever `name` in `parent` is, if anything. Depth is bounded by the heap, not by the stack.
pub(crate) fn remove_at(parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let Some(first) = unlink_or_open(parent, name)? else {
        return Ok(());
    };
    let mut levels = vec![first];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.names.pop() {
            if let Some(inner) = unlink_or_open(&level.fd, &name)? {
                levels.push(inner);
            }
            continue;
        }
        let Some(done) = levels.pop() else { break };
        let above = levels
            .last()
            .map_or(parent.as_fd(), |level| level.fd.as_fd());
        match rustix::fs::unlinkat(above, &done.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Removes what is no directory; opens and lists what is one.
fn unlink_or_open(parent: &OwnedFd, name: &[u8]) -> Result<Option<Level>, Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::PERM);
    }
    if stat.st_mode & 0o700 != 0o700 {
        // It is a directory, in a tree that is this process's alone.
        rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let names = names(&fd)?;
    Ok(Some(Level {
        fd,
        name: name.to_vec(),
        names,
    }))
}

/// The names in a directory, without `.` and `..`.
pub(crate) fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_bytes().to_vec());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_protected_tree_goes_and_what_it_links_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "").unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        for closed in ["a/b", "a"] {
            fs::set_permissions(tree.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_tree_is_removed_itself() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        symlink("outside", dir.path().join("link")).unwrap();
        remove_tree(&dir.path().join("link")).unwrap();
        assert!(dir.path().join("outside").is_dir());
        assert!(!dir.path().join("link").is_symlink());
    }
}
