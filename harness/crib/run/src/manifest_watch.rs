//! Loads all manifests of `crib run --watch` again when some of them changed.
//!
//! Editors write in steps (truncate, write,
//! rename), so that all is read only when nothing has happened for a moment.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use inotify::EventStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use crate::args::RunArgs;
use crate::input::inputs::{self, Empty, Inputs, ManifestArgs};
use crate::input::watched::Watched;

/// How long nothing has to happen to the files.
const QUIET: Duration = Duration::from_millis(250);
/// How long a writer that never pauses may put that off.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// The manifests after a change, or what is wrong with them.
pub(crate) type Reloaded = Result<Inputs, Vec<String>>;

/// What has to be loaded, and how.
struct Manifests {
    paths: Vec<PathBuf>,
    how: ManifestArgs,
}

/// The receiver gets the manifests after each change.
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
        // A writer that goes on is read in between.
        let _ = tokio::time::timeout(LONGEST_DELAY, settled).await;
        let again = manifests.clone();
        // A file may be a pipe that nobody writes to.
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
