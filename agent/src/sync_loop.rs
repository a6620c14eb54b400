//! Reconciles the pods of the sources with the pods of the runtime: one task owns the list of workers.

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
use crate::worker::{self, PodUpdate, WorkItem};

mod reconcile;

use reconcile::{WorkerAction, WorkerState, desired_pods, orphans, reconcile};

/// The loop's record of one worker.
struct Entry {
    state: WorkerState,
    updates: watch::Sender<PodUpdate>,
}

struct SyncLoop {
    shared: Arc<Shared>,
    /// The pods of each source; `None` until its first update.
    sources: Vec<Option<Vec<Pod>>>,
    entries: BTreeMap<PodUid, Entry>,
    tasks: JoinSet<()>,
    ids: BTreeMap<Id, PodUid>,
}

/// Runs until `shutdown`. The workers are stopped at the same time; pods keep running.
pub(crate) async fn run(
    shared: Arc<Shared>,
    sources: Vec<Box<dyn PodSource>>,
    mut runtime: RuntimePods,
    shutdown: CancellationToken,
) {
    let mut sync_loop = SyncLoop {
        shared,
        sources: sources.iter().map(|_| None).collect(),
        entries: BTreeMap::new(),
        tasks: JoinSet::new(),
        ids: BTreeMap::new(),
    };
    let (sender, mut sets) = mpsc::channel(16);
    let mut readers = JoinSet::new();
    for (number, source) in sources.into_iter().enumerate() {
        readers.spawn(read_source(number, source, sender.clone()));
    }
    let trash = Arc::clone(&sync_loop.shared.trash);
    blocking(move || {
        if let Err(error) = trash.resume() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to delete trash of an earlier agent"
            );
        }
    })
    .await;
    let mut garbage_collection =
        tokio::time::interval_at(Instant::now(), sync_loop.shared.config.gc_period);
    garbage_collection.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Each arm is cancel safe: it only receives or sleeps.
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some((number, pods)) = sets.recv() => sync_loop.set_desired(number, pods),
            Some(ended) = sync_loop.tasks.join_next_with_id() => sync_loop.worker_ended(ended),
            Ok(()) = runtime.changed() => {
                let pods = runtime.borrow_and_update().clone();
                sync_loop.find_orphans(pods.iter().flat_map(|pods| pods.values()));
            }
            _ = garbage_collection.tick() => sync_loop.collect_garbage(&runtime).await,
        }
    }
}

/// Forwards the updates of one source.
async fn read_source(
    number: usize,
    mut source: Box<dyn PodSource>,
    sets: mpsc::Sender<(usize, Vec<Pod>)>,
) {
    while let Some(pods) = source.next().await {
        tracing::info!(source = %source.name(), pods = pods.len(), "pod source updated");
        if sets.send((number, pods)).await.is_err() {
            return;
        }
    }
}

impl SyncLoop {
    fn set_desired(&mut self, source: usize, pods: Vec<Pod>) {
        if let Some(desired) = self.sources.get_mut(source) {
            *desired = Some(pods);
        }
        self.reconcile_workers();
    }

    fn worker_ended(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "pod worker panicked; restarting it");
                error.id()
            }
        };
        if let Some(uid) = self.ids.remove(&id) {
            self.entries.remove(&uid);
        }
        self.reconcile_workers();
    }

    fn workers(&self) -> BTreeMap<PodUid, WorkerState> {
        self.entries
            .iter()
            .map(|(uid, entry)| (uid.clone(), entry.state.clone()))
            .collect()
    }

    fn reconcile_workers(&mut self) {
        for action in reconcile(&desired_pods(&self.sources), &self.workers()) {
            self.apply(action);
        }
    }

    fn find_orphans<'a>(&mut self, runtime: impl Iterator<Item = &'a PodRef>) {
        if self.sources.iter().all(Option::is_some) {
            for action in orphans(runtime, &desired_pods(&self.sources), &self.workers()) {
                self.apply(action);
            }
        }
    }

    fn apply(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Start(pod) => self.start(
                WorkItem::Pod(pod.clone()),
                Some(pod.clone()),
                PodUpdate::Run(pod),
            ),
            WorkerAction::StartOrphan(of) => {
                tracing::info!(pod = %format_args!("{}/{}", of.namespace, of.name), uid = %of.uid, "found orphaned pod");
                self.start(
                    WorkItem::Orphan(of),
                    None,
                    PodUpdate::Terminate("orphaned pod".to_owned()),
                );
            }
            WorkerAction::Update(pod) => {
                if let Some(entry) = self.entries.get_mut(pod.uid()) {
                    entry.state.desired = Some(pod.clone());
                    entry.updates.send_replace(PodUpdate::Run(pod));
                }
            }
            WorkerAction::Terminate(uid, cause) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    entry.state.desired = None;
                    entry
                        .updates
                        .send_replace(PodUpdate::Terminate(cause.to_owned()));
                }
            }
        }
    }

    fn start(&mut self, item: WorkItem, desired: Option<Pod>, update: PodUpdate) {
        let pod = item.pod_ref();
        let (updates, receiver) = watch::channel(update);
        let handle = self
            .tasks
            .spawn(worker::run(Arc::clone(&self.shared), item, receiver));
        self.ids.insert(handle.id(), pod.uid.clone());
        self.entries.insert(
            pod.uid.clone(),
            Entry {
                state: WorkerState { pod, desired },
                updates,
            },
        );
    }

    /// Removes orphaned pod directories, which an agent that was killed may have left behind.
    async fn collect_garbage(&mut self, runtime: &RuntimePods) {
        let listed = runtime.borrow().clone();
        let Some(listed) = listed.filter(|_| self.sources.iter().all(Option::is_some)) else {
            return;
        };
        let pods = self.shared.config.root_dir.join("pods");
        let desired: Vec<PodUid> = desired_pods(&self.sources)
            .iter()
            .map(|pod| pod.uid().clone())
            .collect();
        let kept: Vec<PodUid> = desired
            .into_iter()
            .chain(self.entries.keys().cloned())
            .chain(listed.keys().cloned())
            .collect();
        let trash = Arc::clone(&self.shared.trash);
        blocking(move || remove_orphaned_dirs(&trash, &pods, &kept)).await;
    }
}

/// Removes the directories in `pods` whose pod is not in `kept`.
fn remove_orphaned_dirs(trash: &Trash, pods: &Path, kept: &[PodUid]) {
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
        tracing::info!(path = %entry.path().display(), "removing orphaned pod directory");
        if let Err(error) = trash.put(&entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "failed to remove orphaned pod directory");
        }
    }
}

#[cfg(test)]
mod tests;
