//! The pod's own namespaces, which the keeper lives in and so keeps alive.

use std::{
    ffi::{CStr, CString},
    io::{self},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{LinkNameSpaceType, UnshareFlags},
};

use crate::contract::plan::{IsolationMode, MemoryVolume, PodPlan, of_network};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::mount::clone_null;
use crate::kernel::sys::unshare;
use crate::setup::pause::{self, Pause};
use crate::setup::root::overlay;
use crate::setup::userns::UserNamespace;

/// A pod after its set-up.
pub(crate) struct Pod {
    pub(crate) plan: PodPlan,
    /// The pod's shared memory directory.
    pub(crate) shm: Option<PathBuf>,
    /// The daemon's mount namespace, which has the host's mounts; none in a user namespace, from which the keeper
    /// cannot return to it.
    pub(crate) host_mounts: Option<OwnedFd>,
    /// The user namespace of its containers and of its other namespaces; none if they are in the keeper's own.
    pub(crate) user_namespace: Option<UserNamespace>,
    /// The first process of the process namespace that all containers share.
    pub(crate) pause: Option<Pause>,
    /// A read-only mount of `/dev/null`, for standard streams; none without namespaces, and with a user namespace of the pod's own,
    /// whose root does not own that file.
    pub(crate) null: Option<OwnedFd>,
    /// Descriptors of namespaces, which the keeper keeps alive because the daemon may exit before the pod.
    _held: Vec<OwnedFd>,
}

/// Sets up a pod from `plan`.
pub(crate) fn set_up(plan: PodPlan, mut held: Vec<OwnedFd>) -> Step<Pod> {
    let (mut shm, mut host_mounts, mut null) = (None, None, None);
    let user_namespace = plan.user_namespace.as_ref().map(UserNamespace::make).transpose()?;
    let of_pod = plan.sysctl.iter().filter(|(name, _)| !of_network(name));
    let set_sysctls = || -> Step {
        let mut of_pod = of_pod.clone();
        of_pod.try_for_each(|(name, value)| set_sysctl(name, value))
    };
    if plan.network_given && !held.is_empty() {
        let network = held.remove(0);
        let kind = Some(LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(network.as_fd(), kind)
            .context("enter the pod's network namespace")?;
    }
    if plan.isolation != IsolationMode::Process {
        if plan.isolation == IsolationMode::Root {
            let namespace = std::fs::File::open("/proc/self/ns/mnt");
            host_mounts = Some(namespace.context("hold the host's mount namespace")?.into());
        }
        let mut flags = UnshareFlags::empty();
        flags.set(UnshareFlags::NEWUTS, !plan.hostname.is_empty());
        flags.set(UnshareFlags::NEWIPC, plan.own_ipc);
        flags.set(UnshareFlags::NEWNET, plan.own_network && !plan.network_given);
        match &user_namespace {
            None => unshare(flags | UnshareFlags::NEWNS).context("make the pod's namespaces")?,
            Some(users) => {
                unshare(UnshareFlags::NEWNS).context("make the pod's namespaces")?;
                // Only the owner of an IPC namespace may set its kernel parameters.
                users.surround(flags, set_sysctls)?;
            }
        }
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .context("separate the pod's mounts from the host's")?;
        if user_namespace.is_none() {
            null = Some(clone_null().context("share the host's /dev/null")?);
        }
        if !plan.hostname.is_empty() {
            rustix::system::sethostname(plan.hostname.as_bytes())
                .context(format_args!("set the host name {:?}", plan.hostname))?;
        }
        if plan.own_ipc {
            shm = Some(mount_shm(&plan)?);
        }
        for volume in &plan.memory_volumes {
            mount_memory(&plan, volume)?;
        }
        if user_namespace.is_none() {
            set_sysctls()?;
        }
        for (name, value) in &plan.default_sysctl {
            // Optional: the client did not request them.
            let _ = set_sysctl(name, value);
        }
    }
    let pause =
        if plan.shared_pids { Some(pause::start(&plan, user_namespace.as_ref())?) } else { None };
    Ok(Pod { plan, shm, host_mounts, user_namespace, pause, null, _held: held })
}

fn mount_shm(plan: &PodPlan) -> Step<PathBuf> {
    let at = plan.directory.join("shm");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let label = overlay::context(plan.mount_label.as_deref());
    let options = CString::new(format!("mode=1777,size=65536k{label}")).map_err(io::Error::from);
    let options = options.context("mount the pod's shared memory")?;
    mount("shm", &at, "tmpfs", flags, Some(options.as_c_str()))
        .context("mount the pod's shared memory")?;
    if let Some(maps) = &plan.user_namespace {
        let (uid, gid) = maps.root();
        std::os::unix::fs::chown(&at, Some(uid), Some(gid))
            .context("give the pod its shared memory")?;
    }
    Ok(at)
}

/// Mounts a volume in memory, with the kubelet's mode: every user may write to it, and with the sticky bit remove only their own
/// files. Sub-path directories made in it have the same mode.
fn mount_memory(plan: &PodPlan, volume: &MemoryVolume) -> Step {
    let what = format!("mount the volume {} in memory", volume.path.display());
    let label = overlay::context(plan.mount_label.as_deref());
    let mode = match volume.group {
        Some(group) => format!("mode=3777,gid={group}"),
        None => "mode=1777".to_owned(),
    };
    let options = |swap: &str| {
        let options = CString::new(format!("{mode},size={}{swap}{label}", volume.size));
        options.map_err(io::Error::from).context(&what)
    };
    let (kept, swapped) = (options(",noswap")?, options("")?);
    let mounted =
        |options: &CStr| mount("tmpfs", &volume.at, "tmpfs", MountFlags::empty(), Some(options));
    // As in a kubelet, the volume is kept out of swap if the kernel supports it: since Linux 6.4, and not in a user namespace.
    let mounted = mounted(kept.as_c_str()).or_else(|_| mounted(swapped.as_c_str()));
    mounted.or_else(|error| match volume.group {
        // tmpfs returns EINVAL for a group that the user namespace does not map.
        Some(group) if error == Errno::INVAL => Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "failed to {what}: its group {group} is not mapped into the user namespace; give the user subordinate ids (/etc/subuid, /etc/subgid, newuidmap) or leave the group (fsGroup) out"
            ),
        )),
        Some(_) | None => Err(error).context(&what),
    })
}

/// Sets network kernel parameters. Some belong to an interface, which exists once the pod is connected.
pub(crate) fn set_network_sysctls(plan: &PodPlan) -> Step {
    let mut network = plan.sysctl.iter().filter(|(name, _)| of_network(name));
    network.try_for_each(|(name, value)| set_sysctl(name, value))
}

fn set_sysctl(name: &str, value: &str) -> Step {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    std::fs::write(&path, value).map_err(|error| {
        Failure::new(
            FailureKind::Invalid,
            format!(
                "failed to set the sysctl {name} to {value:?}: {}",
                crate::kernel::failure::plain(&error)
            ),
        )
    })
}
