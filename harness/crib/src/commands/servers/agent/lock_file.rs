//! A lock file of the agent (`--lock-file`); the agent exits when another process opens the file, if `--exit-on-lock-contention` is
//! set.
//!
//! Source: Kubernetes 1.36, cmd/kubelet/app/server.go run, watchForLockfileContention.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt as _;

/// The lock file and its options.
#[derive(Clone, Debug)]
pub(crate) struct LockFile {
    /// The file; created if it does not exist.
    pub(crate) path: PathBuf,
    /// Whether the agent exits when another process opens the file.
    pub(crate) exit_on_contention: bool,
}

/// Why the file cannot be locked.
#[derive(Debug, thiserror::Error)]
#[error("failed to lock --lock-file {}", path.display())]
pub(super) struct LockFileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A locked file. Dropping it releases the lock.
pub(super) struct HeldLock {
    _file: File,
    watched: Option<PathBuf>,
}

impl LockFile {
    /// Locks the file; waits while another process holds the lock.
    pub(super) fn acquire(&self) -> Result<HeldLock, LockFileError> {
        let failed = |source| LockFileError { path: self.path.clone(), source };
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(&self.path).map_err(failed)?;
        tracing::info!(path = %self.path.display(), "locking");
        file.lock().map_err(failed)?;
        let watched = self.exit_on_contention.then(|| self.path.clone());
        Ok(HeldLock { _file: file, watched })
    }
}

impl HeldLock {
    /// Returns when another process opens or removes the file; never returns unless `exit_on_contention` is set.
    pub(super) async fn contended(&self) {
        let Some(path) = &self.watched else {
            return std::future::pending().await;
        };
        let watched = watch(path);
        let mut events = match watched {
            Ok(events) => events,
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "failed to watch the lock file");
                return;
            }
        };
        // If the watch fails, the agent exits rather than risk running next to another agent.
        let _ = events.next().await;
    }
}

fn watch(path: &PathBuf) -> io::Result<EventStream<Vec<u8>>> {
    let inotify = Inotify::init()?;
    inotify.watches().add(path, WatchMask::OPEN | WatchMask::DELETE_SELF)?;
    inotify.into_event_stream(vec![0; 4096])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn open_of_another_process_contends() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let held = LockFile { path: path.clone(), exit_on_contention: true }.acquire().unwrap();
        let mut contended = Box::pin(held.contended());
        let short = Duration::from_millis(50);
        assert!(tokio::time::timeout(short, &mut contended).await.is_err(), "nobody opens it");
        let other = File::open(&path).unwrap();
        assert!(other.try_lock().is_err(), "it is locked");
        contended.await;
    }
}
