//! Work done inside another network namespace, on a thread of its own.
//!
//! A thread that changed its network namespace is never given back to anybody: it does one piece of work and ends.
//! Sockets stay in the namespace they were made in, so what such a thread opens can be used from everywhere.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

/// Runs `work` on a fresh thread in the namespace, or in the current one when none is given, and returns what it
/// returned. The error is that of starting the thread or of entering the namespace; a panic of `work` goes on here.
pub(super) fn within<T: Send>(
    namespace: Option<BorrowedFd<'_>>,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let Some(namespace) = namespace else {
        return Ok(work());
    };
    on_a_thread(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    })
}

/// Makes a network namespace and opens it; it lives as long as the descriptor or anything in it.
pub(super) fn make() -> io::Result<OwnedFd> {
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)?;
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
