//! The directories of manifests, which are watched for changes.
//!
//! The directory of a file is watched, not the file: an editor replaces it by another one.

use std::io;
use std::path::{Path, PathBuf};

use compact::Set;
use inotify::{Inotify, WatchMask};

/// What is watched, and what has happened there since.
#[derive(Debug)]
pub struct Watched(pub(crate) Inotify);

/// Starts to watch these manifests: to be called before they are read, for none of their changes to be missed.
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

/// The directories in which the manifests are, and to which links among them lead.
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
