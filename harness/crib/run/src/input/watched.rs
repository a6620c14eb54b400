//! Watches the directories of manifests for changes.
//!
//! The watch is on a file's directory, not on the file, because editors replace a file by a new one.

use std::io;
use std::path::{Path, PathBuf};

use compact::Set;
use inotify::{Inotify, WatchMask};

/// An inotify instance with the watched directories.
#[derive(Debug)]
pub struct Watched(pub(crate) Inotify);

/// Starts to watch these manifests. Must be called before they are read, so that no change is missed.
pub(crate) fn watch(paths: &[PathBuf]) -> io::Result<Watched> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::MODIFY
        | WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
        | WatchMask::MOVED_TO
        | WatchMask::ATTRIB;
    for directory in directories(paths) {
        inotify.watches().add(&directory, mask).map_err(|error| {
            let directory = directory.display();
            io::Error::new(error.kind(), format!("failed to watch {directory}: {error}"))
        })?;
    }
    Ok(Watched(inotify))
}

/// The directories that contain the manifests, and the targets of symbolic links among them.
fn directories(paths: &[PathBuf]) -> Set<PathBuf> {
    let of = |path: &Path| {
        if path.is_dir() {
            return path.to_owned();
        }
        match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        }
    };
    let mut all = Set::new();
    for path in paths {
        all.insert(of(path));
        if let Ok(target) = path.canonicalize() {
            all.insert(of(&target));
        }
    }
    all
}
