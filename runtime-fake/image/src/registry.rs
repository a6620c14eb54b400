//! Pulls images from registries: selects the endpoints and credentials, and downloads documents and layers.
//!
//! The path of a pull: `endpoint` (selects and orders the registries) → `credentials` → `session`, `peer` and `token`
//! (authenticated requests) → `resolve` (index, manifest, configuration, each verified) → `download` (each layer once for all
//! pulls from a server, resumed after a broken connection) → the image store, which unpacks while it downloads. `peer` and `retry`
//! classify failures.

mod challenge;
mod credentials;
mod download;
mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod peer;
mod pull_limiter;
mod resolve;
mod retry;
mod session;
mod settings;
mod token;
mod transport;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use image_reference::Reference;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::error::{ContentError, ImageError, PullError, PullFailure};
use crate::formats::digest::Digest;
use crate::formats::record::ImageId;
use crate::formats::resolve::{LayerSource, Resolved};
use crate::store::ImageStore;
use crate::store::commit::Named;
use crate::store::import::{Failure, Opened, Source};

pub use credentials::Login;
use download::{BlobRequest, Download, DownloadReader, Downloads};
use endpoint::endpoints;
pub use endpoint::{Endpoint, named_by_call};
use pull_limiter::PullLimiter;
use session::Session;
pub use settings::{
    Credentials, EVERY_HOST, Host, Mirror, MirrorError, Registries, Rewrite, Secret,
};
use transport::Transport;

/// Pulls images into one store.
pub struct Puller {
    store: Arc<ImageStore>,
    transport: Arc<Transport>,
    downloads: Arc<Downloads>,
    tasks: TaskTracker,
    stopping: CancellationToken,
    limiter: PullLimiter,
}

impl std::fmt::Debug for Puller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Puller").finish_non_exhaustive()
    }
}

/// Why a pull from one registry failed.
enum AttemptError {
    /// A response of the registry, or the connection to it.
    Registry(PullError),
    /// The local store.
    Store(ImageError),
}

impl From<PullError> for AttemptError {
    fn from(error: PullError) -> Self {
        Self::Registry(error)
    }
}

impl Puller {
    /// `tasks` are awaited before the daemon ends; `stopping` cancels them.
    pub fn new(
        store: Arc<ImageStore>,
        settings: Registries,
        tasks: TaskTracker,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            downloads: Arc::new(Downloads::new(&store.spool(), tasks.clone())),
            transport: Arc::new(Transport::new(settings)),
            store,
            tasks,
            stopping,
            limiter: PullLimiter::new(),
        }
    }

    /// Whether the image with this full name is never garbage-collected (CRI v1, Image.pinned).
    pub fn pins(&self, name: &str) -> bool {
        self.transport.settings.pinned.contains(name)
    }

    /// Ensures that the image is present under this name. Dropping the future cancels the pull; a download continues only if
    /// another pull needs it. With `only`, no other endpoint is used. The pull counts against the registry's share of all pulls
    /// and, if it is for a `pod`, against the pod's share.
    pub async fn pull(
        &self,
        reference: &Reference,
        login: Option<&Login>,
        pod: Option<&str>,
        only: Option<Endpoint>,
        before: Vec<String>,
    ) -> Result<ImageId, ImageError> {
        let cancelled = self.stopping.child_token();
        let _guard: DropGuard = cancelled.clone().drop_guard();
        let pulling = async {
            let (registry, _) = reference.repository.split_once('/').unwrap_or_default();
            let _permit = self.limiter.acquire(pod, registry).await;
            let places = only.map_or_else(
                || endpoints(&self.transport.settings, reference),
                |place| vec![place],
            );
            self.pull_from_first(places, reference, login, before, &cancelled).await
        };
        tokio::select! {
            pulled = pulling => pulled.map_err(|error| error.or_full(self.store.root())),
            () = self.stopping.cancelled() => Err(failure(reference, Vec::new(), PullError::Cancelled)),
        }
    }

    async fn pull_from_first(
        &self,
        places: Vec<Endpoint>,
        reference: &Reference,
        login: Option<&Login>,
        before: Vec<String>,
        cancelled: &CancellationToken,
    ) -> Result<ImageId, ImageError> {
        let began = Instant::now();
        let mut errors = before;
        let last = places.len().saturating_sub(1);
        for (i, endpoint) in places.into_iter().enumerate() {
            let host = endpoint.host.clone();
            match self.pull_from(endpoint, reference, login, cancelled).await {
                Ok(id) => {
                    let ms = began.elapsed().as_millis();
                    tracing::info!(image = %reference, %id, registry = host, ms, "pulled");
                    return Ok(id);
                }
                Err(AttemptError::Store(error)) => return Err(error),
                Err(AttemptError::Registry(error)) if i < last && error.may_succeed_elsewhere() => {
                    let error = transport::chain(&error);
                    tracing::warn!(image = %reference, registry = host, error, "mirror failed, trying the next one");
                    errors.push(error);
                }
                Err(AttemptError::Registry(error)) => {
                    return Err(failure(reference, errors, error));
                }
            }
        }
        // There is always at least one endpoint.
        Err(failure(reference, errors, PullError::Cancelled))
    }

    async fn pull_from(
        &self,
        endpoint: Endpoint,
        reference: &Reference,
        login: Option<&Login>,
        cancelled: &CancellationToken,
    ) -> Result<ImageId, AttemptError> {
        let credentials = credentials::of(&self.transport.settings, login, &endpoint).await?;
        let session = Arc::new(Session::open(&self.transport, endpoint, credentials).await?);
        let limits = self.store.limits().clone();
        let (document, target) = resolve::named(&session, reference, &limits).await?;
        let named = Named { target, by_digest: true, wanted: reference.clone() };
        let (store, known) = (self.store.clone(), named.clone());
        if let Some(id) =
            self.blocking(move || store.add_name(&known)).await?.map_err(AttemptError::Store)?
        {
            return Ok(id);
        }
        let image = resolve::image(&session, document, target, &limits).await?;
        match self.download_and_unpack(&session, image.clone(), named.clone(), cancelled).await {
            // Another pull started the download, with its credentials: retry with this pull's own.
            Err((_, true)) => self
                .download_and_unpack(&session, image, named, cancelled)
                .await
                .map_err(|(error, _)| error),
            other => other.map_err(|(error, _)| error),
        }
    }

    /// Downloads and unpacks the image. An error also reports whether another pull's download was involved.
    async fn download_and_unpack(
        &self,
        session: &Arc<Session>,
        image: Resolved,
        named: Named,
        cancelled: &CancellationToken,
    ) -> Result<ImageId, (AttemptError, bool)> {
        let layers = Arc::new(LayerDownloads {
            session: session.clone(),
            slots: Arc::new(Semaphore::new(self.transport.settings.parallel_layers)),
            started: Mutex::default(),
            cancelled: cancelled.clone(),
            handle: tokio::runtime::Handle::current(),
        });
        for layer in self.store.missing_layers(&image) {
            layers.begin(&self.downloads, &layer).map_err(|error| (error.into(), false))?;
        }
        let (store, source, downloads) =
            (self.store.clone(), layers.clone(), self.downloads.clone());
        let taken = self.blocking(move || {
            store.commit_image(
                &image,
                &named,
                &DownloadSource { layers: &source, downloads: &downloads },
            )
        });
        let taken = taken.await.map_err(|error| (error.into(), false))?;
        let foreign = layers.joined_foreign();
        taken.map_err(|failure| match failure {
            Failure::Archive(ContentError::Lost { source }) => {
                let again = foreign && source.may_succeed_elsewhere();
                (AttemptError::Registry(*source), again)
            }
            Failure::Archive(problem @ ContentError::Io { .. }) => {
                (AttemptError::Store(ImageError::Unpack { source: problem }), false)
            }
            Failure::Archive(problem) => {
                (AttemptError::Registry(session.peer.content(problem)), false)
            }
            Failure::Store(error) => (AttemptError::Store(error), false),
        })
    }

    /// Runs blocking work on the store; the daemon waits for it before it ends.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PullError> {
        self.tasks.spawn_blocking(work).await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => PullError::Cancelled,
        })
    }
}

fn failure(reference: &Reference, before: Vec<String>, source: PullError) -> ImageError {
    ImageError::Registry(Box::new(PullFailure { reference: reference.to_string(), before, source }))
}

/// The layers of one image that are being downloaded.
struct LayerDownloads {
    session: Arc<Session>,
    slots: Arc<Semaphore>,
    started: Mutex<StartedDownloads>,
    cancelled: CancellationToken,
    handle: tokio::runtime::Handle,
}

#[derive(Default)]
struct StartedDownloads {
    downloads: HashMap<Digest, Arc<Download>>,
    foreign: bool,
}

impl LayerDownloads {
    fn started(&self) -> std::sync::MutexGuard<'_, StartedDownloads> {
        // It is consistent at every instant, so a poisoned lock is harmless.
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn joined_foreign(&self) -> bool {
        self.started().foreign
    }

    /// Starts or joins the download of a layer.
    fn begin(
        &self,
        downloads: &Downloads,
        layer: &LayerSource,
    ) -> Result<Arc<Download>, PullError> {
        let Some((digest, size)) = layer.digest.zip(layer.size) else {
            let what = "a layer without a digest".to_owned();
            return Err(self.session.peer.content(ContentError::Unsupported { what }));
        };
        let mut started = self.started();
        if let Some(download) = started.downloads.get(&digest) {
            return Ok(download.clone());
        }
        let (download, foreign) =
            downloads.join(BlobRequest { digest, size }, &self.session, &self.slots)?;
        started.foreign |= foreign;
        started.downloads.insert(digest, download.clone());
        Ok(download)
    }
}

/// The source from which the store reads layers.
struct DownloadSource<'a> {
    layers: &'a LayerDownloads,
    downloads: &'a Downloads,
}

impl Source for DownloadSource<'_> {
    fn origin(&self) -> String {
        self.layers.session.peer.endpoint.origin()
    }

    fn open(&self, layer: &LayerSource) -> Result<Opened<'_>, ContentError> {
        let lost = |error| ContentError::Lost { source: Box::new(error) };
        let download = self.layers.begin(self.downloads, layer).map_err(lost)?;
        // The reader is its last user, unless the image has the layer twice.
        if let Some(digest) = layer.digest {
            self.layers.started().downloads.remove(&digest);
        }
        let LayerDownloads { cancelled, handle, .. } = self.layers;
        let ended = cancelled.child_token();
        Ok(Opened {
            reader: Box::new(DownloadReader::new(download, ended.clone(), handle.clone())),
            size: layer.size.unwrap_or(0),
            verified: true,
            abandon: Box::new(move || ended.cancel()),
        })
    }
}
