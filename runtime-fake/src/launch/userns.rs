//! ◆ Decides the user namespace of a pod and the id mappings of mounted files. Pure.

use cri::v1::{IdMapping, Mount, NamespaceMode, NamespaceOption, UserNamespace};
use keeper::contract::plan::IsolationMode;
use keeper::contract::plan::{IdMappings, LinuxIdMapping};

use crate::launch::{Invalid, invalid};

/// The id mappings of a pod; `None` for the runtime's own user namespace.
pub(super) fn pod(
    options: &NamespaceOption,
    isolation: IsolationMode,
) -> Result<Option<IdMappings>, Invalid> {
    let Some(requested) = own(options)? else {
        return Ok(None);
    };
    if isolation == IsolationMode::Process {
        return invalid(
            "a user namespace for the pod is unavailable: isolation is `process` on this box",
        );
    }
    let one = |field: &str, list: &[IdMapping]| match list {
        [one] if one.container_id == 0 => Ok(vec![map(field, one)?]),
        [one] => invalid(format!(
            "userns_options.{field} begins at id {} inside: it has to map id 0",
            one.container_id
        )),
        _ => invalid(format!(
            "userns_options.{field} has {} mappings: exactly one is supported (CRI v1, UserNamespace)",
            list.len()
        )),
    };
    Ok(Some(IdMappings {
        uid_mappings: one("uids", &requested.uids)?,
        gid_mappings: one("gids", &requested.gids)?,
    }))
}

/// The requested user namespace, if the pod requests its own.
fn own(options: &NamespaceOption) -> Result<Option<&UserNamespace>, Invalid> {
    let Some(requested) = &options.userns_options else {
        return Ok(None);
    };
    match NamespaceMode::try_from(requested.mode) {
        Ok(NamespaceMode::Node) => Ok(None),
        Ok(NamespaceMode::Pod) => Ok(Some(requested)),
        Ok(NamespaceMode::Container | NamespaceMode::Target) | Err(_) => {
            invalid(format!("userns_options.mode is POD or NODE, not {}", requested.mode))
        }
    }
}

/// A container uses its pod's user namespace: it may repeat the pod's request, but not make another one.
pub(super) fn check_container(
    container: &NamespaceOption,
    pod: &NamespaceOption,
) -> Result<(), Invalid> {
    let requested = own(container)?;
    if container.userns_options.is_some() && requested != own(pod)? {
        return invalid(
            "userns_options of the container are not those of its sandbox: a pod has one user namespace",
        );
    }
    Ok(())
}

fn map(field: &str, mapping: &IdMapping) -> Result<LinuxIdMapping, Invalid> {
    let fits = |first: u32| first.checked_add(mapping.length).is_some();
    if mapping.length == 0 || !fits(mapping.host_id) || !fits(mapping.container_id) {
        return invalid(format!(
            "{field} maps {} ids from {} (outside {}): a mapping has one id at least, and none beyond 4294967294",
            mapping.length, mapping.container_id, mapping.host_id
        ));
    }
    Ok(LinuxIdMapping {
        container_id: mapping.container_id,
        host_id: mapping.host_id,
        size: mapping.length,
    })
}

/// The id mappings of a mount, if it has any.
pub(super) fn mount(
    mount: &Mount,
    isolation: IsolationMode,
) -> Result<Option<IdMappings>, Invalid> {
    let target = &mount.container_path;
    if mount.uid_mappings.is_empty() && mount.gid_mappings.is_empty() {
        return Ok(None);
    }
    if mount.uid_mappings.is_empty() || mount.gid_mappings.is_empty() {
        return invalid(format!(
            "mounts: the one at {target} has mappings of users or groups only: it needs both"
        ));
    }
    if isolation != IsolationMode::Root {
        return invalid(format!(
            "mounts: the ids of the files at {target} can be mapped by root only: isolation is not `root` on this box"
        ));
    }
    let maps = |field: &str, list: &[IdMapping]| {
        list.iter().map(|one| map(field, one)).collect::<Result<Vec<_>, _>>()
    };
    Ok(Some(IdMappings {
        uid_mappings: maps("mounts: uid_mappings", &mount.uid_mappings)?,
        gid_mappings: maps("mounts: gid_mappings", &mount.gid_mappings)?,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn options(mode: NamespaceMode, maps: &[(u32, u32, u32)]) -> NamespaceOption {
        let maps: Vec<IdMapping> = maps
            .iter()
            .map(|(container_id, host_id, length)| IdMapping {
                host_id: *host_id,
                container_id: *container_id,
                length: *length,
            })
            .collect();
        NamespaceOption {
            userns_options: Some(UserNamespace {
                mode: mode.into(),
                uids: maps.clone(),
                gids: maps,
            }),
            ..Default::default()
        }
    }

    #[rstest]
    #[case::the_runtimes(NamespaceMode::Node, &[], Ok(None))]
    #[case::own(NamespaceMode::Pod, &[(0, 1000, 100_000)], Ok(Some((1000, 1000))))]
    #[case::two(NamespaceMode::Pod, &[(0, 1000, 10), (10, 2000, 10)], Err("has 2 mappings"))]
    #[case::none(NamespaceMode::Pod, &[], Err("has 0 mappings"))]
    #[case::without_root(NamespaceMode::Pod, &[(1, 1000, 10)], Err("has to map id 0"))]
    #[case::empty(NamespaceMode::Pod, &[(0, 1000, 0)], Err("one id at least"))]
    #[case::too_high(NamespaceMode::Pod, &[(0, u32::MAX - 5, 10)], Err("beyond"))]
    #[case::a_containers(NamespaceMode::Container, &[(0, 1000, 10)], Err("POD or NODE"))]
    #[case::anothers(NamespaceMode::Target, &[(0, 1000, 10)], Err("POD or NODE"))]
    fn pod_user_namespace_needs_one_mapping_with_root(
        #[case] mode: NamespaceMode,
        #[case] maps: &[(u32, u32, u32)],
        #[case] expected: Result<Option<(u32, u32)>, &str>,
    ) {
        let found = pod(&options(mode, maps), IsolationMode::Root);
        match expected {
            Ok(root) => assert_eq!(found.unwrap().map(|maps| maps.root()), root),
            Err(expected) => {
                let message = found.unwrap_err().0;
                assert!(message.contains(expected), "{message}");
            }
        }
    }

    #[test]
    fn user_namespace_is_refused_without_namespaces() {
        let own = options(NamespaceMode::Pod, &[(0, 1000, 10)]);
        assert!(pod(&own, IsolationMode::Process).is_err());
        assert_eq!(pod(&NamespaceOption::default(), IsolationMode::Process), Ok(None));
    }

    #[test]
    fn container_user_namespace_equals_that_of_pod() {
        let none = NamespaceOption::default();
        let node = options(NamespaceMode::Node, &[]);
        let own = options(NamespaceMode::Pod, &[(0, 1000, 10)]);
        let other = options(NamespaceMode::Pod, &[(0, 2000, 10)]);
        for (container, pod, fits) in [
            (&none, &own, true),
            (&own, &own, true),
            (&other, &own, false),
            (&node, &own, false),
            (&own, &none, false),
            (&node, &none, true),
            (&none, &none, true),
        ] {
            assert_eq!(check_container(container, pod).is_ok(), fits);
        }
    }

    #[test]
    fn idmap_shifts_file_owners() {
        let map = |outside| LinuxIdMapping { container_id: 0, host_id: outside, size: 100 };
        let maps = IdMappings { uid_mappings: vec![map(1000)], gid_mappings: vec![map(2000)] };
        assert_eq!(maps.shift(0, 5), Some((1000, 2005)));
        assert_eq!(maps.shift(99, 100), None);
    }
}
