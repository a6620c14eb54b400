//! System calls that no library wraps. They are for the keeper, which has one thread.
#![allow(unsafe_code, reason = "clone, mount_setattr and unshare have no safe wrapper")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::thread::UnshareFlags;

use crate::kernel::failure::{Context as _, Step};
use crate::kernel::seccomp::Filter;

/// The side of a [`fork`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old process, with the child's process id.
    Parent(i32),
}

/// Forks, with the child in the new namespaces that `flags` (`CLONE_NEW*`) name.
///
/// The keeper has a single thread, so the child may run any code.
pub(crate) fn fork(flags: libc::c_int) -> io::Result<Fork> {
    debug_assert_eq!(
        std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count),
        1,
        "only a process with one thread may fork and go on"
    );
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and without a new stack this is fork(2): the child has a copy of all memory. The caller
    // is the only thread, so no other thread can hold a lock.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => Ok(Fork::Parent(pid)),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Forks a sibling: a child of this process's parent. Unlike [`fork`] it does not read `/proc`, which may be a
/// container's by now.
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

/// [`fork`], with the child in the v2 cgroup whose directory is `cgroup`. Moving a process into a cgroup takes the
/// kernel 10 ms and more (an RCU grace period); creating it there takes no extra time.
pub(crate) fn fork_inside(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let Some(cgroup) = cgroup else {
        return fork(flags);
    };
    // SAFETY: the structure holds only integers, for which 0 is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from(flags.unsigned_abs()) | CLONE_INTO_CGROUP;
    // With CLONE_PARENT the child inherits the caller's exit signal, and clone3 rejects an explicit one.
    if flags & libc::CLONE_PARENT == 0 {
        arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    }
    arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    // SAFETY: as in `fork`: no CLONE_VM and no stack, and the caller is the only thread; the structure lives until the
    // call returns and its size is passed.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
    };
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => Ok(Fork::Parent(pid)),
        Ok(_) | Err(_) => match io::Error::last_os_error() {
            // A seccomp filter rejects clone3, for example around a container in a container.
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
            // The child has no way to report an error here; the keeper reports its early exit.
            std::process::exit(1);
        }
    }
    Ok(forked)
}

/// Makes the mount whose root is `mount` read-only; with `recursive` also the mounts below it.
pub fn set_read_only(mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    set_attributes(mount, libc::MOUNT_ATTR_RDONLY, 0, 0, recursive)
}

/// Sets the propagation of a mount and the mounts below it: `MS_PRIVATE`, `MS_SLAVE` or `MS_SHARED`.
pub(crate) fn set_propagation(mount: BorrowedFd<'_>, propagation: libc::c_ulong) -> io::Result<()> {
    set_attributes(mount, 0, propagation, 0, true)
}

/// Adds attributes (`MOUNT_ATTR_*`) to a mount and the mounts below it, and sets their propagation.
pub(crate) fn add_attributes(
    mount: BorrowedFd<'_>,
    attributes: u64,
    propagation: libc::c_ulong,
) -> io::Result<()> {
    set_attributes(mount, attributes, propagation, 0, true)
}

/// Makes a detached mount an idmapped mount of a user namespace; not the mounts below it.
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
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation, userns_fd };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the structure lives until the call returns and its size is passed.
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
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Requests the shortest slice from the scheduler, so that this thread preempts busy programs when it wakes up: a client waits
/// for its answer, and its work is short. Takes effect from Linux 6.12 on (EEVDF: `sched_runtime` of a normal thread is its
/// slice). New threads and processes get the default slice.
pub fn take_short_turns() {
    // SAFETY: the structure holds only integers, for which 0 is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the structure lives until the call returns and its size is passed.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    // Do not change another scheduling policy, or a negative nice value, which children would lose through
    // SCHED_FLAG_RESET_ON_FORK.
    if known != 0 || attributes.sched_policy != 0 || attributes.sched_nice < 0 {
        return;
    }
    attributes.sched_runtime = SHORT_TURN;
    attributes.sched_flags |= u64::from(libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs());
    // SAFETY: as above. Without success everything stays as it was.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// The shortest slice that the kernel takes, in nanoseconds.
const SHORT_TURN: u64 = 100_000;

/// Makes the kernel kill this process when its parent ends, for whatever reason (PR_SET_PDEATHSIG).
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: takes one integer and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets whether other processes may inspect this one (`/proc/PID/exe`, `ptrace`).
pub(crate) fn set_dumpable(yes: bool) -> io::Result<()> {
    // SAFETY: takes one integer and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(yes)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives every signal its default action and unblocks all, as a program expects at its start.
pub(crate) fn reset_signals() {
    // The kernel's `struct sigaction` for SIG_DFL: handler, flags, restorer and mask are 0.
    let default = [0_u64; 4];
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: sets a default action, from a structure of the kernel's size. By the system call, because C libraries keep
        // two signals for themselves. It fails for signals whose action cannot be changed, which is harmless.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null::<u64>(),
                size_of::<u64>(),
            )
        };
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
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with a null pointer and, as the strings that they point to, outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// [`exec`] of a program on the host. Returns only on failure.
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

/// Loads a seccomp filter for this process.
pub(crate) fn load_filter(filter: &Filter) -> io::Result<()> {
    let mut program: Vec<libc::sock_filter> = filter
        .program
        .iter()
        .map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
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
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor except the standard ones and `keep`: a forked process has the keeper's until `execve`.
pub(crate) fn close_others(keep: &mut [i32]) {
    keep.sort_unstable();
    let mut from = 3;
    for end in keep.iter().copied().chain([i32::MAX]) {
        if from < end {
            // SAFETY: the caller is a fork that no longer uses any of these and never returns to code that does.
            unsafe { libc::syscall(libc::SYS_close_range, from, end - 1, 0) };
        }
        from = end.saturating_add(1);
    }
}

/// Closes every descriptor of this process.
pub(crate) fn close_all() {
    // SAFETY: the caller is a fork that no longer uses its descriptors and never returns to code that does.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

/// linux/keyctl.h.
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

/// Joins a new session keyring, empty and without a name: the inherited keyring belongs to the user who started the daemon
/// (session-keyring(7)). A kernel without keys, or a filter that rejects the call, is not an error.
pub(crate) fn join_new_keyring() -> io::Result<()> {
    let name = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the kernel reads no memory.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name) };
    if result >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)) =>
        {
            Ok(())
        }
        error => Err(error),
    }
}

/// Closes all but the standard descriptors: a new keeper must not inherit the descriptors that its daemon was started with.
pub(crate) fn close_inherited() {
    close_others(&mut []);
}

/// Sets close-on-exec on every descriptor of this process except the standard ones.
pub fn set_close_on_exec() {
    // SAFETY: closes nothing; existing descriptors get the flag that the standard library sets on all of its own.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Ends this process immediately, with one system call.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: it does not return; no code of the standard library runs afterwards.
    unsafe { libc::_exit(code) }
}

/// Makes the kernel reap this process's children (SIGCHLD is ignored).
pub(crate) fn ignore_children() {
    // SAFETY: sets an action that runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Makes a write beyond RLIMIT_FSIZE fail (SIGXFSZ is ignored); by default the kernel would kill this process.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: sets an action that runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Undoes [`ignore_children`].
pub(crate) fn stop_ignoring_children() {
    // SAFETY: sets the default action, which runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Waits forever, with no system call but `ppoll`.
pub(crate) fn wait_for_ever() -> ! {
    loop {
        let no_file = std::ptr::null_mut::<libc::pollfd>();
        // SAFETY: without descriptors, timeout and signal mask the kernel reads and writes no memory.
        unsafe { libc::syscall(libc::SYS_ppoll, no_file, 0, 0, 0, 0) };
    }
}

/// Adopts orphans: descendants whose parent ended become children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: takes one integer and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends `signal`, real-time signals included, to a child that this process has not reaped.
pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: takes two integers and touches no memory. It is no error if the process is already gone.
    unsafe { libc::kill(pid, signal) };
}

/// Keeps the container's processes from inspecting this one, whose /proc/PID/exe is the runtime's own program. It lasts
/// until `execve`.
pub(crate) fn hide() -> Step {
    set_dumpable(false).context("hide from the container")
}

/// `unshare` for the keeper and its forks.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: rustix marks it unsafe because of CLONE_FILES, which would split the descriptors that other threads own: it is not
    // among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Joins a new session keyring. An ordinary user's quota may be small (keyrings(7), maxkeys): once it is exceeded, the
/// process keeps its pod's keyring, which is the keeper's.
pub(crate) fn own_keyring() -> Step {
    match join_new_keyring() {
        Err(error) if error.raw_os_error() == Some(libc::EDQUOT) => Ok(()),
        joined => joined.context("make a session keyring"),
    }
}
