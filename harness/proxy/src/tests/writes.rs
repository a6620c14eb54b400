//! Tests how many writes a client makes for a request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use cri::gathered::Gathered;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::ends::{ProxiedRuntime, call};
use super::{VERSION, counting};

/// A connection that counts writes.
struct Counted(UnixStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[tokio::test]
async fn request_is_written_at_once_on_a_gathered_connection() {
    const CALLS: usize = 20;
    let ends = ProxiedRuntime::start("", counting());
    let writes = Arc::<AtomicUsize>::default();
    let stream = UnixStream::connect(ends.socket()).await.unwrap();
    let stream = Gathered::new(Counted(stream, Arc::clone(&writes)));
    let (mut client, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    // The first call includes the exchange of settings.
    call(&mut client, VERSION, b"\0\0\0\0\0".to_vec()).await;
    let before = writes.load(Ordering::Relaxed);
    for _ in 0..CALLS {
        call(&mut client, VERSION, b"\0\0\0\0\0".to_vec()).await;
    }
    let written = writes.load(Ordering::Relaxed) - before;
    // A settings acknowledgement may come late.
    assert!((CALLS..=CALLS + 1).contains(&written), "{written}");
}
