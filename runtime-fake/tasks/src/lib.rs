//! Tasks of tokio for which less machine code is compiled: tokio compiles a task for each future and each scheduler, here one for each
//! type of result (docs/performance.md).
//!
//! And where file system calls that block run. A call on another thread costs two wake-ups, one there and one back: more than the few
//! small files of a pod take, and a start of a pod had ten of them. So what is brief stays on its thread, which first gives its other
//! tasks away if there are other threads; what may last, because it is long or on a file system that may not answer, goes to tokio's
//! blocking pool.

use std::pin::Pin;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// A future in a box.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A future for [`tokio::task::JoinSet::spawn`] and its like.
pub fn boxed<T>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Box::pin(work)
}

/// As `tokio::spawn`.
///
/// # Panics
/// Outside a runtime, as that does.
#[track_caller]
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(work))
}

/// As `tokio::task::spawn_blocking`.
///
/// # Panics
/// Outside a runtime, as that does.
#[track_caller]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work)
}

/// Runs `work`, which may last, on tokio's blocking pool: the caller can give up waiting for it. A panic is resumed in the
/// caller. When the runtime ends before the work begins, the caller waits until it is dropped with everything else.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
    }
}

/// Runs `work`, a few calls on small files of the agent's own that a start of a container waits for. Other threads go on with other
/// tasks meanwhile; where there is one thread, the tasks wait, as while any of them computes.
pub fn brief<T>(work: impl FnOnce() -> T) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        work()
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
