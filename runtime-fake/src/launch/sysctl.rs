//! ◆ Decides which kernel parameters a pod may set. Pure.

use std::collections::BTreeMap;

use keeper::contract::plan::IdMappings;

use crate::launch::{Invalid, invalid};

/// The largest group in a range of the kernel's (`GROUP_RANGE_MAX`).
const LAST_GROUP: u32 = i32::MAX as u32;

/// The groups that may send echo requests without `CAP_NET_RAW`.
const PING: &str = "net.ipv4.ping_group_range";

/// What pods may do by default.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    ports: bool,
    ping: bool,
    /// The last group of the daemon's user namespace.
    last_group: u32,
}

impl Allowed {
    /// Low ports, and pings by the groups of a user namespace: of its `/proc/self/gid_map` (user_namespaces(7)).
    pub(crate) fn new(ports: bool, ping: bool, gid_map: &str) -> Self {
        // First group inside, first one outside, and how many.
        let last = |line: &str| {
            let mut words = line.split_whitespace().map(str::parse::<u32>);
            let (first, count) = (words.next()?.ok()?, words.nth(1)?.ok()?);
            first.checked_add(count)?.checked_sub(1)
        };
        Self { ports, ping, last_group: gid_map.lines().filter_map(last).max().unwrap_or(0) }
    }
}

/// The parameters of a pod's own network namespace beside those that it asks for, as containerd 2.2 sets them.
pub(super) fn defaults(
    allowed: Allowed,
    users: Option<&IdMappings>,
    asked: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    // The keeper, which writes it, is in the daemon's user namespace.
    let groups = match users.and_then(|users| users.gid_mappings.first()) {
        Some(map) => (map.host_id, map.host_id.saturating_add(map.size.saturating_sub(1))),
        None => (0, allowed.last_group),
    };
    let groups = format!("{} {}", groups.0, groups.1.min(LAST_GROUP));
    let Allowed { ports, ping, .. } = allowed;
    let asked: Vec<String> = asked.keys().map(|name| name.replace('/', ".")).collect();
    [(ports, "net.ipv4.ip_unprivileged_port_start", "0"), (ping, PING, &groups)]
        .into_iter()
        .filter(|(on, name, _)| *on && !asked.iter().any(|asked| asked == name))
        .map(|(_, name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Ends a range of groups that a pod asks for at the last group of the daemon's user namespace: the kernel refuses groups
/// that are not mapped, and manifests ask for all groups as they do where none is missing.
pub(super) fn limit_groups(allowed: Allowed, sysctls: &mut BTreeMap<String, String>) {
    for (name, value) in sysctls {
        if name.replace('/', ".") != PING {
            continue;
        }
        let mut words = value.split_whitespace().map(str::parse::<u32>);
        if let (Some(Ok(first)), Some(Ok(last)), None) = (words.next(), words.next(), words.next())
            && first <= allowed.last_group
            && allowed.last_group < last
            && last <= LAST_GROUP
        {
            *value = format!("{first} {}", allowed.last_group);
        }
    }
}

/// Allows only parameters of the pod's own namespaces (Kubernetes calls the others node-level).
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

    #[rstest]
    #[case::of_the_host("0 0 4294967295", None, "", &[PORTS, "net.ipv4.ping_group_range=0 2147483647"])]
    #[case::of_one_group("0 1000 1", None, "", &[PORTS, "net.ipv4.ping_group_range=0 0"])]
    #[case::of_more("0 1000 1\n1 100000 65536", None, "", &[PORTS, "net.ipv4.ping_group_range=0 65536"])]
    #[case::of_a_pod("0 0 4294967295", Some((131072, 65536)), "", &[PORTS, "net.ipv4.ping_group_range=131072 196607"])]
    #[case::asked_for("0 0 4294967295", None, "net/ipv4/ping_group_range", &[PORTS])]
    fn pod_gets_what_it_does_not_ask_for(
        #[case] gid_map: &str,
        #[case] pod: Option<(u32, u32)>,
        #[case] asked: &str,
        #[case] expected: &[&str],
    ) {
        let users = pod.map(|(host_id, size)| {
            let map = vec![LinuxIdMapping { container_id: 0, host_id, size }];
            IdMappings { uid_mappings: map.clone(), gid_mappings: map }
        });
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

    #[rstest]
    #[case::all_groups("0 2147483647", "0 65536")]
    #[case::with_a_tab("5\t70000\n", "5 65536")]
    #[case::mapped("0 65536", "0 65536")]
    #[case::no_group("1 0", "1 0")]
    #[case::no_mapped_group("70000 80000", "70000 80000")]
    #[case::more_than_the_kernel_takes("0 4294967295", "0 4294967295")]
    #[case::no_range("0", "0")]
    fn asked_range_ends_at_the_last_mapped_group(#[case] asked: &str, #[case] expected: &str) {
        let limited = |name: &str, gid_map: &str| {
            let mut sysctls = BTreeMap::from([(name.to_owned(), asked.to_owned())]);
            limit_groups(Allowed::new(true, true, gid_map), &mut sysctls);
            sysctls.remove(name).unwrap()
        };
        let mapped = "0 1000 1\n1 100000 65536";
        assert_eq!(limited(PING, mapped), expected);
        assert_eq!(limited("net/ipv4/ping_group_range", mapped), expected);
        assert_eq!(limited("net.ipv4.ip_local_port_range", mapped), asked);
        assert_eq!(limited(PING, "0 0 4294967295"), asked);
    }
}
