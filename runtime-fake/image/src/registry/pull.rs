//! A pull from registries: each place in its order until one has the image, and every layer while it arrives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::{
    Digest, Failure, ImageError, ImageId, ImageStore, LayerSource, Named, Opened, Problem,
    Reference, Resolved, Source,
};

use super::credentials::{self, Login};
use super::download::{Download, Downloads, Tail, Wanted};
use super::endpoint::{Endpoint, endpoints};
use super::resolve;
use super::session::Session;
use super::settings::Registries;
use super::transport::Transport;
use crate::error::{PullError, PullFailure};

/// How many images are brought in at the same time. Each takes a thread.
const PULLS: usize = 32;

/// Pulls images into one store.
pub struct Puller {
    store: Arc<ImageStore>,
    transport: Arc<Transport>,
    downloads: Arc<Downloads>,
    tasks: TaskTracker,
    stopping: CancellationToken,
    turns: Semaphore,
}

impl std::fmt::Debug for Puller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Puller").finish_non_exhaustive()
    }
}

/// Why a pull from one registry failed.
enum AttemptError {
    /// The registry's answer, or the connection to it.
    Registry(PullError),
    /// The store of this machine.
    Store(ImageError),
}

impl From<PullError> for AttemptError {
    fn from(error: PullError) -> Self {
        Self::Registry(error)
    }
}

impl Puller {
    /// `tasks` are waited for before the daemon ends; `stopping` ends them.
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
            turns: Semaphore::new(PULLS),
        }
    }

    /// Is the image of this full name never to be collected (CRI v1, Image.pinned)?
    pub fn pins(&self, name: &str) -> bool {
        self.transport.settings.pinned.contains(name)
    }

    /// Makes the image present under this name. Dropping the future cancels the pull, and nothing of it stays that
    /// nobody else waits for. With `only`, that place is asked and no other.
    pub async fn pull(
        &self,
        reference: &Reference,
        login: Option<&Login>,
        only: Option<Endpoint>,
        before: Vec<String>,
    ) -> Result<ImageId, ImageError> {
        let cancelled = self.stopping.child_token();
        let _guard: DropGuard = cancelled.clone().drop_guard();
        let pulling = async {
            // Never closed.
            let _turn = self.turns.acquire().await;
            let places = only.map_or_else(
                || endpoints(&self.transport.settings, reference),
                |place| vec![place],
            );
            self.anywhere(places, reference, login, before, &cancelled)
                .await
        };
        tokio::select! {
            pulled = pulling => pulled.map_err(|error| error.or_full(self.store.root())),
            () = self.stopping.cancelled() => Err(failure(reference, Vec::new(), PullError::Cancelled)),
        }
    }

    async fn anywhere(
        &self,
        places: Vec<Endpoint>,
        reference: &Reference,
        login: Option<&Login>,
        before: Vec<String>,
        cancelled: &CancellationToken,
    ) -> Result<ImageId, ImageError> {
        let began = Instant::now();
        let mut missed = before;
        let last = places.len().saturating_sub(1);
        for (i, endpoint) in places.into_iter().enumerate() {
            let host = endpoint.host.clone();
            match self.at(endpoint, reference, login, cancelled).await {
                Ok(id) => {
                    let ms = began.elapsed().as_millis();
                    tracing::info!(image = %reference, %id, registry = host, ms, "pulled");
                    return Ok(id);
                }
                Err(AttemptError::Store(error)) => return Err(error),
                Err(AttemptError::Registry(error)) if i < last && error.is_the_registrys() => {
                    let error = super::transport::chain(&error);
                    tracing::warn!(image = %reference, registry = host, error, "mirror failed, trying the next one");
                    missed.push(error);
                }
                Err(AttemptError::Registry(error)) => {
                    return Err(failure(reference, missed, error));
                }
            }
        }
        // There is always at least one place.
        Err(failure(reference, missed, PullError::Cancelled))
    }

    async fn at(
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
        let named = Named {
            target,
            by_digest: true,
            wanted: reference.clone(),
        };
        let (store, known) = (self.store.clone(), named.clone());
        if let Some(id) = self
            .blocking(move || store.known(&known))
            .await?
            .map_err(AttemptError::Store)?
        {
            return Ok(id);
        }
        let image = resolve::image(&session, document, target, &limits).await?;
        match self
            .bring_in(&session, image.clone(), named.clone(), cancelled)
            .await
        {
            // The download was another pull's, with that one's rights: ours may be better.
            Err((_, true)) => self
                .bring_in(&session, image, named, cancelled)
                .await
                .map_err(|(missed, _)| missed),
            other => other.map_err(|(missed, _)| missed),
        }
    }

    /// Downloads and unpacks. A failure says besides whether another pull's download had part in it.
    async fn bring_in(
        &self,
        session: &Arc<Session>,
        image: Resolved,
        named: Named,
        cancelled: &CancellationToken,
    ) -> Result<ImageId, (AttemptError, bool)> {
        let arriving = Arc::new(Arriving {
            session: session.clone(),
            slots: Arc::new(Semaphore::new(self.transport.settings.parallel_layers)),
            begun: Mutex::default(),
            cancelled: cancelled.clone(),
            handle: tokio::runtime::Handle::current(),
        });
        for layer in self.store.missing(&image) {
            arriving
                .begin(&self.downloads, &layer)
                .map_err(|error| (error.into(), false))?;
        }
        let (store, source, downloads) =
            (self.store.clone(), arriving.clone(), self.downloads.clone());
        let taken = self.blocking(move || {
            store.take_in(
                &image,
                &named,
                &Arrivals {
                    arriving: &source,
                    downloads: &downloads,
                },
            )
        });
        let taken = taken.await.map_err(|error| (error.into(), false))?;
        let foreign = arriving.had_foreign();
        taken.map_err(|failure| match failure {
            Failure::Archive(Problem::Lost { source }) => {
                let again = foreign && source.is_the_registrys();
                (AttemptError::Registry(*source), again)
            }
            Failure::Archive(problem @ Problem::Io { .. }) => (
                AttemptError::Store(ImageError::Unpack { source: problem }),
                false,
            ),
            Failure::Archive(problem) => {
                (AttemptError::Registry(session.peer.content(problem)), false)
            }
            Failure::Store(error) => (AttemptError::Store(error), false),
        })
    }

    /// Work on the store, which the daemon waits for at its end.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PullError> {
        self.tasks
            .spawn_blocking(work)
            .await
            .map_err(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => PullError::Cancelled,
            })
    }
}

fn failure(reference: &Reference, before: Vec<String>, source: PullError) -> ImageError {
    ImageError::Registry(Box::new(PullFailure {
        reference: reference.to_string(),
        before,
        source,
    }))
}

/// The layers of one image on their way.
struct Arriving {
    session: Arc<Session>,
    slots: Arc<Semaphore>,
    begun: Mutex<Begun>,
    cancelled: CancellationToken,
    handle: tokio::runtime::Handle,
}

#[derive(Default)]
struct Begun {
    downloads: HashMap<Digest, Arc<Download>>,
    foreign: bool,
}

impl Arriving {
    fn begun(&self) -> std::sync::MutexGuard<'_, Begun> {
        // Consistent at every instant, so a panic elsewhere does no harm.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn had_foreign(&self) -> bool {
        self.begun().foreign
    }

    /// Sees to it that a layer arrives.
    fn begin(
        &self,
        downloads: &Downloads,
        layer: &LayerSource,
    ) -> Result<Arc<Download>, PullError> {
        let Some((digest, size)) = layer.digest.zip(layer.size) else {
            let what = "a layer without a digest".to_owned();
            return Err(self.session.peer.content(Problem::Unsupported { what }));
        };
        let mut begun = self.begun();
        if let Some(download) = begun.downloads.get(&digest) {
            return Ok(download.clone());
        }
        let (download, foreign) =
            downloads.join(Wanted { digest, size }, &self.session, &self.slots)?;
        begun.foreign |= foreign;
        begun.downloads.insert(digest, download.clone());
        Ok(download)
    }
}

/// What the store reads layers from.
struct Arrivals<'a> {
    arriving: &'a Arriving,
    downloads: &'a Downloads,
}

impl Source for Arrivals<'_> {
    fn open(&self, layer: &LayerSource) -> Result<Opened<'_>, Problem> {
        let lost = |error| Problem::Lost {
            source: Box::new(error),
        };
        let download = self.arriving.begin(self.downloads, layer).map_err(lost)?;
        // The reader is the last to need it, unless the image has the layer twice.
        if let Some(digest) = layer.digest {
            self.arriving.begun().downloads.remove(&digest);
        }
        let Arriving {
            cancelled, handle, ..
        } = self.arriving;
        let ended = cancelled.child_token();
        Ok(Opened {
            reader: Box::new(Tail::new(download, ended.clone(), handle.clone())),
            size: layer.size.unwrap_or(0),
            verified: true,
            abandon: Box::new(move || ended.cancel()),
        })
    }
}
