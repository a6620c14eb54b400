//! Gets images for containers: asks whether they are there, pulls, and remembers failures. What to do is decided in `decide`.

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

/// Gets images, a few at a time. Workers share it.
pub(crate) struct Images {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    failures: Mutex<PullBackoff>,
    slots: Semaphore,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadyImage {
    /// What containers are made from.
    pub(crate) reference: String,
    /// The user it says its containers run as.
    pub(crate) user: ImageUser,
    /// How long the pull took, when there was one.
    pub(crate) pull: Option<Duration>,
}

/// Why there is no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageError {
    /// For this reason.
    Failed(PullError),
    /// The caller gave up.
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

    /// Gets an image for a container of a pod; gives up when `cancel` is cancelled.
    pub(crate) async fn get(
        &self,
        uid: &PodUid,
        image: &str,
        policy: PullPolicy,
        sandbox: &SandboxSpec,
        cancel: &CancellationToken,
    ) -> Result<ReadyImage, ImageError> {
        // Cancelled: a pull that is dropped is given up by the runtime, and leaves nothing that a later one minds.
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

/// What the runtime said; the kind of failure when it said nothing.
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
