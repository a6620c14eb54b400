//! Ensures that containers' images exist and that their pods may use them: checks, pulls, records. `decide`, `records`,
//! `keyring` and `garbage` make the decisions.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::pod::{Pod, PodUid};
use image_reference::Reference;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, until};
use crate::cluster::Cluster;
use crate::cri::{Cri, Image, RegistryAuth};
use crate::objects::ObjectStore;
use crate::pod_spec::references;
use crate::pod_spec::spec::{ImageSpec, ImageUser, SandboxSpec};
use crate::reporting::measures::{Counted, EnsuredImage, Measures};

pub(crate) mod collector;
mod decide;
pub mod docker_config;
mod events;
mod garbage;
pub mod keyring;
mod limiter;
mod node_logins;
mod policy;
mod provider;
mod pull_records;
mod record_files;
mod records;
pub mod reference;
mod secret_file;
mod settings;

pub(crate) use decide::PULL_BACKOFF;
pub use decide::{PullError, PullPolicy};
pub use events::ImageEvent;
pub use garbage::{ImageGcPolicy, ImageGcPolicyError};
pub use policy::{Allowlist, AllowlistError, CredentialVerification};
pub use provider::{
    CredentialProviders, ProviderConfig, ProviderConfigError, ProvidersError, TOKEN_GATE,
    TokenAttributes,
};
pub use secret_file::{SecretFileError, parse_secrets};
pub use settings::ImageConfig;

use decide::{PullBackoff, Reported};
use keyring::{Credential, Keyring};
use limiter::TokenBucket;
use node_logins::NodeLogins;
use provider::ProviderRunner;
use pull_records::PullRecords;
use records::{Access, Match, PullCredentials};

/// Pulls images, a limited number at a time. All workers share it.
pub struct Images {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    objects: Arc<ObjectStore>,
    root_dir: PathBuf,
    config: ImageConfig,
    backoff: Mutex<PullBackoff>,
    limiter: Mutex<TokenBucket>,
    slots: Semaphore,
    node_logins: NodeLogins,
    providers: ProviderRunner,
    measures: Measures,
    /// Opened on first use, which may list the runtime's images.
    records: OnceCell<PullRecords>,
}

/// A request for a container's image.
#[derive(Clone, Copy, Debug)]
pub struct ImageRequest<'a> {
    /// The container's pod.
    pub pod: &'a Pod,
    /// The image in the container's spec.
    pub image: &'a str,
    /// Its `imagePullPolicy`.
    pub policy: PullPolicy,
    /// The sandbox that the container is for.
    pub sandbox: &'a SandboxSpec,
}

/// An image that exists in the runtime, and that the pod may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyImage {
    /// The reference for CreateContainer.
    pub reference: String,
    /// The user in the image's configuration.
    pub user: ImageUser,
    /// How long the pull took; `None` without a pull.
    pub pull: Option<Duration>,
}

/// Why there is no image for the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// The decision or the pull failed.
    Failed(PullError),
    /// The caller cancelled.
    Cancelled,
}

/// See [`ImageError`]; the event is still to be reported.
enum EnsureImageError {
    Reported(Reported),
    Failed(PullError),
    Cancelled,
}

impl From<Reported> for EnsureImageError {
    fn from(reported: Reported) -> Self {
        Self::Reported(reported)
    }
}

/// A successful pull.
struct Pulled {
    reference: String,
    user: ImageUser,
    /// In bytes; 0 if the runtime does not report it.
    size: u64,
    used: Option<Credential>,
    took: Duration,
}

/// Receives events of an image.
type Report<'a> = &'a (dyn Fn(ImageEvent) + Send + Sync);

impl Images {
    /// Creates the owner of pulls. Its records are in `root_dir`, the pull secrets among `objects`. The `cluster` may issue tokens
    /// for credential providers.
    pub fn new(
        cri: Arc<dyn Cri>,
        clock: Arc<dyn Clock>,
        objects: Arc<ObjectStore>,
        root_dir: PathBuf,
        config: &ImageConfig,
        measures: Measures,
        cluster: Arc<dyn Cluster>,
    ) -> Self {
        let (first, max) = config.backoff;
        let slots = config.pull_slots().unwrap_or(Semaphore::MAX_PERMITS);
        let limiter =
            TokenBucket::new(config.registry_pull_qps, config.registry_burst, clock.now());
        Self {
            cri,
            objects,
            root_dir,
            config: config.clone(),
            backoff: Mutex::new(PullBackoff::new(first, max)),
            limiter: Mutex::new(limiter),
            slots: Semaphore::new(slots.min(Semaphore::MAX_PERMITS)),
            node_logins: NodeLogins::new(config.docker_configs.clone()),
            providers: ProviderRunner::new(
                config.credential_providers.clone(),
                Arc::clone(&clock),
                &measures,
                cluster,
            ),
            clock,
            measures,
            records: OnceCell::new(),
        }
    }

    /// Ensures that a container's image exists and that its pod may use it. Reports events as they occur. Aborts when `cancel`
    /// is cancelled.
    ///
    /// # Errors
    /// Fails with the waiting reason of the container.
    pub async fn ensure(
        &self,
        request: ImageRequest<'_>,
        report: Report<'_>,
        cancel: &CancellationToken,
    ) -> Result<ReadyImage, ImageError> {
        let policy = request.policy.label();
        let mut ensured = EnsuredImage { policy, present: None, pull: None };
        let found = self.find_or_pull(request, report, cancel, &mut ensured).await;
        self.measures.count(Counted::ImageEnsured(ensured));
        found.map_err(|unready| match unready {
            EnsureImageError::Reported((error, event)) => {
                report(event);
                ImageError::Failed(error)
            }
            EnsureImageError::Failed(error) => ImageError::Failed(error),
            EnsureImageError::Cancelled => ImageError::Cancelled,
        })
    }

    /// The current back-off delay of a pod's image; zero if there is none.
    pub fn backoff(&self, uid: &PodUid, image: &str) -> Duration {
        lock(&self.backoff).delay(&decide::backoff_key(uid, image))
    }

    async fn find_or_pull(
        &self,
        request: ImageRequest<'_>,
        report: Report<'_>,
        cancel: &CancellationToken,
        ensured: &mut EnsuredImage,
    ) -> Result<ReadyImage, EnsureImageError> {
        let spec = ImageSpec {
            image: decide::name_for_runtime(request.image)?,
            user_specified: String::new(),
            runtime_handler: self.config.handler_of(request.sandbox),
            annotations: request.sandbox.annotations.clone(),
        };
        let secrets = self.pull_secrets(request.pod);
        let found = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(EnsureImageError::Cancelled),
            found = self.find(request, &secrets, report, &spec, ensured) => found?,
        };
        match found {
            Ok(ready) => Ok(ready),
            Err(credentials) => self.pull(request, report, &spec, &credentials, cancel).await,
        }
    }

    /// Finds a present image that the pod may use; otherwise returns the credentials to pull it. Sets what is known of the image in
    /// `ensured`.
    async fn find(
        &self,
        request: ImageRequest<'_>,
        secrets: &[Secret],
        report: Report<'_>,
        spec: &ImageSpec,
        ensured: &mut EnsuredImage,
    ) -> Result<Result<ReadyImage, Vec<Credential>>, EnsureImageError> {
        let ImageRequest { image, policy, .. } = request;
        let present = match policy {
            PullPolicy::Always => None,
            PullPolicy::IfNotPresent | PullPolicy::Never => {
                let present = decide::inspected(self.cri.image_status(spec).await)?;
                ensured.present = Some(present.is_some());
                present
            }
        };
        let mut credentials = None;
        if let Some(present) = present {
            let records = self.records().await;
            let granted = match records
                .access(&self.config.credential_verification, image, &present.id)
                .await
            {
                Access::Granted => true,
                Access::PullRequired => false,
                Access::OfCredentials(recorded) => {
                    let of_pod = self.credentials(request, secrets).await?;
                    let matching = records::matching(&recorded, &of_pod);
                    if let Match::Changed(new) = &matching {
                        records.add(image, &present.id, new, self.clock.now()).await;
                    }
                    credentials = Some(of_pod);
                    matching != Match::No
                }
            };
            ensured.pull = Some(!granted);
            if granted {
                report(ImageEvent::present(image));
                return Ok(Ok(ReadyImage {
                    user: image_user(&present),
                    reference: present.id,
                    pull: None,
                }));
            }
        }
        if policy != PullPolicy::Never {
            ensured.pull = Some(true);
        }
        decide::may_pull(image, policy)?;
        Ok(Err(match credentials {
            Some(credentials) => credentials,
            None => self.credentials(request, secrets).await?,
        }))
    }

    /// The credentials for a pull: those of the pod's secrets, then those of the node and of providers.
    async fn credentials(
        &self,
        request: ImageRequest<'_>,
        secrets: &[Secret],
    ) -> Result<Vec<Credential>, EnsureImageError> {
        let failed = |error: &dyn std::error::Error| {
            EnsureImageError::Failed(PullError::unstarted(error.to_string(), error.to_string()))
        };
        let repository =
            Reference::with_any_port(request.image).map_err(|error| failed(&error))?.repository;
        let of_secrets = Keyring::of_secrets(secrets).map_err(|error| failed(&error))?;
        let mut credentials = of_secrets.lookup(&repository);
        let now = self.clock.now();
        credentials.extend(self.node_logins.lookup(&repository, now).await);
        credentials.extend(self.providers.lookup(&repository, request.pod).await);
        Ok(credentials)
    }

    /// The pod's pull secrets that exist, in their order.
    fn pull_secrets(&self, pod: &Pod) -> Vec<Secret> {
        let objects = self.objects.current();
        let names = references::pull_secrets(pod, &objects);
        let secrets = names.iter().filter_map(|name| objects.secret(pod.namespace(), name));
        secrets.map(|secret| Secret::clone(&secret)).collect()
    }

    async fn pull(
        &self,
        request: ImageRequest<'_>,
        report: Report<'_>,
        spec: &ImageSpec,
        credentials: &[Credential],
        cancel: &CancellationToken,
    ) -> Result<ReadyImage, EnsureImageError> {
        let image = request.image;
        let key = decide::backoff_key(request.pod.uid(), image);
        let begun = self.clock.now();
        decide::backed_off(image, &lock(&self.backoff), &key, begun)?;
        let records = self.records().await;
        records.begin(image).await.map_err(|error| {
            let error = format!("failed to record image pull intent: {error}");
            let message = format!(
                "Failed to record image pull intent for container image \"{image}\": {error}"
            );
            EnsureImageError::Failed(PullError::unstarted(error, message))
        })?;
        report(ImageEvent::pulling(image));
        // Dropping the call makes the runtime abort the pull; a later pull is not affected.
        let pulled = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            pulled = self.pull_in_turn(spec, request.sandbox, credentials) => Some(pulled),
        };
        let now = self.clock.now();
        match pulled {
            None => {
                records.failed(image).await;
                Err(EnsureImageError::Cancelled)
            }
            Some(Err((attempts, refused))) => {
                records.failed(image).await;
                let reported = decide::pull_failed(image, &attempts, refused);
                lock(&self.backoff).failed(&key, &reported.0, now);
                Err(reported.into())
            }
            Some(Ok(pulled)) => {
                let shown = PullCredentials::of(pulled.used.as_ref());
                records.succeeded(image, &pulled.reference, &shown, now).await;
                lock(&self.backoff).forget_old(now);
                let whole = until(begun, now);
                self.measures.record_pull(pulled.size, whole);
                report(ImageEvent::pulled(image, pulled.took, whole, pulled.size));
                Ok(ReadyImage { reference: pulled.reference, user: pulled.user, pull: Some(whole) })
            }
        }
    }

    /// Waits for other pulls, then tries the credentials one after the other. The error has one text for each attempt, and whether
    /// the runtime rejects the name itself.
    async fn pull_in_turn(
        &self,
        spec: &ImageSpec,
        sandbox: &SandboxSpec,
        credentials: &[Credential],
    ) -> Result<Pulled, (Vec<String>, bool)> {
        let _slot = self.slots.acquire().await;
        let begun = self.clock.now();
        if !lock(&self.limiter).take(begun) {
            return Err((vec!["pull QPS exceeded".to_owned()], false));
        }
        let with: Vec<Option<&Credential>> = if credentials.is_empty() {
            vec![None]
        } else {
            credentials.iter().map(Some).collect()
        };
        let (mut attempts, mut refused) = (Vec::new(), false);
        for used in with {
            let auth = used.map(|credential| RegistryAuth {
                username: credential.username.clone(),
                password: credential.password.clone(),
            });
            match self.cri.pull_image(spec, sandbox, auth.as_ref()).await {
                Ok(reference) if reference.is_empty() => {
                    attempts.push(format!("imageRef of image \"{}\" is not set", spec.image));
                }
                Ok(reference) => {
                    let status = self.cri.image_status(spec).await.ok().flatten();
                    return Ok(Pulled {
                        size: status.as_ref().map_or(0, |image| image.size),
                        user: self.user_of(spec, &reference, status).await,
                        reference,
                        used: used.cloned(),
                        took: until(begun, self.clock.now()),
                    });
                }
                Err(error) => {
                    refused |= error.is_refusal();
                    attempts.push(decide::pull_error_text(&error));
                }
            }
        }
        Err((attempts, refused))
    }

    /// The user of a pulled image, from the runtime's image with its name, or with its reference if that is another image.
    async fn user_of(&self, spec: &ImageSpec, reference: &str, named: Option<Image>) -> ImageUser {
        let image = match named {
            Some(image) if image.id == reference => Some(image),
            Some(_) | None => {
                let pulled = ImageSpec { image: reference.to_owned(), ..spec.clone() };
                self.cri.image_status(&pulled).await.ok().flatten()
            }
        };
        image.as_ref().map(image_user).unwrap_or_default()
    }

    async fn records(&self) -> &PullRecords {
        let open = || PullRecords::open(&self.root_dir, &*self.cri, self.clock.now());
        self.records.get_or_init(open).await
    }

    /// Removes the records of images that the runtime no longer has.
    pub(crate) async fn prune_records(&self, images: &[Image], listed_at: Timestamp) {
        let ids = images.iter().map(|image| image.id.clone()).collect();
        self.records().await.prune(&ids, listed_at).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn image_user(image: &Image) -> ImageUser {
    match (image.uid, image.username.as_str()) {
        (Some(uid), _) => ImageUser::Id(uid),
        (None, "") => ImageUser::Unset,
        (None, name) => ImageUser::Name(name.to_owned()),
    }
}

#[cfg(test)]
mod tests;
