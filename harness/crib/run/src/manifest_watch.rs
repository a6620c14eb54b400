//! Reloads all manifests of `crib run --watch` when files change.
//!
//! Editors write in several steps (truncate, write, rename), so the manifests are reloaded after a quiet period.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use inotify::EventStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use crate::args::RunArgs;
use crate::input::inputs::{self, Empty, Inputs, ManifestArgs};
use crate::input::watched::Watched;

/// The quiet period without changes of files.
const QUIET: Duration = Duration::from_millis(250);
/// The longest delay by a program that writes continuously.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// The manifests after a change, or their errors.
pub(crate) type Reloaded = Result<Inputs, Vec<String>>;

/// The manifests to load, and the options.
struct Manifests {
    paths: Vec<PathBuf>,
    how: ManifestArgs,
}

/// Starts the watch. The receiver gets the manifests after each change.
pub(crate) fn start(
    watched: Watched,
    args: &RunArgs,
) -> io::Result<mpsc::UnboundedReceiver<Reloaded>> {
    let manifests = Manifests { paths: args.manifests(), how: args.how };
    let stream = watched.0.into_event_stream(vec![0; 4096])?;
    let (sender, receiver) = mpsc::unbounded_channel();
    tasks::spawn(follow(stream, manifests, sender));
    Ok(receiver)
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
        // A file that is written continuously is read after the longest delay.
        let _ = tokio::time::timeout(LONGEST_DELAY, settled).await;
        let again = manifests.clone();
        // A file may be a pipe without a writer.
        let loaded = tasks::spawn_blocking(move || {
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
