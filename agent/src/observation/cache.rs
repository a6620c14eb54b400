//! The handle by which workers get snapshots of their pods from the PLEG (see [`crate::observation::pleg`]).
//!
//! Each worker watches the latest snapshot of its pod. After a change it requests a refresh and gets a [`Generation`]; a
//! snapshot of this generation or later was begun after the request, so it shows the change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::pod::PodUid;
use tokio::sync::{mpsc, watch};

use crate::observed::Observed;
use crate::reporting::causes::Causes;

/// The number of a refresh request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(u64);

/// The state of one pod in the runtime.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snapshot {
    /// The pod's sandboxes and containers.
    pub(crate) observed: Arc<Observed>,
    /// All requests up to this one were made before the inspection began.
    pub(crate) generation: Generation,
    /// Why the pod was inspected.
    pub(crate) causes: Causes,
}

/// Receives snapshots; `None` until the first inspection.
pub(crate) type Snapshots = watch::Receiver<Option<Snapshot>>;

/// A request to the PLEG.
#[derive(Debug)]
pub(crate) enum Request {
    /// Send snapshots of a pod.
    Subscribe(PodUid, watch::Sender<Option<Snapshot>>),
    /// Inspect a pod.
    Refresh(PodUid, Generation, Causes),
    /// The pod's worker makes calls and will request a refresh afterwards: the events of these calls are not urgent.
    Busy(PodUid),
    /// List all pods of the runtime.
    Relist,
    /// Running containers of a pod were resized: the next inspection queries all of their details.
    Resized(PodUid),
    /// Stop watching the pod of a worker that has ended.
    Unsubscribe(PodUid),
}

/// A handle to the PLEG. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    requests: mpsc::UnboundedSender<Request>,
    last_generation: Arc<AtomicU64>,
}

impl Cache {
    /// Creates a handle, and the receiver for the PLEG.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (requests, receiver) = mpsc::unbounded_channel();
        (Self { requests, last_generation: Arc::default() }, receiver)
    }

    /// Subscribes to a pod, which is inspected immediately.
    pub(crate) fn subscribe(&self, uid: &PodUid) -> Snapshots {
        let (sender, receiver) = watch::channel(None);
        self.send(Request::Subscribe(uid.clone(), sender));
        receiver
    }

    /// Requests an inspection of a pod.
    pub(crate) fn refresh(&self, uid: &PodUid, causes: Causes) -> Generation {
        let generation = Generation(self.last_generation.fetch_add(1, Ordering::Relaxed) + 1);
        self.send(Request::Refresh(uid.clone(), generation, causes));
        generation
    }

    /// Announces that the worker of a pod changes it and will then call [`Cache::refresh`].
    pub(crate) fn busy(&self, uid: &PodUid) {
        self.send(Request::Busy(uid.clone()));
    }

    /// Requests a listing of all pods of the runtime.
    pub(crate) fn relist(&self) {
        self.send(Request::Relist);
    }

    /// Announces that running containers of a pod were resized, which no listing shows.
    pub(crate) fn resized(&self, uid: &PodUid) {
        self.send(Request::Resized(uid.clone()));
    }

    /// Ends [`Cache::subscribe`].
    pub(crate) fn unsubscribe(&self, uid: &PodUid) {
        self.send(Request::Unsubscribe(uid.clone()));
    }

    fn send(&self, request: Request) {
        // The PLEG outlives the workers unless the agent is stopping, when the request no longer matters.
        let _ = self.requests.send(request);
    }
}
