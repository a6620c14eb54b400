//! ◆ Parses capabilities and decides the capabilities of a process. Pure.

use cri::v1::{Capability, ContainerConfig};

use crate::launch::{Invalid, default_context};

/// The default capabilities, the same as with containerd and Docker.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

fn number(name: &str) -> Result<u8, Invalid> {
    keeper::kernel::capability::number(name).ok_or_else(|| Invalid(format!("capabilities: {name:?} is unknown: names are as in capabilities(7), with or without CAP_, or ALL")))
}

fn all() -> Vec<u8> {
    (0..).zip(keeper::kernel::capability::NAMES).map(|(number, _)| number).collect()
}

/// The numbers of a process's capabilities, in order, and of its ambient set. `ALL` means all in either list; a capability
/// dropped by name is always dropped (as in containerd).
pub(super) fn granted(
    requested: &Capability,
    privileged: bool,
) -> Result<(Vec<u8>, Vec<u8>), Invalid> {
    let (add, drop) = (&requested.add_capabilities, &requested.drop_capabilities);
    let ambient = numbers(&requested.add_ambient_capabilities)?;
    if privileged {
        return Ok((all(), ambient));
    }
    let has_all = |names: &[String]| names.iter().any(|n| n.eq_ignore_ascii_case("ALL"));
    let (added, dropped) = (numbers(add)?, numbers(drop)?);
    let base = if has_all(drop) {
        Vec::new()
    } else if has_all(add) {
        all()
    } else {
        DEFAULT.iter().map(|n| number(n)).collect::<Result<_, _>>()?
    };
    let kept = |numbers: &[u8]| -> Vec<u8> {
        let kept = numbers.iter().filter(|n| !dropped.contains(n));
        kept.copied().collect()
    };
    // The ambient capabilities must be a subset of the granted ones.
    let ambient = kept(&ambient);
    let mut granted = kept(&[base, added, ambient.clone()].concat());
    granted.sort_unstable();
    granted.dedup();
    Ok((granted, ambient))
}

/// Drops the capability to create device nodes, unless the container is privileged: without a device cgroup, its root could use
/// every disk of the machine.
pub(crate) fn forbid_device_nodes(config: &mut ContainerConfig) {
    let linux = config.linux.get_or_insert_default();
    let context = linux.security_context.get_or_insert_with(default_context);
    if !context.privileged {
        let capabilities = context.capabilities.get_or_insert_default();
        capabilities.drop_capabilities.push("MKNOD".to_owned());
    }
}

/// The numbers of `names`, except `ALL`.
fn numbers(names: &[String]) -> Result<Vec<u8>, Invalid> {
    let names = names.iter().filter(|n| !n.eq_ignore_ascii_case("ALL"));
    names.map(|n| number(n)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(ToOwned::to_owned).collect()
    }

    #[rstest]
    #[case::nothing_asked("", "", "", 14, 0)]
    #[case::one_more("NET_ADMIN", "", "", 15, 0)]
    #[case::prefixed_twice("CAP_NET_ADMIN net_admin", "", "", 15, 0)]
    #[case::one_less("", "NET_RAW", "", 13, 0)]
    #[case::none("", "ALL", "", 0, 0)]
    #[case::just_one("KILL", "ALL", "", 1, 0)]
    #[case::all("ALL", "", "", 41, 0)]
    #[case::all_but_one("ALL", "SYS_ADMIN", "", 40, 0)]
    #[case::all_and_none("ALL", "ALL", "", 0, 0)]
    #[case::added_and_dropped("NET_ADMIN", "NET_ADMIN", "", 14, 0)]
    #[case::ambient("", "", "NET_ADMIN", 15, 1)]
    #[case::ambient_and_granted("", "", "KILL", 14, 1)]
    #[case::ambient_only("", "ALL", "NET_ADMIN", 1, 1)]
    #[case::ambient_and_dropped("", "NET_RAW", "NET_RAW", 13, 0)]
    fn capabilities_follow_add_drop_and_ambient(
        #[case] add: &str,
        #[case] drop: &str,
        #[case] ambient: &str,
        #[case] count: usize,
        #[case] of_them_ambient: usize,
    ) {
        let requested = Capability {
            add_capabilities: names(add),
            drop_capabilities: names(drop),
            add_ambient_capabilities: names(ambient),
        };
        let (granted, ambient) = granted(&requested, false).unwrap();
        assert_eq!((granted.len(), ambient.len()), (count, of_them_ambient));
    }

    #[rstest]
    #[case::default("", false, false)]
    #[case::added("MKNOD", false, false)]
    #[case::all("ALL", false, false)]
    #[case::privileged("", true, true)]
    fn only_privileged_containers_create_device_nodes_without_device_cgroup(
        #[case] add: &str,
        #[case] privileged: bool,
        #[case] want: bool,
    ) {
        let mut config = ContainerConfig::default();
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.privileged = privileged;
        context.capabilities =
            Some(Capability { add_capabilities: names(add), ..Capability::default() });
        forbid_device_nodes(&mut config);
        let context = config.linux.unwrap().security_context.unwrap();
        let (granted, _) = granted(&context.capabilities.unwrap(), privileged).unwrap();
        assert_eq!(granted.contains(&number("MKNOD").unwrap()), want);
    }

    #[test]
    fn unknown_capability_is_refused() {
        for misspelt in [
            Capability { add_capabilities: names("NET_ADMN"), ..Default::default() },
            Capability { drop_capabilities: names("NET_ADMN"), ..Default::default() },
            Capability { add_ambient_capabilities: names("NET_ADMN"), ..Default::default() },
        ] {
            assert!(granted(&misspelt, false).unwrap_err().0.contains("NET_ADMN"));
        }
    }
}
