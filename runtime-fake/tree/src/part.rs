//! Parts of a tree by their path: makes, finds and reads them.
//!
//! The tree may have symbolic links to anywhere, and the processes that own it may add new ones at any time. So links are
//! resolved first, the result must be in the tree, and it is reopened without following links.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::scoped::open_scoped;

/// The path without `.` and doubled slashes.
#[must_use]
pub fn without_dots(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// The path relative to the tree, if it is in it.
fn within<'a>(path: &'a Path, tree: &Path) -> io::Result<&'a Path> {
    path.strip_prefix(tree).map_err(|_| {
        let problem = "the path leaves its directory";
        io::Error::new(io::ErrorKind::PermissionDenied, problem)
    })
}

/// Opens a path without links, from the top of the tree.
fn open(tree: &Path, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if path.as_os_str().is_empty() {
        // The whole tree, which may be a file.
        return Ok(rustix::fs::open(tree, flags, Mode::empty())?);
    }
    let top = crate::open(tree)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(open_scoped(top, path, flags, Mode::empty(), resolve)?)
}

/// Makes the directories of a path that are missing, with the mode of the top of the tree.
///
/// # Errors
/// If the path leads out of the tree or through an entry other than a directory, or the kernel's error.
pub fn make_directories(tree: &Path, path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(fs::metadata(tree)?.mode() & 0o7777);
    let tree = fs::canonicalize(tree)?;
    let (found, missing) = split(&tree, &without_dots(path))?;
    let found = fs::canonicalize(found)?;
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parent = open(&tree, within(&found, &tree)?, directory)?;
    for name in missing.components() {
        let name = name.as_os_str();
        // Fails if the name exists by now, even as a dangling link.
        rustix::fs::mkdirat(&parent, name, mode)?;
        parent = rustix::fs::openat(&parent, name, directory, Mode::empty())?;
        // Set explicitly, because of the umask.
        rustix::fs::fchmod(&parent, mode)?;
    }
    Ok(())
}

/// Splits a path in a tree into the existing part, with links followed, and the rest.
fn split(tree: &Path, path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut found = tree.to_owned();
    let mut directory = rustix::fs::openat(CWD, tree, flags, Mode::empty())?;
    let mut rest = path.components();
    loop {
        let before = rest.as_path().to_owned();
        let Some(name) = rest.next() else {
            return Ok((found, before));
        };
        match rustix::fs::openat(&directory, name.as_os_str(), flags, Mode::empty()) {
            Ok(next) => directory = next,
            Err(Errno::NOENT) => return Ok((found, before)),
            Err(error) => return Err(error.into()),
        }
        found.push(name);
    }
}

/// A part of a tree, links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The absolute path of the tree.
    pub tree: PathBuf,
    /// The path in the tree; empty for all of it.
    pub path: PathBuf,
}

impl Part {
    /// The absolute path of the part.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        match self.path.as_os_str().is_empty() {
            true => self.tree.clone(),
            false => self.tree.join(&self.path),
        }
    }
}

/// Resolves a path in a tree, without links in the result.
///
/// # Errors
/// If the path leads out of the tree, or the kernel's error.
pub fn find(tree: &Path, path: &Path) -> io::Result<Part> {
    let found = fs::canonicalize(tree.join(without_dots(path)))?;
    let tree = fs::canonicalize(tree)?;
    let path = within(&found, &tree)?.to_owned();
    let part = Part { tree, path };
    open_part(&part)?;
    Ok(part)
}

/// Opens a part of a tree with `O_PATH`. No symbolic link is followed, neither in the path of the tree nor below it, and the path
/// does not leave the tree: an entry that replaces the part is opened only if it is in the tree too.
///
/// # Errors
/// If there is a link, or the kernel's error.
pub fn open_part(part: &Part) -> io::Result<OwnedFd> {
    // Without `O_NOFOLLOW`, because with it the kernel would open a link at the end of the path instead of refusing it.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = |at, path: &Path, resolve| -> io::Result<OwnedFd> {
        match open_scoped(at, path, flags, Mode::empty(), resolve) {
            Err(Errno::LOOP) => {
                let problem = "the path was replaced by a link";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
            }
            done => Ok(done?),
        }
    };
    let tree = opened(CWD, &part.tree, no_links)?;
    if part.path.as_os_str().is_empty() {
        return Ok(tree);
    }
    opened(tree.as_fd(), &part.path, no_links | ResolveFlags::BENEATH)
}

/// Opens a regular file of a tree for reading. Links are followed as if the tree were the root.
///
/// # Errors
/// If it is not a regular file, or the kernel's error.
pub fn open_file(tree: &Path, path: &Path) -> io::Result<File> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(tree, directory, Mode::empty())?;
    // A FIFO must not keep the caller waiting for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    regular(open_scoped(top, path, flags, Mode::empty(), resolve)?)
}

/// Opens a regular file for reading that a container has mounted from this path, which may be a link to a part of a volume. The
/// container may have replaced the part by a link since then; that link is not followed.
///
/// # Errors
/// If it is not a regular file, or no longer the link's target, or the kernel's error.
pub fn open_mounted(path: &Path) -> io::Result<File> {
    let part = fs::read_link(path).ok().filter(|to| to.is_absolute());
    // A FIFO must not block, as above.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())?;
    let own = format!("/proc/self/fd/{}", opened.as_raw_fd());
    if part.is_some_and(|part| fs::read_link(own).ok() != Some(part)) {
        let problem = "the file was replaced by a link";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    regular(opened)
}

fn regular(opened: OwnedFd) -> io::Result<File> {
    let file = File::from(opened);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        fs::create_dir_all(tree.join("dir")).unwrap();
        fs::create_dir(root.path().join("outside")).unwrap();
        fs::write(root.path().join("outside/secret"), "x").unwrap();
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o2775)).unwrap();
        fs::write(tree.join("file"), "x").unwrap();
        symlink("dir", tree.join("inward")).unwrap();
        symlink("../outside", tree.join("outward")).unwrap();
        symlink("nowhere", tree.join("dangling")).unwrap();
        root
    }

    #[test]
    fn mounted_file_is_opened_unless_its_part_was_replaced() {
        let root = tree();
        let (part, link) = (root.path().join("tree/file"), root.path().join("link"));
        symlink(fs::canonicalize(&part).unwrap(), &link).unwrap();
        open_mounted(&part).unwrap();
        open_mounted(&link).unwrap();
        fs::remove_file(&part).unwrap();
        symlink("../outside/secret", &part).unwrap();
        let error = open_mounted(&link).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }

    #[test]
    fn open_file_does_not_block_on_fifo() {
        let root = tree();
        let fifo = root.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let error = open_mounted(&fifo).unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
    }

    #[test]
    fn made_directories_have_mode_of_top() {
        let root = tree();
        let tree = root.path().join("tree");
        make_directories(&tree, Path::new("./a//b")).unwrap();
        make_directories(&tree, Path::new("inward/c")).unwrap();
        for path in ["a", "a/b", "dir/c"] {
            let made = fs::metadata(tree.join(path)).unwrap();
            assert_eq!(made.permissions().mode() & 0o7777, 0o2775, "{path}");
        }
    }

    #[test]
    fn make_directories_rejects_paths_outside() {
        let root = tree();
        for path in ["outward/a", "dangling", "dangling/a", "file/a", "../outside/a"] {
            make_directories(&root.path().join("tree"), Path::new(path)).unwrap_err();
        }
        assert_eq!(fs::read_dir(root.path().join("outside")).unwrap().count(), 1);
    }

    #[test]
    fn parts_are_found_inside_only() {
        let root = tree();
        let tree = root.path().join("tree");
        let found = |path: &str| {
            let part = find(&tree, Path::new(path)).ok();
            part.map(|part| part.full_path())
        };
        let real = fs::canonicalize(&tree).unwrap();
        assert_eq!(found("inward"), Some(real.join("dir")));
        assert_eq!(found("./file"), Some(real.join("file")));
        assert_eq!(found("."), Some(real));
        assert_eq!(found("outward"), None);
        assert_eq!(found("outward/secret"), None);
        assert_eq!(found("missing"), None);
    }

    #[test]
    fn part_that_was_replaced_by_a_link_is_not_opened() {
        let root = tree();
        let tree = fs::canonicalize(root.path().join("tree")).unwrap();
        fs::create_dir(tree.join("dir/deep")).unwrap();
        symlink("tree", root.path().join("link")).unwrap();
        let open = |tree: &Path, path: &str| {
            let (tree, path) = (tree.to_owned(), path.into());
            open_part(&Part { tree, path })
        };
        open(&tree, "dir/deep").unwrap();
        open(&tree, "file").unwrap();
        open(&tree, "").unwrap();
        let link = tree.with_file_name("link");
        for (tree, path) in [
            (&tree, "inward"),
            (&tree, "inward/deep"),
            (&tree, "outward"),
            (&tree, "dangling"),
            (&link, "dir"),
            (&link, ""),
        ] {
            let error = open(tree, path).unwrap_err();
            assert_eq!(error.to_string(), "the path was replaced by a link");
        }
        open(&tree, "../outside").unwrap_err();
        open(&tree, "missing").unwrap_err();
    }

    #[test]
    fn files_are_read_inside_only() {
        let root = tree();
        let tree = root.path().join("tree");
        assert!(open_file(&tree, Path::new("file")).is_ok());
        assert!(open_file(&tree, Path::new("outward/secret")).is_err());
        assert!(open_file(&tree, Path::new("dir")).is_err());
    }
}
