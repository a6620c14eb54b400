//! File system calls that block, and where they run.
//!
//! A call on another thread costs two wake-ups, one there and one back: more than the few small files of a pod take. So what
//! is brief stays on its thread, which first gives its other tasks away; what may last goes to tokio's blocking pool.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work`, which may last, on tokio's blocking pool: the caller can give up waiting for it. A panic is resumed in the
/// caller. When the runtime ends before the work begins, the caller waits until it is dropped with everything else.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn work_that_the_end_of_the_runtime_forestalls_is_waited_for() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let _entered = handle.enter();
        let mut waiting = pin!(blocking(|| ()));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(waiting.as_mut().poll(&mut context).is_pending());
        }
    }
}
