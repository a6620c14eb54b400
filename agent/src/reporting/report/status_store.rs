//! Collects the workers' reports: one task keeps the latest report of each pod and sends every change to every subscriber.

use std::collections::VecDeque;
use std::sync::Arc;

use api::pod::PodUid;
use compact::Map;
use tokio::sync::{mpsc, watch};

use super::transitions::{
    Stage, changes_share, published_status, readiness, terminations, transitions,
};
use super::{PodReport, PublishedStatus, ReadinessChange, Reports, Transition};
use crate::clock::Clock;
use crate::reporting::causes::Causes;
use crate::reporting::measures::Measures;

/// The number of removed pods in the store, so that a client that polls rarely still sees how they ended.
const KEPT_REMOVED: usize = 1000;

/// A message to the store's task.
#[derive(Debug)]
enum Message {
    Publish(Box<PodReport>, Stage, Causes),
    PublishRemoved(Box<PodReport>, Causes),
    Subscribe(mpsc::UnboundedSender<Transition>),
    SubscribeReadiness(mpsc::UnboundedSender<ReadinessChange>),
    SubscribeStatuses(mpsc::UnboundedSender<PublishedStatus>),
    SubscribeShares(mpsc::UnboundedSender<PodUid>),
}

/// A handle to the store's task. Clones share the task.
#[derive(Clone, Debug)]
pub(crate) struct StatusStore {
    messages: mpsc::UnboundedSender<Message>,
}

/// The task that owns the reports.
pub(crate) struct StatusStoreTask {
    messages: mpsc::UnboundedReceiver<Message>,
    reports: watch::Sender<Arc<Reports>>,
}

impl StatusStore {
    /// Creates a store: the handle, the task to run, and the published reports.
    pub(crate) fn new() -> (Self, StatusStoreTask, watch::Receiver<Arc<Reports>>) {
        let (sender, messages) = mpsc::unbounded_channel();
        let (reports, published) = watch::channel(Arc::default());
        (Self { messages: sender }, StatusStoreTask { messages, reports }, published)
    }

    /// Publishes a report, which replaces the pod's previous one.
    pub(crate) fn publish(&self, report: PodReport, stage: Stage, causes: Causes) {
        // The task ends after the workers, when the agent stops.
        let _ = self.messages.send(Message::Publish(Box::new(report), stage, causes));
    }

    /// Publishes that nothing is left of a pod, with its last report, or with `unseen` if there is none.
    pub(crate) fn publish_removed(&self, unseen: PodReport, causes: Causes) {
        let removed = Message::PublishRemoved(Box::new(unseen), causes);
        let _ = self.messages.send(removed);
    }

    /// Subscribes to every later transition.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Transition> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.messages.send(Message::Subscribe(sender));
        receiver
    }

    /// Subscribes to every later change of a container's readiness.
    pub(crate) fn subscribe_readiness(&self) -> mpsc::UnboundedReceiver<ReadinessChange> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.messages.send(Message::SubscribeReadiness(sender));
        receiver
    }

    /// Subscribes to every status that is published later.
    pub(crate) fn subscribe_statuses(&self) -> mpsc::UnboundedReceiver<PublishedStatus> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.messages.send(Message::SubscribeStatuses(sender));
        receiver
    }

    /// Subscribes to the pods whose reports change their resources on the node. The report is published before.
    pub(crate) fn subscribe_shares(&self) -> mpsc::UnboundedReceiver<PodUid> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.messages.send(Message::SubscribeShares(sender));
        receiver
    }
}

/// Sends changes to all subscribers, and removes closed ones.
fn send_all<T: Clone>(subscribers: &mut Vec<mpsc::UnboundedSender<T>>, changes: &[T]) {
    subscribers
        .retain(|subscriber| changes.iter().all(|change| subscriber.send(change.clone()).is_ok()));
}

/// The last report of a pod of which nothing is left, or `unseen`, if it was not reported since its last removal.
fn removed_report(published: &Reports, unseen: PodReport) -> PodReport {
    let last = published.get(&unseen.uid);
    let last = last.filter(|last| !last.removed).cloned();
    PodReport { finished: true, removed: true, ..last.unwrap_or(unseen) }
}

impl StatusStoreTask {
    /// Runs the store until every handle is dropped.
    pub(crate) async fn run(mut self, clock: Arc<dyn Clock>, measures: Measures) {
        let mut stages: Map<PodUid, Stage> = Map::new();
        let mut removed: VecDeque<PodUid> = VecDeque::new();
        let mut subscribers: Vec<mpsc::UnboundedSender<Transition>> = Vec::new();
        let mut of_readiness: Vec<mpsc::UnboundedSender<ReadinessChange>> = Vec::new();
        let mut of_statuses: Vec<mpsc::UnboundedSender<PublishedStatus>> = Vec::new();
        let mut of_shares: Vec<mpsc::UnboundedSender<PodUid>> = Vec::new();
        while let Some(message) = self.messages.recv().await {
            let (report, stage, causes) = match message {
                Message::Subscribe(subscriber) => {
                    subscribers.push(subscriber);
                    continue;
                }
                Message::SubscribeReadiness(subscriber) => {
                    of_readiness.push(subscriber);
                    continue;
                }
                Message::SubscribeStatuses(subscriber) => {
                    of_statuses.push(subscriber);
                    continue;
                }
                Message::SubscribeShares(subscriber) => {
                    of_shares.push(subscriber);
                    continue;
                }
                Message::Publish(report, stage, causes) => (*report, stage, causes),
                Message::PublishRemoved(unseen, causes) => {
                    let report = removed_report(&self.reports.borrow(), *unseen);
                    (report, Stage::Removed, causes)
                }
            };
            let uid = report.uid.clone();
            let (changes, readiness, status, share, came_back) = {
                let published = self.reports.borrow();
                let old = published.get(&uid).zip(stages.get(&uid).copied());
                if old.is_some_and(|(old, old_stage)| *old == report && old_stage == stage) {
                    continue;
                }
                let now = clock.now();
                let before = old.map(|(old, _)| &*old.status);
                terminations(before, &report.status).into_iter().for_each(|it| measures.count(it));
                (
                    transitions(old, (&report, stage), now, &causes),
                    readiness(old.map(|(old, _)| old), &report, now),
                    published_status(old.map(|(old, _)| old), &report, now),
                    changes_share(old.map(|(old, _)| old), &report).then(|| uid.clone()),
                    old.is_some_and(|(old, _)| old.removed && !report.removed),
                )
            };
            for change in &changes {
                log(change);
            }
            stages.insert(uid.clone(), stage);
            let forgotten = if report.removed {
                removed.push_back(uid.clone());
                (removed.len() > KEPT_REMOVED).then(|| removed.pop_front()).flatten()
            } else {
                if came_back {
                    removed.retain(|removed_uid| *removed_uid != uid);
                }
                None
            };
            if let Some(removed_uid) = &forgotten {
                stages.remove(removed_uid);
            }
            self.reports.send_modify(|published| {
                let published = Arc::make_mut(published);
                published.insert_mut(uid, report);
                if let Some(removed_uid) = &forgotten {
                    published.remove_mut(removed_uid);
                }
            });
            send_all(&mut subscribers, &changes);
            send_all(&mut of_readiness, &readiness);
            send_all(&mut of_statuses, status.as_slice());
            send_all(&mut of_shares, share.as_slice());
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
        "state changed"
    );
}
