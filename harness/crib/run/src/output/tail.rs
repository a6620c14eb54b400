//! Follows the log files of containers: one task owns the inotify instance and all open files, and emits complete lines.
//!
//! A directory belongs to one container and contains one file for each attempt: `0.log`, `1.log`, … Files are read in this order,
//! each to its end before the next, so that a restart that was not noticed loses no line.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness::cri_log::{Joiner, Line};
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::StreamExt as _;

use crate::output::label::Label;
use crate::output::printer::{Print, Printer};

/// A container whose logs are followed.
struct Followed {
    label: Arc<Label>,
    dir: PathBuf,
    /// Its latest attempt, if this attempt has ended.
    ended: Option<u32>,
}

/// Commands to the task.
enum Order {
    Follow(Followed),
    Finish(oneshot::Sender<()>),
}

/// A handle on the task.
#[derive(Debug)]
pub(crate) struct Tail {
    orders: mpsc::UnboundedSender<Order>,
}

/// The maximum number of queued batches of lines; reading waits for the printer when it is reached.
const BATCHES: usize = 64;
/// The size of a read, in bytes.
const CHUNK: usize = 64 * 1024;

impl Tail {
    /// Starts the task. Lines go to `printer`.
    pub(crate) fn start(printer: Printer) -> io::Result<Self> {
        let stream = Inotify::init()?.into_event_stream(vec![0; 16 * 1024])?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let lines = Lines { printer, permits: Arc::new(Semaphore::new(BATCHES)) };
        let task =
            Task { watches: stream.watches(), logs: HashMap::new(), waiting: Vec::new(), lines };
        tasks::spawn(task.run(stream, inbox));
        Ok(Self { orders })
    }

    /// Follows the logs in `dir` from their beginning. Idempotent; a repeated call retries a `dir` that did not exist. `ended` is
    /// the latest attempt, if it has ended: its last line is emitted even without a newline.
    pub(crate) fn follow(&self, label: Arc<Label>, dir: PathBuf, ended: Option<u32>) {
        // Fails if the task has finished.
        let _ = self.orders.send(Order::Follow(Followed { label, dir, ended }));
    }

    /// Reads every file to its end; returns when the printer has received all lines. Ends the task.
    pub(crate) async fn finish(&self) {
        let (done, finished) = oneshot::channel();
        if self.orders.send(Order::Finish(done)).is_ok() {
            let _ = finished.await;
        }
    }
}

/// A handle to the printer; sending waits if the printer is slow.
struct Lines {
    printer: Printer,
    permits: Arc<Semaphore>,
}

impl Lines {
    async fn send(&self, label: &Arc<Label>, lines: Vec<Line>) {
        if lines.is_empty() {
            return;
        }
        // The semaphore is never closed.
        if let Ok(permit) = self.permits.clone().acquire_owned().await {
            self.printer.print(Print::Logs { label: label.clone(), lines, permit });
        }
    }
}

struct Task {
    watches: Watches,
    logs: HashMap<WatchDescriptor, Log>,
    /// Directories that did not exist yet.
    waiting: Vec<Followed>,
    lines: Lines,
}

impl Task {
    async fn run(
        mut self,
        mut stream: EventStream<Vec<u8>>,
        mut inbox: mpsc::UnboundedReceiver<Order>,
    ) {
        loop {
            // Both arms are cancel-safe: a channel and a stream keep an unreceived item.
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Follow(followed)) => self.follow(followed).await,
                    Some(Order::Finish(done)) => {
                        self.finish().await;
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
                event = stream.next() => match event {
                    Some(Ok(event)) => {
                        let appeared = event.mask.intersects(EventMask::CREATE | EventMask::MOVED_TO);
                        if event.mask.contains(EventMask::Q_OVERFLOW) {
                            self.read_all().await;
                        } else if let Some(log) = self.logs.get_mut(&event.wd) {
                            log.read(&self.lines, appeared).await;
                        }
                    }
                    Some(Err(error)) => tracing::warn!(%error, "failed to read inotify events"),
                    None => return,
                },
            }
        }
    }

    async fn follow(&mut self, followed: Followed) {
        let mut all = std::mem::take(&mut self.waiting);
        all.retain(|waiting| waiting.dir != followed.dir);
        all.push(followed);
        for followed in all {
            let mask =
                WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MODIFY | WatchMask::ONLYDIR;
            match self.watches.add(&followed.dir, mask) {
                // The kernel returns the same descriptor for the same directory, so a repeated call is recognised.
                Ok(wd) => {
                    let log = match self.logs.entry(wd) {
                        Entry::Occupied(log) => log.into_mut(),
                        Entry::Vacant(place) => {
                            let log = place.insert(Log::new(followed.label, followed.dir));
                            log.read(&self.lines, true).await;
                            log
                        }
                    };
                    log.end(&self.lines, followed.ended).await;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.waiting.push(followed);
                }
                Err(error) => {
                    tracing::warn!(%error, dir = %followed.dir.display(), "failed to watch log directory")
                }
            }
        }
    }

    async fn read_all(&mut self) {
        for log in self.logs.values_mut() {
            log.read(&self.lines, true).await;
        }
    }

    async fn finish(&mut self) {
        self.read_all().await;
        for log in self.logs.values_mut() {
            log.close(&self.lines).await;
        }
        // A directory that did not exist may have been created in the meantime.
        for followed in std::mem::take(&mut self.waiting) {
            let mut log = Log::new(followed.label, followed.dir);
            log.read(&self.lines, true).await;
            log.close(&self.lines).await;
        }
    }
}

/// The logs of one container.
struct Log {
    label: Arc<Label>,
    dir: PathBuf,
    current: Option<(u32, File)>,
    /// The latest attempt that is known to have ended.
    ended: Option<u32>,
    joiner: Joiner,
}

impl Log {
    fn new(label: Arc<Label>, dir: PathBuf) -> Self {
        Self { label, dir, current: None, ended: None, joiner: Joiner::default() }
    }

    /// Reads new data. `appeared`: there may be a new file.
    async fn read(&mut self, lines: &Lines, appeared: bool) {
        self.read_current(lines).await;
        if !appeared {
            return;
        }
        while let Some((number, path)) =
            next_file(&self.dir, self.current.as_ref().map(|(number, _)| *number))
        {
            // The next attempt exists, so this attempt has ended; data may have been written since the last read.
            self.close(lines).await;
            match File::open(&path) {
                Ok(file) => self.current = Some((number, file)),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "failed to open log");
                    return;
                }
            }
            self.read_current(lines).await;
        }
    }

    async fn read_current(&mut self, lines: &Lines) {
        let Some((_, file)) = &mut self.current else {
            return;
        };
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => return,
                Ok(length) => {
                    let mut whole = Vec::new();
                    self.joiner.push(chunk.get(..length).unwrap_or_default(), &mut whole);
                    lines.send(&self.label, whole).await;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, dir = %self.dir.display(), "failed to read log");
                    return;
                }
            }
        }
    }

    /// Emits the last line of an attempt that has ended, once.
    async fn end(&mut self, lines: &Lines, ended: Option<u32>) {
        if ended.is_none() || self.ended == ended {
            return;
        }
        self.read(lines, true).await;
        // If another attempt has begun, its last line may be incomplete.
        if self.current.as_ref().map(|(number, _)| *number) == ended {
            self.close(lines).await;
        }
        self.ended = ended;
    }

    /// Reads the rest, and emits the last line even without a newline.
    async fn close(&mut self, lines: &Lines) {
        self.read_current(lines).await;
        let mut rest = Vec::new();
        self.joiner.finish(&mut rest);
        lines.send(&self.label, rest).await;
    }
}

/// The file of the next attempt after `current`, if any.
fn next_file(dir: &Path, current: Option<u32>) -> Option<(u32, PathBuf)> {
    let entries = std::fs::read_dir(dir).ok()?;
    let numbers = entries.flatten().filter_map(|entry| attempt(entry.file_name().to_str()?));
    let number = numbers.filter(|number| current.is_none_or(|current| *number > current)).min()?;
    Some((number, dir.join(format!("{number}.log"))))
}

/// The attempt of the log file at this path.
pub(crate) fn attempt_of(log: &Path) -> Option<u32> {
    attempt(log.file_name()?.to_str()?)
}

/// The number in a log file's name.
fn attempt(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (format!("{number}.log") == name).then_some(number)
}

#[cfg(test)]
#[path = "tail/tests.rs"]
mod tests;
