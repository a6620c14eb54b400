//! Sources of pods. A source always yields its full set of pods; a pod that is missing from a later set is terminated.

use std::sync::Arc;

use api::pod::Pod;
use async_trait::async_trait;
use tokio::sync::mpsc;

pub(crate) mod bound;
pub mod directory;
mod distinct;
pub mod files;
pub mod merge;
pub mod url;

pub use directory::{DirectorySource, directory};
pub use files::ManifestMode;
pub use url::UrlSource;

pub(crate) use distinct::Distinct;

use merge::{DuplicatePod, SourceUpdate};

/// The cause of the termination of a pod that is no longer in any source.
pub const REMOVED: &str = "removed from its source";

/// A source of pods.
#[async_trait]
pub trait PodSource: Send {
    /// The name for logs: `fixed`, `directory /etc/crib/manifests`.
    fn name(&self) -> String;
    /// Waits for the next full set. `None`: there are no further sets, and the last one stays in force.
    async fn next(&mut self) -> Option<Arc<[Pod]>>;
    /// The pods of the last set that are ignored because a pod before has the same name; each is returned once.
    fn take_ignored(&mut self) -> Vec<Pod> {
        Vec::new()
    }
}

/// A source whose pods are set by a [`PodsSender`].
pub struct FixedSource {
    sets: mpsc::UnboundedReceiver<Vec<Pod>>,
}

/// Sets the pods of a [`FixedSource`].
#[derive(Debug)]
pub struct PodsSender {
    sets: mpsc::UnboundedSender<Vec<Pod>>,
}

impl PodsSender {
    /// Replaces the whole set. The source yields every set, in order: an object that is deleted without a grace period changes and
    /// disappears at the same time, and the change specifies how it ends.
    pub fn set(&self, pods: Vec<Pod>) {
        // Without its agent the source has no receiver.
        let _ = self.sets.send(pods);
    }
}

/// Creates a source in memory, which yields nothing before the first [`PodsSender::set`].
#[must_use]
pub fn fixed() -> (FixedSource, PodsSender) {
    let (sender, sets) = mpsc::unbounded_channel();
    (FixedSource { sets }, PodsSender { sets: sender })
}

#[async_trait]
impl PodSource for FixedSource {
    fn name(&self) -> String {
        "fixed".to_owned()
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        self.sets.recv().await.map(Arc::from)
    }
}

/// Logs what changed in a source.
fn log_updates(source: &str, updates: &[SourceUpdate]) {
    for update in updates.iter().filter(|update| !update.pods.is_empty()) {
        let pods: Vec<String> = update.pods.iter().map(Pod::full_name).collect();
        tracing::info!(source, op = %update.op, ?pods, "pods of source changed");
    }
}

/// Logs pods that are rejected because of their names.
pub(crate) fn log_duplicates(duplicates: &[DuplicatePod]) {
    for duplicate in duplicates {
        tracing::error!("{duplicate}");
    }
}
