//! What the agent measures of its own work: how it follows the runtime, and how long pods' workers take.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::histogram::{DEFAULT_BOUNDS, Histogram};

/// What a pod's worker does in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// The first round of a pod.
    Create,
    /// A round after the pod's source has changed it.
    Update,
    /// Another round.
    Sync,
    /// The pod's end.
    Kill,
}

impl WorkKind {
    /// A kubelet's name of it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Sync => "sync",
            Self::Kill => "kill",
        }
    }
}

/// The numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// How long listings of the runtime's pods took.
    pub relist_durations: Histogram,
    /// How long it was from one listing to the next.
    pub relist_intervals: Histogram,
    /// When the last one began.
    pub last_relist: Option<Timestamp>,
    /// How long workers took.
    pub work: BTreeMap<WorkKind, Histogram>,
}

/// The numbers of one agent. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Measures(Arc<Mutex<Measured>>);

impl Default for Measures {
    fn default() -> Self {
        let none = || Histogram::new(DEFAULT_BOUNDS);
        let measured = Measured {
            relist_durations: none(),
            relist_intervals: none(),
            last_relist: None,
            work: BTreeMap::new(),
        };
        Self(Arc::new(Mutex::new(measured)))
    }
}

impl Measures {
    /// Those so far.
    pub(crate) fn now(&self) -> Measured {
        self.lock().clone()
    }

    /// Counts the begin of a listing, so long after that of the last one.
    pub(crate) fn relist_begins(&self, at: Timestamp, since_last: Option<Duration>) {
        let mut measured = self.lock();
        measured.last_relist = Some(at);
        if let Some(interval) = since_last {
            measured.relist_intervals.observe(interval.as_secs_f64());
        }
    }

    /// Counts a listing that has ended.
    pub(crate) fn relist_ends(&self, took: Duration) {
        self.lock().relist_durations.observe(took.as_secs_f64());
    }

    /// Counts a round of a worker.
    pub(crate) fn worked(&self, kind: WorkKind, took: Duration) {
        let mut measured = self.lock();
        let durations = measured.work.entry(kind);
        let durations = durations.or_insert_with(|| Histogram::new(DEFAULT_BOUNDS));
        durations.observe(took.as_secs_f64());
    }

    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_listing_has_no_interval() {
        let measures = Measures::default();
        let at = |second| Timestamp::from_second(second).unwrap_or_default();
        measures.relist_begins(at(1), None);
        measures.relist_ends(Duration::from_millis(20));
        measures.relist_begins(at(3), Some(Duration::from_secs(2)));
        measures.worked(WorkKind::Create, Duration::from_secs(1));
        let now = measures.now();
        assert_eq!((now.relist_durations.count(), now.relist_intervals.sum()), (1, 2.0));
        assert_eq!(now.last_relist, Some(at(3)));
        assert_eq!(now.work.get(&WorkKind::Create).map(Histogram::count), Some(1));
    }
}
