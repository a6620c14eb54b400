//! Resource limits of this process (setrlimit(2)). A limit that is too low is reported in one line before anything is created.

use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use thiserror::Error;

use crate::exit::Exit;

const KIB: u64 = 1 << 10;

/// The minimum of each limit, with its unit and the option of `ulimit`. With less, the libraries panic, abort or crash.
const NEEDS: [(Resource, u64, u64, &str, char); 5] = [
    (Resource::RLIMIT_STACK, 4096 * KIB, KIB, "KiB of stack", 's'),
    (Resource::RLIMIT_NOFILE, 64, 1, "open files", 'n'),
    (Resource::RLIMIT_AS, (512 << 10) * KIB, KIB, "KiB of address space", 'v'),
    (Resource::RLIMIT_DATA, (128 << 10) * KIB, KIB, "KiB of data", 'd'),
    (Resource::RLIMIT_FSIZE, 1024 * KIB, KIB, "KiB per file", 'f'),
];

/// Whether this process is a server.
static SERVES: AtomicBool = AtomicBool::new(false);

/// After this call, a panic for lack of threads, memory or descriptors ends one call instead of the process, so that other
/// processes that exhaust a resource cannot end a server.
pub fn serve_on() {
    SERVES.store(true, Ordering::Relaxed);
}

/// A hard limit is too low.
#[derive(Debug, Error)]
#[error(
    "this process is limited to {limit} {what}, but needs at least {least}: raise the hard limit (ulimit -H{option})"
)]
pub struct TooLow {
    limit: u64,
    least: u64,
    what: &'static str,
    option: char,
}

/// Raises soft limits that are too low. Installs a panic hook: if a library panics because the kernel refuses a thread, memory or a
/// descriptor, the hook prints one line with `log` and exits. Must be called first, with little stack in use.
///
/// # Errors
/// Fails if a hard limit is too low.
pub fn prepare(log: fn(&str)) -> Result<(), TooLow> {
    for (resource, least, unit, what, option) in NEEDS {
        let Ok((soft, hard)) = getrlimit(resource) else {
            continue;
        };
        if soft < least && setrlimit(resource, least.min(hard), hard).is_err() || hard < least {
            return Err(TooLow { limit: hard / unit, least: least / unit, what, option });
        }
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let reason = panic.payload_as_str().and_then(shortage);
        let Some(reason) = reason.filter(|_| !SERVES.load(Ordering::Relaxed)) else {
            return usual(panic);
        };
        log(&reason);
        std::process::exit(Exit::NoRuntime.code().into());
    }));
    Ok(())
}

/// Fails unless this many threads can exist at the same time. The kernel counts processes against the same limit. tokio uses a
/// thread for each blocking task; with too few threads, it waits forever.
///
/// # Errors
/// Fails if a thread cannot be started.
pub fn ensure_threads(count: usize) -> Result<(), String> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let _closed = gate.write();
        let wait = || drop(gate.read());
        let start = |_| thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, wait);
        (0..count).map(start).find_map(Result::err)
    })
    .map_or(Ok(()), |error| {
        let forbidden = error.raw_os_error() == Some(nix::libc::EPERM);
        let needed = if forbidden { String::new() } else { format!(", and {count} are needed") };
        Err(format!("{}{needed}", no_thread(&error)))
    })
}

/// glibc falls back to clone only if clone3 is missing (ENOSYS), not if a seccomp profile forbids it.
fn no_thread(error: &io::Error) -> String {
    let error = match error.raw_os_error() {
        Some(nix::libc::EPERM) => format!("{error}: allow {THREAD_CALLS}"),
        _ => explained(error),
    };
    format!("failed to start a thread: {error}")
}

const THREAD_CALLS: &str =
    "the system calls clone3 and clone in the seccomp profile, or make it fail clone3 with ENOSYS";

const PROCESSES: &str = "the limit of processes (ulimit -u, pids.max of the cgroup)";
const FILES: &str = "the limit of open files (ulimit -n)";
const MEMORY: &str = "the memory limits (ulimit -v, ulimit -d)";

/// A system error, with the limit to raise if a limit is the cause.
#[must_use]
pub fn explained(error: &io::Error) -> String {
    let limit = match error.raw_os_error() {
        Some(nix::libc::EAGAIN) => PROCESSES,
        Some(nix::libc::EMFILE | nix::libc::ENFILE) => FILES,
        Some(nix::libc::ENOMEM) => MEMORY,
        _ => return error.to_string(),
    };
    format!("{error}: raise {limit}")
}

/// The resource that the process lacks, if this is why a library panics. Panic messages contain the system error in one of two
/// forms.
fn shortage(panic: &str) -> Option<String> {
    let after = |mark| panic.split_once(mark).map(|(_, rest): (&str, &str)| rest);
    let digits = after("Os { code: ").or_else(|| after("(os error "))?;
    let code = digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let error = io::Error::from_raw_os_error(code);
    match code {
        nix::libc::EAGAIN => Some(no_thread(&error)),
        nix::libc::EPERM if panic.contains("spawn") && panic.contains("thread") => {
            Some(no_thread(&error))
        }
        nix::libc::EMFILE | nix::libc::ENFILE => {
            Some(format!("failed to open a file: {}", explained(&error)))
        }
        nix::libc::ENOMEM => Some(format!("failed to allocate memory: {}", explained(&error))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(nix::libc::EAGAIN, ": raise the limit of processes (ulimit -u, pids.max of the cgroup)")]
    #[case(nix::libc::EMFILE, ": raise the limit of open files (ulimit -n)")]
    #[case(nix::libc::ENOMEM, ": raise the memory limits (ulimit -v, ulimit -d)")]
    #[case(nix::libc::ENOENT, "No such file or directory (os error 2)")]
    fn errors_of_the_system_name_the_limit_to_raise(#[case] code: i32, #[case] end: &str) {
        let text = explained(&io::Error::from_raw_os_error(code));
        assert!(text.ends_with(end), "{text}");
    }

    #[rstest]
    #[case::too_many(
        nix::libc::EAGAIN,
        ": raise the limit of processes (ulimit -u, pids.max of the cgroup)"
    )]
    #[case::forbidden(
        nix::libc::EPERM,
        ": allow the system calls clone3 and clone in the seccomp profile, or make it fail clone3 with ENOSYS"
    )]
    #[case::other(nix::libc::EINVAL, "Invalid argument (os error 22)")]
    fn thread_that_cannot_start_names_cause(#[case] code: i32, #[case] end: &str) {
        let text = no_thread(&io::Error::from_raw_os_error(code));
        assert!(text.starts_with("failed to start a thread: ") && text.ends_with(end), "{text}");
    }

    #[rstest]
    #[case(
        "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
        "ulimit -u"
    )]
    #[case(
        "failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"R\" }",
        "ulimit -u"
    )]
    #[case("OS can't spawn worker thread: Operation not permitted (os error 1)", "clone3")]
    #[case(
        "failed to spawn thread: Os { code: 1, kind: PermissionDenied, message: \"O\" }",
        "clone3"
    )]
    #[case("called `Result::unwrap()` on an `Err` value: Os { code: 1, kind: X }", "")]
    #[case("failed to create UnixStream: Os { code: 24, kind: Uncategorized }", "ulimit -n")]
    #[case("x: Os { code: 12, kind: OutOfMemory }", "ulimit -v")]
    #[case("called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound }", "")]
    #[case("called `Result::unwrap()` on an `Err` value: Os { code: 111, kind: X }", "")]
    #[case("index out of bounds: the len is 11", "")]
    fn resource_panics_are_distinguished(#[case] panic: &str, #[case] raise: &str) {
        let reason = shortage(panic);
        assert_eq!(reason.is_some(), !raise.is_empty(), "{reason:?}");
        assert!(reason.unwrap_or_default().contains(raise));
    }

    #[test]
    fn many_threads_can_be_had_at_once() {
        ensure_threads(40).unwrap();
    }
}
