//! Clients of Attach: the keeper copies a container's new output into their pipes.
//!
//! A container never waits for its clients. Output that does not fit in a client's pipe is dropped for that client, and
//! the client gets a note with the number of dropped bytes, even if no more output follows. The log has all of it.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::parent::log::Stream;

/// The pipes of all clients of one container.
#[derive(Default)]
pub(crate) struct Watchers {
    pipes: Vec<Watcher>,
}

struct Watcher {
    stream: Stream,
    pipe: File,
    /// Dropped bytes that the client has no note about yet.
    skipped: u64,
    /// The stream has ended: the pipe closes after the note about dropped bytes is written.
    ended: bool,
}

impl Watchers {
    /// Also copies `stream` into `pipe`, a writing end, which must be non-blocking.
    pub(crate) fn add(&mut self, stream: Stream, pipe: OwnedFd) {
        self.pipes.push(Watcher { stream, pipe: pipe.into(), skipped: 0, ended: false });
    }

    /// The pipes to poll, for readers that have disconnected and for room for a last note.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.pipes.iter().map(Watcher::descriptor)
    }

    /// Copies output to the clients.
    pub(crate) fn show(&mut self, stream: Stream, bytes: &[u8]) {
        self.pipes.retain_mut(|watcher| watcher.stream != stream || watcher.show(bytes).is_ok());
    }

    /// Ends a stream for its clients.
    pub(crate) fn end(&mut self, stream: Stream) {
        self.pipes.retain_mut(|watcher| watcher.stream != stream || watcher.end());
    }

    /// Removes clients that have disconnected, and clients whose last note is written.
    pub(crate) fn prune(&mut self) {
        self.pipes.retain_mut(|watcher| {
            let mut state = [watcher.descriptor()];
            match poll(&mut state, PollTimeout::ZERO) {
                // A writing end reports an error when it has no reader.
                Ok(1..) if state[0].revents() == Some(PollFlags::POLLOUT) => watcher.end(),
                Ok(1..) => false,
                Ok(_) | Err(_) => true,
            }
        });
    }

    /// Closes all pipes.
    pub(crate) fn clear(&mut self) {
        self.pipes.clear();
    }
}

impl Watcher {
    fn descriptor(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLOUT, self.ended);
        PollFd::new(self.pipe.as_fd(), flags)
    }

    fn show(&mut self, bytes: &[u8]) -> io::Result<()> {
        let put = if self.tell()? { self.put(bytes)? } else { 0 };
        self.skipped += (bytes.len() - put) as u64;
        Ok(())
    }

    /// Ends the stream; returns whether a note is still pending.
    fn end(&mut self) -> bool {
        self.ended = true;
        matches!(self.tell(), Ok(false))
    }

    /// Writes the note about dropped bytes, if the pipe has room; returns whether no note is pending.
    fn tell(&mut self) -> io::Result<bool> {
        if self.skipped > 0 {
            // Lines end as on a terminal, which is harmless elsewhere.
            let note = format!(
                "\r\ncrib: {} bytes are missing here: they came faster than they were read\r\n",
                self.skipped
            );
            // A write this short is atomic (PIPE_BUF).
            if self.put(note.as_bytes())? < note.len() {
                return Ok(false);
            }
            self.skipped = 0;
        }
        Ok(true)
    }

    /// Writes as much as the pipe has room for.
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        let mut put = 0;
        while !bytes.is_empty() {
            match self.pipe.write(bytes) {
                Ok(n) => {
                    put += n;
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(put)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read as _;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn watched() -> (Watchers, File) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let mut watchers = Watchers::default();
        watchers.add(Stream::Stdout, writer);
        (watchers, reader.into())
    }

    fn read(from: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Reads what the pipe holds: no process writes meanwhile.
        let _ = from.read_to_end(&mut bytes);
        bytes
    }

    #[test]
    fn watcher_receives_requested_stream_only() {
        let (mut watchers, mut reader) = watched();
        watchers.show(Stream::Stdout, b"one ");
        watchers.show(Stream::Stderr, b"two ");
        watchers.show(Stream::Stdout, b"three");
        assert_eq!(read(&mut reader), b"one three");
        watchers.end(Stream::Stderr);
        assert_eq!(watchers.descriptors().count(), 1);
        watchers.end(Stream::Stdout);
        assert_eq!(watchers.descriptors().count(), 0);
    }

    #[test]
    fn slow_watcher_receives_notice_of_dropped_output() {
        let (mut watchers, mut reader) = watched();
        let chunk = vec![b'x'; 16 << 10];
        for _ in 0..10 {
            watchers.show(Stream::Stdout, &chunk);
        }
        let kept = read(&mut reader).len();
        watchers.show(Stream::Stdout, b"again");
        let missing = 10 * chunk.len() - kept;
        assert!(missing > 0);
        let text = String::from_utf8(read(&mut reader)).unwrap();
        assert_eq!(
            text,
            format!(
                "\r\ncrib: {missing} bytes are missing here: they came faster than they were read\r\nagain"
            )
        );
    }

    #[test]
    fn slow_watcher_receives_notice_of_dropped_output_at_end() {
        let (mut watchers, mut reader) = watched();
        let chunk = vec![b'x'; 16 << 10];
        for _ in 0..10 {
            watchers.show(Stream::Stdout, &chunk);
        }
        watchers.end(Stream::Stdout);
        watchers.prune();
        assert_eq!(watchers.descriptors().count(), 1);
        let kept = read(&mut reader).len();
        watchers.prune();
        assert_eq!(watchers.descriptors().count(), 0);
        let text = String::from_utf8(read(&mut reader)).unwrap();
        let missing = 10 * chunk.len() - kept;
        assert!(text.starts_with(&format!("\r\ncrib: {missing} bytes are missing here")));
        // A client that disconnects instead is removed.
        let (mut watchers, reader) = watched();
        for _ in 0..10 {
            watchers.show(Stream::Stdout, &chunk);
        }
        watchers.end(Stream::Stdout);
        drop(reader);
        watchers.prune();
        assert_eq!(watchers.descriptors().count(), 0);
    }

    #[test]
    fn disconnected_watcher_is_removed() {
        let (mut watchers, reader) = watched();
        watchers.prune();
        assert_eq!(watchers.descriptors().count(), 1);
        drop(reader);
        watchers.prune();
        assert_eq!(watchers.descriptors().count(), 0);
    }
}
