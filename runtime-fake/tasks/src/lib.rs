//! Tasks: a future or a function in a box is one type for each type of result, where tokio compiles a task for each future.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// A future of its own, such as a [`tokio::task::JoinSet`] takes.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Puts a future into a box.
pub fn task<T>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Box::pin(work)
}

/// As `tokio::spawn`.
///
/// # Panics
/// Outside a runtime, as that does.
#[track_caller]
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task(work))
}

/// As `tokio::task::spawn_blocking`.
///
/// # Panics
/// Outside a runtime, as that does.
#[track_caller]
pub fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work)
}
