//! Clients that look on: copies of what a container writes, from now on, into pipes of theirs.
//!
//! A container never waits for them. Output that a client's pipe does not take is dropped for that client, which is told how
//! much, also when nothing more comes. The log has all of it.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::log::Stream;

/// The pipes of all clients of one container.
#[derive(Default)]
pub(crate) struct Watchers {
    pipes: Vec<Watcher>,
}

struct Watcher {
    stream: Stream,
    pipe: File,
    /// Bytes that the pipe had no room for, and that its client has not been told of.
    skipped: u64,
    /// Nothing more comes: the pipe closes once its client has been told of those.
    ended: bool,
}

impl Watchers {
    /// Copies `stream` into `pipe`, whose writing end this is, too. It must not block.
    pub(crate) fn add(&mut self, stream: Stream, pipe: OwnedFd) {
        self.pipes.push(Watcher {
            stream,
            pipe: pipe.into(),
            skipped: 0,
            ended: false,
        });
    }

    /// The pipes, polled for readers that have gone, and for room for a last message.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.pipes.iter().map(Watcher::descriptor)
    }

    /// Shows what the container has written.
    pub(crate) fn show(&mut self, stream: Stream, bytes: &[u8]) {
        self.pipes
            .retain_mut(|watcher| watcher.stream != stream || watcher.show(bytes).is_ok());
    }

    /// A stream has ended.
    pub(crate) fn end(&mut self, stream: Stream) {
        self.pipes
            .retain_mut(|watcher| watcher.stream != stream || watcher.end());
    }

    /// Removes clients that have disconnected, and those that can take their last message.
    pub(crate) fn prune(&mut self) {
        self.pipes.retain_mut(|watcher| {
            let mut state = [watcher.descriptor()];
            match poll(&mut state, PollTimeout::ZERO) {
                // Writing ends are in error when there is no reader left.
                Ok(1..) if state[0].revents() == Some(PollFlags::POLLOUT) => watcher.end(),
                Ok(1..) => false,
                Ok(_) | Err(_) => true,
            }
        });
    }

    /// Lets go of all.
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

    /// Ends it; whether there is something to tell still.
    fn end(&mut self) -> bool {
        self.ended = true;
        matches!(self.tell(), Ok(false))
    }

    /// Tells of what is missing, if the pipe has room for that; whether there is nothing to tell any more.
    fn tell(&mut self) -> io::Result<bool> {
        if self.skipped > 0 {
            // With the line ends of a terminal, which do no harm elsewhere.
            let note = format!(
                "\r\ncrib: {} bytes are missing here: they came faster than they were read\r\n",
                self.skipped
            );
            // So few are written all at once, or none (PIPE_BUF).
            if self.put(note.as_bytes())? < note.len() {
                return Ok(false);
            }
            self.skipped = 0;
        }
        Ok(true)
    }

    /// Writes what the pipe has room for.
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
        // It ends with what there is: no process writes meanwhile.
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
    fn slow_watcher_is_told_of_dropped_output() {
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
    fn slow_watcher_is_told_of_dropped_output_at_end() {
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
        // And if it goes instead, it is let go.
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
