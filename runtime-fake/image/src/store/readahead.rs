//! Reads ahead on a separate thread: one thread decompresses a layer while another unpacks it.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Large enough that passing a piece on is cheap, small enough to stay in a processor's cache.
const PIECE: usize = 128 << 10;
/// The number of pieces that are read ahead.
const AHEAD: usize = 4;

/// Calls `work` with a reader of the same bytes and errors as `from`, which another thread reads concurrently. That thread has
/// ended when this returns: `abandon` must interrupt a blocked read of `from`.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn reading<T>(
    from: impl Read + Send,
    abandon: impl FnOnce(),
    work: impl FnOnce(ReadaheadReader) -> T,
) -> io::Result<T> {
    thread::scope(|scope| {
        let (to, pieces) = sync_channel(AHEAD);
        thread::Builder::new()
            .name("unpack".to_owned())
            .spawn_scoped(scope, move || pass_on(from, &to))?;
        let done = work(ReadaheadReader { pieces, piece: Vec::new(), at: 0 });
        // `work` has dropped the reader, so the thread ends with its next piece, unless it is blocked.
        abandon();
        Ok(done)
    })
}

/// Reads until the end of `from`, its first error, or until the receiver is dropped.
fn pass_on(mut from: impl Read, to: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let read = (&mut from).take(PIECE as u64).read_to_end(&mut piece);
        // Pass on the data before an error first.
        if !piece.is_empty() && to.send(Ok(piece)).is_err() {
            return;
        }
        match read {
            Ok(PIECE) => {}
            Ok(_) => return,
            Err(error) => {
                // If the receiver was dropped, the error is lost.
                let _ = to.send(Err(error));
                return;
            }
        }
    }
}

/// The reader of the pieces that the other thread has read.
#[derive(Debug)]
pub(crate) struct ReadaheadReader {
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for ReadaheadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            match self.pieces.recv() {
                Ok(piece) => (self.piece, self.at) = (piece?, 0),
                // The other thread has reached the end.
                Err(_) => return Ok(0),
            }
        }
        let n = (&self.piece[self.at..]).read(buffer)?;
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use rstest::rstest;

    use super::*;

    /// Returns this many bytes, and then an error.
    struct Breaks(u64);

    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match io::repeat(7).take(self.0).read(buffer)? {
                0 => Err(io::Error::other("it broke")),
                n => {
                    self.0 -= n as u64;
                    Ok(n)
                }
            }
        }
    }

    #[rstest]
    fn readahead_preserves_order_of_bytes_and_errors(
        #[values(0, 1, PIECE - 1, PIECE, PIECE + 1, 20 * PIECE + 5)] size: usize,
    ) {
        let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let all = |mut ahead: ReadaheadReader| {
            let mut all = Vec::new();
            (ahead.read_to_end(&mut all), all)
        };
        let (read, copied) = reading(&bytes[..], || {}, all).unwrap();
        assert_eq!((read.unwrap(), copied), (size, bytes));
        let (read, before) = reading(Breaks(size as u64), || {}, all).unwrap();
        assert_eq!(read.unwrap_err().to_string(), "it broke");
        assert_eq!(before.len(), size);
    }

    #[test]
    fn readahead_stops_when_reader_is_dropped() {
        let some = |mut ahead: ReadaheadReader| ahead.read(&mut [0; 10]);
        assert_eq!(reading(io::repeat(7), || {}, some).unwrap().unwrap(), 10);
    }

    /// Blocks until the test ends it.
    struct Waits(mpsc::Receiver<()>);

    impl Read for Waits {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.recv().unwrap();
            Err(io::Error::other("nobody wants it"))
        }
    }

    #[test]
    fn readahead_abandons_blocked_read() {
        let (end, ended) = mpsc::channel();
        let done = reading(Waits(ended), || end.send(()).unwrap(), |_| "done");
        assert_eq!(done.unwrap(), "done");
    }
}
