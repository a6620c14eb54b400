//! Walks over trees that a hostile container might make.
#![allow(clippy::unwrap_used)]

use std::fs;

use super::*;
use crate::remove::tests::{nest, place};

#[derive(Default)]
struct Count {
    visited: usize,
    left: usize,
    names: Vec<String>,
}

impl Visitor for Count {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        self.visited += 1;
        if self.names.len() < 100 {
            self.names.push(entry.name.to_string_lossy().into_owned());
        }
        Ok(())
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: &CStr) -> Result<(), Errno> {
        self.left += 1;
        Ok(())
    }
}

#[test]
fn walk_visits_each_entry_of_a_deep_tree_once() {
    let place = place();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for (branch, depth, length) in [("a", 60_000, 1), ("b", 1_000, 255), ("c", 40, 3)] {
        fs::create_dir(tree.join(branch)).unwrap();
        nest(&tree.join(branch), depth, length);
    }
    let top = open(&tree).unwrap();
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    let count = thread.spawn(move || {
        let mut count = Count::default();
        walk(top, Mounts::Stay, &mut count).map(|()| count)
    });
    let count = count.unwrap().join().unwrap().unwrap();
    assert_eq!(count.visited, 3 + 2 * (60_000 + 1_000 + 40));
    assert_eq!(count.left, 3 + 60_000 + 1_000 + 40);
    crate::remove(&tree).unwrap();
}

#[test]
fn walk_does_not_follow_symlinks() {
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/", place.path().join("link")).unwrap();
    let mut count = Count::default();
    walk(open(place.path()).unwrap(), Mounts::Cross, &mut count).unwrap();
    assert_eq!(count.names, ["link"]);
}

/// Moves a directory above the walk's current position out of the tree.
struct Mover<'a> {
    from: &'a Path,
    to: &'a Path,
    seen: usize,
}

impl Visitor for Mover<'_> {
    fn visit(&mut self, _: &Entry<'_>) -> Result<(), Errno> {
        self.seen += 1;
        if self.seen == 150 {
            fs::rename(self.from, self.to).unwrap();
        }
        assert!(self.seen < 1000, "the walk has left the tree");
        Ok(())
    }
}

#[test]
fn walk_ends_when_directories_are_moved_away() {
    let place = tempfile::tempdir().unwrap();
    let (tree, other) = (place.path().join("tree"), place.path().join("other"));
    fs::create_dir(&tree).unwrap();
    nest(&tree, 100, 1);
    let mut mover = Mover { from: &tree.join("d/d/d"), to: &other, seen: 0 };
    let ended = walk(open(&tree).unwrap(), Mounts::Stay, &mut mover);
    assert_eq!(ended, Err(Errno::STALE));
}
