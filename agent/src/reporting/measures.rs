//! Measurements of the agent's own work: how it follows the runtime, and how long pods' workers take.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::pod::{ContainerKind, PodUid};
use compact::Map;
use jiff::Timestamp;

use crate::decide::resize::requests::ResizeRequest;
use crate::histogram::{DEFAULT_BOUNDS, Histogram, observe};
use crate::node::ProtectedMemory;

/// The kind of a worker's sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// The first sync of a pod.
    Create,
    /// A sync after a change by the pod's source.
    Update,
    /// Another sync.
    Sync,
    /// The pod's termination.
    Kill,
}

impl WorkKind {
    /// A kubelet's name of the kind.
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

/// The upper bounds of durations of pulls, in seconds.
const PULL_BOUNDS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];

/// A counted event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// A container was started.
    Started(KindName),
    /// A container was not started, for this reason: `ErrImagePull`.
    NotStarted(KindName, String),
    /// A container has ended: its exit code and reason.
    Terminated(KindName, i32, String),
    /// A pod was preempted for a critical pod, which lacked this resource.
    Preempted(String),
    /// A pod was evicted, for this signal: `memory.available`.
    Evicted(&'static str),
    /// A pod was not admitted, for this reason: `OutOfcpu`.
    Rejected(String),
    /// A container's image was looked up, and pulled if necessary.
    ImageEnsured(EnsuredImage),
    /// An image was removed, for its `age` or for `space`.
    ImageRemoved(&'static str),
    /// A pod's source requested other resources for a container.
    ResizeRequested(ResizeRequest),
    /// The node can never grant a resize, for this reason: `swap_limitation`.
    ResizeInfeasible(&'static str),
    /// A deferred resize was granted, for this trigger: `pods_removed`.
    DeferredResizeGranted(&'static str),
    /// A hook's HTTPS request was answered in HTTP, and succeeded in HTTP.
    HookFellBackToHttp,
    /// A container ended before its sleep hook.
    SleepCutShort,
    /// A container that mounts an image was about to start; counted once per mount.
    ImageVolume,
    /// An image was mounted.
    ImageVolumeMounted,
    /// An image could not be mounted.
    ImageVolumeFailed,
    /// A sandbox was requested for a pod with its own user namespace.
    UserNamespacePod,
    /// The start of such a pod failed.
    UserNamespacePodFailed,
    /// The runtime's event stream was opened.
    EventStreamOpened,
    /// The event stream failed to open, or broke.
    EventStreamFailed,
    /// The runtime had a pod that no source has.
    OrphanFound,
    /// A pod was re-created with the uid of one that was still ending; the value is whether it is static.
    SameUid(bool),
}

/// How a container got its image, or failed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnsuredImage {
    /// The pull policy in lower case: `ifnotpresent`.
    pub policy: &'static str,
    /// Whether the image was present; `None`: not looked up, or unknown.
    pub present: Option<bool>,
    /// Whether a pull was necessary; `None`: unknown.
    pub pull: Option<bool>,
}

/// A kubelet's name of a kind of containers: `init_container`.
pub type KindName = &'static str;

/// A kubelet's name of a kind of containers.
#[must_use]
pub fn kind_name(kind: ContainerKind) -> KindName {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::App => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

/// ◆ A kubelet's name of the size class of an image of `bytes`.
fn size_name(bytes: u64) -> &'static str {
    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;
    match bytes {
        // The runtime did not report it.
        0 => "N/A",
        _ if bytes <= 10 * MB => "0-10MB",
        _ if bytes <= 100 * MB => "10MB-100MB",
        _ if bytes <= 500 * MB => "100MB-500MB",
        _ if bytes <= GB => "500MB-1GB",
        _ if bytes <= 5 * GB => "1GB-5GB",
        _ if bytes <= 10 * GB => "5GB-10GB",
        _ if bytes <= 20 * GB => "10GB-20GB",
        _ if bytes <= 30 * GB => "20GB-30GB",
        _ if bytes <= 40 * GB => "30GB-40GB",
        _ if bytes <= 60 * GB => "40GB-60GB",
        _ if bytes <= 100 * GB => "60GB-100GB",
        _ => "GT100GB",
    }
}

/// The upper bounds of the number of containers.
const CONTAINERS_BOUNDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

/// The upper bounds of durations of changes of volumes, and of calls of their drivers, in seconds.
pub const VOLUME_BOUNDS: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The upper bounds of durations of resizes, in milliseconds.
const RESIZE_BOUNDS: &[f64] =
    &[10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 10e3, 20e3, 30e3, 60e3, 120e3, 300e3, 600e3];

/// A change of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeOperation {
    /// A kubelet's name of the volume's plugin: `kubernetes.io/configmap`.
    pub plugin: String,
    /// `volume_mount` or `volume_unmount`.
    pub operation: &'static str,
    /// Whether it failed.
    pub failed: bool,
}

impl VolumeOperation {
    /// A volume was mounted for a pod, or its files were updated.
    pub(crate) fn mount(plugin: String, failed: bool) -> Self {
        Self { plugin, operation: "volume_mount", failed }
    }
}

/// Directories of pods that no source has, and of which nothing runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanedDirs {
    /// How many the last search found.
    pub found: usize,
    /// How many of these could not be removed.
    pub left: usize,
}

/// The runs of an image credential provider, or starts of sandboxes.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// How long they took.
    pub durations: Histogram,
    /// How many failed.
    pub errors: u64,
}

/// The volumes of a pod: the plugin of each, and whether it is mounted.
pub type PodVolumes = Vec<(String, bool)>;

/// All measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// How long listings of the runtime's pods took.
    pub relist_durations: Histogram,
    /// The intervals between the starts of listings.
    pub relist_intervals: Histogram,
    /// When the last one began.
    pub last_relist: Option<Timestamp>,
    /// The delays between the runtime's creation of events and their receipt.
    pub event_delays: Histogram,
    /// How long inspections of one pod took.
    pub inspections: Histogram,
    /// The delays between the first sight of pods and their first syncs.
    pub worker_starts: Histogram,
    /// The durations of syncs.
    pub work: Map<WorkKind, Histogram>,
    /// The durations of image pulls, by a kubelet's name of the size class.
    pub pulls: Map<&'static str, Histogram>,
    /// The durations of changes of cgroups: `create`, `update` or `destroy`.
    pub cgroups: Map<&'static str, Histogram>,
    /// The durations of resizes in milliseconds, by whether they succeeded.
    pub resizes: Map<bool, Histogram>,
    /// How long changes of volumes took.
    pub volume_changes: Map<VolumeOperation, Histogram>,
    /// The volumes of pods that containers mount.
    pub volumes: Map<PodUid, PodVolumes>,
    /// The age of the measurements used for evictions, by signal.
    pub stats_ages: Map<&'static str, Histogram>,
    /// The memory that is protected for pods; `None`: the agent protects none, or the node has no Memory QoS.
    pub protected_memory: Option<ProtectedMemory>,
    /// The directories of orphaned pods.
    pub orphaned_dirs: OrphanedDirs,
    /// The numbers of containers of pods.
    pub containers: Histogram,
    /// The starts of sandboxes, by the runtime's handler.
    pub sandbox_starts: Map<String, Runs>,
    /// The runs of image credential providers, by provider.
    pub provider_runs: Map<String, Runs>,
    /// The hash of the configuration of image credential providers; `None` without one.
    pub provider_config: Option<String>,
    /// The counted events.
    pub counts: Map<Counted, u64>,
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            relist_durations: Histogram::new(DEFAULT_BOUNDS),
            relist_intervals: Histogram::new(DEFAULT_BOUNDS),
            last_relist: None,
            event_delays: Histogram::new(DEFAULT_BOUNDS),
            inspections: Histogram::new(DEFAULT_BOUNDS),
            worker_starts: Histogram::new(DEFAULT_BOUNDS),
            work: Map::new(),
            pulls: Map::new(),
            cgroups: Map::new(),
            resizes: Map::new(),
            volume_changes: Map::new(),
            volumes: Map::new(),
            stats_ages: Map::new(),
            protected_memory: None,
            orphaned_dirs: OrphanedDirs::default(),
            containers: Histogram::new(CONTAINERS_BOUNDS),
            sandbox_starts: Map::new(),
            provider_runs: Map::new(),
            provider_config: None,
            counts: Map::new(),
        }
    }
}

/// The measurements of one agent. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Measures(Arc<Mutex<Measured>>);

impl Measures {
    /// The measurements so far.
    pub(crate) fn now(&self) -> Measured {
        self.lock().clone()
    }

    /// Counts the start of a listing. `since_last` is the time since the previous start.
    pub(crate) fn record_relist_start(&self, at: Timestamp, since_last: Option<Duration>) {
        let mut measured = self.lock();
        measured.last_relist = Some(at);
        if let Some(interval) = since_last {
            measured.relist_intervals.observe(interval.as_secs_f64());
        }
    }

    /// Counts a completed listing.
    pub(crate) fn record_relist(&self, took: Duration) {
        self.lock().relist_durations.observe(took.as_secs_f64());
    }

    /// Counts an event of the runtime, received `after` its creation.
    pub(crate) fn record_event_latency(&self, after: Duration) {
        self.lock().event_delays.observe(after.as_secs_f64());
    }

    /// Counts an inspection of one pod.
    pub(crate) fn record_inspection(&self, took: Duration) {
        self.lock().inspections.observe(took.as_secs_f64());
    }

    /// Counts the start of a pod's first sync, `after` the pod was first seen.
    pub(crate) fn record_worker_start(&self, after: Duration) {
        self.lock().worker_starts.observe(after.as_secs_f64());
    }

    /// Counts a resize that was carried out, or failed.
    pub(crate) fn record_resize(&self, succeeded: bool, took: Duration) {
        let mut measured = self.lock();
        let durations = measured.resizes.entry(succeeded);
        let durations = durations.or_insert_with(|| Histogram::new(RESIZE_BOUNDS));
        durations.observe(took.as_secs_f64() * 1e3);
    }

    /// Counts a worker's sync.
    pub(crate) fn record_sync(&self, kind: WorkKind, took: Duration) {
        observe(&mut self.lock().work, kind, DEFAULT_BOUNDS, took);
    }

    /// Counts a pull of an image of this size; 0: unknown.
    pub(crate) fn record_pull(&self, bytes: u64, took: Duration) {
        observe(&mut self.lock().pulls, size_name(bytes), PULL_BOUNDS, took);
    }

    /// Counts a run of an image credential provider. A response that cannot be read is not a failure of the run.
    pub(crate) fn record_provider_run(&self, provider: &str, failed: bool, took: Duration) {
        record_run(&mut self.lock().provider_runs, provider, failed, took);
    }

    /// Records the hash of the configuration of image credential providers.
    pub(crate) fn set_provider_config(&self, hash: Option<String>) {
        self.lock().provider_config = hash;
    }

    /// Counts the start of a sandbox.
    pub(crate) fn record_sandbox_start(&self, handler: &str, failed: bool, took: Duration) {
        record_run(&mut self.lock().sandbox_starts, handler, failed, took);
    }

    /// Counts a change of a cgroup.
    pub(crate) fn record_cgroup_operation(&self, operation: &'static str, took: Duration) {
        observe(&mut self.lock().cgroups, operation, DEFAULT_BOUNDS, took);
    }

    /// Counts a change of a volume.
    pub(crate) fn record_volume_operation(&self, operation: VolumeOperation, took: Duration) {
        observe(&mut self.lock().volume_changes, operation, VOLUME_BOUNDS, took);
    }

    /// Counts the age of a signal's measurement when a pod is chosen for eviction.
    pub(crate) fn record_eviction_stats_age(&self, signal: &'static str, age: Duration) {
        observe(&mut self.lock().stats_ages, signal, DEFAULT_BOUNDS, age);
    }

    /// Records the volumes of a pod.
    pub(crate) fn set_volumes(&self, uid: &PodUid, volumes: PodVolumes) {
        self.lock().volumes.insert(uid.clone(), volumes);
    }

    /// Whether the volumes of a pod are recorded.
    pub(crate) fn knows_volumes(&self, uid: &PodUid) -> bool {
        self.lock().volumes.contains_key(uid)
    }

    /// Counts the unmounts of all mounted volumes of a pod. They are removed together, so each takes as long as all. After a
    /// failure they are retried.
    pub(crate) fn record_volume_removal(&self, uid: &PodUid, failed: bool, took: Duration) {
        let volumes = match failed {
            true => self.lock().volumes.get(uid).cloned(),
            false => self.lock().volumes.remove(uid),
        };
        let mounted = volumes.into_iter().flatten().filter(|(_, is_mounted)| *is_mounted);
        for (plugin, _) in mounted {
            let operation = VolumeOperation { plugin, operation: "volume_unmount", failed };
            self.record_volume_operation(operation, took);
        }
    }

    /// Records how much memory is protected for pods.
    pub(crate) fn set_protected_memory(&self, kept: ProtectedMemory) {
        self.lock().protected_memory = Some(kept);
    }

    /// Records the directories of orphaned pods that a search has found.
    pub(crate) fn record_orphaned_dirs(&self, dirs: OrphanedDirs) {
        self.lock().orphaned_dirs = dirs;
    }

    /// Records that no pod has become an orphan since the last search, so that a new search would find those that it left.
    pub(crate) fn record_no_new_orphaned_dirs(&self) {
        let mut measured = self.lock();
        measured.orphaned_dirs.found = measured.orphaned_dirs.left;
    }

    /// Counts the containers of a new pod.
    pub(crate) fn record_container_count(&self, count: usize) {
        self.lock().containers.observe(count as f64);
    }

    /// Counts an event.
    pub(crate) fn count(&self, happened: Counted) {
        *self.lock().counts.entry(happened).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn record_run(all: &mut Map<String, Runs>, name: &str, failed: bool, took: Duration) {
    let none = || Runs { durations: Histogram::new(DEFAULT_BOUNDS), errors: 0 };
    let runs = all.entry(name.to_owned()).or_insert_with(none);
    runs.durations.observe(took.as_secs_f64());
    runs.errors += u64::from(failed);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "N/A")]
    #[case(1, "0-10MB")]
    #[case(10 << 20, "0-10MB")]
    #[case((10 << 20) + 1, "10MB-100MB")]
    #[case(1 << 30, "500MB-1GB")]
    #[case(200 << 30, "GT100GB")]
    fn pull_is_measured_by_the_size_of_the_image(#[case] bytes: u64, #[case] name: &str) {
        let measures = Measures::default();
        measures.record_pull(bytes, Duration::from_secs(3));
        let pulls = measures.now().pulls;
        assert_eq!(pulls.get(name).map(Histogram::sum), Some(3.0));
        assert_eq!(pulls.len(), 1);
    }

    #[test]
    fn mounted_volumes_count_until_they_are_removed() {
        let measures = Measures::default();
        let uid = PodUid::new("u1");
        let volumes = [("a", true), ("a", true), ("b", false)];
        let volumes = volumes.map(|(plugin, is_mounted)| (plugin.to_owned(), is_mounted));
        measures.set_volumes(&uid, volumes.to_vec());
        assert!(measures.knows_volumes(&uid));
        measures.record_volume_removal(&uid, true, Duration::from_secs(1));
        assert!(measures.knows_volumes(&uid), "they are tried again");
        measures.record_volume_removal(&uid, false, Duration::from_secs(1));
        assert!(!measures.knows_volumes(&uid));
        // A repeated end of the pod has nothing to remove.
        measures.record_volume_removal(&uid, false, Duration::from_secs(1));
        let changes = measures.now().volume_changes;
        let changes: Vec<(bool, u64)> =
            changes.iter().map(|(it, durations)| (it.failed, durations.count())).collect();
        assert_eq!(changes, [(false, 2), (true, 2)]);
        let changed = measures.now().volume_changes.keys().all(|it| it.plugin == "a");
        assert!(changed);
    }

    #[test]
    fn first_listing_has_no_interval() {
        let measures = Measures::default();
        let at = |second| Timestamp::from_second(second).unwrap_or_default();
        measures.record_relist_start(at(1), None);
        measures.record_relist(Duration::from_millis(20));
        measures.record_relist_start(at(3), Some(Duration::from_secs(2)));
        measures.record_sync(WorkKind::Create, Duration::from_secs(1));
        let now = measures.now();
        assert_eq!((now.relist_durations.count(), now.relist_intervals.sum()), (1, 2.0));
        assert_eq!(now.last_relist, Some(at(3)));
        assert_eq!(now.work.get(&WorkKind::Create).map(Histogram::count), Some(1));
    }
}
