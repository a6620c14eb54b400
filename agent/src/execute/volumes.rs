//! Prepares the volumes of a pod, lets drivers mount and unmount theirs, and updates volumes that show objects or fields.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::pod::{Pod, PodUid};
use jiff::Timestamp;

use super::chain;
use crate::clock::{Clock, after};
use crate::pod_spec::spec::HostVolume;
use crate::reporting::events::{EventReason, EventType};
use crate::reporting::measures::VolumeOperation;
use crate::shared::Shared;
use crate::storage::drivers::{DriverSource, DriverVolume, Expansion, MountedVolume};
use crate::storage::volumes::claim::LocalUse;
use crate::storage::volumes::content::{self, ContentInputs};
use crate::storage::volumes::{
    MountError, PodDirs, Prepared, VolumeError, VolumeInputs, give_to_group, may_be_of_driver,
    plugin,
};
use tasks::{blocking, brief};

/// The maximum number of entries of objects that the agent writes while its other tasks wait: each may have 1 MiB.
const FEW_ENTRIES: usize = 16;

/// When an event first reports that giving a volume to the pod's group takes long, and the period of later ones (Kubernetes 1.36,
/// pkg/volume/volume_linux.go).
const FIRST_PROGRESS: Duration = Duration::from_secs(30);
const PROGRESS: Duration = Duration::from_secs(60);

/// Prepares all volumes. `runtime_name` is the name of the runtime.
pub(super) async fn prepare(
    shared: &Arc<Shared>,
    dirs: &PodDirs,
    pod: &Pod,
    runtime_name: &str,
) -> Result<Prepared, VolumeError> {
    let dirs = dirs.clone();
    // crib's runtime keeps an emptyDir in memory if an annotation of the sandbox requests it; other runtimes would mount a
    // directory on the disk.
    let has_memory_volumes = runtime_name == "crib";
    with_inputs(shared, pod, has_memory_volumes, move |pod, inputs, now| {
        dirs.prepare(pod, inputs, now)
    })
    .await
}

/// Lets drivers mount their volumes, and gives local volumes to the pod's group. Failures are added to [`Prepared::failed`].
pub(super) async fn mount(
    shared: &Arc<Shared>,
    dirs: &PodDirs,
    pod: &Pod,
    prepared: &mut Prepared,
) {
    for (name, volume) in std::mem::take(&mut prepared.local) {
        let since = Instant::now();
        let used = use_local(shared, dirs, pod, &volume).await;
        let operation = VolumeOperation::mount(plugin::LOCAL.to_owned(), used.is_err());
        shared.measures.record_volume_operation(operation, since.elapsed());
        match used {
            Ok(()) => {
                prepared.volumes.insert(name, volume);
            }
            Err(source) => prepared.failed.push(MountError { volume: name, source }),
        }
    }
    for volume in std::mem::take(&mut prepared.of_drivers) {
        let (name, since) = (volume.name.clone(), Instant::now());
        let mounted = mount_one(shared, dirs, pod, &volume).await;
        let operation = VolumeOperation::mount(volume.plugin(), mounted.is_err());
        shared.measures.record_volume_operation(operation, since.elapsed());
        match mounted {
            Ok(mounted) => {
                prepared.volumes.insert(name, mounted);
            }
            Err(source) => prepared.failed.push(MountError { volume: name, source }),
        }
    }
}

async fn mount_one(
    shared: &Shared,
    dirs: &PodDirs,
    pod: &Pod,
    volume: &DriverVolume,
) -> Result<HostVolume, VolumeError> {
    let drivers = shared.drivers.as_ref().ok_or(VolumeError::NoDrivers)?;
    let mounted = drivers.mount(pod, &dirs.pod, volume).await?;
    let MountedVolume { path, is_device, is_new, takes_group, expansion } = mounted;
    if is_device && is_new {
        let (kind, message) = (EventType::Normal, mapped(&volume.spec_name, &path));
        shared.events.record_text(pod, None, kind, "SuccessfulMountVolume", &message);
    }
    record_expansion(shared, pod, volume, expansion);
    if takes_group && gives_group(pod) && !volume.readonly {
        give(shared, pod, &path, &path).await?;
    }
    Ok(HostVolume {
        host_path: path,
        readonly: volume.readonly,
        relabel: !is_device,
        is_device,
        spec_name: Some(volume.spec_name.clone()),
        ..HostVolume::default()
    })
}

/// ◆ The message about a block device with this link. A kubelet also reports its mount of the device, which the agent does not make
/// (Kubernetes 1.36, pkg/volume/util/operationexecutor/operation_generator.go GenerateMapVolumeFunc).
fn mapped(volume: &str, link: &Path) -> String {
    let directory = link.parent().unwrap_or(link).display().to_string();
    format!("MapVolume.MapPodDevice succeeded for volume {volume:?} volumeMapPath {directory:?}")
}

/// Gives a local volume to the pod's group if no other pod uses it.
async fn use_local(
    shared: &Arc<Shared>,
    dirs: &PodDirs,
    pod: &Pod,
    volume: &HostVolume,
) -> Result<(), VolumeError> {
    let used = {
        let (shared, pod_dir) = (Arc::clone(shared), dirs.pod.clone());
        let (pod, volume) = (pod.clone(), volume.clone());
        blocking(move || shared.claims.use_local(&pod, &pod_dir, &volume)).await?
    };
    match used {
        LocalUse::Keep => Ok(()),
        LocalUse::Differs(message) => {
            let reason = "AlreadyMountedVolume";
            shared.events.record_text(pod, None, EventType::Warning, reason, &message);
            Ok(())
        }
        LocalUse::Give(record) => {
            let given = give(shared, pod, &volume.host_path, &record).await;
            if given.is_err()
                && let Err(error) = brief(|| std::fs::remove_dir(&record))
            {
                tracing::warn!(path = %record.display(), %error, "failed to remove the record of a local volume; its group will not be set");
            }
            given
        }
    }
}

/// Gives a mounted volume to the pod's group, and reports the progress in events. `shown` is its directory in that of the pod.
async fn give(shared: &Shared, pod: &Pod, path: &Path, shown: &Path) -> Result<(), VolumeError> {
    let visited = Arc::new(AtomicU64::new(0));
    let giving = {
        let (pod, path, visited) = (pod.clone(), path.to_owned(), Arc::clone(&visited));
        blocking(move || give_to_group(&pod, &path, false, &visited))
    };
    let report = |is_first: bool| {
        let visited = (!is_first).then(|| visited.load(Ordering::Relaxed));
        let message = progress(shown, pod.uid(), visited);
        tracing::warn!(pod = %pod.full_name(), progress = message, "changing the group of a volume");
        let reason = "VolumePermissionChangeInProgress";
        shared.events.record_text(pod, None, EventType::Warning, reason, &message);
    };
    with_reports(shared.clock.as_ref(), giving, report).await
}

/// Waits for `work`, and reports meanwhile that it takes long; the argument is whether it is the first report.
async fn with_reports<T>(
    clock: &dyn Clock,
    work: impl Future<Output = T>,
    report: impl Fn(bool),
) -> T {
    let mut work = pin!(work);
    let mut wait = FIRST_PROGRESS;
    loop {
        tokio::select! {
            done = work.as_mut() => return done,
            () = clock.sleep_until(after(clock.now(), wait)) => {
                report(wait == FIRST_PROGRESS);
                wait = PROGRESS;
            }
        }
    }
}

/// ◆ The message about a volume that is being given to a group: the first one, or one with the number of files so far.
fn progress(path: &Path, uid: &PodUid, visited: Option<u64>) -> String {
    let path = path.display().to_string();
    let from_uid = path.find(uid.as_str()).and_then(|at| path.get(at..));
    let volume = from_uid.unwrap_or(&path);
    match visited {
        None => format!(
            "Setting volume ownership for {volume} is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
        ),
        Some(files) => format!("Setting volume ownership for {volume}, processed {files} files."),
    }
}

/// Lets drivers remount volumes whose files they update by a remount. A failed volume stays as it is.
pub(crate) async fn renew(shared: &Arc<Shared>, dirs: &PodDirs, pod: &Pod) {
    let Some(drivers) = &shared.drivers else {
        return;
    };
    let own = dirs.clone();
    let volumes =
        with_inputs(shared, pod, false, move |pod, inputs, _| own.of_drivers(pod, inputs)).await;
    for volume in volumes {
        if let Err(error) = drivers.renew(pod, &dirs.pod, &volume).await {
            record(shared, pod, &[MountError { volume: volume.name, source: error.into() }]);
        }
    }
}

/// Lets drivers expand the volumes of a running pod whose PersistentVolumes have grown. Returns whether nothing failed.
pub(crate) async fn expand(shared: &Arc<Shared>, dirs: &PodDirs, pod: &Pod) -> bool {
    let Some(drivers) = &shared.drivers else {
        return true;
    };
    let own = dirs.clone();
    let volumes =
        with_inputs(shared, pod, false, move |pod, inputs, _| own.of_drivers(pod, inputs)).await;
    let mut all = true;
    for volume in volumes {
        match drivers.expand(pod, &dirs.pod, &volume).await {
            Ok(expansion) => record_expansion(shared, pod, &volume, expansion),
            Err(error) => {
                all = false;
                let waits = error.waits;
                let error = MountError { volume: volume.name, source: error.into() };
                let message = chain(&error);
                if waits {
                    tracing::info!(pod = %pod.full_name(), reason = %message, "volume is not ready to be expanded; will retry");
                    continue;
                }
                tracing::warn!(pod = %pod.full_name(), error = %message, "failed to expand volume");
                let warning = EventType::Warning;
                shared.events.record_text(pod, None, warning, "VolumeResizeFailed", &message);
            }
        }
    }
    all
}

/// Records events of a volume expansion: about the pod, and about the claim.
fn record_expansion(shared: &Shared, pod: &Pod, volume: &DriverVolume, expansion: Expansion) {
    let name = &volume.spec_name;
    let (kind, reason, message) = match expansion {
        Expansion::Unchanged => return,
        Expansion::Expanded => {
            let node = pod.spec().node_name.as_deref().unwrap_or_default();
            let message =
                format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
            (EventType::Normal, "FileSystemResizeSuccessful", message)
        }
        Expansion::ReadOnly => {
            let message = format!(
                "MountVolume.NodeExpandVolume failed for volume {name:?} requested read-only file system"
            );
            (EventType::Warning, "FileSystemResizeFailed", message)
        }
    };
    shared.events.record_text(pod, None, kind, reason, &message);
    if let DriverSource::Persistent(volume) = &volume.source {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim
            .into_iter()
            .for_each(|claim| shared.events.record_claim(claim, kind, reason, &message));
    }
}

/// Counts the volumes of a pod, and those of them that containers can mount.
pub(super) fn count(shared: &Shared, pod: &Pod, is_mounted: impl Fn(&str) -> bool) {
    let objects = shared.objects.current();
    let volumes = pod.mounted_volumes();
    let volumes = volumes.map(|it| (plugin::name(pod, it, &objects), is_mounted(&it.name)));
    shared.measures.set_volumes(pod.uid(), volumes.collect());
}

/// Counts the volumes of a running pod that an earlier agent mounted.
pub(crate) fn count_adopted(shared: &Shared, pod: &Pod) {
    if !shared.measures.knows_volumes(pod.uid()) {
        count(shared, pod, |_| true);
    }
}

/// Lets drivers unmount the volumes of an ended pod, and removes its volumes.
pub(crate) async fn remove(
    shared: &Arc<Shared>,
    dirs: &PodDirs,
    uid: &PodUid,
) -> Result<(), VolumeError> {
    let since = Instant::now();
    let removed = remove_all(shared, dirs).await;
    shared.measures.record_volume_removal(uid, removed.is_err(), since.elapsed());
    removed
}

async fn remove_all(shared: &Arc<Shared>, dirs: &PodDirs) -> Result<(), VolumeError> {
    if let Some(drivers) = &shared.drivers {
        drivers.unmount(&dirs.pod).await?;
    }
    let (dirs, shared) = (dirs.clone(), Arc::clone(shared));
    let machine = Arc::clone(&shared.machine);
    blocking(move || dirs.remove_volumes(machine.as_ref(), &shared.trash, &shared.in_memory)).await
}

/// Runs `work`, which may block, with the current content of objects and fields.
async fn with_inputs<T: Send + 'static>(
    shared: &Arc<Shared>,
    pod: &Pod,
    has_memory_volumes: bool,
    work: impl FnOnce(&Pod, VolumeInputs<'_>, Timestamp) -> T + Send + 'static,
) -> T {
    shared.tokens.renew(pod, shared.clock.now()).await;
    let may_last = gives_group(pod) || has_foreign_volumes(pod) || shows_many_entries(pod);
    let (shared, pod) = (Arc::clone(shared), pod.clone());
    let work = move || {
        let now = shared.clock.now();
        let token = |wanted: &_| shared.tokens.token(&pod, wanted, now);
        let objects = &shared.objects.current();
        let content = ContentInputs { node: &shared.node, objects, token: &token };
        let inputs = VolumeInputs {
            content,
            claims: &shared.claims,
            in_memory: &shared.in_memory,
            has_memory_volumes,
            measures: &shared.measures,
        };
        work(&pod, inputs, now)
    };
    if may_last { blocking(work).await } else { brief(work) }
}

/// Whether volumes get a group, so that existing files must be changed.
fn gives_group(pod: &Pod) -> bool {
    let context = pod.spec().security_context.as_ref();
    context.is_some_and(|context| context.fs_group.is_some())
}

/// Whether volumes are directories outside the agent's, on file systems that may not respond.
fn has_foreign_volumes(pod: &Pod) -> bool {
    let mut volumes = pod.spec().volumes.iter().flatten();
    volumes.any(|volume| volume.host_path.is_some() || may_be_of_driver(volume))
}

/// Whether volumes show so many entries of objects that their files may be large.
fn shows_many_entries(pod: &Pod) -> bool {
    pod.mounted_volumes().map(content::entries).sum::<usize>() > FEW_ENTRIES
}

/// Updates the volumes that show objects or fields. Returns whether all of them are up to date.
pub(crate) async fn refresh(shared: &Arc<Shared>, dirs: &PodDirs, pod: &Pod) -> bool {
    let own = dirs.clone();
    // In-memory volumes show nothing that could change.
    let failed =
        with_inputs(shared, pod, false, move |pod, inputs, now| own.refresh(pod, inputs, now))
            .await;
    record(shared, pod, &failed);
    failed.is_empty()
}

/// Records an event for each volume that failed.
pub(super) fn record(shared: &Shared, pod: &Pod, failed: &[MountError]) {
    for error in failed {
        let message = chain(error);
        let of_driver =
            if let VolumeError::Driver(error) = &error.source { Some(error) } else { None };
        if of_driver.is_some_and(|error| error.waits) {
            tracing::info!(pod = %pod.full_name(), reason = %message, "volume is not ready to be mounted; will retry");
            continue;
        }
        tracing::warn!(pod = %pod.full_name(), error = %message, "failed to prepare volume");
        let event = match of_driver.is_some_and(|error| error.step.maps_device()) {
            true => EventReason::FailedMapVolume(message),
            false => EventReason::FailedMount(message),
        };
        shared.events.record(pod, None, &event);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::TokioClock;
    use crate::fixtures;

    #[tokio::test(start_paused = true)]
    async fn long_work_is_reported_after_half_a_minute_and_each_minute() {
        let clock = TokioClock::starting_at(Timestamp::UNIX_EPOCH);
        let reports = RefCell::new(Vec::new());
        let report = |is_first| reports.borrow_mut().push((clock.now().as_second(), is_first));
        let work = async {
            tokio::time::sleep(Duration::from_secs(160)).await;
            "done"
        };
        assert_eq!(with_reports(&clock, work, report).await, "done");
        assert_eq!(*reports.borrow(), [(30, true), (90, false), (150, false)]);
    }

    #[rstest]
    #[case(
        None,
        "Setting volume ownership for u/volumes/v is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
    )]
    #[case(Some(7), "Setting volume ownership for u/volumes/v, processed 7 files.")]
    fn progress_has_the_text_of_a_kubelet(#[case] visited: Option<u64>, #[case] expected: &str) {
        let path = Path::new("/r/pods/u/volumes/v");
        assert_eq!(progress(path, &PodUid::new("u"), visited), expected);
    }

    fn items(count: usize) -> Value {
        (0..count).map(|number| json!({"key": "k", "path": format!("p{number}")})).collect()
    }

    #[rstest]
    #[case::all_entries(json!([{"name": "v", "configMap": {"name": "m"}}]), false)]
    #[case::few(json!([{"name": "v", "configMap": {"name": "m", "items": items(16)}}]), false)]
    #[case::many(json!([{"name": "v", "configMap": {"name": "m", "items": items(17)}}]), true)]
    #[case::volumes(
        json!([
            {"name": "v", "secret": {"secretName": "s", "items": items(16)}},
            {"name": "w", "secret": {"secretName": "s"}},
        ]),
        true
    )]
    #[case::sources(
        json!([{"name": "v", "projected": {"sources": [
            {"secret": {"name": "s", "items": items(8)}},
            {"configMap": {"name": "m", "items": items(8)}},
            {"serviceAccountToken": {"path": "token"}},
        ]}}]),
        true
    )]
    #[case::not_mounted(
        json!([{"name": "unused", "configMap": {"name": "m", "items": items(17)}}]),
        false
    )]
    fn many_entries_of_objects_are_written_while_other_tasks_run(
        #[case] volumes: Value,
        #[case] many: bool,
    ) {
        let mounts = ["v", "w"].map(|name| json!({"name": name, "mountPath": "/v"}));
        let containers = json!([{"name": "c", "volumeMounts": mounts}]);
        let spec = json!({"containers": containers, "volumes": volumes});
        assert_eq!(shows_many_entries(&fixtures::pod_of("u", "p", spec)), many);
    }
}
