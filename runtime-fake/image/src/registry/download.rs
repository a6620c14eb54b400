//! Downloads a blob once for all pulls that need it from the same origin: another registry may serve it slower, or never to its
//! end. The download can be read while it grows, and is dropped with its last reader.
//!
//! The bytes go to an unnamed file, so that a SIGKILL leaves nothing. After a broken connection, the download resumes at its
//! offset on a new one. A reader reaches the end only if the digest of the whole content is the promised one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use sha2::Digest as _;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ContentError;
use crate::formats::digest::Digest;

use super::peer::Window;
use super::retry;
use super::session::{Session, blob_doing};
use crate::error::PullError;

/// Limit on chunks between the network and the disk: a few hundred kilobytes.
const QUEUE: usize = 16;

/// The progress of a download.
#[derive(Debug, Clone)]
enum Progress {
    /// This many bytes are in the file.
    Running(u64),
    /// The download is complete and has the promised digest.
    Done(u64),
    /// The download failed.
    Failed(PullError),
}

/// The blob to download.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlobRequest {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// A download. Dropping the last handle cancels it.
pub(crate) struct Download {
    file: File,
    progress: watch::Receiver<Progress>,
    gone: CancellationToken,
}

impl Drop for Download {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// The running downloads.
pub(crate) struct Downloads {
    spool: PathBuf,
    tasks: TaskTracker,
    /// By origin and digest.
    running: Mutex<HashMap<(String, Digest), Weak<Download>>>,
}

impl Downloads {
    /// Unnamed files are created in `spool`.
    pub(crate) fn new(spool: &Path, tasks: TaskTracker) -> Self {
        Self { spool: spool.to_owned(), tasks, running: Mutex::default() }
    }

    /// Joins the download of this blob, or starts it when `slots` has a permit. Also returns whether another pull had
    /// started it.
    pub(crate) fn join(
        &self,
        wanted: BlobRequest,
        session: &Arc<Session>,
        slots: &Arc<Semaphore>,
    ) -> Result<(Arc<Download>, bool), PullError> {
        // Only whole entries are ever inserted, so a poisoned lock is harmless.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, download| download.strong_count() > 0);
        let key = (session.peer.endpoint.origin(), wanted.digest);
        if let Some(download) = running.get(&key).and_then(Weak::upgrade)
            && !matches!(*download.progress.borrow(), Progress::Failed(_))
        {
            return Ok((download, true));
        }
        let refuse = |error| PullError::Io {
            doing: "make a file to download into",
            source: Arc::new(error),
        };
        let file = tempfile::tempfile_in(&self.spool).map_err(refuse)?;
        let into = file.try_clone().map_err(refuse)?;
        let (tell, progress) = watch::channel(Progress::Running(0));
        let gone = CancellationToken::new();
        let fetch = Fetch {
            wanted,
            session: session.clone(),
            slots: slots.clone(),
            tell,
            tasks: self.tasks.clone(),
        };
        let until = gone.clone();
        self.tasks.spawn(tasks::boxed(async move {
            let tell = fetch.tell.clone();
            // Cancel-safe: the file has no name, and the writer ends when the queue is closed.
            let ended = tokio::select! {
                ended = fetch.run(into) => ended,
                () = until.cancelled() => return,
            };
            if let Err(error) = ended {
                tell.send_replace(Progress::Failed(error));
            }
        }));
        let download = Arc::new(Download { file, progress, gone });
        running.insert(key, Arc::downgrade(&download));
        Ok((download, false))
    }
}

struct Fetch {
    wanted: BlobRequest,
    session: Arc<Session>,
    slots: Arc<Semaphore>,
    tell: watch::Sender<Progress>,
    tasks: TaskTracker,
}

impl Fetch {
    async fn run(self, file: File) -> Result<(), PullError> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.map_err(|_| PullError::Cancelled)?;
        let (queue, chunks) = mpsc::channel(QUEUE);
        let tell = self.tell.clone();
        let writer = self.tasks.spawn_blocking(move || write(file, chunks, &tell));
        let fetched = self.fetch(&queue).await;
        drop(queue);
        let written = writer.await.map_err(|_| PullError::Cancelled)?;
        let (digest, bytes) = written.map_err(|error| PullError::Io {
            doing: "keep what a registry sent",
            source: Arc::new(error),
        })?;
        fetched?;
        let (what, expected) = (format!("blob {}", self.wanted.digest), self.wanted.digest);
        ContentError::same_digest(what, expected, digest)
            .map_err(|problem| self.session.peer.content(problem))?;
        self.tell.send_replace(Progress::Done(bytes));
        Ok(())
    }

    /// Sends the whole blob to the writer, over as many connections as necessary.
    async fn fetch(&self, queue: &mpsc::Sender<Bytes>) -> Result<(), PullError> {
        let (mut have, mut failures) = (0, 0);
        let mut window = Window::begin();
        while have < self.wanted.size {
            let before = have;
            let Err(error) = self.connection(queue, &mut have, &mut window).await else {
                continue;
            };
            if retry::is_progress(have - before) {
                failures = 0;
            }
            let paused = Instant::now();
            self.session.again(&mut failures, error).await?;
            window.exclude(paused.elapsed());
        }
        Ok(())
    }

    /// Downloads over one connection.
    async fn connection(
        &self,
        queue: &mpsc::Sender<Bytes>,
        have: &mut u64,
        window: &mut Window,
    ) -> Result<(), PullError> {
        let doing = blob_doing(&self.wanted.digest.to_string());
        let (start, mut response) = self.session.blob(&self.wanted.digest, *have).await?;
        window.answered(*have);
        // A registry without range support sends the blob from its start.
        let mut skip = *have - start;
        loop {
            let next = response.chunk().await;
            let next = next.map_err(|error| self.session.peer.broken(&error, &doing))?;
            let Some(mut chunk) = next else {
                return self.has_promised_size(*have);
            };
            let passed = skip.min(chunk.len() as u64);
            skip -= passed;
            let chunk = chunk.split_off(usize::try_from(passed).unwrap_or(usize::MAX));
            *have += chunk.len() as u64;
            if *have > self.wanted.size {
                return self.has_promised_size(*have);
            }
            self.session.peer.check_speed(window, *have, &doing)?;
            // The writer has ended: its error is reported instead.
            if !chunk.is_empty() && queue.send(chunk).await.is_err() {
                return Err(PullError::Cancelled);
            }
        }
    }

    fn has_promised_size(&self, have: u64) -> Result<(), PullError> {
        let what = format!("blob {}", self.wanted.digest);
        ContentError::same_size(what, self.wanted.size, have)
            .map_err(|problem| self.session.peer.content(problem))
    }
}

/// Hashes and writes the chunks, on a thread that may block.
fn write(
    mut file: File,
    mut chunks: mpsc::Receiver<Bytes>,
    tell: &watch::Sender<Progress>,
) -> io::Result<(Digest, u64)> {
    let (mut hash, mut bytes) = (sha2::Sha256::new(), 0);
    while let Some(chunk) = chunks.blocking_recv() {
        hash.update(&chunk);
        file.write_all(&chunk)?;
        bytes += chunk.len() as u64;
        tell.send_replace(Progress::Running(bytes));
    }
    Ok((Digest::finish(hash), bytes))
}

/// Reads a download from its start and waits for missing bytes, on a blocking thread of the runtime.
pub(crate) struct DownloadReader {
    download: Arc<Download>,
    at: u64,
    /// Cancelled when the caller has cancelled the pull.
    cancelled: CancellationToken,
    handle: tokio::runtime::Handle,
}

impl DownloadReader {
    pub(crate) fn new(
        download: Arc<Download>,
        cancelled: CancellationToken,
        handle: tokio::runtime::Handle,
    ) -> Self {
        Self { download, at: 0, cancelled, handle }
    }
}

impl Read for DownloadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let broken = |error| io::Error::other(ContentError::Lost { source: Box::new(error) });
        loop {
            if self.cancelled.is_cancelled() {
                return Err(broken(PullError::Cancelled));
            }
            let progress = self.download.progress.borrow().clone();
            let have = match progress {
                Progress::Running(have) => have,
                Progress::Done(have) if have == self.at => return Ok(0),
                Progress::Done(have) => have,
                Progress::Failed(error) => return Err(broken(error)),
            };
            if have > self.at {
                let most = usize::try_from(have - self.at).unwrap_or(usize::MAX).min(buffer.len());
                let n = self.download.file.read_at(&mut buffer[..most], self.at)?;
                self.at += n as u64;
                return Ok(n);
            }
            let mut progress = self.download.progress.clone();
            let at = self.at;
            let ended = self.handle.block_on(async {
                tokio::select! {
                    changed = progress.wait_for(|now| !matches!(now, Progress::Running(have) if *have <= at)) => changed.is_err(),
                    () = self.cancelled.cancelled() => false,
                }
            });
            // The task ended without a result, because the daemon stops.
            if ended {
                return Err(broken(PullError::Cancelled));
            }
        }
    }
}
