//! A container's outputs: from its pipes, line by line, into its log file.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use jiff::Timestamp;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::log::{Encoder, Stream};

/// A quarter of what a pipe holds: it is on the stack of every keeper.
const CHUNK: usize = 16 << 10;

/// How many chunks of a stream are read in one turn: a program that writes as fast as it is read must not have all of
/// the keeper's time.
const CHUNKS_IN_A_TURN: usize = 8;

/// A pipe whose reading end does not block here and whose writing end does there.
pub(super) fn pipe_from_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// One of the two streams.
struct Source {
    pipe: File,
    encoder: Encoder,
}

/// Both streams and where they go.
pub(super) struct Output {
    sources: [Option<Source>; 2],
    path: Option<PathBuf>,
    file: Option<File>,
    /// Bytes that could not be written: said once, in the log itself, as soon as it can be written again.
    lost: u64,
}

impl Output {
    pub(super) fn new(stdout: OwnedFd, stderr: OwnedFd, path: Option<PathBuf>) -> Self {
        let source = |pipe: OwnedFd, stream| {
            Some(Source {
                pipe: pipe.into(),
                encoder: Encoder::new(stream),
            })
        };
        Self {
            sources: [
                source(stdout, Stream::Stdout),
                source(stderr, Stream::Stderr),
            ],
            path,
            file: None,
            lost: 0,
        }
    }

    /// Opens the log file, also when it is open: it may have been renamed.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.file = Some(File::options().create(true).append(true).open(path)?);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> String {
        self.path
            .as_ref()
            .map_or_else(String::new, |p| p.display().to_string())
    }

    /// The pipes that are still open.
    pub(super) fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sources.iter().flatten().map(|s| s.pipe.as_fd())
    }

    /// Moves some of what is in the pipes into the log. Does not wait for more.
    pub(super) fn pump(&mut self) {
        self.read([CHUNKS_IN_A_TURN; 2]);
    }

    /// Reads at most so many chunks of each stream.
    fn read(&mut self, chunks: [usize; 2]) {
        let mut lines = Vec::new();
        for (source, chunks) in self.sources.iter_mut().zip(chunks) {
            for _ in 0..chunks {
                let Some(s) = source else { break };
                let mut chunk = [0u8; CHUNK];
                match s.pipe.read(&mut chunk) {
                    Ok(0) => {
                        s.encoder.finish(Timestamp::now(), &mut lines);
                        *source = None;
                    }
                    Ok(n) => s.encoder.feed(&chunk[..n], Timestamp::now(), &mut lines),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
                if lines.len() >= CHUNK {
                    put(&mut self.file, &mut lines, &mut self.lost);
                }
            }
        }
        put(&mut self.file, &mut lines, &mut self.lost);
    }

    /// Moves the rest into the log and closes the pipes. The rest is what they hold now: somebody else may have them
    /// open still and write for ever.
    pub(super) fn finish(&mut self) {
        let chunks = self.sources.each_ref().map(|source| {
            let held = source
                .as_ref()
                .and_then(|s| rustix::io::ioctl_fionread(&s.pipe).ok());
            // A read may end before its chunk is full, where two writes meet.
            usize::try_from(held.unwrap_or(0)).map_or(usize::MAX, |held| 2 * (held / CHUNK + 1))
        });
        self.read(chunks);
        let mut lines = Vec::new();
        for source in &mut self.sources {
            if let Some(mut s) = source.take() {
                s.encoder.finish(Timestamp::now(), &mut lines);
            }
        }
        put(&mut self.file, &mut lines, &mut self.lost);
        self.file = None;
    }
}

/// Writes `lines`, or drops them where no log is kept.
fn put(file: &mut Option<File>, lines: &mut Vec<u8>, lost: &mut u64) {
    if let Some(file) = file {
        write(file, lines, lost);
    }
    lines.clear();
}

/// Writes `lines`. A full disk costs lines, never the container.
fn write(file: &mut File, lines: &[u8], lost: &mut u64) {
    if lines.is_empty() {
        return;
    }
    if *lost > 0 {
        let mut note = Vec::new();
        Encoder::new(Stream::Stderr).feed(
            format!("crib: {lost} bytes of output could not be written here\n").as_bytes(),
            Timestamp::now(),
            &mut note,
        );
        if file.write_all(&note).is_ok() {
            *lost = 0;
        }
    }
    if file.write_all(lines).is_err() {
        *lost += lines.len() as u64;
    }
}
