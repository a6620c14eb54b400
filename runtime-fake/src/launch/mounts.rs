//! What of the host a container sees, and where: pure.

use std::path::{Component, Path, PathBuf};

use cri::v1::{ContainerConfig, Mount, MountPropagation};

use super::{Invalid, MountPlan, plan::invalid};

/// What the client asked for, after what every container has.
pub(super) fn with_namespace(
    config: &ContainerConfig,
    sandbox_directory: &Path,
) -> Result<Vec<MountPlan>, Invalid> {
    // What every container has, unless the client brings its own.
    let provided = ["/etc/hostname", "/etc/resolv.conf", "/etc/hosts"]
        .into_iter()
        .filter(|target| {
            !config
                .mounts
                .iter()
                .any(|m| Path::new(&m.container_path) == Path::new(target))
        });
    let provided = provided.map(|target| MountPlan {
        source: sandbox_directory.join(target.trim_start_matches("/etc/")),
        target: PathBuf::from(target),
        read_only: false,
        recursive_read_only: false,
        follow_host: false,
    });
    provided
        .map(Ok)
        .chain(config.mounts.iter().map(mount))
        .collect()
}

fn mount(mount: &Mount) -> Result<MountPlan, Invalid> {
    let target = &mount.container_path;
    if !Path::new(target).is_absolute() || target.contains('\0') {
        return invalid(format!(
            "mounts: container_path {target:?} is not an absolute path"
        ));
    }
    if is_root(Path::new(target)) {
        return invalid("mounts: container_path / would hide the image");
    }
    if mount.image.is_some() {
        return invalid(format!(
            "mounts: an image volume (at {target}) is not supported yet"
        ));
    }
    if !Path::new(&mount.host_path).is_absolute() || mount.host_path.contains('\0') {
        return invalid(format!(
            "mounts: host_path {:?} (for {target}) is not an absolute path",
            mount.host_path
        ));
    }
    if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
        return invalid(format!(
            "mounts: id mappings (for {target}) are not supported yet"
        ));
    }
    let Ok(propagation) = MountPropagation::try_from(mount.propagation) else {
        return invalid(format!(
            "mounts: unknown propagation {} (for {target})",
            mount.propagation
        ));
    };
    if propagation == MountPropagation::PropagationBidirectional {
        return invalid(format!(
            "mounts: bidirectional propagation (for {target}) is not supported yet"
        ));
    }
    if mount.recursive_read_only
        && (!mount.readonly || propagation != MountPropagation::PropagationPrivate)
    {
        return invalid(format!(
            "mounts: recursive_read_only (for {target}) needs readonly and private propagation"
        ));
    }
    Ok(MountPlan {
        source: PathBuf::from(&mount.host_path),
        target: PathBuf::from(target),
        read_only: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
        follow_host: propagation == MountPropagation::PropagationHostToContainer,
    })
}

/// Whether an absolute path is the root in other words, whatever links there are: `/a/..` may be.
fn is_root(path: &Path) -> bool {
    let mut depth = 0_usize;
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth = depth.saturating_sub(1),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    depth == 0
}

/// Without a mount namespace a file cannot be at another place. What a kubelet always mounts is left out; its absence
/// is documented. Anything else would be missed.
pub(super) fn without_namespace(config: &ContainerConfig) -> Result<Vec<MountPlan>, Invalid> {
    const ALWAYS: [&str; 2] = ["/etc/hosts", "/dev/termination-log"];
    match config
        .mounts
        .iter()
        .find(|m| !ALWAYS.contains(&m.container_path.as_str()) && m.host_path != m.container_path)
    {
        None => Ok(Vec::new()),
        Some(mount) => invalid(format!(
            "mounts: nothing can be mounted at {}, because isolation `process` has no mount namespaces: the pod needs \
             isolation root, or rootless, which a box with user namespaces has",
            mount.container_path
        )),
    }
}
