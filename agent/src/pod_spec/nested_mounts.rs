//! ◆ Mounts below other mounts. Below a read-only mount, a runtime cannot create a mount point, so the mounted volume must already
//! contain it.

use std::path::{Component, Path, PathBuf};

use api::pod::{ContainerKind, Pod, is_sidecar};
use k8s_openapi::api::core::v1::{Container, KeyToPath, Volume, VolumeMount};

use crate::objects::ObjectMap;

/// The end of crib's CreateContainer error if a mount point below a read-only mount is missing.
const NO_MOUNT_POINT: &str = "it is below a read-only mount";

/// Part of crib's CreateContainer error if the mount point is a file and the volume a directory, or the reverse.
const WRONG_MOUNT_POINT: &str = ": the one is ";

/// Whether a CreateContainer that crib's runtime rejected with this message may succeed when it is retried: another container that
/// runs at the same time, or another user of the volume, may create or replace the mount point.
pub(crate) fn is_retryable(pod: &Pod, container: &Container, message: &str) -> bool {
    let is_wrong = message.contains(WRONG_MOUNT_POINT);
    if !is_wrong && !message.contains(NO_MOUNT_POINT) {
        return false;
    }
    let beside = |volume: &str| {
        others(pod, container)
            .filter(|(kind, other)| *kind != ContainerKind::Init || is_sidecar(other))
            .any(|(_, other)| writes(other, volume))
    };
    nested(container).into_iter().any(|(_, outer)| match volume(pod, &outer.name) {
        // The runtime creates missing mount points below a writable mount.
        Some(volume) if volume.empty_dir.is_some() => {
            (is_wrong || is_read_only(outer)) && beside(&outer.name)
        }
        Some(volume) => changes_from_outside(volume),
        None => false,
    })
}

/// The mounts of the container that must fail, each with its outer mount: a read-only one of an emptyDir in which neither another
/// container nor the agent creates the mount point before.
#[must_use]
pub fn impossible<'p>(
    pod: &'p Pod,
    container: &'p Container,
) -> Vec<(&'p VolumeMount, &'p VolumeMount)> {
    let is_empty = |name: &str| volume(pod, name).is_some_and(|volume| volume.empty_dir.is_some());
    let mut found = nested(container);
    found.retain(|(inner, outer)| {
        // Through a second, writable mount of the volume, a mount point for another mount may be created.
        let own = mounts(container)
            .any(|mount| mount.name == outer.name && !is_read_only(mount) && mount != *inner);
        let written = own || others(pod, container).any(|(_, other)| writes(other, &outer.name));
        is_read_only(outer)
            && is_empty(&outer.name)
            && !written
            && !is_sub_path(pod, container, inner, outer)
    });
    found
}

/// The mounts of single files that must fail, each with its outer mount: one of a volume whose files the agent writes, in which it
/// creates a directory for each mount.
#[must_use]
pub fn files_over_directories<'p>(
    pod: &'p Pod,
    container: &'p Container,
    objects: &ObjectMap,
) -> Vec<(&'p VolumeMount, &'p VolumeMount)> {
    let is_whole = |mount: &VolumeMount| {
        mount.sub_path.as_ref().is_none_or(|part| clean(part).as_os_str().is_empty())
    };
    let mut found = nested(container);
    found.retain(|(inner, outer)| {
        let is_written = volume(pod, &outer.name)
            .is_some_and(|volume| !changes_from_outside(volume) && volume.image.is_none());
        is_written
            && is_whole(outer)
            && outer.sub_path_expr.is_none()
            && is_file(pod, inner, objects)
    });
    found
}

/// Whether the mount is known to be a single file.
fn is_file(pod: &Pod, mount: &VolumeMount, objects: &ObjectMap) -> bool {
    let (Some(part), Some(volume)) = (&mount.sub_path, volume(pod, &mount.name)) else {
        return false;
    };
    let among = |items: &[KeyToPath]| items.iter().any(|item| item.path == *part);
    if let Some(source) = &volume.config_map {
        return match &source.items {
            Some(items) => among(items),
            None => objects.config_map(pod.namespace(), &source.name).is_some_and(|map| {
                map.data.as_ref().is_some_and(|data| data.contains_key(part))
                    || map.binary_data.as_ref().is_some_and(|data| data.contains_key(part))
            }),
        };
    }
    if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        return match &source.items {
            Some(items) => among(items),
            None => objects.secret(pod.namespace(), name).is_some_and(|secret| {
                secret.data.as_ref().is_some_and(|data| data.contains_key(part))
            }),
        };
    }
    let fields = volume.downward_api.iter().filter_map(|source| source.items.as_ref());
    fields.flatten().any(|field| field.path == *part)
}

/// Whether the agent creates the mount point, because a container mounts that part of the volume.
fn is_sub_path(pod: &Pod, container: &Container, inner: &VolumeMount, outer: &VolumeMount) -> bool {
    // The value of an expression is unknown until the container's variables are known.
    let is_expression =
        |mount: &VolumeMount| mount.sub_path_expr.as_ref().is_some_and(|text| !text.is_empty());
    if is_expression(outer) {
        return true;
    }
    let Ok(below) = Path::new(&inner.mount_path).strip_prefix(&outer.mount_path) else {
        return false;
    };
    let part = |mount: &VolumeMount| clean(mount.sub_path.as_deref().unwrap_or_default());
    let wanted = part(outer).join(below);
    let of_others = others(pod, container).flat_map(|(_, other)| mounts(other));
    mounts(container)
        .chain(of_others)
        .filter(|mount| mount.name == outer.name)
        .any(|mount| is_expression(mount) || part(mount).starts_with(&wanted))
}

/// The containers that may have been started before this one is created. Init containers start one after the other, and the others
/// only after them.
fn others<'p>(
    pod: &'p Pod,
    container: &'p Container,
) -> impl Iterator<Item = (ContainerKind, &'p Container)> {
    let is_init = pod.init_containers().iter().any(|init| init.name == container.name);
    pod.all_containers()
        .take_while(move |(_, other)| !is_init || other.name != container.name)
        .filter(move |(_, other)| other.name != container.name)
}

/// Each mount below another one, with its nearest outer mount.
fn nested(container: &Container) -> Vec<(&VolumeMount, &VolumeMount)> {
    let path = |mount: &VolumeMount| PathBuf::from(&mount.mount_path);
    let nearest = |inner: &VolumeMount| {
        let inner = path(inner);
        mounts(container)
            .filter(|outer| path(outer) != inner && inner.starts_with(&outer.mount_path))
            .max_by_key(|outer| path(outer).components().count())
    };
    mounts(container).filter_map(|inner| Some((inner, nearest(inner)?))).collect()
}

fn mounts(container: &Container) -> impl Iterator<Item = &VolumeMount> {
    container.volume_mounts.iter().flatten()
}

fn writes(container: &Container, volume: &str) -> bool {
    mounts(container).any(|mount| mount.name == volume && !is_read_only(mount))
}

fn is_read_only(mount: &VolumeMount) -> bool {
    mount.read_only == Some(true)
}

fn volume<'p>(pod: &'p Pod, name: &str) -> Option<&'p Volume> {
    pod.spec().volumes.iter().flatten().find(|volume| volume.name == name)
}

/// Whether the volume's content may be changed by others than the pod's containers and the agent.
fn changes_from_outside(volume: &Volume) -> bool {
    volume.config_map.is_none()
        && volume.secret.is_none()
        && volume.projected.is_none()
        && volume.downward_api.is_none()
        && volume.image.is_none()
}

fn clean(path: &str) -> PathBuf {
    let names = Path::new(path).components();
    names.filter(|name| matches!(name, Component::Normal(_))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::pod_of;

    /// A pod with these containers, including init containers (`i`) and sidecars (`s`), as `name: volume path [part]`, with `ro-`
    /// before a volume that is mounted read-only. The volume `host` is a hostPath, `map` a configMap, the others are emptyDirs.
    fn pod(containers: &str) -> Pod {
        let mount = |text: &str| {
            let mut words = text.split(' ');
            let name = words.next().unwrap();
            let volume = name.strip_prefix("ro-").unwrap_or(name);
            json!({"name": volume, "mountPath": words.next(), "subPath": words.next(), "readOnly": volume != name})
        };
        let (mut inits, mut apps) = (Vec::new(), Vec::new());
        for text in containers.split("; ") {
            let (name, mounts) = text.split_once(": ").unwrap();
            let mounts: Vec<Value> = mounts.split(", ").map(mount).collect();
            let mut container = json!({"name": name, "volumeMounts": mounts});
            if name.starts_with('s') {
                container["restartPolicy"] = json!("Always");
            }
            let list = if name.starts_with(['i', 's']) { &mut inits } else { &mut apps };
            list.push(container);
        }
        let volumes = json!([
            {"name": "e", "emptyDir": {}}, {"name": "f", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": "/srv"}}, {"name": "map", "configMap": {"name": "m"}}
        ]);
        pod_of("u1", "p", json!({"initContainers": inits, "containers": apps, "volumes": volumes}))
    }

    /// Whether a retry for the last container, or for an init container `it`, may succeed if the mount point is missing.
    #[rstest]
    #[case::alone("b: ro-e /e, f /e/x", false)]
    #[case::in_itself("b: ro-e /e, e /e/x", false)]
    #[case::beside_a_writer("a: e /w; b: ro-e /e, f /e/x", true)]
    #[case::beside_a_reader("a: ro-e /w; b: ro-e /e, f /e/x", false)]
    #[case::beside_a_writer_of_another("a: f /w; b: ro-e /e, f /e/x", false)]
    #[case::beside_a_sidecar("s: e /w; b: ro-e /e, f /e/x", true)]
    #[case::after_an_init_container("i: e /w; b: ro-e /e, f /e/x", false)]
    #[case::before_a_writer("it: ro-e /e, f /e/x; b: e /w", false)]
    #[case::init_container_beside_a_sidecar("s: e /w; it: ro-e /e, f /e/x; b: f /f", true)]
    #[case::of_the_host("b: ro-host /e, f /e/x", true)]
    #[case::with_files("b: ro-map /e, f /e/x", false)]
    #[case::nothing_below("a: e /w; b: ro-e /e, f /f", false)]
    fn mount_point_may_appear_if_another_can_make_it(
        #[case] containers: &str,
        #[case] expected: bool,
    ) {
        let message = "the mount point /e/x does not exist, and cannot be made: it is below a read-only mount";
        assert_eq!(is_retried(containers, message), expected);
    }

    /// Whether a retry may succeed if the mount point has the wrong type.
    #[rstest]
    #[case::alone("b: e /e, f /e/x", false)]
    #[case::beside_a_writer("a: e /w; b: e /e, f /e/x", true)]
    #[case::read_only_beside_a_writer("a: e /w; b: ro-e /e, f /e/x", true)]
    #[case::beside_a_reader("a: ro-e /w; b: e /e, f /e/x", false)]
    #[case::beside_a_sidecar("s: e /w; b: e /e, f /e/x", true)]
    #[case::after_an_init_container("i: e /w; b: e /e, f /e/x", false)]
    #[case::before_a_writer("it: e /e, f /e/x; b: e /w", false)]
    #[case::of_the_host("b: host /e, f /e/x", true)]
    #[case::with_files("a: map /m; b: map /e, f /e/x", false)]
    #[case::of_the_image("a: f /w; b: f /etc/passwd", false)]
    fn mount_point_of_the_wrong_kind_may_be_replaced(
        #[case] containers: &str,
        #[case] expected: bool,
    ) {
        let message = "failed to mount /v at /e/x: the one is a directory, the other a file";
        assert_eq!(is_retried(containers, message), expected);
        assert!(!is_retried(containers, "failed to mount /v at /e/x: inside /proc"));
    }

    fn is_retried(containers: &str, message: &str) -> bool {
        let pod = pod(containers);
        let last = pod.containers().last();
        let container = pod.container("it").map(|(_, container)| container).or(last).unwrap();
        is_retryable(&pod, container, message)
    }

    #[rstest]
    #[case::new_name("b: map /e, map /e/x k", &["/e/x"])]
    #[case::name_of_a_file("b: map /e, map /e/k k", &["/e/k"])]
    #[case::missing_key("b: map /e, map /e/x none", &[])]
    #[case::whole("b: map /e, map /e/x", &[])]
    #[case::below_a_part("b: map /e p, map /e/x k", &[])]
    #[case::below_an_empty_volume("b: e /e, map /e/x k", &[])]
    #[case::of_the_host("b: map /e, host /e/x k", &[])]
    fn mounts_below_file_volumes_are_found(#[case] containers: &str, #[case] expected: &[&str]) {
        let pod = pod(containers);
        let map = json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "1"}});
        let mut objects = ObjectMap::default();
        objects.insert_config_map(serde_json::from_value(map).unwrap());
        let found: Vec<&str> = pod
            .all_containers()
            .flat_map(|(_, container)| files_over_directories(&pod, container, &objects))
            .map(|(inner, _)| inner.mount_path.as_str())
            .collect();
        assert_eq!(found, expected);
    }

    /// The mounts that must fail, of all containers.
    #[rstest]
    #[case::alone("b: ro-e /e, f /e/x", &["/e/x"])]
    #[case::in_itself("b: ro-e /e, e /e/x", &["/e/x"])]
    #[case::writable("b: e /e, f /e/x", &[])]
    #[case::beside_a_writer("a: e /w; b: ro-e /e, f /e/x", &[])]
    #[case::after_a_writer("i: e /w; b: ro-e /e, f /e/x", &[])]
    #[case::before_a_writer("i: ro-e /e, f /e/x; b: e /e, f /e/x", &["/e/x"])]
    #[case::its_own_part("b: ro-e /e, e /e/x x", &[])]
    #[case::another_part("b: ro-e /e, e /e/y x", &["/e/y"])]
    #[case::deeper_part("b: ro-e /e, f /e/x; c: ro-e /c x/y", &[])]
    #[case::part_of_a_part("b: ro-e /e p, f /e/x; c: ro-e /c p/x", &[])]
    #[case::of_the_host("b: ro-host /e, f /e/x", &[])]
    fn impossible_mounts_are_found(#[case] containers: &str, #[case] expected: &[&str]) {
        let pod = pod(containers);
        let found: Vec<&str> = pod
            .all_containers()
            .flat_map(|(_, container)| impossible(&pod, container))
            .map(|(inner, _)| inner.mount_path.as_str())
            .collect();
        assert_eq!(found, expected);
    }
}
