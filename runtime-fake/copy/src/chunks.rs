//! Passes an archive between a thread that reads or writes files and a task that sends or receives messages: through a bounded
//! channel of chunks, so that the faster side waits for the other.

use std::io::{self, Read, Write};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::sync::mpsc;

/// The size of a chunk.
const CHUNK: usize = 64 << 10;
/// The capacity of the channel in chunks.
const WAITING: usize = 4;

/// Writes chunks to a channel. Blocks while it is full, so it must not be used on threads of the event loop.
#[derive(Debug)]
pub struct ChunkWriter {
    buffer: BytesMut,
    channel: mpsc::Sender<Bytes>,
}

impl ChunkWriter {
    /// A writer, and the receiver of its chunks. A flush sends the last, incomplete chunk.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (channel, receiver) = mpsc::channel(WAITING);
        (Self { buffer: BytesMut::new(), channel }, receiver)
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        if self.buffer.len() == CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = self.buffer.split().freeze();
        let sent = self.channel.blocking_send(chunk);
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the receiver is closed"))
    }
}

/// Reads chunks from a channel. Blocks while it is empty, so it must not be used on threads of the event loop. A failed sender
/// sends its error; a dropped sender has sent everything.
#[derive(Debug)]
pub struct ChunkReader {
    chunk: Bytes,
    channel: mpsc::Receiver<io::Result<Bytes>>,
}

impl ChunkReader {
    /// A reader, and the sender for its chunks.
    #[must_use]
    pub fn new() -> (Self, mpsc::Sender<io::Result<Bytes>>) {
        let (sender, channel) = mpsc::channel(WAITING);
        (Self { chunk: Bytes::new(), channel }, sender)
    }
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.channel.blocking_recv() {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let taken = into.len().min(self.chunk.len());
        self.chunk.copy_to_slice(into.get_mut(..taken).unwrap_or_default());
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn chunk_channel_bounds_chunk_size() {
        let (mut writer, mut chunks) = ChunkWriter::new();
        let (mut reader, sender) = ChunkReader::new();
        let bytes: Vec<u8> = (0..3 * CHUNK + 5).map(|n| (n % 251) as u8).collect();
        let sent = bytes.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                writer.write_all(&sent).unwrap();
                writer.flush().unwrap();
            });
            scope.spawn(move || {
                while let Some(chunk) = chunks.blocking_recv() {
                    assert!(chunk.len() <= CHUNK);
                    sender.blocking_send(Ok(chunk)).unwrap();
                }
            });
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            assert!(got == bytes);
        });
    }

    #[test]
    fn chunk_channel_reports_failure_to_other_side() {
        let (mut writer, chunks) = ChunkWriter::new();
        drop(chunks);
        writer.write_all(b"x").unwrap();
        assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let (mut reader, sender) = ChunkReader::new();
        sender.blocking_send(Err(io::Error::other("gone"))).unwrap();
        assert_eq!(reader.read(&mut [0; 1]).unwrap_err().to_string(), "gone");
    }
}
