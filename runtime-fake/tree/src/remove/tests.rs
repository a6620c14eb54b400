//! Removes trees that a hostile container might make.
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::PathBuf,
    thread,
};

use rustix::fd::OwnedFd;

use super::*;

/// Nests `depth` directories with names of `length` bytes, each with a file beside it, below `top`.
pub(crate) fn nest(top: &Path, depth: usize, length: usize) {
    let name = "d".repeat(length);
    let mut at: OwnedFd = fs::File::open(top).unwrap().into();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY;
        rustix::fs::openat(&at, "file", flags, Mode::RUSR).unwrap();
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        at = rustix::fs::openat(&at, &name, flags, Mode::empty()).unwrap();
    }
}

/// A directory in memory if possible: large trees are created there quickly.
pub(crate) fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn tree() -> (tempfile::TempDir, PathBuf) {
    let place = place();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (place, tree)
}

/// Removes on a thread with a small stack, which recursion would overflow.
fn remove_on_small_stack(path: &Path) -> Result<(), RemoveError> {
    let path = path.to_owned();
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    thread.spawn(move || remove(&path)).unwrap().join().unwrap()
}

#[test]
fn deep_tree_is_removed() {
    let (_place, tree) = tree();
    nest(&tree, 60_000, 1);
    remove_on_small_stack(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn tree_with_paths_beyond_path_max_is_removed() {
    let (_place, tree) = tree();
    nest(&tree, 2_000, 255);
    remove_on_small_stack(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn deep_and_wide_tree_is_removed() {
    let (_place, tree) = tree();
    for width in 0..20 {
        let branch = tree.join(width.to_string());
        fs::create_dir(&branch).unwrap();
        nest(&branch, 200, 7);
    }
    // The names that the removal itself uses.
    for taken in 0..5 {
        fs::create_dir_all(tree.join(format!(".removed-{taken}/x"))).unwrap();
    }
    remove(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn directory_with_many_entries_is_removed() {
    let (_place, tree) = tree();
    for number in 0..20_000 {
        fs::write(tree.join(number.to_string()), "").unwrap();
    }
    remove(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn protected_tree_is_removed_and_link_targets_stay() {
    let (place, tree) = tree();
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "kept").unwrap();
    nest(&tree, 80, 1);
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), "").unwrap();
    symlink(&outside, tree.join("a/link")).unwrap();
    for closed in ["a/b", "a", "d", ""] {
        fs::set_permissions(tree.join(closed), Permissions::from_mode(0o000)).unwrap();
    }
    remove(&tree).unwrap();
    assert!(!tree.exists());
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
    remove(&tree).unwrap();
}

#[test]
fn symlink_in_place_of_the_tree_is_removed_itself() {
    let (place, tree) = tree();
    let link = place.path().join("link");
    symlink(&tree, &link).unwrap();
    remove(&link).unwrap();
    assert!(tree.is_dir());
    assert!(!link.is_symlink());
}

#[test]
fn remove_rejects_root_and_ignores_missing_path() {
    assert!(remove(Path::new("/")).is_err());
    remove(Path::new("/nowhere/at/all")).unwrap();
}

#[test]
fn tree_in_a_closed_parent_is_emptied() {
    let (_place, top) = tree();
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/file"), "").unwrap();
    let parent = top.parent().unwrap().to_owned();
    let root = rustix::process::geteuid().is_root();
    let nobody = 65534;
    if root {
        for path in [&parent, &top, &top.join("a"), &top.join("a/b")] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        for path in ["", "a", "a/b"] {
            chown(top.join(path), Some(nobody), Some(nobody)).unwrap();
        }
    } else {
        fs::set_permissions(&parent, Permissions::from_mode(0o555)).unwrap();
    }
    let tree = top.clone();
    let removal = thread::spawn(move || {
        if root {
            // Applies to this thread only.
            let uid = rustix::process::Uid::from_raw(nobody);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        }
        remove(&tree)
    });
    let error = io::Error::from(removal.join().unwrap().unwrap_err());
    fs::set_permissions(&parent, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
}
