//! A pod's files on the node: its volumes, its `etc-hosts` file, termination messages, logs.
//!
//! Paths as in Kubernetes 1.36, pkg/kubelet/kubelet_getters.go. All functions block on the file system; call them from a
//! blocking thread.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use api::pod::{Pod, PodUid};
use compact::Map;
use file_tree::Trash;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Volume;

use crate::config::Config;
use crate::local_node::eviction::local_storage::LocalUsage;
use crate::machine::Machine;
use crate::pod_spec::spec::memory::is_in_memory;
use crate::pod_spec::spec::{HostVolume, ImageSpec};
use crate::reporting::measures::{Measures, VolumeOperation};
use crate::storage::drivers::{DriverError, DriverSource, DriverVolume};
use crate::upkeep::logs::files;

use claim::Claims;
use content::ContentInputs;
use directory::{make_dir, set_mode};
use error::failed;
use in_memory::InMemory;
use room::Room;

pub(crate) use crate::node::component;
pub(crate) use error::VolumeError;
pub use usage::{VolumeUsage, of_own_files, of_volumes};

mod atomic;
pub(crate) mod claim;
pub(crate) mod content;
mod directory;
mod error;
mod group;
pub mod in_memory;
mod nested;
pub(crate) mod plugin;
mod room;
pub mod subpath;
pub(crate) mod termination;
pub(crate) mod token;
mod usage;

/// The mode of log directories, which log collectors read (Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_sandbox.go,
/// kuberuntime_container.go).
const LOG_MODE: u32 = 0o755;

/// The directories of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodDirs {
    /// `<root>/pods/<uid>`
    pub(crate) pod: PathBuf,
    /// `<logs>/<namespace>_<name>_<uid>`
    pub(crate) logs: PathBuf,
}

/// The inputs of the preparation of volumes.
#[derive(Clone, Copy)]
pub(crate) struct VolumeInputs<'a> {
    /// The content of their files.
    pub(crate) content: ContentInputs<'a>,
    /// The volumes that claims are bound to.
    pub(crate) claims: &'a Claims,
    /// The tmpfs directory of volumes.
    pub(crate) in_memory: &'a InMemory,
    /// Whether the runtime keeps emptyDir volumes in memory.
    pub(crate) has_memory_volumes: bool,
    /// Records the durations.
    pub(crate) measures: &'a Measures,
}

/// A volume that could not be prepared or updated.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.head())]
pub(crate) struct MountError {
    /// The volume's name.
    pub(crate) volume: String,
    /// The cause.
    pub(crate) source: VolumeError,
}

impl MountError {
    /// The prefix of a kubelet's message: a claim fails before anything is mounted.
    fn head(&self) -> String {
        let volume = &self.volume;
        if let VolumeError::Driver(DriverError { step, volume, .. }) = &self.source {
            format!("{step} for volume {volume:?} ")
        } else if let VolumeError::NodeAffinity { volume } = &self.source {
            format!("MountVolume.NodeAffinity check failed for volume {volume:?} ")
        } else if matches!(self.source, VolumeError::Claim(_)) {
            format!(
                "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
                 volumes=[{volume}]"
            )
        } else {
            format!("MountVolume.SetUp failed for volume {volume:?} ")
        }
    }
}

/// The result of preparing a pod's volumes.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// The volumes that containers can mount.
    pub(crate) volumes: Map<String, HostVolume>,
    /// The volumes that drivers must still mount.
    pub(crate) of_drivers: Vec<DriverVolume>,
    /// The local volumes, by name, whose group may still have to be changed.
    pub(crate) local: Vec<(String, HostVolume)>,
    /// The failed volumes; a volume whose files are only outdated is in `volumes` too.
    pub(crate) failed: Vec<MountError>,
}

/// A volume of a pod.
#[derive(Debug)]
pub(crate) enum Found {
    /// A path of the host, or an image.
    Host(HostVolume),
    /// A local volume, which the pod may have to give to its group.
    Local(HostVolume),
    /// A driver's volume.
    OfDriver(DriverVolume),
}

impl PodDirs {
    /// Computes the directories of a pod without creating them.
    pub(crate) fn new(config: &Config, uid: &PodUid, namespace: &str, name: &str) -> Self {
        Self {
            pod: config.root_dir.join("pods").join(component(uid.as_str())),
            logs: config.pod_logs_dir.join(component(&format!("{namespace}_{name}_{uid}"))),
        }
    }

    /// The pod's `/etc/hosts`.
    pub(crate) fn etc_hosts(&self) -> PathBuf {
        self.pod.join("etc-hosts")
    }

    /// The termination message file of a container's attempt.
    pub(crate) fn termination_message(&self, container: &str, attempt: u32) -> PathBuf {
        self.pod.join("containers").join(container).join(format!("{attempt:08x}"))
    }

    /// Creates the directory of a pod and the volumes that a container mounts, and updates the files of volumes that show objects
    /// or fields. The content of other volumes is left unchanged.
    ///
    /// # Errors
    /// If the pod's own directory cannot be created.
    pub(crate) fn prepare(
        &self,
        pod: &Pod,
        inputs: VolumeInputs<'_>,
        now: Timestamp,
    ) -> Result<Prepared, VolumeError> {
        make_dir(&self.pod, 0o750)?;
        let mut prepared = Prepared::default();
        let mut room = self.room(pod, inputs.in_memory);
        for volume in pod.mounted_volumes() {
            self.prepare_volume(pod, volume, inputs, now, &mut room, &mut prepared);
        }
        Ok(prepared)
    }

    /// Updates the files of volumes that show objects or fields.
    pub(crate) fn refresh(
        &self,
        pod: &Pod,
        inputs: VolumeInputs<'_>,
        now: Timestamp,
    ) -> Vec<MountError> {
        let mut prepared = Prepared::default();
        let mut room = self.room(pod, inputs.in_memory);
        let volumes = pod.mounted_volumes();
        for volume in volumes.filter(|volume| content::is_written(volume)) {
            self.prepare_volume(pod, volume, inputs, now, &mut room, &mut prepared);
        }
        prepared.failed
    }

    /// The room for the files of volumes that show objects or fields.
    fn room(&self, pod: &Pod, in_memory: &InMemory) -> Room {
        let path =
            |volume: &Volume| Some(self.files_of(pod, volume, content::kind(volume)?, in_memory));
        Room::new(pod.mounted_volumes().filter_map(path).collect())
    }

    fn prepare_volume(
        &self,
        pod: &Pod,
        volume: &Volume,
        inputs: VolumeInputs<'_>,
        now: Timestamp,
        room: &mut Room,
        prepared: &mut Prepared,
    ) {
        let (name, since) = (&volume.name, Instant::now());
        let made = match content::kind(volume) {
            Some(kind) => {
                let path = self.files_of(pod, volume, kind, inputs.in_memory);
                let written = write_files(&path, pod, volume, inputs.content, now, room);
                if written.is_err() && atomic::is_written(&path) {
                    prepared.volumes.insert(name.clone(), own_volume(path.clone(), true));
                }
                written.map(|()| Found::Host(own_volume(path, true)))
            }
            None => self.volume(pod, volume, inputs),
        };
        // A driver's volume and a local one are mounted later, and a claim that fails does so before any mount: none counts as a
        // mount.
        let is_later =
            matches!(made, Ok(Found::OfDriver(_) | Found::Local(_)) | Err(VolumeError::Claim(_)));
        if !is_later {
            let plugin = plugin::name(pod, volume, inputs.content.objects);
            let operation = VolumeOperation::mount(plugin, made.is_err());
            inputs.measures.record_volume_operation(operation, since.elapsed());
        }
        match made {
            Ok(Found::Host(volume)) => {
                prepared.volumes.insert(name.clone(), volume);
            }
            Ok(Found::Local(volume)) => prepared.local.push((name.clone(), volume)),
            Ok(Found::OfDriver(volume)) => prepared.of_drivers.push(volume),
            Err(source) => prepared.failed.push(MountError { volume: name.clone(), source }),
        }
    }

    /// The path of a volume's files. If an earlier agent wrote them to the disk they stay there, because containers have it
    /// mounted.
    fn files_of(&self, pod: &Pod, volume: &Volume, kind: &str, in_memory: &InMemory) -> PathBuf {
        let path = |pod: &Path| pod.join("volumes").join(kind).join(&volume.name);
        let on_disk = path(&self.pod);
        if !in_memory::belongs(pod, volume) || atomic::is_written(&on_disk) {
            return on_disk;
        }
        in_memory.of_pod(&self.pod).map_or(on_disk, |pod| path(&pod))
    }

    /// The path of an emptyDir volume.
    pub(crate) fn empty_dir(&self, name: &str) -> PathBuf {
        directory::empty_dir(&self.pod, name)
    }

    fn volume(
        &self,
        pod: &Pod,
        volume: &Volume,
        inputs: VolumeInputs<'_>,
    ) -> Result<Found, VolumeError> {
        let objects = inputs.content.objects;
        if let Some(found) = inputs.claims.prepare(pod, &self.pod, volume, objects) {
            found
        } else if let Some(empty) = &volume.empty_dir {
            if is_in_memory(empty) {
                if !inputs.has_memory_volumes {
                    // If a kubelet started the pod, its containers use the kubelet's tmpfs.
                    let old = self.empty_dir(&volume.name);
                    if old.is_dir() {
                        return Ok(Found::Host(own_volume(old, false)));
                    }
                    let at = in_memory::can_mount(pod).then(|| inputs.in_memory.of_pod(&self.pod));
                    let at = at.flatten().ok_or(VolumeError::Memory)?;
                    let group = group::of_pod(pod)?;
                    let path = directory::prepare_empty_dir(&at, &volume.name, group)?;
                    return Ok(Found::Host(own_volume(path, false)));
                }
                return Ok(Found::Host(HostVolume {
                    host_path: self.empty_dir(&volume.name),
                    in_memory: true,
                    ..HostVolume::default()
                }));
            }
            directory::check_medium(empty)?;
            let path = directory::prepare_empty_dir(&self.pod, &volume.name, group::of_pod(pod)?)?;
            Ok(Found::Host(own_volume(path, false)))
        } else if let Some(source) = &volume.host_path {
            Ok(Found::Host(HostVolume {
                host_path: directory::prepare_host_path(source)?,
                ..HostVolume::default()
            }))
        } else if volume.image.is_some() {
            // The image is pulled once the sandbox exists.
            Ok(Found::Host(HostVolume {
                readonly: true,
                image: Some(ImageSpec::default()),
                ..HostVolume::default()
            }))
        } else if let Some(source) = &volume.csi {
            Ok(Found::OfDriver(DriverVolume {
                name: volume.name.clone(),
                spec_name: volume.name.clone(),
                readonly: source.read_only == Some(true),
                source: DriverSource::Inline(Box::new(source.clone())),
            }))
        } else {
            Err(VolumeError::Unsupported)
        }
    }

    /// The pod's volumes that drivers mount, as far as they can be determined now.
    pub(crate) fn of_drivers(&self, pod: &Pod, inputs: VolumeInputs<'_>) -> Vec<DriverVolume> {
        let volumes = pod.mounted_volumes().filter(|volume| may_be_of_driver(volume));
        let found = volumes.filter_map(|volume| self.volume(pod, volume, inputs).ok());
        let of_driver = found.filter_map(|found| match found {
            Found::OfDriver(volume) => Some(volume),
            Found::Host(_) | Found::Local(_) => None,
        });
        of_driver.collect()
    }

    /// The disk usage of the pod's own volumes and files and its containers' logs, and the usage of emptyDirs that the agent keeps in
    /// memory.
    /// Unreadable files count as unused.
    pub(crate) fn usage(&self, pod: &Pod, in_memory: &InMemory) -> LocalUsage {
        let known = |path: &Path, used: io::Result<u64>| {
            used.unwrap_or_else(|error| {
                tracing::debug!(path = %path.display(), %error, "failed to measure directory");
                0
            })
        };
        let volumes = pod.spec().volumes.iter().flatten();
        let volumes = volumes.filter_map(|volume| {
            let path = match (content::kind(volume), &volume.empty_dir) {
                (Some(kind), _) => self.pod.join("volumes").join(kind).join(&volume.name),
                (None, Some(empty))
                    if is_in_memory(empty) && !self.empty_dir(&volume.name).is_dir() =>
                {
                    directory::empty_dir(&in_memory.path(&self.pod)?, &volume.name)
                }
                (None, Some(_)) => directory::empty_dir(&self.pod, &volume.name),
                (None, None) => return None,
            };
            let used = usage::of_volume(&path).map(|used| used.map_or(0, |(bytes, _)| bytes));
            Some((volume.name.clone(), known(&path, used)))
        });
        let containers = pod.all_containers().map(|(_, container)| {
            let name = container.name.clone();
            let logs = self.logs.join(&name);
            let used = known(&logs, usage::of_tree(&logs));
            (name, used)
        });
        LocalUsage {
            volumes: volumes.collect(),
            logs: containers.collect(),
            own_files: of_own_files(&self.etc_hosts(), &self.logs).0,
            ..LocalUsage::default()
        }
    }

    /// The bytes and inodes of a container's logs; `None` if it has none.
    pub(crate) fn log_usage(&self, container: &str) -> Option<(u64, u64)> {
        usage::of_directory(&self.logs.join(container))
    }

    /// Writes the pod's hosts file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write_etc_hosts(&self, text: &str) -> Result<PathBuf, VolumeError> {
        let path = self.etc_hosts();
        fs::write(&path, text).map_err(failed("write", &path))?;
        set_mode(&path, 0o644)?;
        Ok(path)
    }

    /// Creates the directory of the pod's logs.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(crate) fn make_pod_log_directory(&self) -> Result<(), VolumeError> {
        make_dir(&self.logs, LOG_MODE)
    }

    /// Creates the directory of a container's logs, in which the runtime creates the files.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(crate) fn make_log_directory(&self, container: &str) -> Result<(), VolumeError> {
        make_dir(&self.logs.join(container), LOG_MODE)
    }

    /// Creates the empty termination message file of a container, writable by every user, and removes the file of the attempt
    /// before the last one.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(crate) fn make_termination_message(
        &self,
        container: &str,
        attempt: u32,
    ) -> Result<PathBuf, VolumeError> {
        let path = self.termination_message(container, attempt);
        if let Some(parent) = path.parent() {
            make_dir(parent, 0o750)?;
        }
        if let Some(old) = attempt.checked_sub(2) {
            // Ignore errors: an obsolete file is harmless.
            let _ = fs::remove_file(self.termination_message(container, old));
        }
        fs::write(&path, "").map_err(failed("create", &path))?;
        set_mode(&path, 0o666)?;
        Ok(path)
    }

    /// The restart count of a container that the runtime does not have: one more than its newest log file `<n>.log`.
    /// Kubernetes 1.36, pkg/kubelet/kuberuntime, calcRestartCountByLogDir.
    pub(crate) fn restart_count_by_logs(&self, container: &str) -> u32 {
        let Ok(entries) = fs::read_dir(self.logs.join(container)) else {
            return 0;
        };
        let number =
            |name: &str| name.split_once(".log").and_then(|(number, _)| number.parse::<u32>().ok());
        let newest =
            entries.flatten().filter_map(|entry| number(entry.file_name().to_str()?)).max();
        newest.map_or(0, |newest| newest.saturating_add(1))
    }

    /// Removes the log of a removed attempt with its rotated files, if it is in the pod's own log directory.
    pub(crate) fn remove_log(&self, log: &Path) {
        if log.starts_with(&self.logs)
            && !log.components().any(|part| part == std::path::Component::ParentDir)
        {
            files::remove(log);
        }
    }

    /// Removes the volumes of a pod that has ended.
    ///
    /// # Errors
    /// If something is mounted in the pod's directory, which then stays unchanged, or if a directory cannot be removed; the rest is
    /// removed.
    pub(crate) fn remove_volumes(
        &self,
        machine: &dyn Machine,
        trash: &Trash,
        in_memory: &InMemory,
    ) -> Result<(), VolumeError> {
        self.has_no_mounts(machine)?;
        let removed = ["volume-subpaths", "volumes"].map(|name| {
            let path = self.pod.join(name);
            trash.put(&path).map_err(failed("remove", &path))
        });
        let secrets = in_memory.remove(&self.pod);
        let secrets = secrets.map_err(|error| failed("remove secrets of", &self.pod)(error.into()));
        removed.into_iter().collect::<Result<(), _>>().and(secrets)
    }

    /// Checks that nothing is mounted in the pod's directory: its driver would not find the volume elsewhere, and the mounted
    /// content is not the agent's.
    fn has_no_mounts(&self, machine: &dyn Machine) -> Result<(), VolumeError> {
        let mounts = machine.mounts_below(&self.pod);
        let mounts = mounts.map_err(failed("find what is mounted in", &self.pod))?;
        match mounts.into_iter().next() {
            Some(mount) => Err(VolumeError::StillMounted { directory: self.pod.clone(), mount }),
            None => Ok(()),
        }
    }

    /// Removes the pod's directory, and its logs if `logs`.
    ///
    /// # Errors
    /// If something is mounted in the directory, and nothing is removed; or if anything cannot be removed, and the rest is.
    pub(crate) fn remove(
        &self,
        machine: &dyn Machine,
        trash: &Trash,
        logs: bool,
    ) -> Result<(), VolumeError> {
        self.has_no_mounts(machine)?;
        // Deleting the volumes' content may take long, so move it to the trash.
        let pod = trash.put(&self.pod).map_err(failed("remove", &self.pod));
        let logs = if logs {
            file_tree::remove(&self.logs)
                .map_err(|error| failed("remove", &self.logs)(error.into()))
        } else {
            Ok(())
        };
        pod.and(logs)
    }
}

/// Gives a volume that a driver has mounted to the pod's group, according to the pod's policy. Counts its files in `visited`
/// meanwhile.
pub(crate) fn give_to_group(
    pod: &Pod,
    path: &Path,
    readonly: bool,
    visited: &AtomicU64,
) -> Result<(), VolumeError> {
    claim::give_to_group(pod, path, readonly, visited)
}

/// Whether a driver may mount the volume: the kind of a claim's volume is known only once it is bound.
pub(crate) fn may_be_of_driver(volume: &Volume) -> bool {
    volume.csi.is_some() || volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

/// A volume that the agent creates.
fn own_volume(host_path: PathBuf, readonly: bool) -> HostVolume {
    HostVolume { host_path, readonly, relabel: true, ..HostVolume::default() }
}

/// Writes the files of a volume that shows objects or fields.
fn write_files(
    path: &Path,
    pod: &Pod,
    volume: &Volume,
    inputs: ContentInputs<'_>,
    now: Timestamp,
    room: &mut Room,
) -> Result<(), VolumeError> {
    let files = content::payload(pod, volume, inputs)?;
    room.take(path, &files)?;
    let group = group::of_pod(pod)?;
    make_dir(path, 0o777)?;
    // As in a kubelet, mount points that hide a file of the same name are created first. Those below the link to the content are
    // created in the new content.
    let mount_points = nested::mount_points(pod, &volume.name);
    nested::make(path, mount_points.iter().filter(|mount_point| mount_point.precedes(&files)))?;
    let own = || group.map_or(Ok(()), |group| file_tree::give_to_group(path, group, true));
    let owner = files.values().find_map(|file| file.owner);
    let wanted = group.map(|group| ("fsGroup", group));
    let wanted = wanted.or_else(|| Some(("runAsUser", owner?)));
    atomic::write(path, &files, now, own)
        .map_err(|error| group::not_given(error, wanted, "write", path))?;
    nested::make(path, &mount_points)
}

#[cfg(test)]
mod tests;
