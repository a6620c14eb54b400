//! Follows a growing log file through rotation by a kubelet (rename and recreate) and truncation.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt as _;

use super::reader::{Filter, Piece, Reader, Tail};

/// How long to wait for a change before the caller checks the container: its end changes no file.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The size of a read in bytes.
const CHUNK: usize = 64 * 1024;

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the log {}", path.display())]
pub struct LogError {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// Follows a log file.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    name: OsString,
    file: Option<File>,
    /// The file that has replaced `file` at the path, for when `file` is read to its end.
    next: Option<File>,
    reader: Reader,
    changes: Changes,
}

/// The kernel's notifications about the directory of a log.
#[derive(Debug)]
enum Changes {
    /// Not requested yet: only a reader that waits at the end of a log needs them, and a user may have few inotify instances.
    NotWatched,
    Watched(EventStream<Vec<u8>>),
    /// The kernel provides none, or there was no directory: the file is read each second.
    Unavailable,
}

impl Follower {
    /// Opens a log and starts at the last `tail` lines, or at the beginning. A missing file is an error unless it
    /// `may_be_missing`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn open(
        path: &Path,
        tail: Option<usize>,
        filter: Filter,
        may_be_missing: bool,
    ) -> Result<Self, LogError> {
        let failed = failed(path);
        let mut file = match File::open(path) {
            Ok(file) => Some(file),
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some((lines, file)) = tail.zip(file.as_mut()) {
            let mut tail = Tail::new(lines);
            let mut chunk = vec![0; CHUNK];
            loop {
                match file.read(&mut chunk).map_err(&failed)? {
                    0 => break,
                    length => tail.push(chunk.get(..length).unwrap_or_default()),
                }
            }
            file.seek(SeekFrom::Start(tail.start())).map_err(&failed)?;
        }
        Ok(Self {
            path: path.to_owned(),
            name: path.file_name().unwrap_or_default().to_owned(),
            file,
            next: None,
            reader: Reader::new(filter),
            changes: Changes::NotWatched,
        })
    }

    /// The path of the log file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the filter's byte limit is reached.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    /// Reads the next chunk; `None` at the current end of the log, or if the byte limit is reached.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&mut self) -> Result<Option<Vec<Piece>>, LogError> {
        let mut chunk = vec![0; CHUNK];
        while !self.is_done() {
            let length = match &mut self.file {
                Some(file) => file.read(&mut chunk).map_err(failed(&self.path))?,
                None => 0,
            };
            if length > 0 {
                return Ok(Some(self.reader.push(chunk.get(..length).unwrap_or_default())));
            }
            if let Some(file) = &mut self.file
                && was_truncated(file).map_err(failed(&self.path))?
            {
                file.rewind().map_err(failed(&self.path))?;
            } else if let Some(next) = self.next.take() {
                self.file = Some(next);
            } else if let Some(next) = self.successor()? {
                // Read the old file again first: the runtime may have written to it until it opened the new one.
                self.next = Some(next);
            } else {
                break;
            }
        }
        Ok(None)
    }

    /// The last, unterminated line at the end of the log.
    pub fn finish(&mut self) -> Option<Piece> {
        self.reader.finish()
    }

    /// The file that has replaced the open one at the path.
    fn successor(&self) -> Result<Option<File>, LogError> {
        let failed = failed(&self.path);
        let next = match File::open(&self.path) {
            Ok(next) => next,
            // The old file is renamed, and the new one is not created yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let Some(file) = &self.file else {
            return Ok(Some(next));
        };
        let (old, new) = (file.metadata().map_err(&failed)?, next.metadata().map_err(&failed)?);
        let same = old.ino() == new.ino() && old.dev() == new.dev();
        Ok((!same).then_some(next))
    }

    /// Waits until the file may have changed, at most a second. Cancel-safe.
    ///
    /// # Errors
    /// If the directory can no longer be watched.
    pub async fn changed(&mut self) -> Result<(), LogError> {
        if matches!(self.changes, Changes::NotWatched) {
            self.changes = watch(&self.path).map_or(Changes::Unavailable, Changes::Watched);
            // The file may have changed before.
            return Ok(());
        }
        let Changes::Watched(changes) = &mut self.changes else {
            tokio::time::sleep(POLL_INTERVAL).await;
            return Ok(());
        };
        let change = async {
            while let Some(event) = changes.next().await {
                match event {
                    // The inotify queue overflowed: anything may have changed.
                    Ok(event) if event.name.is_none() => return Ok(()),
                    Ok(event) if event.name.as_deref() == Some(self.name.as_os_str()) => {
                        return Ok(());
                    }
                    Ok(_) => {}
                    Err(error) => return Err(failed(&self.path)(error)),
                }
            }
            Ok(())
        };
        tokio::time::timeout(POLL_INTERVAL, change).await.unwrap_or(Ok(()))
    }
}

/// Watches the directory of a file. Must be called within a tokio runtime.
fn watch(path: &Path) -> io::Result<EventStream<Vec<u8>>> {
    let inotify = Inotify::init()?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MODIFY;
    inotify.watches().add(directory, mask)?;
    inotify.into_event_stream(vec![0; 16 * 1024])
}

/// Whether the runtime has truncated the file: it is shorter than the read position.
fn was_truncated(file: &mut File) -> io::Result<bool> {
    Ok(file.metadata()?.len() < file.stream_position()?)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> LogError {
    move |source| LogError { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn text(follower: &mut Follower) -> String {
        let mut bytes = Vec::new();
        while let Some(pieces) = follower.read().unwrap() {
            bytes.extend(pieces.into_iter().flat_map(|piece| piece.bytes));
        }
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn follower_reads_the_rest_of_a_rotated_file_before_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("0.log"), dir.path().join("old"));
        let entry = |text: &str| format!("2026-01-01T00:00:01Z stdout F {text}\n");
        std::fs::write(&path, entry("a") + &entry("b")).unwrap();
        let mut follower = Follower::open(&path, Some(1), Filter::default(), false).unwrap();
        assert_eq!(text(&mut follower), "b\n");
        std::fs::write(&path, entry("a") + &entry("b") + &entry("c")).unwrap();
        std::fs::rename(&path, &old).unwrap();
        assert_eq!(text(&mut follower), "c\n");
        std::fs::write(&path, entry("d")).unwrap();
        follower.changed().await.unwrap();
        assert_eq!(text(&mut follower), "d\n");
        std::fs::write(&path, "").unwrap();
        assert_eq!(text(&mut follower), "");
        std::fs::write(&path, entry("e")).unwrap();
        assert_eq!(text(&mut follower), "e\n");
    }

    #[tokio::test(start_paused = true)]
    async fn log_is_read_each_second_if_the_kernel_provides_no_notifications() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, "").unwrap();
        let mut follower = Follower::open(&path, None, Filter::default(), false).unwrap();
        assert_eq!(text(&mut follower), "");
        assert!(matches!(follower.changes, Changes::NotWatched), "reading needs no notifications");
        follower.changes = Changes::Unavailable;
        let began = tokio::time::Instant::now();
        std::fs::write(&path, "2026-01-01T00:00:01Z stdout F a\n").unwrap();
        follower.changed().await.unwrap();
        assert!(began.elapsed() >= POLL_INTERVAL);
        assert_eq!(text(&mut follower), "a\n");
    }

    #[tokio::test]
    async fn first_wait_returns_at_once_and_watches_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, "").unwrap();
        let mut follower = Follower::open(&path, None, Filter::default(), false).unwrap();
        follower.changed().await.unwrap();
        assert!(matches!(follower.changes, Changes::Watched(_)));
        let mut none =
            Follower::open(&dir.path().join("no/0.log"), None, Filter::default(), true).unwrap();
        none.changed().await.unwrap();
        assert!(matches!(none.changes, Changes::Unavailable));
    }

    #[tokio::test]
    async fn missing_file_is_an_error_unless_it_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let error = Follower::open(&path, None, Filter::default(), false).unwrap_err();
        assert_eq!(error.to_string(), format!("failed to read the log {}", path.display()));
        assert!(Follower::open(&path, None, Filter::default(), true).is_ok());
    }
}
