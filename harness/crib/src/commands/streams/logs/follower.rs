//! Follows a growing log file through rotation by a kubelet (rename and recreate) and truncation.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::cri_log::Stream;
use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt as _;

use super::reader::{Filter, Piece, Reader, Tail};
use crate::client::CallError;

/// How long a change is waited for before the container is looked at: its end changes no file.
const LOOK: Duration = Duration::from_secs(1);
/// How much is read at a time, in bytes.
const CHUNK: usize = 64 * 1024;

/// A log file that is being read.
pub(crate) struct Follower {
    path: PathBuf,
    name: OsString,
    file: Option<File>,
    reader: Reader,
    changes: EventStream<Vec<u8>>,
}

impl Follower {
    /// Begins with the last `tail` lines, or with the first. A file that is not there is an error unless it may `come`.
    pub(crate) fn open(
        path: &Path,
        tail: Option<usize>,
        filter: Filter,
        may_be_missing: bool,
    ) -> Result<Self, CallError> {
        let io_error = io_error(path);
        let changes = Inotify::init()
            .and_then(|inotify| {
                let directory = path.parent().unwrap_or(Path::new("/"));
                let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MODIFY;
                // If the directory does not exist, opening the file reports it.
                let _ = inotify.watches().add(directory, mask);
                inotify.into_event_stream(vec![0; 16 * 1024])
            })
            .map_err(&io_error)?;
        let mut file = match File::open(path) {
            Ok(file) => Some(file),
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error(error)),
        };
        if let Some((lines, file)) = tail.zip(file.as_mut()) {
            let mut tail = Tail::new(lines);
            let mut chunk = vec![0; CHUNK];
            loop {
                match file.read(&mut chunk).map_err(&io_error)? {
                    0 => break,
                    length => tail.push(chunk.get(..length).unwrap_or_default()),
                }
            }
            file.seek(SeekFrom::Start(tail.start())).map_err(&io_error)?;
        }
        Ok(Self {
            path: path.to_owned(),
            name: path.file_name().unwrap_or_default().to_owned(),
            file,
            reader: Reader::new(filter),
            changes,
        })
    }

    /// Prints what is there. Whether more is wanted.
    pub(crate) fn read(&mut self) -> Result<bool, CallError> {
        loop {
            self.read_current()?;
            if self.reader.is_done() {
                return Ok(false);
            }
            let Some(next) = self.successor()? else {
                return Ok(true);
            };
            // Something may have been written to the old file until the new one was there.
            self.read_current()?;
            self.file = Some(next);
        }
    }

    /// Prints what has no end, when nothing more will come.
    pub(crate) fn finish(&mut self) -> Result<(), CallError> {
        self.reader.finish().map_or(Ok(()), |piece| write(&piece).map_err(CallError::Output))
    }

    fn read_current(&mut self) -> Result<(), CallError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut chunk = vec![0; CHUNK];
        while !self.reader.is_done() {
            let length = file.read(&mut chunk).map_err(io_error(&self.path))?;
            if length == 0 {
                if !was_truncated(file).map_err(io_error(&self.path))? {
                    break;
                }
                file.rewind().map_err(io_error(&self.path))?;
            }
            for piece in self.reader.push(chunk.get(..length).unwrap_or_default()) {
                write(&piece).map_err(CallError::Output)?;
            }
        }
        Ok(())
    }

    /// The file that has the name now, when it is another one.
    fn successor(&self) -> Result<Option<File>, CallError> {
        let next = match File::open(&self.path) {
            Ok(next) => next,
            // Between the renaming and the new file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&self.path)(error)),
        };
        let Some(file) = &self.file else {
            return Ok(Some(next));
        };
        let (old, new) = (file.metadata(), next.metadata());
        let (old, new) = (old.map_err(io_error(&self.path))?, new.map_err(io_error(&self.path))?);
        let same = old.ino() == new.ino() && old.dev() == new.dev();
        Ok((!same).then_some(next))
    }

    /// Waits until the file has changed, or for a while.
    pub(crate) async fn changed(&mut self) -> Result<(), CallError> {
        let change = async {
            while let Some(event) = self.changes.next().await {
                match event {
                    // The queue ran over: anything may have changed.
                    Ok(event) if event.name.is_none() => return Ok(()),
                    Ok(event) if event.name.as_deref() == Some(self.name.as_os_str()) => {
                        return Ok(());
                    }
                    Ok(_) => {}
                    Err(error) => return Err(io_error(&self.path)(error)),
                }
            }
            Ok(())
        };
        tokio::time::timeout(LOOK, change).await.unwrap_or(Ok(()))
    }
}

/// Whether the runtime has truncated the file: it is shorter than what was read of it.
fn was_truncated(file: &mut File) -> io::Result<bool> {
    Ok(file.metadata()?.len() < file.stream_position()?)
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> CallError {
    let doing =
        format!("read the log {}: is it on this machine, and may you read it?", path.display());
    move |source| CallError::Io { doing: doing.clone(), source }
}

fn write(piece: &Piece) -> io::Result<()> {
    match piece.stream {
        Stream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&piece.bytes)?;
            stdout.flush()
        }
        Stream::Stderr => io::stderr().lock().write_all(&piece.bytes),
    }
}
