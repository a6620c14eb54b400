//! The task that removes images as `garbage` decides.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::duration::go_duration;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::Images;
use super::garbage::{self, Candidate, ImageFs, ImageGcPolicy, ImageUses};
use crate::clock::{Clock, after};
use crate::cri::{Cri, CriError};
use crate::machine::Machine;
use crate::pod_spec::spec::ImageSpec;
use crate::reporting::events::EventRecorder;
use crate::reporting::measures::{Counted, Measures};
use tasks::blocking;

/// The period in which images are listed, and removed if necessary.
const PERIOD: Duration = Duration::from_secs(300);

/// Removes images.
pub(crate) struct ImageCollector {
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) images: Arc<Images>,
    pub(crate) policy: ImageGcPolicy,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) measures: Measures,
    pub(crate) events: EventRecorder,
    pub(crate) node_name: String,
}

/// Requests the removal of every unused image that is old enough; the channel signals completion.
pub(crate) struct CollectUnused(pub(crate) oneshot::Sender<()>);

/// Why a collection failed.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("failed to observe images")]
    Observe(#[source] CriError),
    #[error("the runtime reports no image filesystem")]
    NoImageFs,
    #[error(transparent)]
    NoCapacity(#[from] garbage::NoCapacity),
    #[error("wanted to free images older than {} s, failed to remove {}", .age.as_secs(), failures(.failed))]
    Age { age: Duration, failed: Vec<(String, CriError)> },
    #[error("wanted to free {bytes} bytes, but freed {freed} bytes; failed to remove {}", failures(.failed))]
    Space { bytes: u64, freed: u64, failed: Vec<(String, CriError)> },
    #[error("failed to remove unused images {}", failures(.0))]
    Unused(Vec<(String, CriError)>),
    #[error("{0}")]
    NotEnough(String),
}

fn failures(failed: &[(String, CriError)]) -> String {
    let one = |(image, error): &(String, CriError)| format!("{image}: {error}");
    failed.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl CollectError {
    /// The error as a kubelet writes it into an event (Kubernetes 1.36, pkg/kubelet/images/image_gc_manager.go).
    fn go_text(&self) -> String {
        match self {
            Self::Observe(error) if error.call == "ContainerStatus" => {
                format!("get container status: runtime container status: {}", error.go_text())
            }
            Self::Observe(error) => error.go_text(),
            Self::NoImageFs => "imageFs information is unavailable".to_owned(),
            Self::Age { age, failed } => format!(
                "wanted to free images older than {}, encountered errors in image deletion: {}",
                go_duration(*age),
                aggregate(failed)
            ),
            Self::Space { bytes, freed, failed } => format!(
                "wanted to free {bytes} bytes, but freed {freed} bytes space with errors in image deletion: {}",
                aggregate(failed)
            ),
            Self::NoCapacity(_) | Self::Unused(_) | Self::NotEnough(_) => self.to_string(),
        }
    }
}

/// Errors as a kubelet joins them: each text once, and several in brackets (k8s.io/apimachinery/pkg/util/errors Aggregate).
fn aggregate(failed: &[(String, CriError)]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for (_, error) in failed {
        let text = error.go_text();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [text] => text.clone(),
        texts => format!("[{}]", texts.join(", ")),
    }
}

impl ImageCollector {
    /// Collects now, every five minutes, and for each of `requests`.
    pub(crate) async fn run(self, mut requests: mpsc::Receiver<CollectUnused>) {
        if self.policy.is_off() && requests.is_closed() {
            return;
        }
        let began = self.clock.now();
        let mut uses = ImageUses::default();
        let mut failed_before = false;
        loop {
            let begun = self.clock.now();
            match self.collect(&mut uses, began).await {
                Ok(()) => failed_before = false,
                Err(error) => {
                    self.failed(&error, failed_before);
                    failed_before = true;
                }
            }
            self.answer(&mut uses, &mut requests, after(begun, PERIOD)).await;
        }
    }

    /// Reports a failure. The first one in a row records no event, because often the runtime has just started
    /// (pkg/kubelet/kubelet.go StartGarbageCollection).
    fn failed(&self, failure: &CollectError, failed_before: bool) {
        let error: &dyn std::error::Error = failure;
        if failed_before {
            tracing::error!(error, "image garbage collection failed repeatedly");
            self.warn("ImageGCFailed", failure.go_text());
        } else {
            tracing::warn!(error, "image garbage collection failed");
        }
    }

    /// Records a warning about the node.
    fn warn(&self, reason: &str, message: String) {
        self.events.record_node_warning(&self.node_name, reason, message);
    }

    /// Collects for each of `requests` until that time.
    async fn answer(
        &self,
        uses: &mut ImageUses,
        requests: &mut mpsc::Receiver<CollectUnused>,
        end: Timestamp,
    ) {
        loop {
            let CollectUnused(done) = tokio::select! {
                () = self.clock.sleep_until(end) => return,
                Some(request) = requests.recv() => request,
            };
            if let Err(error) = self.collect_unused(uses).await {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "image garbage collection failed");
            }
            // The requester may have ended.
            let _ = done.send(());
        }
    }

    /// The images that may be removed, the least recently used ones first.
    async fn observe(
        &self,
        uses: &mut ImageUses,
        now: Timestamp,
    ) -> Result<Vec<Candidate>, CollectError> {
        let listed = self.cri.list_images().await.map_err(CollectError::Observe)?;
        let in_use = self.cri.images_in_use().await.map_err(CollectError::Observe)?;
        uses.observe(&listed, &in_use, now);
        Ok(uses.candidates(&in_use))
    }

    /// Removes every unused image that is old enough, regardless of free space.
    async fn collect_unused(&self, uses: &mut ImageUses) -> Result<(), CollectError> {
        let now = self.clock.now();
        let candidates = self.observe(uses, now).await?;
        let old =
            candidates.into_iter().filter(|image| garbage::is_old_enough(&self.policy, image, now));
        let mut failed = Vec::new();
        for image in old {
            if let Err(error) = self.remove(&image, "space").await {
                failed.push((image.id, error));
            }
        }
        let listed = self.cri.list_images().await.map_err(CollectError::Observe)?;
        self.images.prune_records(&listed, now).await;
        if failed.is_empty() { Ok(()) } else { Err(CollectError::Unused(failed)) }
    }

    async fn collect(&self, uses: &mut ImageUses, began: Timestamp) -> Result<(), CollectError> {
        let now = self.clock.now();
        let candidates = self.observe(uses, now).await;
        if self.policy.is_off() {
            // Requests need the ages of images too.
            if let Err(error) = candidates {
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "failed to observe images"
                );
            }
            return Ok(());
        }
        let candidates = candidates?;
        let (old, candidates) = garbage::too_old(&self.policy, candidates, began, now);
        let mut removed = false;
        let mut failed = Vec::new();
        for image in old {
            match self.remove(&image, "age").await {
                Ok(()) => removed = true,
                Err(error) => failed.push((image.id, error)),
            }
        }
        if !failed.is_empty() {
            let age = self.policy.maximum_age();
            return Err(CollectError::Age { age, failed });
        }
        removed |= self.free_space(candidates, now).await?;
        if removed {
            let listed = self.cri.list_images().await.map_err(CollectError::Observe)?;
            self.images.prune_records(&listed, now).await;
        }
        Ok(())
    }

    /// Removes images until usage is below the low threshold, if it is above the high one. Returns whether it removed any.
    async fn free_space(
        &self,
        candidates: Vec<Candidate>,
        now: Timestamp,
    ) -> Result<bool, CollectError> {
        let fs = self.image_fs().await?;
        let shortage = garbage::shortage(&self.policy, fs)
            .inspect_err(|error| self.warn("InvalidDiskCapacity", error.to_string()))?;
        let Some(shortage) = shortage else {
            return Ok(false);
        };
        tracing::info!(
            usage_percent = shortage.usage_percent,
            bytes = shortage.bytes,
            "removing unused images to free disk space"
        );
        let (mut freed, mut removed, mut failed) = (0_u64, false, Vec::new());
        for image in candidates {
            if !garbage::is_old_enough(&self.policy, &image, now) {
                continue;
            }
            match self.remove(&image, "space").await {
                Ok(()) => {
                    removed = true;
                    freed = freed.saturating_add(image.size);
                    if freed >= shortage.bytes {
                        break;
                    }
                }
                Err(error) => failed.push((image.id, error)),
            }
        }
        if !failed.is_empty() {
            return Err(CollectError::Space { bytes: shortage.bytes, freed, failed });
        }
        if freed < shortage.bytes {
            let message = garbage::not_enough(fs, shortage, freed);
            self.warn("FreeDiskSpaceFailed", message.clone());
            return Err(CollectError::NotEnough(message));
        }
        Ok(removed)
    }

    async fn image_fs(&self) -> Result<ImageFs, CollectError> {
        let file_systems = self.cri.image_fs_info().await.map_err(CollectError::Observe)?;
        let first = file_systems.into_iter().next();
        let path = first.ok_or(CollectError::NoImageFs)?.mountpoint;
        let machine = Arc::clone(&self.machine);
        let found =
            blocking(move || machine.file_system(Path::new(&path)).map_err(|error| (path, error)));
        Ok(match found.await {
            Ok(found) => ImageFs { capacity: found.capacity, available: found.available },
            Err((path, error)) => {
                tracing::warn!(path, %error, "failed to read the size of the image filesystem");
                ImageFs { capacity: 0, available: 0 }
            }
        })
    }

    /// Removes an image. `reason` is the label of a kubelet's metric.
    async fn remove(&self, image: &Candidate, reason: &'static str) -> Result<(), CriError> {
        tracing::info!(image = image.id, bytes = image.size, "removing unused image");
        let spec = ImageSpec { image: image.id.clone(), ..ImageSpec::default() };
        self.cri.remove_image(&spec).await?;
        self.measures.count(Counted::ImageRemoved(reason));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
