//! File system calls that block, and where they run.
//!
//! A call on another thread costs two wake-ups, one there and one back: more than the few small files of a pod take. So what
//! is brief stays on its thread, which first gives its other tasks away; what may last goes to tokio's blocking pool.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work`, which may last, on tokio's blocking pool: the caller can give up waiting for it. A panic is resumed in the
/// caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Runs `work`, a few calls on small files that a start of a container waits for. Other tasks go on meanwhile, but nothing
/// else of the caller's own does.
pub(crate) async fn brief<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        // There is no other thread that could go on with its tasks.
        blocking(work).await
    }
}
