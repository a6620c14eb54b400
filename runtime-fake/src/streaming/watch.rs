//! A client's connection, which knows when something last went over it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};

/// A connection that knows when something last went over it.
pub(super) struct Watched {
    io: TcpStream,
    /// What was read together with the request.
    early: Bytes,
    last: Arc<Mutex<Instant>>,
}

/// Tells when nothing went over a connection for long.
pub(super) struct Watch(Arc<Mutex<Instant>>);

/// A connection, of which `early` was read already, and its watch.
pub(super) fn watched(io: TcpStream, early: Bytes) -> (Watched, Watch) {
    let last = Arc::new(Mutex::new(Instant::now()));
    let watch = Watch(last.clone());
    (Watched { io, early, last }, watch)
}

impl Watch {
    /// Waits until nothing went over it, either way, for so long.
    pub(super) async fn idle(&self, idle: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Longer than a timer can wait is as good as for ever.
            let Some(late) = last.checked_add(idle) else {
                return std::future::pending().await;
            };
            if Instant::now() >= late {
                return;
            }
            tokio::time::sleep_until(late).await;
        }
    }
}

impl Watched {
    fn went(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let length = buffer.remaining().min(self.early.len());
            buffer.put_slice(&self.early[..length]);
            self.early.advance(length);
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if read.is_ready() {
            self.went();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if written.is_ready() {
            self.went();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
