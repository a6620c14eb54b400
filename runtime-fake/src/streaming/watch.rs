//! A client's connection that records when it last carried data.

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

/// A connection that records when it last carried data.
pub(super) struct Watched {
    io: TcpStream,
    /// Bytes that were read together with the request.
    early: Bytes,
    last: Arc<Mutex<Instant>>,
}

/// Waits until a connection is idle.
pub(super) struct Watch(Arc<Mutex<Instant>>);

/// Wraps a connection, of which `early` was read already, and returns it with its watch.
pub(super) fn watched(io: TcpStream, early: Bytes) -> (Watched, Watch) {
    let last = Arc::new(Mutex::new(Instant::now()));
    let watch = Watch(last.clone());
    (Watched { io, early, last }, watch)
}

impl Watch {
    /// Waits until the connection has carried no data in either direction for `idle`.
    pub(super) async fn idle(&self, idle: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // The timer cannot wait that long: wait forever.
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
    fn record_traffic(&self) {
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
            self.record_traffic();
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
            self.record_traffic();
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
