//! Tries, in a process of its own, the system calls that pods need from the machine.

use std::{fs::File, io, os::fd::AsFd as _, path::Path};

use rustix::{
    io::Errno,
    mount::{MountAttrFlags, MountPropagationFlags, mount_change},
    process::Gid,
    thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags},
};

use crate::contract::plan::IsolationMode;
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step, plain};
use crate::kernel::mount::{attach, clone_null, in_namespace, new_mount, open_dir, pivot};
use crate::kernel::secure_join::Root;
use crate::kernel::sys::{die_with_parent, hide, set_read_only, unshare};
use crate::setup::process;
use crate::setup::root::devices;

/// Without any of these the daemon cannot unpack images, or its keepers cannot set up pods or kill their processes.
const REQUIRED: [(&str, CapabilitySet); 8] = [
    ("CAP_CHOWN", CapabilitySet::CHOWN),
    ("CAP_KILL", CapabilitySet::KILL),
    ("CAP_SETGID", CapabilitySet::SETGID),
    ("CAP_SETUID", CapabilitySet::SETUID),
    ("CAP_SETPCAP", CapabilitySet::SETPCAP),
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
    ("CAP_SYS_CHROOT", CapabilitySet::SYS_CHROOT),
    ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
];
/// In a user namespace, the host's devices are mounted instead.
const REQUIRED_BY_ROOT: (&str, CapabilitySet) = ("CAP_MKNOD", CapabilitySet::MKNOD);

/// The required capabilities that are not in `own`.
fn missing(own: CapabilitySet, isolation: IsolationMode) -> Vec<&'static str> {
    let of_root = (isolation == IsolationMode::Root).then_some(REQUIRED_BY_ROOT);
    let required = REQUIRED.into_iter().chain(of_root);
    required.filter(|(_, one)| !own.contains(*one)).map(|(name, _)| name).collect()
}

/// Follows the steps of a container's start: makes all namespaces of a pod, if the isolation has any, and a root file system with
/// devices, and enters it; then gives up privileges. The process cannot be used afterwards.
///
/// # Errors
/// The first step that the machine does not allow, or the capabilities that this process lacks.
pub fn try_set_up(isolation: IsolationMode) -> Step {
    if isolation != IsolationMode::Process {
        enter_namespaces(isolation)?;
    }
    give_up_privileges(isolation)
}

fn enter_namespaces(isolation: IsolationMode) -> Step {
    let own = rustix::thread::capabilities(None).context("read the capabilities")?.effective;
    let missing = missing(own, isolation);
    if !missing.is_empty() {
        let message = format!("this process lacks {}", missing.join(", "));
        return Err(Failure::new(FailureKind::System, message));
    }
    let host = File::open("/proc/self/ns/mnt").context("hold the host's mount namespace")?;
    let namespaces = UnshareFlags::NEWNS
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP
        | UnshareFlags::NEWPID;
    unshare(namespaces).context("make namespaces")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .context("separate mounts from the host's")?;
    rustix::system::sethostname(b"probe").context("set a host name")?;
    let what = "enter a network namespace";
    let network = File::open("/proc/self/ns/net").context(what)?;
    rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .context(what)?;
    // From a user namespace no keeper enters the host's mount namespace.
    if isolation == IsolationMode::Root {
        in_namespace(host.as_fd(), || Ok(()))?;
    }
    enter_root(isolation)
}

fn enter_root(isolation: IsolationMode) -> Step {
    let what = "make a root file system";
    let options = [("mode", "0755"), ("size", "65536k")];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
    let base = new_mount("tmpfs", &options, flags).context(what)?;
    attach(base.as_fd(), open_dir(Path::new("/")).context(what)?.as_fd()).context(what)?;
    let root = Root::new(base);
    let dev = new_mount("tmpfs", &options, flags).context("make a container's /dev")?;
    devices::fill(isolation, dev.as_fd())?;
    attach(dev.as_fd(), root.directory(Path::new("/dev"))?.as_fd()).context("mount /dev")?;
    if isolation == IsolationMode::Rootless {
        devices::bind(&root)?;
    } else {
        // As for masked files.
        clone_null().context("share the host's /dev/null")?;
    }
    set_read_only(root.fd(), false).context("make a mount read-only")?;
    pivot(root.fd())
}

/// Makes the calls that every container's first process makes before its program.
fn give_up_privileges(isolation: IsolationMode) -> Step {
    allowed("be ended with the keeper", "prctl", die_with_parent())?;
    hide()?;
    allowed("start a session", "setsid", rustix::process::setsid())?;
    // The containers of an ordinary user keep the user's ids and capabilities.
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Ok(());
    }
    let sets = rustix::thread::capabilities(None).context("read the capabilities")?;
    process::bound(CapabilitySet::empty(), sets.permitted)?;
    match rustix::thread::set_thread_groups(&[Gid::ROOT]) {
        // Without the right to set groups, containers have the runtime's.
        Err(Errno::PERM) if isolation != IsolationMode::Root => {}
        set => allowed("set groups", "setgroups", set)?,
    }
    // Sets its own ids: whether other ids may be set depends on the container.
    let gid = rustix::process::getegid();
    let set = rustix::thread::set_thread_res_gid(gid, gid, gid);
    allowed("set group ids", "setresgid", set)?;
    let set = rustix::thread::set_thread_res_uid(uid, uid, uid);
    allowed("set user ids", "setresuid", set)?;
    allowed("set capabilities", "capset", rustix::thread::set_capabilities(None, sets))
}

/// Adds the name of the system call `call` to its error. The arguments are chosen so that only a filter can reject the call.
fn allowed<T>(what: &str, call: &str, result: Result<T, impl Into<io::Error>>) -> Step {
    let Err(error) = result else { return Ok(()) };
    let error: io::Error = error.into();
    let cause = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            format!(": a seccomp filter around this process forbids the system call {call}")
        }
        _ => String::new(),
    };
    let message = format!("failed to {what}: {}{cause}", plain(&error));
    Err(Failure::new(FailureKind::System, message))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::all(CapabilitySet::all(), IsolationMode::Root, "")]
    #[case::no_devices(CapabilitySet::MKNOD.complement(), IsolationMode::Root, "CAP_MKNOD")]
    #[case::mounted_devices(CapabilitySet::MKNOD.complement(), IsolationMode::Rootless, "")]
    #[case::several(
        (CapabilitySet::NET_ADMIN | CapabilitySet::MKNOD).complement(),
        IsolationMode::Root,
        "CAP_NET_ADMIN CAP_MKNOD"
    )]
    #[case::none(
        CapabilitySet::empty(),
        IsolationMode::Rootless,
        "CAP_CHOWN CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP CAP_NET_ADMIN CAP_SYS_CHROOT CAP_SYS_ADMIN"
    )]
    fn missing_capabilities_are_those_of_mode(
        #[case] own: CapabilitySet,
        #[case] isolation: IsolationMode,
        #[case] expected: &str,
    ) {
        assert_eq!(missing(own, isolation).join(" "), expected);
    }

    #[rstest]
    #[case::forbidden(Errno::PERM, "operation not permitted: a seccomp filter")]
    #[case::unknown(Errno::NOSYS, "forbids the system call setsid")]
    #[case::other(Errno::NOMEM, "failed to start a session: out of memory")]
    fn failed_call_names_filter_if_forbidden(#[case] error: Errno, #[case] expected: &str) {
        let failed = allowed("start a session", "setsid", Err::<(), _>(error)).unwrap_err();
        assert!(failed.message.contains(expected), "{failed}");
        assert_eq!(failed.message.contains("seccomp"), error != Errno::NOMEM, "{failed}");
    }
}
