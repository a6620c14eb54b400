//! Creates, maps and joins user namespaces. Every function here requires a single-threaded process.
#![allow(unsafe_code, reason = "fork and unshare, before there is a second thread")]

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::fd::AsFd as _,
    path::Path,
    process::{Command, Stdio},
};

use keeper::{
    contract::{orphan, plan::IsolationMode},
    setup::probe::try_set_up,
};
use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags};

use super::{
    Isolation,
    mapping::{self, Range},
};

/// An error message.
type Reason = String;

fn because(what: &str) -> impl Fn(io::Error) -> Reason + '_ {
    move |error| format!("failed to {what}: {error}")
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: CLONE_FILES is never among the flags, so no descriptor changes its owner.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Tries in a child whether this process may set up containers with the isolation `mode`.
pub(super) fn probe(mode: IsolationMode) -> Result<(), Reason> {
    in_child(|| set_up(mode))
}

fn set_up(mode: IsolationMode) -> Result<(), Reason> {
    try_set_up(mode).map_err(|failure| failure.message)
}

/// Moves this process into the user namespace of the `keepers` of pods in `state_dir`, or into a new one.
pub(super) fn enter(keepers: &[i32], state_dir: Option<&Path>) -> Result<Isolation, Reason> {
    // Even without keepers, there may be orphaned containers, which this daemon has to kill. Orphans in nested namespaces are
    // skipped.
    let survivors = state_dir.map(orphan::running).into_iter().flatten().filter(in_ours);
    for pid in keepers.iter().copied().chain(survivors) {
        if join(pid).is_ok() {
            return current();
        }
    }
    // Try the new namespace in a child first: a process that has entered a user namespace without rights there cannot leave it.
    in_child(|| make().and_then(|_| set_up(IsolationMode::Rootless)))?;
    make()
}

/// Whether root in the user namespace of `pid` is this user.
fn in_ours(pid: &i32) -> bool {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
    let own = nix::unistd::geteuid().to_string();
    map.lines().any(|line| line.split_whitespace().take(2).eq(["0", own.as_str()]))
}

fn current() -> Result<Isolation, Reason> {
    let map = fs::read_to_string("/proc/self/uid_map").map_err(because("read the id map"))?;
    match mapping::mapped_ids(&map) {
        mapping::MappedIds::All => Err("the namespace joined is the box's own".to_owned()),
        mapping::MappedIds::Count(ids) => Ok(Isolation::Rootless { ids }),
    }
}

fn join(pid: i32) -> io::Result<()> {
    let namespace = fs::File::open(format!("/proc/{pid}/ns/user"))?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?;
    become_root()
}

fn become_root() -> io::Result<()> {
    rustix::thread::set_thread_res_gid(
        rustix::process::Gid::ROOT,
        rustix::process::Gid::ROOT,
        rustix::process::Gid::ROOT,
    )?;
    rustix::thread::set_thread_res_uid(
        rustix::process::Uid::ROOT,
        rustix::process::Uid::ROOT,
        rustix::process::Uid::ROOT,
    )?;
    Ok(())
}

/// Creates a user namespace where this user is root, with the subordinate ids if available.
fn make() -> Result<Isolation, Reason> {
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let ranges = subordinate_ids(uid);
    if uid == 0 || ranges.is_some() {
        // Several ids are mapped from outside the namespace, by newuidmap and newgidmap or, with CAP_SETUID, by root itself. So a
        // child does it while this process waits inside.
        let target = std::process::id();
        let (mut ready, mut go) = io::pipe().map_err(because("make a pipe"))?;
        // SAFETY: this process has a single thread (the caller's promise), so its child may run any code.
        match unsafe { fork() }.map_err(|e| because("fork")(e.into()))? {
            ForkResult::Child => {
                drop(go);
                let mapped = ready.read_exact(&mut [0u8]).is_ok()
                    && match &ranges {
                        Some((uids, gids)) => {
                            run_tool("newuidmap", target, &mapping::arguments(uid, uids))
                                && run_tool("newgidmap", target, &mapping::arguments(gid, gids))
                        }
                        None => {
                            may_map_ids()
                                && map_own(target, "uid_map")
                                && map_own(target, "gid_map")
                        }
                    };
                std::process::exit(i32::from(!mapped));
            }
            ForkResult::Parent { child } => {
                drop(ready);
                unshare(UnshareFlags::NEWUSER).map_err(because("make a user namespace"))?;
                go.write_all(b"g").map_err(because("communicate with the helper"))?;
                if matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))) {
                    become_root().map_err(because("become root in the user namespace"))?;
                    return current();
                }
                // Each map can be written once.
                if fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !map.trim().is_empty())
                {
                    return Err("newgidmap failed to map the group ids".to_owned());
                }
                // Nothing is mapped yet: map the one id that needs no helper.
                return map_single(uid, gid);
            }
        }
    }
    unshare(UnshareFlags::NEWUSER).map_err(because("make a user namespace"))?;
    map_single(uid, gid)
}

/// Whether this process may map several user ids and group ids. Both capabilities are needed: each map can be written only once,
/// so after one of the two the fallback to a single id would fail.
fn may_map_ids() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

/// Maps the ids of this namespace that images use, up to 65536, to the same ids in the namespace of `pid`.
fn map_own(pid: u32, file: &str) -> bool {
    let own = fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let count = match mapping::mapped_ids(own.lines().next().unwrap_or_default()) {
        mapping::MappedIds::All => 1 << 16,
        mapping::MappedIds::Count(ids) => ids.min(1 << 16),
    };
    fs::write(format!("/proc/{pid}/{file}"), format!("0 0 {count}\n")).is_ok()
}

fn map_single(uid: u32, gid: u32) -> Result<Isolation, Reason> {
    fs::write("/proc/self/uid_map", format!("0 {uid} 1\n")).map_err(because("map the user id"))?;
    fs::write("/proc/self/setgroups", "deny").map_err(because("give up setting groups"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1\n")).map_err(because("map the group id"))?;
    become_root().map_err(because("become root in the user namespace"))?;
    current()
}

fn run_tool(tool: &str, pid: u32, arguments: &[String]) -> bool {
    // Its error output shows the administrator what is missing; the caller then maps a single id.
    let status = Command::new(tool)
        .arg(pid.to_string())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|s| s.success())
}

fn subordinate_ids(uid: u32) -> Option<(Vec<Range>, Vec<Range>)> {
    let name = nix::unistd::User::from_uid(uid.into()).ok().flatten()?.name;
    let ranges =
        |file| mapping::subordinate(&fs::read_to_string(file).unwrap_or_default(), &name, uid);
    let (uids, gids) = (ranges("/etc/subuid"), ranges("/etc/subgid"));
    (!uids.is_empty() && !gids.is_empty() && in_path("newuidmap") && in_path("newgidmap"))
        .then_some((uids, gids))
}

fn in_path(tool: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(tool).is_file())
    })
}

/// Runs `work` in a child and returns its result.
fn in_child(work: impl FnOnce() -> Result<(), Reason>) -> Result<(), Reason> {
    let (mut reader, mut writer) = io::pipe().map_err(because("make a pipe"))?;
    // SAFETY: this process has a single thread (the caller's promise), so its child may run any code.
    match unsafe { fork() }.map_err(|e| because("fork")(e.into()))? {
        ForkResult::Child => {
            drop(reader);
            let code = match work() {
                Ok(()) => 0,
                Err(reason) => {
                    let _ = writer.write_all(reason.as_bytes());
                    1
                }
            };
            std::process::exit(code);
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut reason = String::new();
            let _ = reader.read_to_string(&mut reason);
            match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => Ok(()),
                Ok(_) if !reason.is_empty() => Err(reason),
                Ok(_) | Err(_) => {
                    Err("the trial of a container's set-up ended unexpectedly".to_owned())
                }
            }
        }
    }
}
