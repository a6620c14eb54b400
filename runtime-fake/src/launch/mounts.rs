//! What of the host and of images a container sees, and where: pure.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use cri::v1::{ContainerConfig, Mount, MountPropagation};
use keeper::plan::{Forbidden, MountPlan, MountSource, Propagation};
use keeper::plan::{RootPlan, Rung};

use crate::launch::{Given, Invalid, invalid::invalid, paths, userns};

/// What every container has, unless the client brings its own.
const PROVIDED: [&str; 3] = ["/etc/hostname", "/etc/resolv.conf", "/etc/hosts"];

/// What is forbidden of those: they are text, which a container's root may replace by something else.
const OF_TEXT: [Forbidden; 3] = [Forbidden::Programs, Forbidden::SetUid, Forbidden::Devices];

/// What every container has, what its image asks for, then what the client asked for.
pub(super) fn with_namespace(
    config: &ContainerConfig,
    given: &Given<'_>,
) -> Result<Vec<MountPlan>, Invalid> {
    let brought = |target: &Path| {
        let same = |m: &Mount| normal(Path::new(&m.container_path)) == normal(target);
        config.mounts.iter().chain(&given.mounts).any(same)
    };
    let plain = |source: MountSource, target: &Path| MountPlan {
        source,
        target: target.to_owned(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
        forbidden: Vec::new(),
        ids: None,
        relabel: false,
    };
    let context = config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref());
    let read_only_root = context.is_some_and(|c| c.readonly_rootfs);
    let provided = PROVIDED.iter().map(Path::new).filter(|t| !brought(t));
    let provided = provided.map(|target| {
        let name = target.file_name().unwrap_or_default();
        MountPlan {
            // As read-only as the root that they are in (containerd).
            read_only: read_only_root,
            forbidden: OF_TEXT.to_vec(),
            relabel: true,
            ..plain(
                MountSource::Host(given.sandbox_directory.join(name)),
                target,
            )
        }
    });
    // An image's volume is the directory that the image has there, with its contents and owners (containerd copies it).
    // A relative path begins at the root (containerd): `C:/data` is the directory `C:` there.
    for volume in &given.image.volumes {
        paths::path("the image's volume", volume)?;
    }
    let volumes = given.image.volumes.iter().map(Path::new);
    let volumes = volumes
        .filter(|target| !is_root(target) && !brought(target))
        .map(|target| plain(MountSource::Own, &Path::new("/").join(normal(target))));
    let mut wished = config
        .mounts
        .iter()
        .chain(&given.mounts)
        .enumerate()
        .map(|(index, wish)| mount(index, wish, given))
        .collect::<Result<Vec<_>, _>>()?;
    // A mount must not hide one below it that comes before it in the list (containerd sorts in the same way).
    wished.sort_by_key(|mount| normal(&mount.target).components().count());
    let mut volumes: Vec<MountPlan> = volumes.collect();
    volumes.sort_by_key(|mount| normal(&mount.target).components().count());
    Ok(volumes.into_iter().chain(provided).chain(wished).collect())
}

fn mount(index: usize, mount: &Mount, given: &Given<'_>) -> Result<MountPlan, Invalid> {
    let target = &mount.container_path;
    if !Path::new(target).is_absolute() || target.contains('\0') {
        return invalid(format!(
            "mounts: container_path {target:?} is not an absolute path"
        ));
    }
    paths::path("mounts: container_path", target)?;
    if is_root(Path::new(target)) {
        return invalid("mounts: container_path / would hide the image");
    }
    let source = match &mount.image {
        Some(image) => image_source(index, mount, &image.image, given)?,
        None => host_source(mount)?,
    };
    let propagation = propagation(mount, given.rung)?;
    if mount.recursive_read_only && (!mount.readonly || propagation != Propagation::Private) {
        return invalid(format!(
            "mounts: recursive_read_only (for {target}) needs readonly and private propagation"
        ));
    }
    let (target, mut forbidden) = (
        Path::new("/").join(normal(Path::new(target))),
        forbidden(mount)?,
    );
    if PROVIDED.iter().any(|text| target == Path::new(text)) {
        forbidden.extend(
            OF_TEXT
                .iter()
                .filter(|one| !forbidden.contains(one))
                .copied()
                .collect::<Vec<_>>(),
        );
    }
    Ok(MountPlan {
        source,
        target,
        read_only: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
        propagation,
        forbidden,
        ids: userns::mount(mount, given.rung)?,
        relabel: mount.selinux_relabel,
    })
}

fn host_source(mount: &Mount) -> Result<MountSource, Invalid> {
    let (path, target) = (&mount.host_path, &mount.container_path);
    if !mount.image_sub_path.is_empty() {
        return invalid(format!(
            "mounts: image_sub_path (for {target}) needs an image"
        ));
    }
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
    given: &Given<'_>,
) -> Result<MountSource, Invalid> {
    let target = &mount.container_path;
    if !mount.host_path.is_empty() {
        return invalid(format!(
            "mounts: the one at {target} has an image and a host_path: it can have one of them"
        ));
    }
    if !mount.readonly {
        return invalid(format!(
            "mounts: the image volume at {target} has to be readonly: the image is everybody's"
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
    match given.volumes.get(image) {
        Some(RootPlan::Layers(layers)) => Ok(MountSource::Image {
            layers: layers.clone(),
            sub_path: sub_path.to_owned(),
            at: given.directory.join("volumes").join(index.to_string()),
        }),
        Some(RootPlan::Host | RootPlan::Copied) => invalid(format!(
            "mounts: the image {image:?} (for {target}) is the host's own root, which cannot be a volume: use host_path"
        )),
        None => invalid(format!(
            "mounts: the image {image:?} (for {target}) is not here: pull it first"
        )),
    }
}

fn propagation(mount: &Mount, rung: Rung) -> Result<Propagation, Invalid> {
    let target = &mount.container_path;
    let Ok(wished) = MountPropagation::try_from(mount.propagation) else {
        return invalid(format!(
            "mounts: unknown propagation {} (for {target})",
            mount.propagation
        ));
    };
    match wished {
        MountPropagation::PropagationPrivate => Ok(Propagation::Private),
        _ if mount.image.is_some() => invalid(format!(
            "mounts: an image volume (at {target}) has private propagation: nothing is mounted into images"
        )),
        MountPropagation::PropagationHostToContainer => Ok(Propagation::FromHost),
        MountPropagation::PropagationBidirectional if rung == Rung::Root => Ok(Propagation::Both),
        MountPropagation::PropagationBidirectional => invalid(format!(
            "mounts: bidirectional propagation (for {target}) needs isolation root: a user namespace's mounts never reach \
             the host"
        )),
    }
}

fn forbidden(mount: &Mount) -> Result<Vec<Forbidden>, Invalid> {
    let known = BTreeMap::from([
        ("noexec", Forbidden::Programs),
        ("nosuid", Forbidden::SetUid),
        ("nodev", Forbidden::Devices),
        ("noatime", Forbidden::AccessTimes),
        ("nodiratime", Forbidden::DirectoryAccessTimes),
        ("nosymfollow", Forbidden::Links),
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

/// `path` without `.`, `..` and doubled slashes, whatever links there are (runc cleans targets in the same way).
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

/// Whether an absolute path is the root in other words: `/a/..` may be.
fn is_root(path: &Path) -> bool {
    normal(path).as_os_str().is_empty()
}

/// Without a mount namespace a file cannot be at another place. What a kubelet always mounts is left out; its absence
/// is documented. Anything else would be missed.
pub(super) fn without_namespace<'a>(
    mut mounts: impl Iterator<Item = &'a Mount>,
) -> Result<Vec<MountPlan>, Invalid> {
    const ALWAYS: [&str; 2] = ["/etc/hosts", "/dev/termination-log"];
    match mounts
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
