//! How workers learn what the runtime says of their pod: a handle to the task that looks (see [`crate::pleg`]).
//!
//! Each worker follows its pod through a watch: the latest look wins. Whoever has changed something asks for another look
//! and gets a [`Ticket`]; a snapshot that answers the ticket was begun after it was given, so it shows the change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, watch};

use crate::observed::Observed;
use crate::pod::PodUid;

/// A request for a look, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What the runtime said of one pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snapshot {
    /// The pod's sandboxes and containers.
    pub(crate) observed: Arc<Observed>,
    /// Every ticket up to this one was given before the look began.
    pub(crate) answers: Ticket,
    /// Why it was looked.
    pub(crate) cause: String,
}

/// What a worker watches; `None` until the first look.
pub(crate) type Snapshots = watch::Receiver<Option<Snapshot>>;

/// What the looking task is told.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Begin to follow a pod.
    Follow(PodUid, watch::Sender<Option<Snapshot>>),
    /// Look at a pod.
    Look(PodUid, Ticket, String),
    /// A worker has ended: forget its pod.
    Forget(PodUid),
}

/// Asks the looking task. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    asks: mpsc::UnboundedSender<Ask>,
    tickets: Arc<AtomicU64>,
}

impl Cache {
    /// A handle, and the receiving end for the looking task.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Ask>) {
        let (asks, receiver) = mpsc::unbounded_channel();
        (
            Self {
                asks,
                tickets: Arc::default(),
            },
            receiver,
        )
    }

    /// Follows a pod; the first snapshot comes as soon as it was looked at.
    pub(crate) fn follow(&self, uid: &PodUid) -> Snapshots {
        let (sender, receiver) = watch::channel(None);
        self.ask(Ask::Follow(uid.clone(), sender));
        receiver
    }

    /// Has a pod looked at.
    pub(crate) fn look(&self, uid: &PodUid, cause: &str) -> Ticket {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed) + 1);
        self.ask(Ask::Look(uid.clone(), ticket, cause.to_owned()));
        ticket
    }

    /// Ends [`Cache::follow`].
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.ask(Ask::Forget(uid.clone()));
    }

    fn ask(&self, ask: Ask) {
        // The looking task outlives the workers except when the agent stops, and then nobody needs to look.
        let _ = self.asks.send(ask);
    }
}
