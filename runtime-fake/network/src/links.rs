//! Interfaces and network namespaces, through netlink.

pub(crate) mod deletion;
pub(crate) mod link_query;
pub(crate) mod netlink;
pub(crate) mod pod_netns;
pub(crate) mod requests;

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::{io, thread};

use nix::sched::{CloneFlags, setns, unshare};

// Runs work inside another network namespace, on a thread of its own.
//
// A thread that changed its network namespace is never reused: it runs one closure and ends. A socket stays in the namespace that
// it was created in, so any thread can use it afterwards.

/// Runs `work` on a new thread in the namespace, or on this thread if `namespace` is `None`, and returns its result. The error is
/// a failure to start the thread or enter the namespace; a panic of `work` is resumed here.
pub(crate) fn within<T: Send>(
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

/// Creates a network namespace and opens it; it lives until the descriptor is closed and nothing else uses it.
pub(crate) fn make_namespace() -> io::Result<OwnedFd> {
    make_namespace_with(|| Ok(())).map(|(namespace, ())| namespace)
}

/// [`make_namespace`], after which `inside` runs there.
pub(crate) fn make_namespace_with<T: Send>(
    inside: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<(OwnedFd, T)> {
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let namespace = File::open("/proc/thread-self/ns/net")?;
        Ok((namespace.into(), inside()?))
    })
}

/// Runs `work` on a thread of its own, which nothing uses afterwards.
pub(crate) fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
