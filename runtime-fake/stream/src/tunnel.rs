//! WebSocket messages as one byte stream, for SPDY inside it (Kubernetes 1.36, `SPDY/3.1+…`).

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures_util::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message},
};

use super::pipe::PIECE;

/// A WebSocket as a byte stream.
pub struct Tunnel<T> {
    socket: WebSocketStream<T>,
    /// The rest of the last message.
    rest: Bytes,
}

impl<T> Tunnel<T> {
    /// A byte stream over `socket`.
    #[must_use]
    pub const fn new(socket: WebSocketStream<T>) -> Self {
        let rest = Bytes::new();
        Self { socket, rest }
    }
}

fn failed(error: Error) -> io::Error {
    if let Error::Io(error) = error {
        return error;
    }
    if matches!(error, Error::ConnectionClosed | Error::AlreadyClosed) {
        return io::ErrorKind::BrokenPipe.into();
    }
    io::Error::other(error)
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                // The library answers these when it is polled again; after the answer to a Close frame the stream ends.
                Some(Ok(
                    Message::Ping(_) | Message::Pong(_) | Message::Frame(_) | Message::Close(_),
                )) => {}
                Some(Ok(Message::Text(_))) => {
                    let text = "received a text message where only binary messages are allowed";
                    return Poll::Ready(Err(io::Error::other(text)));
                }
                Some(Err(Error::ConnectionClosed)) | None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(failed(error))),
            }
        }
        let length = buffer.remaining().min(self.rest.len());
        buffer.put_slice(&self.rest[..length]);
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(failed)?;
        let bytes = &bytes[..bytes.len().min(2 * PIECE)];
        let message = Message::Binary(Bytes::copy_from_slice(bytes));
        Pin::new(&mut self.socket).start_send(message).map_err(failed)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(failed)
    }

    /// Sends a Close frame. Data that the peer still sends can be read.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.socket).poll_close(cx)) {
            Ok(()) | Err(Error::ConnectionClosed) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(failed(error))),
        }
    }
}
