//! User namespaces of pods. The keeper makes them but never enters one: logs, mounts and cgroups need its privileges.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    process::{Gid, Uid},
    thread::{LinkNameSpaceType, UnshareFlags},
};

use crate::contract::plan::{IdMappings, LinuxIdMapping, UserIds};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step, plain};
use crate::kernel::sys::unshare;
use crate::kernel::sys::{self, Fork};

/// A user namespace. It exists as long as this descriptor, a process in it or a namespace that belongs to it.
pub(crate) struct UserNamespace {
    fd: OwnedFd,
    pub(crate) maps: IdMappings,
}

impl UserNamespace {
    /// Makes a user namespace.
    pub(crate) fn make(maps: &IdMappings) -> Step<Self> {
        let what = "make a user namespace";
        let (mut reader, mut writer) = io::pipe().context(what)?;
        let (mut wait, go) = io::pipe().context(what)?;
        let child = match sys::fork(libc::CLONE_NEWUSER).context(what)? {
            Fork::Child => {
                drop((reader, go));
                // Its pid in `/proc`, which may belong to another process namespace than its own.
                let number = fs::read_link("/proc/self").unwrap_or_default();
                let _ = writer.write_all(number.to_string_lossy().as_bytes());
                drop(writer);
                let _ = wait.read(&mut [0]);
                std::process::exit(0)
            }
            Fork::Parent(child) => child,
        };
        drop((writer, wait));
        let mut made = || -> Step<Self> {
            let mut number = String::new();
            reader.read_to_string(&mut number).context(what)?;
            let of_child = |file: &str| format!("/proc/{number}/{file}");
            for (file, maps) in [("uid_map", &maps.uid_mappings), ("gid_map", &maps.gid_mappings)] {
                write_map(&of_child(file), maps)?;
            }
            Ok(Self {
                fd: File::open(of_child("ns/user")).context(what)?.into(),
                maps: maps.clone(),
            })
        };
        let made = made();
        drop(go);
        // Waits for this child only: no other code waits for it.
        let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None);
        made
    }

    /// The host's id of `user` in the namespace; none without a mapping.
    pub(crate) fn outside(&self, user: &UserIds) -> Option<u32> {
        self.maps.shift(user.uid, 0).map(|(uid, _)| uid)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Moves this process into the namespace and makes it root there. It cannot return.
    pub(crate) fn enter(&self) -> Step {
        let what = "enter the pod's user namespace";
        let name = Some(LinkNameSpaceType::User);
        rustix::thread::move_into_link_name_space(self.fd(), name).context(what)?;
        rustix::thread::set_thread_groups(&[]).context(what)?;
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).context(what)?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).context(what)
    }

    /// Moves this process into new namespaces that belong to this user namespace. Their root runs `inside`.
    pub(crate) fn surround(&self, flags: UnshareFlags, inside: impl FnOnce() -> Step) -> Step {
        let what = "make the pod's namespaces";
        let kinds = [
            (UnshareFlags::NEWNET, "net", LinkNameSpaceType::Network),
            (UnshareFlags::NEWIPC, "ipc", LinkNameSpaceType::InterProcessCommunication),
            (UnshareFlags::NEWUTS, "uts", LinkNameSpaceType::HostNameAndNISDomainName),
        ];
        let (mut reader, mut writer) = io::pipe().context(what)?;
        let (mut wait, go) = io::pipe().context(what)?;
        let child = match sys::fork(0).context(what)? {
            Fork::Child => {
                drop((reader, go));
                let done = self
                    .enter()
                    .and_then(|()| unshare(flags).context(what))
                    .and_then(|()| inside());
                let _ = serde_json::to_writer(&mut writer, &done);
                drop(writer);
                let _ = wait.read(&mut [0]);
                std::process::exit(0)
            }
            Fork::Parent(child) => child,
        };
        drop((writer, wait));
        let mut joined = || -> Step {
            let mut report = Vec::new();
            reader.read_to_end(&mut report).context(what)?;
            let report: Step = serde_json::from_slice(&report).map_err(|_| {
                Failure::new(
                    FailureKind::System,
                    "the process that makes the pod's namespaces ended early",
                )
            })?;
            report?;
            for (flag, file, name) in kinds {
                if flags.contains(flag) {
                    let namespace = File::open(format!("/proc/{child}/ns/{file}")).context(what)?;
                    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(name))
                        .context(what)?;
                }
            }
            Ok(())
        };
        let joined = joined();
        drop(go);
        let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None);
        joined
    }
}

fn write_map(path: &str, maps: &[LinuxIdMapping]) -> Step {
    let lines =
        maps.iter().map(|map| format!("{} {} {}\n", map.container_id, map.host_id, map.size));
    let lines: String = lines.collect();
    fs::write(path, &lines).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EINVAL) => Failure::new(
            FailureKind::Invalid,
            format!(
                "the ids {:?} cannot be mapped: the runtime does not have all of them itself, or they overlap",
                lines.trim_end()
            ),
        ),
        _ => Failure::new(
            FailureKind::System,
            format!("failed to map ids: {}", plain(&error)),
        ),
    })
}
