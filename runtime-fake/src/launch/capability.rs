//! Capabilities by name: pure.

use super::Invalid;

/// All that Linux 6 knows, in the order of their numbers (capabilities(7)).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container gets that asks for nothing: the same as with containerd and Docker.
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
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let found = NAMES
        .iter()
        .position(|known| *known == short)
        .and_then(|index| u8::try_from(index).ok());
    found.ok_or_else(|| Invalid(format!("unknown capability {name:?}: names are as in capabilities(7), with or without CAP_, or ALL")))
}

fn all() -> Vec<u8> {
    (0..).zip(NAMES).map(|(number, _)| number).collect()
}

/// The numbers of the capabilities after `add` and `drop`, in order. `ALL` stands for all in either; what is named beside
/// it wins.
pub(super) fn granted(
    add: &[String],
    drop: &[String],
    privileged: bool,
) -> Result<Vec<u8>, Invalid> {
    if privileged {
        return Ok(all());
    }
    let has_all = |names: &[String]| names.iter().any(|n| n.eq_ignore_ascii_case("ALL"));
    let numbers = |names: &[String]| {
        names
            .iter()
            .filter(|n| !n.eq_ignore_ascii_case("ALL"))
            .map(|n| number(n))
            .collect::<Result<Vec<u8>, _>>()
    };
    let (added, dropped) = (numbers(add)?, numbers(drop)?);
    let base = if has_all(add) {
        all()
    } else if has_all(drop) {
        Vec::new()
    } else {
        DEFAULT
            .iter()
            .map(|n| number(n))
            .collect::<Result<_, _>>()?
    };
    let mut granted: Vec<u8> = base
        .into_iter()
        .filter(|n| !dropped.contains(n))
        .chain(added)
        .collect();
    granted.sort_unstable();
    granted.dedup();
    Ok(granted)
}

/// The numbers of `names`.
pub(super) fn numbers(names: &[String]) -> Result<Vec<u8>, Invalid> {
    names.iter().map(|n| number(n)).collect()
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
    #[case::nothing_asked("", "", 14)]
    #[case::one_more("NET_ADMIN", "", 15)]
    #[case::prefixed_twice("CAP_NET_ADMIN net_admin", "", 15)]
    #[case::one_less("", "NET_RAW", 13)]
    #[case::none("", "ALL", 0)]
    #[case::just_one("KILL", "ALL", 1)]
    #[case::all("ALL", "", 41)]
    #[case::all_but_one("ALL", "SYS_ADMIN", 40)]
    fn counts(#[case] add: &str, #[case] drop: &str, #[case] count: usize) {
        assert_eq!(
            granted(&names(add), &names(drop), false).unwrap().len(),
            count
        );
    }

    #[test]
    fn a_misspelt_name_is_refused() {
        assert!(
            granted(&names("NET_ADMN"), &[], false)
                .unwrap_err()
                .0
                .contains("NET_ADMN")
        );
    }
}
