//! The task that removes images: decides with `garbage`, and does what that says.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Images;
use super::garbage::{self, Candidate, ImageFs, ImageGcPolicy, ImageUses};
use crate::blocking::blocking;
use crate::clock::{Clock, after};
use crate::cri::{Cri, CriError};
use crate::machine::Machine;
use crate::pod_spec::spec::ImageSpec;

/// How often images are listed, and removed if necessary.
const PERIOD: Duration = Duration::from_secs(300);

/// Removes images.
pub(crate) struct ImageCollector {
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) images: Arc<Images>,
    pub(crate) policy: ImageGcPolicy,
    pub(crate) machine: Arc<dyn Machine>,
}

/// Why a collection failed.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error("failed to observe images")]
    Observe(#[source] CriError),
    #[error("the runtime reports no file system of images")]
    NoImageFs,
    #[error(transparent)]
    NoCapacity(#[from] garbage::NoCapacity),
    #[error("wanted to free images older than {age} s, failed to remove {}", failures(.failed))]
    Age { age: u64, failed: Vec<(String, CriError)> },
    #[error("wanted to free {bytes} bytes, but freed {freed} bytes; failed to remove {}", failures(.failed))]
    Space { bytes: u64, freed: u64, failed: Vec<(String, CriError)> },
    #[error("{0}")]
    NotEnough(String),
}

fn failures(failed: &[(String, CriError)]) -> String {
    let one = |(image, error): &(String, CriError)| format!("{image}: {error}");
    failed.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl ImageCollector {
    /// Collects now and every five minutes.
    pub(crate) async fn run(self) {
        if self.policy.is_off() {
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
                    // The first failure is often that of a runtime which has just started.
                    let error: &dyn std::error::Error = &error;
                    if failed_before {
                        tracing::error!(error, "image garbage collection failed repeatedly");
                    } else {
                        tracing::warn!(error, "image garbage collection failed");
                    }
                    failed_before = true;
                }
            }
            self.clock.sleep_until(after(begun, PERIOD)).await;
        }
    }

    async fn collect(&self, uses: &mut ImageUses, began: Timestamp) -> Result<(), CollectError> {
        let now = self.clock.now();
        let listed = self.cri.list_images().await.map_err(CollectError::Observe)?;
        let in_use = self.cri.images_in_use().await.map_err(CollectError::Observe)?;
        uses.observe(&listed, &in_use, now);
        let candidates = uses.candidates(&in_use);
        let (old, candidates) = garbage::too_old(&self.policy, candidates, began, now);
        let mut removed = false;
        let mut failed = Vec::new();
        for image in old {
            match self.remove(&image).await {
                Ok(()) => removed = true,
                Err(error) => failed.push((image.id, error)),
            }
        }
        if !failed.is_empty() {
            let age = self.policy.maximum_age().as_secs();
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
        let Some(shortage) = garbage::shortage(&self.policy, fs)? else {
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
            match self.remove(&image).await {
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

    async fn remove(&self, image: &Candidate) -> Result<(), CriError> {
        tracing::info!(image = image.id, bytes = image.size, "removing unused image");
        let spec = ImageSpec { image: image.id.clone(), ..ImageSpec::default() };
        self.cri.remove_image(&spec).await
    }
}

#[cfg(test)]
mod tests;
