//! ◆ Decides which kernel parameters a pod may set, and the values that the keeper writes. Pure.

use std::collections::BTreeMap;

use keeper::contract::plan::IdMappings;

use crate::launch::{Invalid, invalid};

/// The largest group in a range that the kernel accepts (`GROUP_RANGE_MAX`).
const LAST_GROUP: u32 = i32::MAX as u32;

/// The groups that may send echo requests without `CAP_NET_RAW`.
const PING: &str = "net.ipv4.ping_group_range";

/// The first port that needs no privilege.
const FIRST_PORT: &str = "net.ipv4.ip_unprivileged_port_start";

/// The range of ports from which the kernel chooses.
const LOCAL_PORTS: &str = "net.ipv4.ip_local_port_range";

/// The default privileges of unprivileged programs in pods.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    ports: bool,
    ping: bool,
    /// The last group of the daemon's user namespace.
    last_group: u32,
}

impl Allowed {
    /// Privileges for low ports, and for pings by the groups of a user namespace, from its `/proc/self/gid_map`
    /// (user_namespaces(7)).
    pub(crate) fn new(ports: bool, ping: bool, gid_map: &str) -> Self {
        // The fields are the first group inside, the first one outside, and the number of groups.
        let last = |line: &str| {
            let mut words = line.split_whitespace().map(str::parse::<u32>);
            let (first, count) = (words.next()?.ok()?, words.nth(1)?.ok()?);
            first.checked_add(count)?.checked_sub(1)
        };
        Self { ports, ping, last_group: gid_map.lines().filter_map(last).max().unwrap_or(0) }
    }
}

/// The default parameters of a pod's own network namespace, except the ones that it requests, as in containerd 2.2.
pub(super) fn defaults(
    allowed: Allowed,
    users: Option<&IdMappings>,
    asked: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    // The keeper writes the range, in the daemon's user namespace.
    let groups = match users.and_then(|users| users.gid_mappings.first()) {
        Some(map) => (map.host_id, map.host_id.saturating_add(map.size.saturating_sub(1))),
        None => (0, allowed.last_group),
    };
    let groups = format!("{} {}", groups.0, groups.1.min(LAST_GROUP));
    let Allowed { ports, ping, .. } = allowed;
    [(ports, FIRST_PORT, "0"), (ping, PING, &groups)]
        .into_iter()
        .filter(|(on, name, _)| *on && !asked.keys().any(|asked| is(asked, name)))
        .map(|(_, name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The values that the keeper writes, in this order, for the parameters that a pod requests.
pub(super) fn writes(
    allowed: Allowed,
    users: Option<&IdMappings>,
    asked: BTreeMap<String, String>,
) -> Result<Vec<(String, String)>, Invalid> {
    let asks_for = |wanted: &str| asked.keys().any(|name| is(name, wanted));
    let mut writes = Vec::new();
    // The kernel refuses either parameter if a local port would then be below the first unprivileged port. After a first port of
    // 0, it accepts any range, and then every first port that fits this range.
    if asks_for(FIRST_PORT) && asks_for(LOCAL_PORTS) {
        writes.push((FIRST_PORT.to_owned(), "0".to_owned()));
    }
    let (first_port, others): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|(name, _)| is(name, FIRST_PORT));
    for (name, value) in others.into_iter().chain(first_port) {
        let value = if is(&name, PING) { groups(allowed, users, value)? } else { Some(value) };
        writes.extend(value.map(|value| (name, value)));
    }
    Ok(writes)
}

/// The range of groups to write for the range that a pod requests; `None` where the kernel's default is the same and cannot be
/// written. It ends at the last mapped group: the kernel refuses unmapped groups, and manifests request all groups without regard
/// to the mapping.
fn groups(
    allowed: Allowed,
    users: Option<&IdMappings>,
    asked: String,
) -> Result<Option<String>, Invalid> {
    let mut words = asked.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(first)), Some(Ok(last)), None) = (words.next(), words.next(), words.next()) else {
        return match users {
            // The kernel refuses an invalid range.
            None => Ok(Some(asked)),
            Some(_) => invalid(format!("sysctl {PING}: {asked:?} is not a range of groups")),
        };
    };
    if first > last {
        // No group may ping, as in every new network namespace. Even for this, the kernel accepts mapped groups only.
        return Ok((allowed.last_group > 0).then(|| "1 0".to_owned()));
    }
    let Some(users) = users else {
        let ends_early = first <= allowed.last_group && allowed.last_group < last.min(LAST_GROUP);
        return Ok(Some(if ends_early {
            format!("{first} {}", allowed.last_group)
        } else {
            asked
        }));
    };
    // The pod's range is in the ids of its own user namespace; the keeper writes it in the ids of the daemon's.
    let maps = &users.gid_mappings;
    let of_daemon = |group: u32| {
        maps.iter().find_map(|map| {
            let offset = group.checked_sub(map.container_id)?;
            (offset < map.size).then(|| map.host_id.saturating_add(offset))
        })
    };
    let ends = maps.iter().map(|map| map.container_id.saturating_add(map.size.saturating_sub(1)));
    let end = last.min(ends.max().unwrap_or(0));
    let (Some(first), Some(end)) = (of_daemon(first), of_daemon(end)) else {
        return invalid(format!(
            "sysctl {PING}: {asked:?} begins at a group that is not mapped into the pod's user namespace"
        ));
    };
    Ok(Some(format!("{first} {}", end.min(LAST_GROUP))))
}

/// Whether `name` is the parameter `dotted`. Clients write names with dots or slashes.
fn is(name: &str, dotted: &str) -> bool {
    name.replace('/', ".") == dotted
}

/// Allows only parameters of the pod's own namespaces (in Kubernetes, the others are node-level).
pub(super) fn check(name: &str, own_network: bool, own_ipc: bool) -> Result<(), Invalid> {
    let dotted = name.replace('/', ".");
    if dotted.split('.').any(|part| part.is_empty() || part == "..") {
        return invalid(format!("sysctl {name:?} is not a name"));
    }
    let ipc = dotted.starts_with("fs.mqueue.")
        || dotted.starts_with("kernel.msg")
        || dotted.starts_with("kernel.sem")
        || dotted.starts_with("kernel.shm");
    match (dotted.starts_with("net."), ipc) {
        (true, _) if own_network => Ok(()),
        (_, true) if own_ipc => Ok(()),
        (true, _) | (_, true) => invalid(format!(
            "sysctl {name:?} would change the host: the pod has no namespace of its own for it"
        )),
        (false, false) => {
            invalid(format!("sysctl {name:?} has no namespace: it would change the host"))
        }
    }
}

#[cfg(test)]
mod tests {
    use keeper::contract::plan::LinuxIdMapping;
    use rstest::rstest;

    use super::*;

    const PORTS: &str = "net.ipv4.ip_unprivileged_port_start=0";

    /// The mappings of a pod: its first id on the host, and their number.
    fn users((host_id, size): (u32, u32)) -> IdMappings {
        let map = vec![LinuxIdMapping { container_id: 0, host_id, size }];
        IdMappings { uid_mappings: map.clone(), gid_mappings: map }
    }

    #[rstest]
    #[case::of_the_host("0 0 4294967295", None, "", &[PORTS, "net.ipv4.ping_group_range=0 2147483647"])]
    #[case::of_one_group("0 1000 1", None, "", &[PORTS, "net.ipv4.ping_group_range=0 0"])]
    #[case::of_more("0 1000 1\n1 100000 65536", None, "", &[PORTS, "net.ipv4.ping_group_range=0 65536"])]
    #[case::of_a_pod("0 0 4294967295", Some((131072, 65536)), "", &[PORTS, "net.ipv4.ping_group_range=131072 196607"])]
    #[case::asked_for("0 0 4294967295", None, "net/ipv4/ping_group_range", &[PORTS])]
    fn default_sysctls_apply_unless_pod_sets_them(
        #[case] gid_map: &str,
        #[case] pod: Option<(u32, u32)>,
        #[case] asked: &str,
        #[case] expected: &[&str],
    ) {
        let users = pod.map(users);
        let asked = BTreeMap::from([(asked.to_owned(), String::new())]);
        let get = |ports, ping| {
            let allowed = Allowed::new(ports, ping, gid_map);
            let all = defaults(allowed, users.as_ref(), &asked);
            all.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(get(true, true), expected);
        assert_eq!(get(true, false), [PORTS]);
        assert_eq!(get(false, true), expected[1..]);
    }

    /// The values that are written for parameters that a pod requests.
    fn written(
        gid_map: &str,
        pod: Option<(u32, u32)>,
        asked: &[(&str, &str)],
    ) -> Result<Vec<String>, Invalid> {
        let users = pod.map(users);
        let asked = asked.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let all = writes(Allowed::new(true, true, gid_map), users.as_ref(), asked.collect())?;
        Ok(all.iter().map(|(name, value)| format!("{name}={value}")).collect())
    }

    #[rstest]
    #[case::all_groups("0 2147483647", "0 65536")]
    #[case::with_a_tab("5\t70000\n", "5 65536")]
    #[case::mapped("0 65536", "0 65536")]
    #[case::no_group("1 0", "1 0")]
    #[case::no_mapped_group("70000 80000", "70000 80000")]
    #[case::more_than_the_kernel_takes("0 2147483648", "0 65536")]
    #[case::all_numbers("0 4294967295", "0 65536")]
    #[case::no_number("0 4294967296", "0 4294967296")]
    #[case::no_range("0", "0")]
    fn asked_range_ends_at_the_last_mapped_group(#[case] asked: &str, #[case] expected: &str) {
        let only = |name: &str, gid_map: &str| written(gid_map, None, &[(name, asked)]).unwrap();
        let mapped = "0 1000 1\n1 100000 65536";
        for name in [PING, "net/ipv4/ping_group_range"] {
            assert_eq!(only(name, mapped), [format!("{name}={expected}")]);
        }
        assert_eq!(only(LOCAL_PORTS, mapped), [format!("{LOCAL_PORTS}={asked}")]);
        assert_eq!(only(PING, "0 0 4294967295"), [format!("{PING}={asked}")]);
    }

    #[rstest]
    #[case::part("0 1000", Some("131072 132072"))]
    #[case::part_after_the_first("5 1000", Some("131077 132072"))]
    #[case::all_mapped("0 65535", Some("131072 196607"))]
    #[case::one_more("0 65536", Some("131072 196607"))]
    #[case::all_groups("0 2147483647", Some("131072 196607"))]
    #[case::no_group("1 0", Some("1 0"))]
    #[case::no_mapped_group("70000 80000", None)]
    #[case::no_range("0", None)]
    fn asked_range_counts_in_groups_of_pod(#[case] asked: &str, #[case] expected: Option<&str>) {
        let written = written("0 0 4294967295", Some((131_072, 65536)), &[(PING, asked)]).ok();
        assert_eq!(written, expected.map(|range| vec![format!("{PING}={range}")]));
    }

    /// The groups 1 and 0 cannot be written there, and a new network namespace has the same range.
    #[rstest]
    #[case::no_group("1 0")]
    #[case::no_group_of_others("10 0")]
    fn empty_range_is_kernels_default_where_one_group_is_mapped(#[case] asked: &str) {
        for pod in [None, Some((0, 1))] {
            assert_eq!(written("0 1000 1", pod, &[(PING, asked)]), Ok(Vec::new()));
        }
        assert_eq!(
            written("0 0 4294967295", None, &[(PING, asked)]),
            Ok(vec![format!("{PING}=1 0")])
        );
    }

    #[rstest]
    #[case::dots("net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start")]
    #[case::slashes("net/ipv4/ip_local_port_range", "net/ipv4/ip_unprivileged_port_start")]
    #[case::slashes_in_the_range("net/ipv4/ip_local_port_range", FIRST_PORT)]
    #[case::slashes_in_the_first_port(LOCAL_PORTS, "net/ipv4/ip_unprivileged_port_start")]
    fn local_ports_are_set_while_no_port_needs_privilege(#[case] range: &str, #[case] first: &str) {
        let range_value = (range, "200 300");
        let expected = vec![PORTS.to_owned(), format!("{range}=200 300"), format!("{first}=100")];
        assert_eq!(written("0 0 1", None, &[range_value, (first, "100")]), Ok(expected));
        assert_eq!(written("0 0 1", None, &[range_value]), Ok(vec![format!("{range}=200 300")]));
        let alone = Ok(vec![format!("{first}=100")]);
        assert_eq!(written("0 0 1", None, &[(first, "100")]), alone);
    }
}
