//! tokio tasks that compile to less machine code: tokio compiles a task for each future and each scheduler; with these functions,
//! one for each type of result (docs/performance.md).
//!
//! The package also decides where blocking file system calls run. A call on another thread costs two wake-ups, more than the
//! calls on a pod's few small files take, and a start of a pod had ten of them. So brief calls stay on their thread, which first
//! hands its other tasks to other threads, if there are any. Calls that may take long, or whose file system may not answer, run
//! on tokio's blocking pool.

use std::pin::Pin;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinError, JoinHandle};

/// A boxed future.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Boxes a future for [`tokio::task::JoinSet::spawn`] and similar functions.
pub fn boxed<T>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Box::pin(work)
}

/// Like `tokio::spawn`.
///
/// # Panics
/// Outside a runtime, like `tokio::spawn`.
#[track_caller]
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(work))
}

/// Like `tokio::task::spawn_blocking`.
///
/// # Panics
/// Outside a runtime, like `tokio::task::spawn_blocking`.
#[track_caller]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work)
}

/// Runs `work`, which may take long, on tokio's blocking pool: the caller can stop waiting for it. A panic is resumed in the
/// caller. If the runtime ends before the work begins, the future never completes, and is dropped with the runtime.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match output(spawn_blocking(work).await) {
        Some(done) => done,
        None => std::future::pending().await,
    }
}

/// The output of a task that has ended; `None` if it was aborted.
///
/// # Panics
/// Resumes the task's panic, if it ended with one: what depends on the task must not go on without it.
pub fn output<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended {
        Ok(output) => Some(output),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

/// Runs `work`, a few calls on small files of the agent's own that the start of a container waits for. Other threads run the
/// other tasks meanwhile; on a runtime with one thread, the other tasks wait, as during any computation.
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

    #[tokio::test]
    async fn output_of_a_task_resumes_its_panic() {
        assert_eq!(output(spawn(async { 1 }).await), Some(1));
        let aborted = spawn(std::future::pending::<()>());
        aborted.abort();
        assert_eq!(output(aborted.await), None);
        let panicking = spawn(async { panic!("on purpose") });
        let joining = spawn(async move { output::<()>(panicking.await) });
        let error = joining.await.unwrap_err();
        assert!(error.is_panic() && error.to_string().contains("on purpose"), "{error}");
    }

    #[test]
    fn blocking_work_is_awaited_when_runtime_shuts_down() {
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
