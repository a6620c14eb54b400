//! Collects the workers' reports: one task keeps the latest report of each pod and sends every change to every subscriber.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::transitions::{Stage, transitions};
use super::{PodReport, Transition};
use crate::causes::Causes;
use crate::clock::Clock;
use crate::pod::PodUid;

/// How many removed pods the store keeps, so that a client that polls rarely still sees how they ended.
const KEPT_REMOVED: usize = 1000;

/// The latest report of every pod.
pub(crate) type Reports = watch::Receiver<Arc<BTreeMap<PodUid, PodReport>>>;

/// A message to the store's task.
#[derive(Debug)]
enum Message {
    Publish(Box<PodReport>, Stage, Causes),
    Subscribe(mpsc::UnboundedSender<Transition>),
}

/// A handle to the store's task. Clones share the task.
#[derive(Clone, Debug)]
pub(crate) struct StatusStore {
    messages: mpsc::UnboundedSender<Message>,
}

/// The task that owns the reports.
pub(crate) struct StatusStoreTask {
    messages: mpsc::UnboundedReceiver<Message>,
    reports: watch::Sender<Arc<BTreeMap<PodUid, PodReport>>>,
}

impl StatusStore {
    /// Creates a store: the handle, the task to run, and the published reports.
    pub(crate) fn new() -> (Self, StatusStoreTask, Reports) {
        let (sender, messages) = mpsc::unbounded_channel();
        let (reports, published) = watch::channel(Arc::default());
        (
            Self { messages: sender },
            StatusStoreTask { messages, reports },
            published,
        )
    }

    /// Publishes a report, which replaces the pod's previous one.
    pub(crate) fn publish(&self, report: PodReport, stage: Stage, causes: Causes) {
        // The task ends after the workers, when the agent stops.
        let _ = self
            .messages
            .send(Message::Publish(Box::new(report), stage, causes));
    }

    /// Every change from now on.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Transition> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.messages.send(Message::Subscribe(sender));
        receiver
    }
}

impl StatusStoreTask {
    /// Runs the store until every handle is dropped.
    pub(crate) async fn run(mut self, clock: Arc<dyn Clock>) {
        let mut stages: BTreeMap<PodUid, Stage> = BTreeMap::new();
        let mut removed: VecDeque<PodUid> = VecDeque::new();
        let mut subscribers: Vec<mpsc::UnboundedSender<Transition>> = Vec::new();
        while let Some(message) = self.messages.recv().await {
            let (report, stage, causes) = match message {
                Message::Subscribe(subscriber) => {
                    subscribers.push(subscriber);
                    continue;
                }
                Message::Publish(report, stage, causes) => (*report, stage, causes),
            };
            let uid = report.uid.clone();
            let changes = {
                let published = self.reports.borrow();
                let old = published.get(&uid).zip(stages.get(&uid).copied());
                if old.is_some_and(|(old, old_stage)| *old == report && old_stage == stage) {
                    continue;
                }
                transitions(old, (&report, stage), clock.now(), &causes)
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
                // A removed pod may come back with the same uid.
                removed.retain(|removed_uid| *removed_uid != uid);
                None
            };
            if let Some(removed_uid) = &forgotten {
                stages.remove(removed_uid);
            }
            self.reports.send_modify(|published| {
                let published = Arc::make_mut(published);
                published.insert(uid, report);
                if let Some(removed_uid) = &forgotten {
                    published.remove(removed_uid);
                }
            });
            subscribers.retain(|subscriber| {
                changes
                    .iter()
                    .all(|change| subscriber.send(change.clone()).is_ok())
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
