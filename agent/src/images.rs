//! Ensures that containers' images exist: checks, pulls, and records failures. `decide` makes the decision.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, until};
use crate::cri::Image;
use crate::cri::{Cri, CriError};
use crate::pod::PodUid;
use crate::spec::{ImageSpec, ImageUser, SandboxSpec};

mod decide;

use decide::{Decision, PullBackoff};
pub(crate) use decide::{PullError, PullPolicy};

/// Pulls images, a limited number at a time. All workers share it.
pub(crate) struct Images {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    failures: Mutex<PullBackoff>,
    slots: Semaphore,
}

/// An image that exists in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadyImage {
    /// The reference for CreateContainer.
    pub(crate) reference: String,
    /// The user in the image's configuration.
    pub(crate) user: ImageUser,
    /// How long the pull took; `None` without a pull.
    pub(crate) pull: Option<Duration>,
}

/// Why the image is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageError {
    /// The decision or the pull failed.
    Failed(PullError),
    /// The caller cancelled.
    Cancelled,
}

impl Images {
    pub(crate) fn new(
        cri: Arc<dyn Cri>,
        clock: Arc<dyn Clock>,
        (first, max): (Duration, Duration),
        parallel: usize,
    ) -> Self {
        Self {
            cri,
            clock,
            failures: Mutex::new(PullBackoff::new(first, max)),
            slots: Semaphore::new(parallel.max(1)),
        }
    }

    /// Ensures that a container's image exists; aborts when `cancel` is cancelled.
    pub(crate) async fn get(
        &self,
        uid: &PodUid,
        image: &str,
        policy: PullPolicy,
        sandbox: &SandboxSpec,
        cancel: &CancellationToken,
    ) -> Result<ReadyImage, ImageError> {
        // Dropping the call makes the runtime abort the pull; a later pull is not affected.
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(ImageError::Cancelled),
            got = self.get_uncancelled(uid, image, policy, sandbox) => got.map_err(ImageError::Failed),
        }
    }

    async fn get_uncancelled(
        &self,
        uid: &PodUid,
        image: &str,
        policy: PullPolicy,
        sandbox: &SandboxSpec,
    ) -> Result<ReadyImage, PullError> {
        let spec = ImageSpec {
            image: decide::normalized_reference(image)?,
            user_specified: String::new(),
            runtime_handler: sandbox.runtime_handler.clone(),
            annotations: sandbox.annotations.clone(),
        };
        let present = match policy {
            PullPolicy::Always => Ok(None),
            PullPolicy::IfNotPresent | PullPolicy::Never => self.cri.image_status(&spec).await,
        };
        let user = present
            .as_ref()
            .ok()
            .and_then(Option::as_ref)
            .map(image_user)
            .unwrap_or_default();
        let present = present
            .map(|found| found.map(|image| image.id))
            .map_err(|error| error.to_string());
        let key = format!("{uid}_{image}");
        let decision = decide::decide(
            image,
            policy,
            present,
            &self.failures(),
            &key,
            self.clock.now(),
        );
        match decision {
            Decision::Use(reference) => Ok(ReadyImage {
                reference,
                user,
                pull: None,
            }),
            Decision::Fail(error) => Err(error),
            Decision::Pull => self.pull(&key, image, &spec, sandbox).await,
        }
    }

    async fn pull(
        &self,
        key: &str,
        image: &str,
        spec: &ImageSpec,
        sandbox: &SandboxSpec,
    ) -> Result<ReadyImage, PullError> {
        let _slot = self.slots.acquire().await;
        let begun = self.clock.now();
        let pulled = self.cri.pull_image(spec, sandbox).await;
        let now = self.clock.now();
        match pulled {
            Ok(reference) => {
                self.failures().forget_old(now);
                let pulled = ImageSpec {
                    image: reference.clone(),
                    ..spec.clone()
                };
                let status = self.cri.image_status(&pulled).await.ok().flatten();
                let user = status.as_ref().map(image_user).unwrap_or_default();
                Ok(ReadyImage {
                    reference,
                    user,
                    pull: Some(until(begun, now)),
                })
            }
            Err(error) => {
                let error = decide::pull_error(image, &error_text(&error));
                self.failures().failed(key, &error, now);
                Err(error)
            }
        }
    }

    fn failures(&self) -> MutexGuard<'_, PullBackoff> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runtime's message, or the status code if the message is empty.
fn error_text(error: &CriError) -> String {
    if error.message.is_empty() {
        error.code.to_string()
    } else {
        error.message.clone()
    }
}

fn image_user(image: &Image) -> ImageUser {
    match (image.uid, image.username.as_str()) {
        (Some(uid), _) => ImageUser::Id(uid),
        (None, "") => ImageUser::Unset,
        (None, name) => ImageUser::Name(name.to_owned()),
    }
}
