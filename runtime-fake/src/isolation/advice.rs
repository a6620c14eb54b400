//! ◆ Advises what to change so that an isolation becomes available, from the failed step, its error, and the restrictions of this
//! process. Pure.

use keeper::contract::plan::IsolationMode;
use nix::errno::Errno;

/// The restrictions of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Restrictions {
    /// The effective user is 0 in its user namespace.
    pub(super) is_root: bool,
    /// Its user namespace is not the initial one.
    pub(super) in_user_namespace: bool,
    pub(super) lacks_setfcap: bool,
    pub(super) has_seccomp_filter: bool,
    pub(super) in_chroot: bool,
    /// The [`SYSCTLS`] with a restricting value.
    pub(super) sysctls: Vec<&'static str>,
}

/// The sysctls that restrict namespaces, with their restricting values.
pub(super) const SYSCTLS: [(&str, &str); 9] = [
    (UNPRIVILEGED, "0"),
    (APPARMOR, "1"),
    (USER_NAMESPACES, "0"),
    ("user.max_mnt_namespaces", "0"),
    ("user.max_net_namespaces", "0"),
    ("user.max_ipc_namespaces", "0"),
    ("user.max_uts_namespaces", "0"),
    ("user.max_cgroup_namespaces", "0"),
    ("user.max_pid_namespaces", "0"),
];
/// Exists in Debian's kernels.
const UNPRIVILEGED: &str = "kernel.unprivileged_userns_clone";
/// Exists in Ubuntu's kernels.
const APPARMOR: &str = "kernel.apparmor_restrict_unprivileged_userns";
const USER_NAMESPACES: &str = "user.max_user_namespaces";

/// The system calls of the steps, by the beginning of the step's text.
const CALLS: [(&str, &str); 19] = [
    ("make a user namespace", "unshare"),
    ("make namespaces", "unshare"),
    ("separate mounts from the host's", "mount"),
    ("set a host name", "sethostname"),
    ("enter a network namespace", "setns"),
    ("look at the host's mounts", "setns"),
    ("make a root file system", "fsopen, fsconfig, fsmount and move_mount"),
    ("make a container's /dev", "fsopen, fsconfig and fsmount"),
    ("make /dev/", "mknodat, mkdirat and symlinkat"),
    ("mount /dev", "move_mount"),
    ("share the host's ", "open_tree"),
    ("make a mount read-only", "mount_setattr"),
    ("enter the container's root", "pivot_root"),
    ("leave the host's root", "umount2"),
    ("become root in the user namespace", "setresuid and setresgid"),
    ("set capabilities", "capset"),
    ("drop capabilities", "prctl"),
    ("keep capabilities", "prctl"),
    ("hide from the container", "prctl"),
];

/// The advice to make the isolation `mode` available, whose trial failed for `reason`.
#[must_use]
pub(super) fn remedy(mode: IsolationMode, reason: &str, restrictions: &Restrictions) -> String {
    if reason.starts_with("this process lacks CAP_") {
        return "give crib these capabilities".to_owned();
    }
    if reason.contains("a seccomp filter around this process forbids") {
        return "allow it in the seccomp profile".to_owned();
    }
    let Some((step, errno)) = failed_step(reason) else {
        return general(mode).to_owned();
    };
    let denied = matches!(errno, Some(Errno::EPERM | Errno::EACCES));
    known_cause(mode, step, errno, restrictions)
        .or_else(|| blocked_call(step, errno, restrictions.has_seccomp_filter))
        .or_else(|| denied.then(|| "find the security module that forbids it".to_owned()))
        .unwrap_or_else(|| general(mode).to_owned())
}

fn general(mode: IsolationMode) -> &'static str {
    match mode {
        IsolationMode::Root => "run as root of the machine or of a privileged container",
        IsolationMode::Rootless | IsolationMode::Process => {
            "run on a machine or in a container that allows it"
        }
    }
}

/// The step and the error of a reason `failed to STEP: ERROR`.
fn failed_step(reason: &str) -> Option<(&str, Option<Errno>)> {
    let (step, error) = reason.strip_prefix("failed to ")?.rsplit_once(": ")?;
    let known = [
        Errno::EPERM,
        Errno::EACCES,
        Errno::ENOSYS,
        Errno::ENOSPC,
        Errno::EUSERS,
        Errno::EINVAL,
        Errno::ENOENT,
    ];
    let is = |errno: &Errno| {
        let text = errno.desc();
        error.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text))
    };
    Some((step, known.into_iter().find(is)))
}

/// The advice for a cause that follows from the error and the restrictions together.
fn known_cause(
    mode: IsolationMode,
    step: &str,
    errno: Option<Errno>,
    restrictions: &Restrictions,
) -> Option<String> {
    let denied = matches!(errno, Some(Errno::EPERM | Errno::EACCES));
    let exhausted = matches!(errno, Some(Errno::ENOSPC | Errno::EUSERS));
    let restricts = |name: &str| restrictions.sysctls.contains(&name);
    let user_namespace = step.starts_with("make a user namespace");
    let remedy = match step {
        "fork" => "raise the limit of processes (ulimit -u, pids.max of the cgroup)".to_owned(),
        _ if user_namespace && exhausted => format!("raise the sysctl {USER_NAMESPACES}"),
        _ if user_namespace && errno == Some(Errno::EINVAL) => {
            "use a kernel with user namespaces (CONFIG_USER_NS)".to_owned()
        }
        // Source: Linux 6.12, kernel/user_namespace.c, create_user_ns.
        _ if user_namespace && denied && restrictions.in_chroot => {
            "run crib outside the chroot, because the kernel forbids user namespaces in it"
                .to_owned()
        }
        _ if user_namespace && denied && !restrictions.is_root && restricts(UNPRIVILEGED) => {
            format!("set the sysctl {UNPRIVILEGED}=1")
        }
        // Ubuntu allows the creation of the user namespace, but grants no capabilities in it.
        "map the user id" | "make namespaces" | "make a user namespace"
            if denied && !restrictions.is_root && restricts(APPARMOR) =>
        {
            format!("set the sysctl {APPARMOR}=0")
        }
        _ if user_namespace && denied && !restrictions.has_seccomp_filter => {
            "run crib without the chroot or security module that forbids it".to_owned()
        }
        // Source: Linux 5.12, kernel/user_namespace.c, verify_root_map.
        "map the user id" if denied && restrictions.is_root && restrictions.lacks_setfcap => {
            "give crib CAP_SETFCAP, without which root cannot be mapped".to_owned()
        }
        "make namespaces" if exhausted => {
            let zero = |name: &&&str| **name != USER_NAMESPACES && name.starts_with("user.max_");
            let names: Vec<&str> = restrictions.sysctls.iter().filter(zero).copied().collect();
            match names.as_slice() {
                [] => "raise the sysctls user.max_*_namespaces".to_owned(),
                [name] => format!("raise the sysctl {name}"),
                names => format!("raise the sysctls {}", names.join(", ")),
            }
        }
        _ if mode == IsolationMode::Root && denied && restrictions.in_user_namespace => {
            "run as root of the machine, because this is root of a user namespace only".to_owned()
        }
        _ if errno == Some(Errno::ENOENT) => {
            format!("create the host's {}", step.strip_prefix("share the host's ")?)
        }
        _ => return None,
    };
    Some(remedy)
}

/// The advice if the system calls of a step do not exist here, or are forbidden.
fn blocked_call(step: &str, errno: Option<Errno>, has_filter: bool) -> Option<String> {
    let call = CALLS.iter().find(|(start, _)| step.starts_with(start)).map(|(_, call)| *call);
    if errno == Some(Errno::ENOSYS) {
        let call = call.unwrap_or("the system call");
        return Some(format!("allow {call} in the seccomp profile, or use a newer kernel"));
    }
    if !matches!(errno, Some(Errno::EPERM | Errno::EACCES)) {
        return None;
    }
    let call = call?;
    Some(match has_filter {
        true => format!("allow {call} in the seccomp profile"),
        false => format!("allow {call}, which a security module may forbid"),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ROOT: IsolationMode = IsolationMode::Root;
    const ROOTLESS: IsolationMode = IsolationMode::Rootless;

    fn root() -> Restrictions {
        Restrictions { is_root: true, ..Restrictions::default() }
    }

    fn with_sysctl(name: &'static str) -> Restrictions {
        Restrictions { sysctls: vec![name], ..Restrictions::default() }
    }

    fn with_filter() -> Restrictions {
        Restrictions { has_seccomp_filter: true, ..Restrictions::default() }
    }

    #[rstest]
    #[case::capabilities(
        ROOT,
        "this process lacks CAP_SYS_ADMIN",
        root(),
        "give crib these capabilities"
    )]
    #[case::root_of_user_namespace(
        ROOT,
        "this is root of a user namespace only",
        root(),
        "run as root of the machine or of a privileged container"
    )]
    #[case::mapped_everything(
        ROOT,
        "failed to look at the host's mounts: operation not permitted",
        Restrictions { in_user_namespace: true, ..root() },
        "run as root of the machine, because this is root of a user namespace only"
    )]
    #[case::no_user_namespace_left(
        ROOTLESS,
        "failed to make a user namespace: No space left on device (os error 28)",
        Restrictions::default(),
        "raise the sysctl user.max_user_namespaces"
    )]
    #[case::no_user_namespaces_in_kernel(
        ROOTLESS,
        "failed to make a user namespace: Invalid argument (os error 22)",
        Restrictions::default(),
        "use a kernel with user namespaces (CONFIG_USER_NS)"
    )]
    #[case::chroot(
        ROOTLESS,
        "failed to make a user namespace: Operation not permitted (os error 1)",
        Restrictions { in_chroot: true, ..with_filter() },
        "run crib outside the chroot, because the kernel forbids user namespaces in it"
    )]
    #[case::debian(
        ROOTLESS,
        "failed to make a user namespace: Operation not permitted (os error 1)",
        with_sysctl("kernel.unprivileged_userns_clone"),
        "set the sysctl kernel.unprivileged_userns_clone=1"
    )]
    #[case::filter(
        ROOTLESS,
        "failed to make a user namespace: Operation not permitted (os error 1)",
        with_filter(),
        "allow unshare in the seccomp profile"
    )]
    #[case::unknown_cause(
        ROOTLESS,
        "failed to make a user namespace: Operation not permitted (os error 1)",
        Restrictions::default(),
        "run crib without the chroot or security module that forbids it"
    )]
    #[case::ubuntu(
        ROOTLESS,
        "failed to map the user id: Operation not permitted (os error 1)",
        with_sysctl("kernel.apparmor_restrict_unprivileged_userns"),
        "set the sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    )]
    #[case::ubuntu_does_not_restrict_root(
        ROOTLESS,
        "failed to map the user id: Operation not permitted (os error 1)",
        Restrictions {
            is_root: true,
            lacks_setfcap: true,
            ..with_sysctl("kernel.apparmor_restrict_unprivileged_userns")
        },
        "give crib CAP_SETFCAP, without which root cannot be mapped"
    )]
    #[case::users_need_no_setfcap(
        ROOTLESS,
        "failed to map the user id: Operation not permitted (os error 1)",
        Restrictions { lacks_setfcap: true, ..Restrictions::default() },
        "find the security module that forbids it"
    )]
    #[case::no_pid_namespace_left(
        ROOTLESS,
        "failed to make namespaces: no space left on device",
        with_sysctl("user.max_pid_namespaces"),
        "raise the sysctl user.max_pid_namespaces"
    )]
    #[case::several_limits(
        ROOTLESS,
        "failed to make namespaces: no space left on device",
        Restrictions {
            sysctls: vec!["user.max_net_namespaces", "user.max_pid_namespaces"],
            ..Restrictions::default()
        },
        "raise the sysctls user.max_net_namespaces, user.max_pid_namespaces"
    )]
    #[case::limits_of_parent(
        ROOT,
        "failed to make namespaces: no space left on device",
        root(),
        "raise the sysctls user.max_*_namespaces"
    )]
    #[case::missing_call(
        ROOTLESS,
        "failed to share the host's /dev/null: function not implemented",
        with_filter(),
        "allow open_tree in the seccomp profile, or use a newer kernel"
    )]
    #[case::missing_call_of_unknown_step(
        ROOTLESS,
        "failed to do it: function not implemented",
        with_filter(),
        "allow the system call in the seccomp profile, or use a newer kernel"
    )]
    #[case::forbidden_call(
        ROOTLESS,
        "failed to share the host's /dev/null: operation not permitted",
        with_filter(),
        "allow open_tree in the seccomp profile"
    )]
    #[case::security_module(
        ROOT,
        "failed to separate mounts from the host's: permission denied",
        root(),
        "allow mount, which a security module may forbid"
    )]
    #[case::missing_device(
        ROOTLESS,
        "failed to share the host's /dev/null: no such file or directory",
        Restrictions::default(),
        "create the host's /dev/null"
    )]
    #[case::named_call(
        IsolationMode::Process,
        "failed to start a session: operation not permitted: a seccomp filter around this process forbids the system call setsid",
        with_filter(),
        "allow it in the seccomp profile"
    )]
    #[case::plain_process(
        IsolationMode::Process,
        "failed to drop capabilities: operation not permitted",
        with_filter(),
        "allow prctl in the seccomp profile"
    )]
    #[case::processes(
        IsolationMode::Process,
        "failed to fork: Resource temporarily unavailable (os error 11)",
        Restrictions::default(),
        "raise the limit of processes (ulimit -u, pids.max of the cgroup)"
    )]
    #[case::other_error(
        ROOTLESS,
        "failed to make namespaces: cannot allocate memory",
        with_filter(),
        "run on a machine or in a container that allows it"
    )]
    fn remedy_fits_cause(
        #[case] mode: IsolationMode,
        #[case] reason: &str,
        #[case] restrictions: Restrictions,
        #[case] expected: &str,
    ) {
        assert_eq!(remedy(mode, reason, &restrictions), expected);
    }
}
