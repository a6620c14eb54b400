//! Tries what pods need from the machine, with the system calls of their set-up, in a process that ends afterwards.

use std::{fs::File, os::fd::AsFd as _, path::Path};

use rustix::{
    mount::{MountAttrFlags, MountPropagationFlags, mount_change},
    thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags},
};

use crate::contract::plan::IsolationMode;
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::mount::{attach, clone_tree, in_namespace, new_mount, open_dir, pivot};
use crate::kernel::secure_join::Root;
use crate::kernel::sys::{set_read_only, unshare};
use crate::setup::root::devices;

/// Without one of these the daemon cannot unpack images, or its keepers cannot set up pods or kill their processes.
const REQUIRED: [(&str, CapabilitySet); 6] = [
    ("CAP_CHOWN", CapabilitySet::CHOWN),
    ("CAP_KILL", CapabilitySet::KILL),
    ("CAP_SETPCAP", CapabilitySet::SETPCAP),
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
    ("CAP_SYS_CHROOT", CapabilitySet::SYS_CHROOT),
    ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
];
/// In a user namespace devices are mounted instead.
const REQUIRED_BY_ROOT: (&str, CapabilitySet) = ("CAP_MKNOD", CapabilitySet::MKNOD);

/// The required capabilities that are not in `own`.
fn missing(own: CapabilitySet, isolation: IsolationMode) -> Vec<&'static str> {
    let of_root = (isolation == IsolationMode::Root).then_some(REQUIRED_BY_ROOT);
    let required = REQUIRED.into_iter().chain(of_root);
    required.filter(|(_, one)| !own.contains(*one)).map(|(name, _)| name).collect()
}

/// Makes all namespaces of a pod, and a root file system with devices, and enters it. The process is of no use afterwards.
///
/// # Errors
/// The first step that the machine does not allow, or the capabilities that this process lacks.
pub fn try_set_up(isolation: IsolationMode) -> Step {
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
        clone_tree(Path::new("/dev/null"), false).context("share the host's /dev/null")?;
    }
    set_read_only(root.fd(), false).context("make a mount read-only")?;
    pivot(root.fd())
}

#[cfg(test)]
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
        "CAP_CHOWN CAP_KILL CAP_SETPCAP CAP_NET_ADMIN CAP_SYS_CHROOT CAP_SYS_ADMIN"
    )]
    fn missing_capabilities_are_those_of_mode(
        #[case] own: CapabilitySet,
        #[case] isolation: IsolationMode,
        #[case] expected: &str,
    ) {
        assert_eq!(missing(own, isolation).join(" "), expected);
    }
}
