//! Watches the manifests of `crib run --watch`, and loads all of them again when they changed.
//!
//! The directory of a file is watched, not the file: an editor replaces it by another one. Editors write in steps (truncate, write,
//! rename), so that all is read only when nothing has happened for a moment.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inotify::{EventStream, Inotify, WatchMask};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use super::args::RunArgs;
use super::inputs::{self, Empty, Inputs, ManifestArgs};

/// How long nothing has to happen to the files.
const QUIET: Duration = Duration::from_millis(250);
/// How long a writer that never pauses may put that off.
const PATIENCE: Duration = Duration::from_secs(5);

/// The manifests after a change, or what is wrong with them.
pub(crate) type Reloaded = Result<Inputs, Vec<String>>;

/// What has to be loaded, and how.
struct Manifests {
    paths: Vec<PathBuf>,
    how: ManifestArgs,
}

/// What is watched, and what has happened there since.
#[derive(Debug)]
pub struct Watched(Inotify);

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

/// The receiver gets the manifests after each change.
pub(crate) fn start(
    watched: Watched,
    args: &RunArgs,
) -> io::Result<mpsc::UnboundedReceiver<Reloaded>> {
    let manifests = Manifests { paths: args.manifests(), how: args.how };
    let stream = watched.0.into_event_stream(vec![0; 4096])?;
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(follow(stream, manifests, sender));
    Ok(receiver)
}

/// The directories in which the manifests are, and to which links among them lead.
fn directories(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let of = |path: &Path| {
        if path.is_dir() {
            return path.to_owned();
        }
        match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        }
    };
    let mut all = BTreeSet::new();
    for path in paths {
        all.insert(of(path));
        if let Ok(target) = path.canonicalize() {
            all.insert(of(&target));
        }
    }
    all
}

async fn follow(
    mut stream: EventStream<Vec<u8>>,
    manifests: Manifests,
    sender: mpsc::UnboundedSender<Reloaded>,
) {
    let manifests = std::sync::Arc::new(manifests);
    while stream.next().await.is_some() {
        let settled =
            async { while let Ok(Some(_)) = tokio::time::timeout(QUIET, stream.next()).await {} };
        // A writer that goes on is read in between.
        let _ = tokio::time::timeout(PATIENCE, settled).await;
        let again = manifests.clone();
        // A file may be a pipe that nobody writes to.
        let loaded = tokio::task::spawn_blocking(move || {
            inputs::load_or_none(&again.paths, again.how, Empty::Accepted)
        });
        let Ok(loaded) = loaded.await else {
            return;
        };
        if sender.send(loaded).is_err() {
            return;
        }
    }
}
