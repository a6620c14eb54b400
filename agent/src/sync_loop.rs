//! Brings together what the sources want and what the runtime has: one task that owns the list of workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use file_tree::Trash;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::cri::PodRef;
use crate::pleg::RuntimePods;
use crate::pod::{Pod, PodUid};
use crate::shared::Shared;
use crate::source::PodSource;
use crate::worker::{self, Order, Subject};

mod route;

use route::{Dispatch, Known, orphans, route, wanted};

/// A worker's place in the list.
struct Entry {
    known: Known,
    orders: watch::Sender<Order>,
}

struct SyncLoop {
    shared: Arc<Shared>,
    /// What each source wants; `None` until it has said so.
    sources: Vec<Option<Vec<Pod>>>,
    entries: BTreeMap<PodUid, Entry>,
    tasks: JoinSet<()>,
    ids: BTreeMap<Id, PodUid>,
}

/// Runs until `shutdown`. Workers stop with it, where they are; pods keep running.
pub(crate) async fn run(
    shared: Arc<Shared>,
    sources: Vec<Box<dyn PodSource>>,
    mut runtime: RuntimePods,
    shutdown: CancellationToken,
) {
    let mut list = SyncLoop {
        shared,
        sources: sources.iter().map(|_| None).collect(),
        entries: BTreeMap::new(),
        tasks: JoinSet::new(),
        ids: BTreeMap::new(),
    };
    let (sender, mut sets) = mpsc::channel(16);
    let mut listeners = JoinSet::new();
    for (number, source) in sources.into_iter().enumerate() {
        listeners.spawn(listen(number, source, sender.clone()));
    }
    let trash = Arc::clone(&list.shared.trash);
    blocking(move || {
        if let Err(error) = trash.resume() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to delete what an earlier agent left"
            );
        }
    })
    .await;
    let mut housekeeping = tokio::time::interval_at(Instant::now(), list.shared.config.gc_period);
    housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Each arm waits or receives, and loses nothing when another is chosen.
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some((number, pods)) = sets.recv() => list.wants(number, pods),
            Some(ended) = list.tasks.join_next_with_id() => list.ended(ended),
            Ok(()) = runtime.changed() => {
                let pods = runtime.borrow_and_update().clone();
                list.find_orphans(pods.iter().flat_map(|pods| pods.values()));
            }
            _ = housekeeping.tick() => list.keep_house(&runtime).await,
        }
    }
}

/// Passes on what a source wants.
async fn listen(
    number: usize,
    mut source: Box<dyn PodSource>,
    sets: mpsc::Sender<(usize, Vec<Pod>)>,
) {
    while let Some(pods) = source.next().await {
        tracing::info!(source = %source.name(), pods = pods.len(), "a source says what it wants");
        if sets.send((number, pods)).await.is_err() {
            return;
        }
    }
}

impl SyncLoop {
    fn wants(&mut self, source: usize, pods: Vec<Pod>) {
        if let Some(wants) = self.sources.get_mut(source) {
            *wants = Some(pods);
        }
        self.bring_together();
    }

    fn ended(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "a pod's worker broke; another one takes over");
                error.id()
            }
        };
        if let Some(uid) = self.ids.remove(&id) {
            self.entries.remove(&uid);
        }
        self.bring_together();
    }

    fn known(&self) -> BTreeMap<PodUid, Known> {
        self.entries
            .iter()
            .map(|(uid, entry)| (uid.clone(), entry.known.clone()))
            .collect()
    }

    fn bring_together(&mut self) {
        for dispatch in route(&wanted(&self.sources), &self.known()) {
            self.carry_out(dispatch);
        }
    }

    fn find_orphans<'a>(&mut self, runtime: impl Iterator<Item = &'a PodRef>) {
        if self.sources.iter().all(Option::is_some) {
            for dispatch in orphans(runtime, &wanted(&self.sources), &self.known()) {
                self.carry_out(dispatch);
            }
        }
    }

    fn carry_out(&mut self, dispatch: Dispatch) {
        match dispatch {
            Dispatch::Start(pod) => self.start(
                Subject::Pod(pod.clone()),
                Some(pod.clone()),
                Order::Run(pod),
            ),
            Dispatch::StartOrphan(of) => {
                tracing::info!(pod = %format_args!("{}/{}", of.namespace, of.name), uid = %of.uid, "no source wants this pod");
                self.start(
                    Subject::Orphan(of),
                    None,
                    Order::End("no source wants it".to_owned()),
                );
            }
            Dispatch::Update(pod) => {
                if let Some(entry) = self.entries.get_mut(pod.uid()) {
                    entry.known.runs = Some(pod.clone());
                    entry.orders.send_replace(Order::Run(pod));
                }
            }
            Dispatch::End(uid, cause) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    entry.known.runs = None;
                    entry.orders.send_replace(Order::End(cause.to_owned()));
                }
            }
        }
    }

    fn start(&mut self, subject: Subject, runs: Option<Pod>, order: Order) {
        let of = subject.pod_ref();
        let (orders, receiver) = watch::channel(order);
        let handle = self
            .tasks
            .spawn(worker::run(Arc::clone(&self.shared), subject, receiver));
        self.ids.insert(handle.id(), of.uid.clone());
        self.entries.insert(
            of.uid.clone(),
            Entry {
                known: Known { of, runs },
                orders,
            },
        );
    }

    /// Removes directories of pods that are nobody's: left by an agent that was killed at a bad moment.
    async fn keep_house(&mut self, runtime: &RuntimePods) {
        let listed = runtime.borrow().clone();
        let Some(listed) = listed.filter(|_| self.sources.iter().all(Option::is_some)) else {
            return;
        };
        let pods = self.shared.config.root_dir.join("pods");
        let wanted: Vec<PodUid> = wanted(&self.sources)
            .iter()
            .map(|pod| pod.uid().clone())
            .collect();
        let kept: Vec<PodUid> = wanted
            .into_iter()
            .chain(self.entries.keys().cloned())
            .chain(listed.keys().cloned())
            .collect();
        let trash = Arc::clone(&self.shared.trash);
        blocking(move || remove_strangers(&trash, &pods, &kept)).await;
    }
}

/// Removes the directories in `pods` that belong to none of the pods that are kept.
fn remove_strangers(trash: &Trash, pods: &Path, kept: &[PodUid]) {
    let Ok(entries) = std::fs::read_dir(pods) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if kept
            .iter()
            .any(|uid| crate::volumes::component(uid.as_str()).as_str() == name)
        {
            continue;
        }
        tracing::info!(path = %entry.path().display(), "removing the directory of a pod that is no more");
        if let Err(error) = trash.put(&entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "cannot remove it");
        }
    }
}

#[cfg(test)]
mod tests;
