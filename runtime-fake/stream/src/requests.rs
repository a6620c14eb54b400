//! A client's connection as hyper reads it: the client's bytes pass through [`AuthorityRewriter`] first.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::authority::AuthorityRewriter;

/// The number of bytes read from a client at a time.
const CHUNK: usize = 8 << 10;

/// A connection of a client.
#[derive(Debug)]
pub struct ClientStream<S> {
    inner: S,
    rewriter: AuthorityRewriter,
    /// The rewriter's output; hyper has not read the bytes from `read` on.
    rewritten: Vec<u8>,
    read: usize,
}

impl<S> ClientStream<S> {
    /// Reads a client's connection.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, rewriter: AuthorityRewriter::default(), rewritten: Vec::new(), read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.read == this.rewritten.len() {
            this.rewritten.clear();
            this.read = 0;
            let mut chunk = [MaybeUninit::uninit(); CHUNK];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.push(chunk.filled(), &mut this.rewritten);
        }
        let rest = &this.rewritten[this.read..];
        let length = rest.len().min(into.remaining());
        into.put_slice(&rest[..length]);
        this.read += length;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
