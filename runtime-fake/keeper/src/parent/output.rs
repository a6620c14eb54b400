//! Copies a container's output from its pipes, line by line, into its log file.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use jiff::Timestamp;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::contract::plan::LogPlan;
use crate::kernel::failure::{Context as _, Step};
use crate::parent::log::{self, Encoder, Stream, file::LogFile};
use crate::parent::watchers::Watchers;
use crate::setup::terminal;

/// A quarter of a pipe's capacity: the buffer is on the stack of every keeper.
const CHUNK: usize = 16 << 10;

/// Limit on the chunks of a stream that are read in one turn: a program that writes continuously must not block the keeper.
const CHUNKS_IN_A_TURN: usize = 8;

/// A bound on the reads that drain a terminal after its last process has exited; one read returns at most 4 KiB.
const READS_OF_A_TERMINAL: usize = 32;

/// A pipe whose reading end, the keeper's, is non-blocking and whose writing end blocks.
pub(crate) fn pipe_from_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// One of the two streams.
struct Source {
    stream: Stream,
    pipe: File,
    encoder: Encoder,
}

/// Both streams and their destinations.
pub(crate) struct Output {
    sources: [Option<Source>; 2],
    /// The slave side of the container's terminal; the only source is then its master side. The keeper keeps it open,
    /// so that a program may close the terminal and open it again.
    terminal: Option<OwnedFd>,
    /// The clients of Attach.
    pub(crate) watchers: Watchers,
    log: Option<LogPlan>,
    file: Option<LogFile>,
    /// Lost bytes: the next successful write notes their number in the log.
    lost: u64,
}

impl Output {
    /// Output whose pipes are added later.
    pub(crate) fn new(log: Option<LogPlan>) -> Self {
        Self {
            sources: [None, None],
            terminal: None,
            watchers: Watchers::default(),
            log,
            file: None,
            lost: 0,
        }
    }

    /// Adds the reading end of a stream's pipe.
    pub(crate) fn add_pipe(&mut self, stream: Stream, pipe: OwnedFd) {
        let place = match stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        };
        self.sources[place] =
            Some(Source { stream, pipe: pipe.into(), encoder: Encoder::new(stream) });
    }

    /// Adds a terminal: everything written to it is standard output (CRI v1, ContainerConfig.tty).
    pub(crate) fn add_terminal(&mut self, master: OwnedFd) -> Step {
        self.terminal =
            Some(terminal::open_slave(master.as_fd()).context("keep the terminal open")?);
        self.add_pipe(Stream::Stdout, master);
        Ok(())
    }

    /// The master side of the container's terminal, if it has one.
    pub(crate) fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.terminal.as_ref()?;
        self.sources[0].as_ref().map(|s| s.pipe.as_fd())
    }

    /// Opens the log file, even if it is open already: it may have been renamed.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        if let Some(log) = &self.log {
            self.file = Some(log::file::open(log)?);
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> String {
        self.log.as_ref().map_or_else(String::new, |log| log.whole().display().to_string())
    }

    /// The pipes that are still open.
    pub(crate) fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sources.iter().flatten().map(|s| s.pipe.as_fd())
    }

    /// Moves a bounded part of the pipes' contents into the log, without blocking.
    pub(crate) fn pump(&mut self) {
        self.read([CHUNKS_IN_A_TURN; 2]);
    }

    /// Reads at most this many chunks of each stream.
    fn read(&mut self, chunks: [usize; 2]) {
        let mut lines = Vec::new();
        for (source, chunks) in self.sources.iter_mut().zip(chunks) {
            for _ in 0..chunks {
                let Some(s) = source else { break };
                let mut chunk = [0u8; CHUNK];
                let n = match s.pipe.read(&mut chunk) {
                    Ok(n) => n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A terminal that was hung up returns EIO.
                    Err(_) => 0,
                };
                if n == 0 {
                    s.encoder.finish(Timestamp::now(), &mut lines);
                    self.watchers.end(s.stream);
                    *source = None;
                    break;
                }
                s.encoder.feed(&chunk[..n], Timestamp::now(), &mut lines);
                self.watchers.show(s.stream, &chunk[..n]);
                if lines.len() >= CHUNK {
                    put(&mut self.file, &mut lines, &mut self.lost);
                }
            }
        }
        put(&mut self.file, &mut lines, &mut self.lost);
    }

    /// Moves the rest into the log and closes the pipes. It reads only what the pipes hold now: another process may
    /// still have them open and write forever.
    pub(crate) fn finish(&mut self) {
        let terminal = self.terminal.is_some();
        let chunks = self.sources.each_ref().map(|source| {
            if terminal {
                return READS_OF_A_TERMINAL;
            }
            let held = source.as_ref().and_then(|s| rustix::io::ioctl_fionread(&s.pipe).ok());
            // A read may return a partial chunk, where two writes meet.
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
        self.terminal = None;
        self.watchers.end(Stream::Stdout);
        self.watchers.end(Stream::Stderr);
    }
}

/// Writes `lines`, or drops them if the output is not logged.
fn put(file: &mut Option<LogFile>, lines: &mut Vec<u8>, lost: &mut u64) {
    if let Some(file) = file {
        write(file, lines, lost);
    }
    lines.clear();
}

/// Writes `lines`. A full disk loses lines, but never stops the container.
fn write(file: &mut LogFile, lines: &[u8], lost: &mut u64) {
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
