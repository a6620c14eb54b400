//! Blocking file system calls on tokio's blocking pool.

/// Runs `work`, which may block on the file system, on tokio's blocking pool. A panic is resumed in the caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
