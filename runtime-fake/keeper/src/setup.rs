//! The code between fork and `execve`, and a pod's namespaces: root file system, users, capabilities, security modules,
//! terminals, and the reports to the keeper. One thread, no return to the keeper's loop.
//!
//! | module | contents |
//! |---|---|
//! | `child` | the order of the steps up to the barrier, and after it |
//! | `root` | the root file system: detached mounts in an own mount namespace; `/proc`, `/sys`; `root::devices` makes `/dev` |
//! | `root::volumes`, `root::overlay`, `root::idmap` | sources of mounts, layers, and mounts with mapped ids |
//! | `root::host` | the image `crib.local/host`, whose writable layer is in memory |
//! | `root::accounts`, `user` | users, looked up once, in the image's own `/etc/passwd` and `/etc/group`, before mounts cover them |
//! | `process` | the last steps: working directory, limits, ids, capabilities, `execve` |
//! | `lsm` | AppArmor and SELinux; the runtime's `launch` decides the profile and label |
//! | `terminal` | a terminal, opened by the process that uses it, in its container's devpts |
//! | `pod` | the pod's own namespaces, and its volumes in memory |
//! | `userns` | a pod's user namespace: the keeper makes it and never enters it |
//! | `shared`, `pid_namespace` | process namespaces with other processes, entered in the last step |
//! | `pause` | the first process of a shared process namespace: empty root, no descriptor, no capability, only waits |
//! | `probe` | tries the system calls that pods need, in a process of its own, so that the daemon can choose the isolation |
//! | `act` | a process that simulates a behaviour script: a fork of the keeper without descriptors, not dumpable, no `execve` |
//! | `restore` | starts criu: the process at the barrier executes it instead of the program, or a fork of the keeper dumps |
//! | `Report`, `report_pipe` | the child's reports, and how the keeper reads them |
//!
//! A passwd or group file must be a regular file of at most 10 MiB. An exec uses the accounts read at creation: no file of a
//! running container is read. The master side of a container's terminal goes to the keeper, the one of an exec to the daemon.

pub(crate) mod act;
pub(crate) mod child;
pub(crate) mod exec_error;
pub(crate) mod fork;
pub mod lsm;
pub(crate) mod pause;
pub(crate) mod pid_namespace;
pub(crate) mod pod;
pub mod probe;
pub(crate) mod process;
pub(crate) mod report_pipe;
pub(crate) mod restore;
pub(crate) mod root;
pub(crate) mod shared;
pub(crate) mod terminal;
pub(crate) mod user;
pub(crate) mod userns;

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::contract::plan::UserIds;
use crate::kernel::failure::Failure;

/// The exit status of a process whose program could not be run, as containerd reports it (`StartError`).
pub(crate) const START_ERROR: i32 = 128;

/// One line of JSON on the report pipe.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The set-up is complete, with the resolved ids.
    Ready(UserIds),
    /// The pid of the process that becomes the program, if it is not the one that set it up.
    Born(i32),
    /// The set-up failed.
    Failed(Failure),
}

pub(crate) fn send_report(report: &OwnedFd, what: &Report) {
    let write = |mut to: std::fs::File| -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        to.write_all(&line)
    };
    // The keeper may have exited.
    let _ = report.try_clone().and_then(|fd| write(fd.into()));
}

pub(crate) fn fail(report: &OwnedFd, failure: Failure) -> ! {
    send_report(report, &Report::Failed(failure));
    std::process::exit(START_ERROR)
}
