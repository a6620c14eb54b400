//! A client's connection that writes in one piece what becomes ready in one turn of the event loop.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is gathered at most, in bytes.
const MOST: usize = 16 << 10;

/// A connection of an HTTP/2 client. hyper writes the head of a request and its body one after the other, also if both are
/// there: the body gets its place in the window when the stream is open (h2 0.4, `try_assign_capacity`). The server is woken
/// by each. Here a flush waits until the tasks that are ready have run, and writes what they wrote too.
#[derive(Debug)]
pub struct Gathered<S> {
    inner: S,
    /// What is not written yet, from `written` on.
    buffer: Vec<u8>,
    written: usize,
    /// A flush has given the others their turn.
    waited: bool,
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    /// Gathers what is written to a connection.
    pub fn new(inner: S) -> Self {
        Self { inner, buffer: Vec::new(), written: 0, waited: false }
    }

    fn gathers(&self, more: usize) -> bool {
        self.buffer.len() + more <= MOST
    }

    /// Writes what was gathered.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.buffer.get(self.written..) {
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.buffer.clear();
        self.written = 0;
        self.waited = false;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if self.gathers(length) {
            slices.iter().for_each(|slice| self.buffer.extend(&**slice));
            return Poll::Ready(Ok(length));
        }
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.buffer.is_empty() && !self.waited {
            self.waited = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Takes `most` bytes a time, and remembers what it was given.
    struct Written {
        most: usize,
        pieces: Vec<Vec<u8>>,
    }

    impl AsyncWrite for Written {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let piece: Vec<u8> = bytes.iter().take(self.most).copied().collect();
            let taken = piece.len();
            self.pieces.push(piece);
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn gathered(most: usize) -> Gathered<Written> {
        let pieces = Vec::new();
        Gathered::new(Written { most, pieces })
    }

    fn write(to: &mut Gathered<Written>, mut bytes: &[u8]) {
        let mut context = Context::from_waker(Waker::noop());
        while !bytes.is_empty() {
            let written = Pin::new(&mut *to).poll_write(&mut context, bytes);
            let Poll::Ready(Ok(count)) = written else {
                panic!("nothing was written");
            };
            bytes = &bytes[count..];
        }
    }

    fn flush(to: &mut Gathered<Written>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(to).poll_flush(&mut context) {
            Poll::Ready(flushed) => flushed.is_ok(),
            Poll::Pending => false,
        }
    }

    #[test]
    fn flush_waits_one_turn_and_writes_what_came_meanwhile_too() {
        let mut connection = gathered(usize::MAX);
        for _ in 0..2 {
            write(&mut connection, b"head ");
            assert!(!flush(&mut connection));
            write(&mut connection, b"body");
            assert!(flush(&mut connection));
        }
        assert_eq!(connection.inner.pieces, [b"head body", b"head body"]);
        // Nothing is left to wait for.
        assert!(flush(&mut connection));
    }

    #[test]
    fn every_byte_is_written_once_and_in_order() {
        let large = vec![b'x'; MOST];
        for most in [1, 1000, usize::MAX] {
            let mut connection = gathered(most);
            write(&mut connection, b"head");
            write(&mut connection, &large);
            write(&mut connection, b"tail");
            while !flush(&mut connection) {}
            let expected = [b"head", &large[..], b"tail"].concat();
            assert_eq!(connection.inner.pieces.concat(), expected);
        }
    }

    #[test]
    fn what_was_gathered_is_written_before_the_end() {
        let mut connection = gathered(usize::MAX);
        write(&mut connection, b"last");
        let mut context = Context::from_waker(Waker::noop());
        let ended = Pin::new(&mut connection).poll_shutdown(&mut context);
        assert!(matches!(ended, Poll::Ready(Ok(()))));
        assert_eq!(connection.inner.pieces, [b"last"]);
    }
}
