//! Volumes of claims: finds or creates the volume that a claim is bound to.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/volumemanager/populator, pkg/volume/{hostpath,local}.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use api::pod::Pod;
use compact::Map;
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Volume,
};

use super::directory::make_dir;
use super::error::{ClaimError, VolumeError, failed};
use super::{Found, directory, group};
use crate::objects::{BoundClaim, ObjectMap};
use crate::pod_spec::admission::is_reachable;
use crate::pod_spec::spec::HostVolume;
use crate::storage::claim_directories::{ClaimDirectories, HeldDirectory};
use crate::storage::drivers::{DriverSource, DriverVolume};
use api::claims::{Binding, Bound, ClaimName, bind, bind_all};

pub(crate) use local::LocalUse;

mod local;

/// The directory of ephemeral volumes' claims in that of the pod, with which it is removed.
const EPHEMERAL: &str = "crib.local~ephemeral";

/// The bindings of claims while the agent runs, and the directories that it uses.
#[derive(Debug)]
pub(crate) struct Claims {
    directories: ClaimDirectories,
    /// A file that is locked as long as pods run, if they may outlive the agent.
    pods_lock: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bound: Bound,
    held: Map<ClaimName, HeldDirectory>,
}

/// The volume of a claim on the node.
enum BoundTo {
    Volume(Box<PersistentVolume>),
    Directory(PathBuf),
}

impl Claims {
    /// Creates the bindings. The claims' directories are below `base`; they are in use as long as the agent runs or `pods_lock` is
    /// locked.
    pub(crate) fn new(base: PathBuf, pods_lock: Option<PathBuf>) -> Self {
        Self { directories: ClaimDirectories::new(base), pods_lock, state: Mutex::default() }
    }

    /// Prepares a volume of a claim; `None` if it is another kind of volume.
    pub(super) fn prepare(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &Volume,
        objects: &ObjectMap,
    ) -> Option<Result<Found, VolumeError>> {
        let mount =
            |name: &ClaimName, bound, readonly| mount(pod, &volume.name, name, bound, readonly);
        if let Some(source) = &volume.persistent_volume_claim {
            let name = ClaimName::new(pod.namespace(), source.claim_name.clone());
            let found = match objects.bound_claim(&name.namespace, &name.name) {
                Some(bound) => self.of_cluster(&name, bound, pod, pod_dir, &volume.name, objects),
                None => self.of_claim(&name, pod_dir, objects),
            };
            let readonly = source.read_only == Some(true);
            return Some(found.and_then(|found| mount(&name, found, readonly)));
        }
        let ephemeral = volume.ephemeral.as_ref()?;
        let template = ephemeral.volume_claim_template.clone().unwrap_or_default();
        let mut metadata = template.metadata.unwrap_or_default();
        let name = ClaimName::new(pod.namespace(), format!("{}-{}", pod.name(), volume.name));
        if let Some(bound) = objects.bound_claim(&name.namespace, &name.name) {
            let found = self.of_cluster(&name, bound, pod, pod_dir, &volume.name, objects);
            let is_own = |bound: &BoundClaim| {
                let mut owners = bound.claim.metadata.owner_references.iter().flatten();
                owners
                    .any(|owner| owner.controller == Some(true) && owner.uid == pod.uid().as_str())
            };
            let found = match bound {
                Ok(bound) if !is_own(bound) => {
                    Err(ClaimError::NotOfPod { name: name.clone(), pod: pod.full_name() }.into())
                }
                Ok(_) | Err(_) => found,
            };
            return Some(found.and_then(|found| mount(&name, found, false)));
        }
        metadata.namespace = Some(name.namespace.clone());
        metadata.name = Some(name.name.clone());
        let claim = PersistentVolumeClaim {
            metadata,
            spec: Some(template.spec),
            ..PersistentVolumeClaim::default()
        };
        let own = pod_dir.join("volumes").join(EPHEMERAL).join(&volume.name);
        let found = self.of_pod(pod, &claim, own, objects);
        Some(found.and_then(|found| mount(&name, found, false)))
    }

    /// Releases the ReadWriteOncePod claims of a pod that has ended.
    pub(crate) fn release(&self, pod: &Pod, pod_dir: &Path) {
        for volume in pod.spec().volumes.iter().flatten() {
            let Some(source) = &volume.persistent_volume_claim else {
                continue;
            };
            let claim = ClaimName::new(pod.namespace(), source.claim_name.clone());
            if let Err(error) = self.directories.release(&claim, pod_dir) {
                tracing::warn!(%claim, error = &error as &dyn std::error::Error, "failed to release claim; other pods cannot use it until its pod is removed");
            }
        }
    }

    /// The volume that an API server has bound a claim to, for a volume of this name in a pod with this directory.
    fn of_cluster(
        &self,
        name: &ClaimName,
        bound: &Result<BoundClaim, String>,
        pod: &Pod,
        pod_dir: &Path,
        volume_name: &str,
        objects: &ObjectMap,
    ) -> Result<BoundTo, VolumeError> {
        let BoundClaim { claim, volume } = bound.as_ref().map_err(|reason| {
            ClaimError::Unusable { claim: name.clone(), reason: reason.clone() }
        })?;
        check_mode(pod, volume_name, volume)?;
        let node = objects.node().map(|node| &node.metadata);
        let labels = node.and_then(|node| node.labels.clone()).unwrap_or_default();
        let node_name = node.and_then(|node| node.name.as_deref()).unwrap_or_default();
        if !is_reachable(volume, node_name, &labels) {
            let volume = volume.metadata.name.clone().unwrap_or_default();
            return Err(VolumeError::NodeAffinity { volume });
        }
        if is_for_one_pod(claim) && !self.directories.acquire(name, pod_dir)? {
            return Err(ClaimError::OfAnotherPod.into());
        }
        Ok(BoundTo::Volume(Box::new(PersistentVolume::clone(volume))))
    }

    /// The volume that the claim of this name is bound to, for a pod with this directory.
    fn of_claim(
        &self,
        name: &ClaimName,
        pod_dir: &Path,
        objects: &ObjectMap,
    ) -> Result<BoundTo, VolumeError> {
        let claim = objects.persistent_volume_claim(&name.namespace, &name.name);
        let claim = claim.ok_or_else(|| ClaimError::NotFound { claim: name.clone() })?;
        let bound = self.bind(&claim, objects)?;
        if is_for_one_pod(&claim) && !self.directories.acquire(name, pod_dir)? {
            return Err(ClaimError::OfAnotherPod.into());
        }
        match bound {
            Some(volume) => Ok(BoundTo::Volume(Box::new(volume))),
            None => {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(held) = state.held.get(name).filter(|held| held.path.is_dir()) {
                    return Ok(BoundTo::Directory(held.path.clone()));
                }
                let held = self.directories.hold(name, self.pods_lock.as_deref())?;
                let path = held.path.clone();
                state.held.insert(name.clone(), held);
                Ok(BoundTo::Directory(path))
            }
        }
    }

    /// The volume that the claim of an ephemeral volume is bound to.
    fn of_pod(
        &self,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
        own: PathBuf,
        objects: &ObjectMap,
    ) -> Result<BoundTo, VolumeError> {
        let name = ClaimName::of(claim);
        if objects.persistent_volume_claim(&name.namespace, &name.name).is_some() {
            let pod = pod.full_name();
            return Err(ClaimError::NotOfPod { name, pod }.into());
        }
        match self.bind(claim, objects)? {
            Some(volume) => Ok(BoundTo::Volume(Box::new(volume))),
            None => {
                make_dir(&own, 0o777)?;
                Ok(BoundTo::Directory(own))
            }
        }
    }

    /// Binds a claim. `None`: it gets its own directory.
    fn bind(
        &self,
        claim: &PersistentVolumeClaim,
        objects: &ObjectMap,
    ) -> Result<Option<PersistentVolume>, VolumeError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let volumes = objects.persistent_volumes();
        // All claims together, so that the result does not depend on the order of the pods.
        let claims = objects.persistent_volume_claims();
        let (_, bound) = bind_all(claims, &volumes, std::mem::take(&mut state.bound));
        state.bound = bound;
        let name = ClaimName::of(claim);
        let binding = bind(claim, &volumes, &state.bound);
        match binding.map_err(|reason| ClaimError::Unbound { name: name.clone(), reason })? {
            Binding::Directory => Ok(None),
            Binding::Volume(volume) => {
                let mut all = volumes.iter();
                let found = all.find(|known| known.metadata.name.as_ref() == Some(&volume));
                let found = found.map(|found| PersistentVolume::clone(found));
                state.bound.insert(volume, name);
                Ok(found)
            }
        }
    }
}

/// Whether the pod uses a volume, which has this name in the pod, according to its volumeMode. Kubernetes 1.36,
/// pkg/kubelet/volumemanager/populator.
fn check_mode(pod: &Pod, name: &str, volume: &PersistentVolume) -> Result<(), VolumeError> {
    let spec = volume.spec.as_ref();
    let is_device = spec.is_some_and(is_device);
    let (mounted, given) = pod.uses_of_volume(name);
    let (mode, list) = match (is_device, mounted, given) {
        (true, true, _) => ("Block", "volumeMounts"),
        (false, _, true) => ("Filesystem", "volumeDevices"),
        (true, _, _) if spec.is_some_and(|spec| spec.csi.is_none() && spec.local.is_none()) => {
            return Err(VolumeError::Unsupported);
        }
        (_, _, _) => return Ok(()),
    };
    Err(ClaimError::Mode { volume: name.to_owned(), mode, list }.into())
}

fn is_device(spec: &PersistentVolumeSpec) -> bool {
    spec.volume_mode.as_deref() == Some("Block")
}

fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    // ReadWriteOncePod excludes all other modes.
    modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
}

/// The pod's volume of this name, which is a claim's.
fn mount(
    pod: &Pod,
    name: &str,
    claim: &ClaimName,
    bound: BoundTo,
    readonly: bool,
) -> Result<Found, VolumeError> {
    match bound {
        BoundTo::Directory(host_path) => {
            give_by_policy(pod, &host_path, readonly, group::give)?;
            Ok(Found::Host(HostVolume {
                host_path,
                readonly,
                relabel: true,
                spec_name: Some(format!("pvc-{}-{}", claim.namespace, claim.name)),
                ..HostVolume::default()
            }))
        }
        BoundTo::Volume(volume) => {
            if volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some()) {
                return Ok(Found::OfDriver(DriverVolume {
                    name: name.to_owned(),
                    spec_name: volume.metadata.name.clone().unwrap_or_default(),
                    source: DriverSource::Persistent(Arc::new(*volume)),
                    readonly,
                }));
            }
            let spec = volume.spec.unwrap_or_default();
            let is_device = is_device(&spec);
            let (host_path, is_local) = match (&spec.host_path, &spec.local) {
                // A kubelet does not change groups of hostPaths.
                (Some(source), _) => (directory::prepare_host_path(source)?, false),
                (None, Some(source)) if is_device => (local_device(&source.path)?, false),
                (None, Some(source)) => (local_directory(&source.path)?, true),
                (None, None) => return Err(VolumeError::Unsupported),
            };
            let volume = HostVolume {
                host_path,
                readonly,
                relabel: is_local,
                is_device,
                spec_name: volume.metadata.name,
                ..HostVolume::default()
            };
            Ok(if is_local { Found::Local(volume) } else { Found::Host(volume) })
        }
    }
}

fn local_directory(path: &str) -> Result<PathBuf, VolumeError> {
    local_of_type(path, "a directory", FileType::is_dir)
}

/// A kubelet passes containers a link to a loop device of the file or device; here the runtime gets the device itself.
fn local_device(path: &str) -> Result<PathBuf, VolumeError> {
    local_of_type(path, "a block device", |it| it.is_block_device())
}

fn local_of_type(
    path: &str,
    expected: &'static str,
    is_expected: fn(&FileType) -> bool,
) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(path);
    let found = std::fs::metadata(&path).map_err(failed("find the local volume", &path))?;
    match is_expected(&found.file_type()) {
        true => Ok(path),
        false => Err(VolumeError::WrongType { path: path.display().to_string(), expected }),
    }
}

/// Gives a volume of another system to the pod's group, according to the pod's policy. Counts its files in `visited` meanwhile.
pub(super) fn give_to_group(
    pod: &Pod,
    path: &Path,
    readonly: bool,
    visited: &AtomicU64,
) -> Result<(), VolumeError> {
    give_by_policy(pod, path, readonly, |path, group, readonly| {
        group::give_if_possible(path, group, readonly, visited)
    })
}

fn give_by_policy(
    pod: &Pod,
    path: &Path,
    readonly: bool,
    give: impl FnOnce(&Path, u32, bool) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let Some(group) = group::of_pod(pod)? else {
        return Ok(());
    };
    let security = pod.spec().security_context.as_ref();
    let policy = security.and_then(|security| security.fs_group_change_policy.as_deref());
    if policy == Some("OnRootMismatch")
        && file_tree::is_of_group(path, group, readonly)
            .map_err(failed("find the group of", path))?
    {
        return Ok(());
    }
    give(path, group, readonly)
}

#[cfg(test)]
#[path = "claim/tests.rs"]
mod tests;
