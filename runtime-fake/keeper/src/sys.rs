//! The system calls that no library wraps. Everything here is for the keeper, which has one thread.
#![allow(unsafe_code, reason = "clone and mount_setattr have no safe wrapper")]

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use crate::seccomp::Filter;

/// Which side of a [`fork`] this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old one; the child's process id.
    Parent(i32),
}

/// Forks, with the child in the new namespaces that `flags` (`CLONE_NEW*`) name.
///
/// The keeper has a single thread, so that the child may run any code.
pub(crate) fn fork(flags: libc::c_int) -> io::Result<Fork> {
    debug_assert_eq!(
        std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count),
        1,
        "only a process with one thread may fork and go on"
    );
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and a stack of its own this is fork(2): the child has a copy of all memory, and the caller
    // is the only thread, so that no lock can be held by another one.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => Ok(Fork::Parent(pid)),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Forks a sibling: a child of this process's parent. Nothing is looked at before, unlike in [`fork`]: this process's
/// `/proc` may be a container's by now.
pub(crate) fn fork_sibling() -> io::Result<Fork> {
    let flags = libc::c_long::from(SIBLING);
    // SAFETY: as in `fork`: no CLONE_VM and no stack, and the caller is the only thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => Ok(Fork::Parent(pid)),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// The flags of [`fork_sibling`].
pub(crate) const SIBLING: libc::c_int = libc::CLONE_PARENT | libc::SIGCHLD;

/// linux/sched.h; libc's has too few bits for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// [`fork`], with the child in the v2 cgroup whose directory is `cgroup`. Moving a process there takes the kernel 10 ms
/// and more (an RCU grace period), being born there nothing.
pub(crate) fn fork_inside(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let Some(cgroup) = cgroup else {
        return fork(flags);
    };
    // SAFETY: a structure of integers, for which 0 is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from(flags.unsigned_abs()) | CLONE_INTO_CGROUP;
    // CLONE_PARENT takes the signal of the caller's own end, and clone3 wants none to be given then.
    if flags & libc::CLONE_PARENT == 0 {
        arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    }
    arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    // SAFETY: as in `fork`: no CLONE_VM and no stack, and the caller is the only thread; the structure lives until the call
    // returns and its size is given.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<libc::clone_args>(),
        )
    };
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => Ok(Fork::Parent(pid)),
        Ok(_) | Err(_) => match io::Error::last_os_error() {
            // Kept back by a filter of system calls, as around a container in a container.
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                fork_and_move(flags, cgroup)
            }
            error => Err(error),
        },
    }
}

fn fork_and_move(flags: libc::c_int, cgroup: BorrowedFd<'_>) -> io::Result<Fork> {
    let forked = fork(flags)?;
    if forked == Fork::Child {
        let file = format!("/proc/self/fd/{}/cgroup.procs", cgroup.as_raw_fd());
        if std::fs::write(file, "0").is_err() {
            // Nothing can be said from here; the keeper tells of an early end.
            std::process::exit(1);
        }
    }
    Ok(forked)
}

/// Makes the mount that `mount` is the root of read-only; with `recursive` those below it too.
pub fn set_read_only(mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    set_attributes(mount, libc::MOUNT_ATTR_RDONLY, 0, 0, recursive)
}

/// Sets how mounts and unmounts elsewhere show through a mount and those below it: `MS_PRIVATE`, `MS_SLAVE` or `MS_SHARED`.
pub(crate) fn set_propagation(mount: BorrowedFd<'_>, propagation: libc::c_ulong) -> io::Result<()> {
    set_attributes(mount, 0, propagation, 0, true)
}

/// Gives a mount and those below it further attributes (`MOUNT_ATTR_*`).
pub(crate) fn add_attributes(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    set_attributes(mount, attributes, 0, 0, true)
}

/// Shows the files of a mount that is attached nowhere, not of those below it, with the ids of a user namespace.
pub(crate) fn set_id_map(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let namespace = u64::try_from(namespace.as_raw_fd()).unwrap_or_default();
    set_attributes(mount, libc::MOUNT_ATTR_IDMAP, 0, namespace, false)
}

fn set_attributes(
    mount: BorrowedFd<'_>,
    set: u64,
    propagation: libc::c_ulong,
    userns_fd: u64,
    recursive: bool,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation,
        userns_fd,
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the structure lives until the call returns and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Ends the process group of this process's children when the keeper ends, whatever ends it.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: takes one integer and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether others may look into this process (`/proc/PID/exe`, `ptrace`).
pub(crate) fn set_dumpable(yes: bool) -> io::Result<()> {
    // SAFETY: takes one integer and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(yes)) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives every signal its default action and blocks none, as a program expects to be started.
pub(crate) fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: sets a default action; it fails for the signals that have no other, which is well.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the set is a local that sigemptyset initialises.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// `execve`. Returns only on failure.
pub(crate) fn exec(program: &CString, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect::<Vec<_>>()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with a null pointer and, as the strings that they point to, outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// [`exec`] of a program of the host's. Returns only on failure.
pub(crate) fn run(program: &Path, arguments: &[&str], env: &[&str]) -> io::Error {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput.into());
    let all = || -> io::Result<_> {
        let program = text(program.as_os_str().as_bytes())?;
        let mut argv = vec![program.clone()];
        for argument in arguments {
            argv.push(text(argument.as_bytes())?);
        }
        let env = env.iter().map(|e| text(e.as_bytes()));
        Ok((program, argv, env.collect::<io::Result<Vec<_>>>()?))
    };
    match all() {
        Ok((program, argv, env)) => exec(&program, &argv, &env),
        Err(error) => error,
    }
}

/// Filters the system calls of this process from now on.
pub(crate) fn load_filter(filter: &Filter) -> io::Result<()> {
    let mut program: Vec<libc::sock_filter> = filter
        .program
        .iter()
        .map(|one| libc::sock_filter {
            code: one.code,
            jt: one.jt,
            jf: one.jf,
            k: one.k,
        })
        .collect();
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program and its array outlive the call, and the length is the array's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::c_ulong::from(filter.flags),
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Closes every descriptor but the standard ones and `keep`: a new process has the keeper's until its program runs.
pub(crate) fn close_others(keep: &mut [i32]) {
    keep.sort_unstable();
    let mut from = 3;
    for end in keep.iter().copied().chain([i32::MAX]) {
        if from < end {
            // SAFETY: the caller is a fork that uses none of these any more and never returns to code that does.
            unsafe { libc::syscall(libc::SYS_close_range, from, end - 1, 0) };
        }
        from = end.saturating_add(1);
    }
}

/// Closes every descriptor of this process.
pub(crate) fn close_all() {
    // SAFETY: the caller is a fork that uses none of its descriptors any more and never returns to code that does.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

/// linux/keyctl.h.
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

/// Gives this process a session keyring of its own, empty and without a name: the one that it has is of the user who
/// started the daemon (session-keyring(7)). A kernel without keys, or a filter that refuses them, is no error.
pub(crate) fn join_new_keyring() -> io::Result<()> {
    let name = std::ptr::null::<libc::c_char>();
    // SAFETY: no name is given, so that no memory is read.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name) };
    if result >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOSYS | libc::EPERM | libc::EACCES)
            ) =>
        {
            Ok(())
        }
        error => Err(error),
    }
}

/// Closes all but the standard descriptors: a new keeper is given no others, whatever its daemon was started with.
pub(crate) fn close_inherited() {
    close_others(&mut []);
}

/// Has no child inherit a descriptor of this process but the standard ones.
pub fn keep_descriptors() {
    // SAFETY: closes nothing; descriptors that exist get the flag that all of the standard library's have.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}

/// Ends this process at once, by one system call.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: it does not return; nothing of the standard library runs any more.
    unsafe { libc::_exit(code) }
}

/// Lets the kernel take the exit status of this process's children.
pub(crate) fn ignore_children() {
    // SAFETY: sets an action that runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Undoes [`ignore_children`].
pub(crate) fn notice_children() {
    // SAFETY: sets the default action, which runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Waits for ever, by no other call than `ppoll`.
pub(crate) fn wait_for_ever() -> ! {
    loop {
        let no_file = std::ptr::null_mut::<libc::pollfd>();
        // SAFETY: no files, no time and no mask: the kernel reads and writes nothing.
        unsafe { libc::syscall(libc::SYS_ppoll, no_file, 0, 0, 0, 0) };
    }
}

/// Adopts orphans: descendants whose parent ended become children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: takes one integer and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends `signal`, real-time signals included, to a child of this process that has not been waited for.
pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: takes two integers and touches no memory. That the process is gone already is no error here.
    unsafe { libc::kill(pid, signal) };
}
