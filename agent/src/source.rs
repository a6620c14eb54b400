//! Where pods come from. A source always gives the full set of pods it wants; a pod that is missing from a later set is to end.

use async_trait::async_trait;
use tokio::sync::watch;

use crate::pod::Pod;

pub mod directory;

pub use directory::{DirectorySource, directory};

/// Gives the agent its pods.
#[async_trait]
pub trait PodSource: Send {
    /// A word for logs: `fixed`, `directory /etc/crib/manifests`.
    fn name(&self) -> String;
    /// Waits for the next full set. `None` means that no other will come; the last one stays wanted.
    async fn next(&mut self) -> Option<Vec<Pod>>;
}

/// A source that is told its pods by a [`PodsSender`].
pub struct FixedSource {
    pods: watch::Receiver<Option<Vec<Pod>>>,
}

/// Tells a [`FixedSource`] its pods.
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

/// A source in memory, with nothing in it until the first [`PodsSender::set`].
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
