//! Sources of pods. A source always yields its full set of pods; a pod that is missing from a later set is terminated.

use async_trait::async_trait;
use tokio::sync::watch;

use crate::pod::Pod;

pub mod directory;

pub use directory::{DirectorySource, directory};

/// A source of pods.
#[async_trait]
pub trait PodSource: Send {
    /// The name for logs: `fixed`, `directory /etc/crib/manifests`.
    fn name(&self) -> String;
    /// Waits for the next full set. `None`: there will be no other, and the last one stays in force.
    async fn next(&mut self) -> Option<Vec<Pod>>;
}

/// A source whose pods are set by a [`PodsSender`].
pub struct FixedSource {
    pods: watch::Receiver<Option<Vec<Pod>>>,
}

/// Sets the pods of a [`FixedSource`].
#[derive(Debug)]
pub struct PodsSender {
    pods: watch::Sender<Option<Vec<Pod>>>,
}

impl PodsSender {
    /// Replaces the whole set.
    pub fn set(&self, pods: Vec<Pod>) {
        self.pods.send_replace(Some(pods));
    }
}

/// Creates a source in memory, which yields nothing before the first [`PodsSender::set`].
#[must_use]
pub fn fixed() -> (FixedSource, PodsSender) {
    let (sender, pods) = watch::channel(None);
    (FixedSource { pods }, PodsSender { pods: sender })
}

#[async_trait]
impl PodSource for FixedSource {
    fn name(&self) -> String {
        "fixed".to_owned()
    }

    async fn next(&mut self) -> Option<Vec<Pod>> {
        loop {
            self.pods.changed().await.ok()?;
            if let Some(pods) = self.pods.borrow_and_update().clone() {
                return Some(pods);
            }
        }
    }
}
