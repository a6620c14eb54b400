//! ◆ Decides the mounts of host paths and images in a container. Pure.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use cri::v1::{ContainerConfig, Mount, MountPropagation};
use keeper::contract::plan::{IsolationMode, RootPlan};
use keeper::contract::plan::{MountFlag, MountPlan, MountSource, Propagation};

use crate::launch::{ContainerInputs, Invalid, invalid, paths, userns};

/// The files that every container gets, unless the client mounts its own.
const PROVIDED: [&str; 3] = ["/etc/hostname", "/etc/resolv.conf", "/etc/hosts"];

/// The mount flags of these files: they are text, but root in a container could replace their contents.
const OF_TEXT: [MountFlag; 3] = [MountFlag::NoExec, MountFlag::NoSuid, MountFlag::NoDev];

/// The mounts of every container, then the image's volumes, then the client's mounts.
pub(super) fn with_namespace(
    config: &ContainerConfig,
    inputs: &ContainerInputs<'_>,
) -> Result<Vec<MountPlan>, Invalid> {
    let brought = |target: &Path| {
        let same = |m: &Mount| normal(Path::new(&m.container_path)) == normal(target);
        config.mounts.iter().any(same)
    };
    let plain = |source: MountSource, target: &Path| MountPlan {
        source,
        destination: target.to_owned(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
        flags: Vec::new(),
        ids: None,
        relabel: false,
    };
    let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let read_only_root = context.is_some_and(|c| c.readonly_rootfs);
    let provided = PROVIDED.iter().map(Path::new).filter(|t| !brought(t));
    let provided = provided.map(|target| {
        let name = target.file_name().unwrap_or_default();
        MountPlan {
            // Read-only if the root file system is (containerd).
            read_only: read_only_root,
            flags: OF_TEXT.to_vec(),
            relabel: true,
            ..plain(MountSource::Host(inputs.sandbox_directory.join(name)), target)
        }
    });
    // An image's volume is the image's directory at that path, with contents and owners (containerd copies it). A
    // relative path starts at the root (containerd): `C:/data` is the directory `C:` there.
    for volume in &inputs.image.volumes {
        paths::path("the image's volume", volume)?;
    }
    let volumes = inputs.image.volumes.iter().map(Path::new);
    let volumes = volumes
        .filter(|target| !is_root(target) && !brought(target))
        .map(|target| plain(MountSource::Own, &Path::new("/").join(normal(target))));
    let mut requested = config
        .mounts
        .iter()
        .enumerate()
        .map(|(index, request)| mount(index, request, inputs))
        .collect::<Result<Vec<_>, _>>()?;
    sort(&mut requested);
    let mut volumes: Vec<MountPlan> = volumes.collect();
    sort(&mut volumes);
    Ok(volumes.into_iter().chain(provided).chain(requested).collect())
}

/// Sorts mounts so that none hides an earlier one below it (containerd sorts in the same way).
pub(crate) fn sort(mounts: &mut [MountPlan]) {
    compact::sort_by_key(mounts, |mount| normal(&mount.destination).components().count());
}

/// The mounts of a container's CDI devices.
pub(crate) fn of_devices(
    mounts: &[Mount],
    isolation: IsolationMode,
) -> Result<Vec<MountPlan>, Invalid> {
    if isolation == IsolationMode::Process {
        return without_namespace(mounts);
    }
    let one = |mount: &Mount| planned(mount, host_source(mount)?, isolation);
    mounts.iter().map(one).collect()
}

fn mount(index: usize, mount: &Mount, inputs: &ContainerInputs<'_>) -> Result<MountPlan, Invalid> {
    let source = match &mount.image {
        Some(image) => image_source(index, mount, &image.image, inputs)?,
        None => host_source(mount)?,
    };
    planned(mount, source, inputs.isolation)
}

fn planned(
    mount: &Mount,
    source: MountSource,
    isolation: IsolationMode,
) -> Result<MountPlan, Invalid> {
    let target = &mount.container_path;
    if !Path::new(target).is_absolute() || target.contains('\0') {
        return invalid(format!("mounts: container_path {target:?} is not an absolute path"));
    }
    paths::path("mounts: container_path", target)?;
    if is_root(Path::new(target)) {
        return invalid("mounts: container_path / would hide the image");
    }
    let propagation = propagation(mount, isolation)?;
    if mount.recursive_read_only && (!mount.readonly || propagation != Propagation::Private) {
        return invalid(format!(
            "mounts: recursive_read_only (for {target}) needs readonly and private propagation"
        ));
    }
    let (target, mut flags) = (Path::new("/").join(normal(Path::new(target))), flags(mount)?);
    if PROVIDED.iter().any(|text| target == Path::new(text)) {
        flags
            .extend(OF_TEXT.iter().filter(|one| !flags.contains(one)).copied().collect::<Vec<_>>());
    }
    Ok(MountPlan {
        source,
        destination: target,
        read_only: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
        propagation,
        flags,
        ids: userns::mount(mount, isolation)?,
        relabel: mount.selinux_relabel,
    })
}

fn host_source(mount: &Mount) -> Result<MountSource, Invalid> {
    let (path, target) = (&mount.host_path, &mount.container_path);
    // A kubelet repeats the subPath of every mount of a pod that has images among its volumes. `host_path` names the part
    // already, so image_sub_path is ignored here (as in containerd).
    if !Path::new(path).is_absolute() || path.contains('\0') {
        return invalid(format!(
            "mounts: host_path {path:?} (for {target}) is not an absolute path"
        ));
    }
    paths::path("mounts: host_path", path)?;
    Ok(MountSource::Host(PathBuf::from(path)))
}

fn image_source(
    index: usize,
    mount: &Mount,
    image: &str,
    inputs: &ContainerInputs<'_>,
) -> Result<MountSource, Invalid> {
    let target = &mount.container_path;
    if !mount.host_path.is_empty() {
        return invalid(format!(
            "mounts: {target} has both an image and a host_path: set one of them"
        ));
    }
    if !mount.readonly {
        return invalid(format!(
            "mounts: the image volume at {target} has to be readonly: the image is shared"
        ));
    }
    let sub_path = Path::new(&mount.image_sub_path);
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if mount.image_sub_path.contains('\0') || !sub_path.components().all(inside) {
        return invalid(format!(
            "mounts: image_sub_path {:?} (for {target}) is not a path inside the image: relative, without `..`",
            mount.image_sub_path
        ));
    }
    paths::path("mounts: image_sub_path", &mount.image_sub_path)?;
    match inputs.volumes.get(image) {
        Some(RootPlan::Layers(layers)) => Ok(MountSource::Image {
            layers: layers.clone(),
            sub_path: sub_path.to_owned(),
            at: inputs.directory.join("volumes").join(index.to_string()),
        }),
        Some(RootPlan::Host | RootPlan::Copied) => invalid(format!(
            "mounts: the image {image:?} (for {target}) is the host's own root, which cannot be a volume: mount a path of the host instead"
        )),
        None => invalid(format!(
            "mounts: the image {image:?} (for {target}) is not present: pull it first"
        )),
    }
}

fn propagation(mount: &Mount, isolation: IsolationMode) -> Result<Propagation, Invalid> {
    let target = &mount.container_path;
    let Ok(requested) = MountPropagation::try_from(mount.propagation) else {
        return invalid(format!(
            "mounts: unknown propagation {} (for {target})",
            mount.propagation
        ));
    };
    match requested {
        MountPropagation::PropagationPrivate => Ok(Propagation::Private),
        _ if mount.image.is_some() => invalid(format!(
            "mounts: an image volume (at {target}) has private propagation: nothing is mounted into images"
        )),
        MountPropagation::PropagationHostToContainer => Ok(Propagation::Slave),
        MountPropagation::PropagationBidirectional if isolation == IsolationMode::Root => {
            Ok(Propagation::Shared)
        }
        MountPropagation::PropagationBidirectional => invalid(format!(
            "mounts: bidirectional propagation (for {target}) needs isolation root: a user namespace's mounts never reach \
             the host"
        )),
    }
}

fn flags(mount: &Mount) -> Result<Vec<MountFlag>, Invalid> {
    let known = BTreeMap::from([
        ("noexec", MountFlag::NoExec),
        ("nosuid", MountFlag::NoSuid),
        ("nodev", MountFlag::NoDev),
        ("noatime", MountFlag::NoAtime),
        ("nodiratime", MountFlag::NoDirAtime),
        ("nosymfollow", MountFlag::NoSymfollow),
    ]);
    let one = |name: &String| {
        known.get(name.as_str()).copied().ok_or_else(|| {
            Invalid(format!(
                "mounts: unknown mount_options {name:?} (for {}): known are {}",
                mount.container_path,
                known.keys().copied().collect::<Vec<_>>().join(", ")
            ))
        })
    };
    mount.mount_options.iter().map(one).collect()
}

/// Resolves `.`, `..` and double slashes lexically, without regard to links (runc cleans targets in the same way).
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    normal
}

/// Whether an absolute path is another spelling of the root, such as `/a/..`.
fn is_root(path: &Path) -> bool {
    normal(path).as_os_str().is_empty()
}

/// Without a mount namespace a file cannot appear at another path. The mounts that a kubelet always adds are
/// dropped, as documented; any other is rejected.
pub(super) fn without_namespace(mounts: &[Mount]) -> Result<Vec<MountPlan>, Invalid> {
    const ALWAYS: [&str; 2] = ["/etc/hosts", "/dev/termination-log"];
    match mounts
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
