//! Housekeeping every 2 s, and garbage collection every minute: pods that no source has any more are ended and removed.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go HandlePodCleanups, pkg/kubelet/kuberuntime/kuberuntime_gc.go and
//! pkg/kubelet/kubelet.go StartGarbageCollection.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use compact::Set;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::orphans::{KnownPods, orphans};
use super::reconcile::{StartWait, WorkerState};
use super::resizes::Granted;
use super::{SyncLoop, has_ended};
use crate::cri::{ListedState, PodRef};
use crate::node::component;
use crate::observation::pleg::RuntimeListing;
use crate::observation::pleg::diff::Listing;
use crate::reporting::measures::{Counted, OrphanedDirs};
use crate::shared::Shared;
use crate::storage::drivers::has_volumes;
use crate::storage::volumes::{PodDirs, in_memory};
use crate::upkeep::gc::collector::remove_dead;
use crate::upkeep::logs::links;
use crate::worker::{self, PodUpdate, WorkItem, rejected};
use tasks::blocking;

/// The pending garbage collection.
#[derive(Debug)]
pub(super) struct Garbage {
    /// Whether the next housekeeping checks the directories: an agent that was killed may have left some.
    directories: bool,
    /// When a collection was requested; it needs a listing that began later.
    requested: Option<Timestamp>,
    /// Whether the collection of this period is pending: if the runtime cannot be listed, an event is recorded.
    periodic: bool,
    /// The directories whose volumes drivers are unmounting.
    unmounting: Set<OsString>,
    unmounts: JoinSet<OsString>,
    /// The removals of the rest of evicted pods.
    of_evicted: JoinSet<()>,
}

impl Default for Garbage {
    fn default() -> Self {
        Self {
            directories: true,
            requested: None,
            periodic: false,
            unmounting: Set::new(),
            unmounts: JoinSet::new(),
            of_evicted: JoinSet::new(),
        }
    }
}

impl SyncLoop {
    /// Ends orphans, removes their directories, and starts pods that were re-created while their earlier worker ended.
    pub(super) async fn housekeeping(&mut self, listed: Option<&RuntimeListing>) {
        let Some(listed) = listed.filter(|_| self.sources_are_ready()) else {
            return;
        };
        self.ended.retain(|_, at| listed.begun <= *at);
        // Prevents that uncounted changes accumulate while no pod is added.
        self.entries.count(&self.reports.borrow());
        if std::mem::take(&mut self.garbage.directories) {
            self.remove_orphaned_dirs(listed).await;
        } else {
            self.shared.measures.record_no_new_orphaned_dirs();
        }
        self.forget_statuses();
        self.waiting.retain(|_, wait| *wait != StartWait::Housekeeping);
        if self.waits {
            self.reconcile_workers();
        }

        let config = &self.shared.config;
        let has_worker = |uid: &PodUid| self.entries.get(uid).is_some();
        let found = orphans(listed, &self.known(&has_worker), |maker| config.owns(maker));
        let collects = config.remove_at_once && !found.ended.is_empty();
        for pod in found.running {
            self.end_orphan(pod);
        }
        if collects && self.garbage.requested.is_none() {
            self.request_collection();
        }
    }

    fn known<'a>(&'a self, has_worker: &'a dyn Fn(&PodUid) -> bool) -> KnownPods<'a> {
        KnownPods { desired: &self.desired, has_worker, ended: &self.ended }
    }

    fn end_orphan(&mut self, pod: &PodRef) {
        tracing::info!(pod = %format_args!("{}/{}", pod.namespace, pod.name), uid = %pod.uid, "found orphaned pod");
        self.shared.measures.count(Counted::OrphanFound);
        let update = PodUpdate::terminate("orphaned pod", None);
        let (updates, receiver) = watch::channel(update);
        let item = WorkItem::Orphan(pod.clone());
        let worker = worker::run(Arc::clone(&self.shared), item, receiver);
        self.start(WorkerState::orphan(pod.clone()), updates, false, Granted::default(), worker);
    }

    /// Requests a listing, after which [`SyncLoop::listed`] collects garbage.
    fn request_collection(&mut self) {
        self.garbage.directories = true;
        self.garbage.requested = Some(self.shared.clock.now());
        self.shared.cache.relist();
    }

    /// Requests the periodic collection.
    pub(super) fn request_periodic_collection(&mut self) {
        self.garbage.periodic = true;
        self.request_collection();
    }

    /// Records that the runtime could not be listed to collect garbage: once in each period, because a kubelet tries it once. Here
    /// the listing is retried sooner.
    pub(super) fn listing_failed(&mut self, error: String) {
        if std::mem::take(&mut self.garbage.periodic) {
            let node = &self.shared.config.node_name;
            self.shared.events.record_node_warning(node, "ContainerGCFailed", error);
        }
    }

    /// Handles a listing: collects garbage, if that was requested before the listing began.
    pub(super) async fn listed(&mut self, listed: &RuntimeListing) {
        let due = self.garbage.requested.is_some_and(|at| at <= listed.begun);
        if !due {
            return;
        }
        self.garbage.periodic = false;
        if !self.sources_are_ready() {
            return;
        }
        self.garbage.requested = None;
        // Comes first, because a pod that is being collected has a worker, and then its logs would stay.
        self.remove_orphaned_logs(listed).await;
        if let Some(links) = self.shared.config.container_logs_dir.clone() {
            let live = live_containers(listed);
            blocking(move || links::remove_dangling(&links, &live)).await;
        }
        let config = &self.shared.config;
        let has_worker = |uid: &PodUid| self.entries.get(uid).is_some();
        let ended = orphans(listed, &self.known(&has_worker), |maker| config.owns(maker)).ended;
        for (pod, listing) in ended {
            let update = PodUpdate::terminate("garbage collection", None);
            let (updates, _) = watch::channel(update);
            let work = collect(Arc::clone(&self.shared), pod.clone(), Arc::clone(listing));
            self.start(WorkerState::orphan(pod.clone()), updates, false, Granted::default(), work);
        }
        self.collect_evicted(listed);
    }

    /// Removes the containers, sandboxes and logs of evicted pods that an API server still has: their disk space is needed, and
    /// controllers do not delete such pods soon (Kubernetes 1.36, pkg/kubelet/pod_workers.go ShouldPodContentBeRemoved). The next
    /// collection retries failures.
    fn collect_evicted(&mut self, listed: &RuntimeListing) {
        let removals = &mut self.garbage.of_evicted;
        while let Some(ended) = removals.try_join_next() {
            tasks::output(ended);
        }
        if !removals.is_empty() {
            return;
        }
        let reports = self.reports.borrow();
        let ended = self.desired.iter().filter(|pod| has_ended(&reports, pod.uid()));
        for pod in ended.filter(|pod| is_known_as_evicted(pod)) {
            let rest = listed.pods.get(pod.uid()).cloned();
            if rest.as_ref().is_some_and(|(_, listing)| listing.anything_runs()) {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            let dirs = PodDirs::new(&shared.config, pod.uid(), pod.namespace(), pod.name());
            removals.spawn(tasks::boxed(async move {
                let removes_logs = shared.config.remove_logs;
                if let Some((pod, listing)) = rest {
                    collect(shared, pod, listing).await;
                }
                if removes_logs {
                    blocking(move || remove_logs(&dirs.logs)).await;
                }
            }));
        }
    }

    /// Removes the directories and cgroups of pods that no source has and of which nothing runs. Directories with mounts stay;
    /// drivers unmount their own, and the next housekeeping retries.
    async fn remove_orphaned_dirs(&mut self, listed: &RuntimeListing) {
        while let Some(done) = self.garbage.unmounts.try_join_next() {
            if let Some(name) = tasks::output(done) {
                self.garbage.unmounting.remove(&name);
            }
        }
        let kept = self.kept(listed);
        let mut all_removed = true;
        if let Some(cgroups) = &self.shared.cgroups {
            let kept = kept.clone();
            let is_known = move |uid: &str| kept.contains(OsStr::new(&component(uid)));
            all_removed = cgroups.remove_orphans(is_known).await;
        }
        let (trash, root) = (Arc::clone(&self.shared.trash), self.shared.config.root_dir.clone());
        let machine = Arc::clone(&self.shared.machine);
        let has_drivers = self.shared.drivers.is_some();
        let (busy, dirs) = blocking(move || {
            let pods = root.join("pods");
            let is_kept = |name: &OsStr| kept.contains(name);
            let of_drivers = match has_drivers {
                true => {
                    others(&pods, is_kept).filter(|name| has_volumes(&pods.join(name))).collect()
                }
                false => Set::new(),
            };
            let stays = |name: &OsStr| is_kept(name) || of_drivers.contains(name);
            let dirs =
                remove_others(&pods, stays, |path| match machine.mounts_below(path)?.first() {
                    None => trash.put(path),
                    Some(at) => Err(io::Error::other(format!(
                        "something is mounted at {}: it stays until that is unmounted",
                        at.display()
                    ))),
                });
            remove_others(&in_memory::directory(&root), is_kept, |path| {
                Ok(file_tree::remove(path)?)
            });
            rejected::forget_others(&root, &kept);
            (of_drivers, dirs)
        })
        .await;
        self.shared.measures.record_orphaned_dirs(OrphanedDirs {
            found: dirs.found + busy.len(),
            left: dirs.left + busy.len(),
        });
        self.garbage.directories = !busy.is_empty() || !all_removed;
        for name in busy {
            self.unmount_orphan(name);
        }
    }

    /// Lets drivers unmount the volumes of a pod that no source has, given the name of its directory.
    fn unmount_orphan(&mut self, name: OsString) {
        let Some(drivers) = self.shared.drivers.clone() else {
            return;
        };
        if !self.garbage.unmounting.insert(name.clone()) {
            return;
        }
        let directory = self.shared.config.root_dir.join("pods").join(&name);
        self.garbage.unmounts.spawn(tasks::boxed(async move {
            if let Err(error) = drivers.unmount(&directory).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(path = %directory.display(), error, "failed to unmount the volumes of an orphaned pod; will retry");
            }
            name
        }));
    }

    /// Removes the logs of pods that no source has, unless the directory may contain logs of other agents.
    async fn remove_orphaned_logs(&self, listed: &RuntimeListing) {
        let config = &self.shared.config;
        let is_own = config.owns(None) || config.pod_logs_dir.starts_with(&config.root_dir);
        if !config.remove_logs || !is_own {
            return;
        }
        let kept = self.kept(listed);
        let logs = config.pod_logs_dir.clone();
        blocking(move || {
            // `<namespace>_<name>_<uid>`; other names are not of pods.
            let is_kept = |name: &OsStr| {
                let uid = name.to_str().and_then(|name| name.splitn(3, '_').nth(2));
                uid.is_none_or(|uid| kept.contains(OsStr::new(uid)))
            };
            remove_others(&logs, is_kept, |path| Ok(file_tree::remove(path)?));
        })
        .await;
    }

    /// The file names of the uids of all pods that are desired, have a worker, or run.
    fn kept(&self, listed: &RuntimeListing) -> Set<OsString> {
        let desired = self.desired.iter().map(Pod::uid);
        let running = listed.pods.iter();
        let running = running.filter(|(_, (_, listing))| listing.anything_runs());
        let kept = desired.chain(self.entries.uids()).chain(running.map(|(uid, _)| uid));
        kept.map(|uid| component(uid.as_str()).as_str().into()).collect()
    }
}

/// Removes the rest of a pod of which nothing runs: its containers, then its empty sandboxes. The next collection retries failures.
async fn collect(shared: Arc<Shared>, pod: PodRef, listing: Arc<Listing>) {
    let cri = &shared.cri;
    let failed = |error: crate::cri::CriError| {
        tracing::warn!(pod = %format_args!("{}/{}", pod.namespace, pod.name), %error, "failed to collect garbage");
    };
    let mut emptied = true;
    for (id, _, state) in listing.containers() {
        let is_unknown = state == ListedState::Unknown;
        if let Err(error) = remove_dead(cri.as_ref(), id, is_unknown).await {
            failed(error);
            emptied = false;
        }
    }
    if !emptied {
        return;
    }
    for (id, _) in listing.sandboxes() {
        let removed = match cri.stop_sandbox(id).await {
            Ok(()) => cri.remove_sandbox(id).await,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            failed(error);
        }
    }
    tracing::info!(pod = %format_args!("{}/{}", pod.namespace, pod.name), uid = %pod.uid, "removed what was left of pod");
}

/// The ids of the containers that have not exited.
fn live_containers(listed: &RuntimeListing) -> Set<String> {
    let containers = listed.pods.values().flat_map(|(_, listing)| listing.containers());
    let live = containers.filter(|(.., state)| *state != ListedState::Exited);
    live.map(|(id, ..)| id.to_string()).collect()
}

/// Whether an API server has the last status of a pod that the agent evicted, because of pressure or for a critical pod.
fn is_known_as_evicted(pod: &Pod) -> bool {
    let status = pod.api().status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref());
    let is_evicted = matches!(reason, Some("Evicted" | "Preempting"));
    is_evicted && pod.has_ended() && pod.source() == Some("api")
}

/// Removes the directory of a pod's logs. Blocks on the file system.
fn remove_logs(logs: &Path) {
    if let Err(error) = file_tree::remove(logs) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(path = %logs.display(), error, "failed to remove the logs of an evicted pod");
    }
}

/// The names in a directory, except those for which `is_kept` is true.
fn others(directory: &Path, is_kept: impl Fn(&OsStr) -> bool) -> impl Iterator<Item = OsString> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter(move |name| !is_kept(name))
}

/// Removes the entries of a directory, except those for which `is_kept` is true. Returns their number.
fn remove_others(
    directory: &Path,
    is_kept: impl Fn(&OsStr) -> bool,
    remove: impl Fn(&Path) -> io::Result<()>,
) -> OrphanedDirs {
    let mut dirs = OrphanedDirs::default();
    for name in others(directory, is_kept) {
        let path = directory.join(name);
        dirs.found += 1;
        tracing::info!(path = %path.display(), "removing orphaned directory of a pod");
        if let Err(error) = remove(&path) {
            dirs.left += 1;
            tracing::warn!(path = %path.display(), %error, "failed to remove orphaned directory of a pod");
        }
    }
    dirs
}

// The statuses of removed pods: a kubelet removes them at housekeeping, and a pod that is re-created before continues from its
// status.
//
// Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go RemoveOrphanedStatuses.

impl SyncLoop {
    /// Removes the statuses of removed pods. A worker that is still ending its pod publishes another status afterwards.
    pub(super) fn forget_statuses(&mut self) {
        let reports = self.reports.borrow();
        self.removed.retain(|uid| {
            if self.desired.iter().any(|pod| pod.uid() == uid) {
                return true;
            }
            let Some(entry) = self.entries.get(uid) else {
                return false;
            };
            entry.forget_status();
            !has_ended(&reports, uid)
        });
    }

    /// The initial status of a pod's new worker: that of an earlier worker, if it was not removed.
    pub(super) fn remembered_status(&self, pod: &Pod) -> Option<Arc<PodStatus>> {
        if !self.removed.contains(pod.uid()) {
            return None;
        }
        let reports = self.reports.borrow();
        let status = Arc::clone(&reports.get(pod.uid())?.published);
        status.phase.is_some().then_some(status)
    }
}
