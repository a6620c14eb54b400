//! Where the workers hang out their reports: one task that keeps the latest of each pod and tells every listener the changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::transitions::{Stage, transitions};
use super::{PodReport, Transition};
use crate::clock::Clock;
use crate::pod::PodUid;

/// How many pods that are gone stay on the board, so that whoever looks rarely still sees how they ended.
const KEPT_REMOVED: usize = 1000;

/// The latest report of every pod.
pub(crate) type Reports = watch::Receiver<Arc<BTreeMap<PodUid, PodReport>>>;

/// What the board is told.
#[derive(Debug)]
enum Note {
    Report(Box<PodReport>, Stage, String),
    Listen(mpsc::UnboundedSender<Transition>),
}

/// Talks to the board. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    notes: mpsc::UnboundedSender<Note>,
}

/// The receiving end.
pub(crate) struct Desk {
    notes: mpsc::UnboundedReceiver<Note>,
    reports: watch::Sender<Arc<BTreeMap<PodUid, PodReport>>>,
}

impl Board {
    /// A board: the handle, its task's end, and what it shows.
    pub(crate) fn new() -> (Self, Desk, Reports) {
        let (sender, notes) = mpsc::unbounded_channel();
        let (reports, shown) = watch::channel(Arc::default());
        (Self { notes: sender }, Desk { notes, reports }, shown)
    }

    /// Hangs out a report in the place of the pod's last one.
    pub(crate) fn report(&self, report: PodReport, stage: Stage, cause: &str) {
        // The board ends after the workers, when the agent stops.
        let _ = self
            .notes
            .send(Note::Report(Box::new(report), stage, cause.to_owned()));
    }

    /// Every change from now on.
    pub(crate) fn listen(&self) -> mpsc::UnboundedReceiver<Transition> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.notes.send(Note::Listen(sender));
        receiver
    }
}

impl Desk {
    /// Runs the board until every handle is gone.
    pub(crate) async fn run(mut self, clock: Arc<dyn Clock>) {
        let mut stages: BTreeMap<PodUid, Stage> = BTreeMap::new();
        let mut removed: VecDeque<PodUid> = VecDeque::new();
        let mut listeners: Vec<mpsc::UnboundedSender<Transition>> = Vec::new();
        while let Some(note) = self.notes.recv().await {
            let (report, stage, cause) = match note {
                Note::Listen(listener) => {
                    listeners.push(listener);
                    continue;
                }
                Note::Report(report, stage, cause) => (*report, stage, cause),
            };
            let uid = report.uid.clone();
            let changes = {
                let shown = self.reports.borrow();
                let old = shown.get(&uid).zip(stages.get(&uid).copied());
                if old.is_some_and(|(old, old_stage)| *old == report && old_stage == stage) {
                    continue;
                }
                transitions(old, (&report, stage), clock.now(), &cause)
            };
            for change in &changes {
                log(change);
            }
            stages.insert(uid.clone(), stage);
            let forgotten = if report.removed {
                removed.push_back(uid.clone());
                (removed.len() > KEPT_REMOVED)
                    .then(|| removed.pop_front())
                    .flatten()
            } else {
                // A pod that was gone and is wanted again.
                removed.retain(|gone| *gone != uid);
                None
            };
            if let Some(gone) = &forgotten {
                stages.remove(gone);
            }
            self.reports.send_modify(|shown| {
                let shown = Arc::make_mut(shown);
                shown.insert(uid, report);
                if let Some(gone) = &forgotten {
                    shown.remove(gone);
                }
            });
            listeners.retain(|listener| {
                changes
                    .iter()
                    .all(|change| listener.send(change.clone()).is_ok())
            });
        }
    }
}

fn log(change: &Transition) {
    tracing::info!(
        pod = %change.pod,
        container = change.container.as_deref(),
        from = %change.from,
        to = %change.to,
        cause = %change.cause,
        exit_code = change.exit_code,
    );
}
