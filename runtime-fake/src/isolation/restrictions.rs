//! Reads the restrictions of this process from `/proc`, to explain why an isolation is unavailable.

use std::fs;

use super::advice::{Restrictions, SYSCTLS};

/// The inode of the initial user namespace (`USER_NS_INIT_INO` in Linux, include/uapi/linux/nsfs.h).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";
/// The bit of CAP_SETFCAP (linux/capability.h).
const SETFCAP: u64 = 1 << 31;

/// The restrictions of this process. A file that cannot be read counts as no restriction.
pub(super) fn of_this_process() -> Restrictions {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/user");
    let in_user_namespace = namespace.is_ok_and(|name| name.as_os_str() != INITIAL_USER_NAMESPACE);
    let sysctl = |name: &str| text(&format!("/proc/sys/{}", name.replace('.', "/")));
    let restricting = SYSCTLS.into_iter().filter(|(name, value)| sysctl(name).trim() == *value);
    Restrictions {
        in_user_namespace,
        in_chroot: is_chroot(&text("/proc/self/mountinfo")),
        sysctls: restricting.map(|(name, _)| name).collect(),
        ..of_status(&text("/proc/self/status"))
    }
}

/// The restrictions in `/proc/PID/status` (proc_pid_status(5)).
fn of_status(status: &str) -> Restrictions {
    let field = |name: &str, word: usize| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().nth(word))
    };
    let effective = field("CapEff", 0).and_then(|set| u64::from_str_radix(set, 16).ok());
    Restrictions {
        is_root: field("Uid", 1) == Some("0"),
        lacks_setfcap: effective.is_some_and(|set| set & SETFCAP == 0),
        has_seccomp_filter: field("Seccomp", 0) == Some("2"),
        ..Restrictions::default()
    }
}

/// Whether a process's root directory, from its `mountinfo`, is not a mount point. A chroot into a mount point is
/// indistinguishable from a mount namespace.
fn is_chroot(mountinfo: &str) -> bool {
    let at_root = |line: &str| line.split(' ').nth(4) == Some("/");
    !mountinfo.is_empty() && !mountinfo.lines().any(at_root)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::root("Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n", (true, false, false))]
    #[case::user_with_filter("Uid:\t0\t1000\t0\t0\nCapEff:\t0000000000000000\nSeccomp:\t2\n", (false, true, true))]
    #[case::no_setfcap("Uid:\t0\t0\t0\t0\nCapEff:\t000001ff7fffffff\nSeccomp_filters:\t2\n", (true, true, false))]
    #[case::unreadable("", (false, false, false))]
    fn status_yields_user_capability_and_filter(
        #[case] status: &str,
        #[case] expected: (bool, bool, bool),
    ) {
        let read = of_status(status);
        assert_eq!((read.is_root, read.lacks_setfcap, read.has_seccomp_filter), expected);
    }

    #[rstest]
    #[case::machine(
        "128 76 254:0 / / rw - ext4 /dev/vda rw\n129 128 0:25 / /proc rw - proc proc rw\n",
        false
    )]
    #[case::directory("129 128 0:25 / /proc rw - proc proc rw\n", true)]
    #[case::empty_directory_or_no_proc("", false)]
    fn chroot_has_no_mount_at_root(#[case] mountinfo: &str, #[case] expected: bool) {
        assert_eq!(is_chroot(mountinfo), expected);
    }
}
