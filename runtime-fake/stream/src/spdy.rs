//! A SPDY/3.1 connection, for clients and servers.
//!
//! ```text
//!              ┌ frames ─▶ reading ─┬ data ──────▶ Inlet   (waits while it is full: then nothing is read)
//!   connection ─┤                    └ SYN_STREAM ▶ Stream, with a SYN_REPLY in `control`
//!               └ frames ◀─ writing ─┬ control: replies, window updates
//!                                    └ pieces ◀──── Outlet  (waits while it is full)
//! ```
//!
//! The peers that matter (moby/spdystream 0.5, in every Kubernetes client) ignore windows: they neither widen ours nor obey
//! theirs. So this side obeys windows only after the peer has sent a frame about them. Before that, TCP flow control alone makes
//! this side wait for a slow reader. The same applies while this side reads nothing because a stream's queue is full: window
//! updates of the peer wait behind its data, and the stream's reader may be waiting until the peer has received data from this
//! side.
//!
//! Before such a frame, this side does not widen its own windows as bytes are read either: a server like containerd's closes the
//! connection right after its last frame, and an unread update then makes the kernel reset the connection, which loses the end of
//! the output. A server that uses windows sends a SETTINGS frame, and a client answers with one.
//!
//! A peer cannot make this side use unbounded memory: data frames are delivered in chunks, control frames and
//! headers have a maximum length, streams a maximum number, and a peer that requests replies without reading them
//! is disconnected.

mod reading;
mod shared;
mod writing;

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    sync::mpsc,
};

use super::{
    frame::FrameError,
    headers::{Headers, HeadersError},
    pipe::{Inlet, Outlet, PIECES, Piece},
};
use shared::{Control, Shared};

/// Limit on the streams that a peer may have open at the same time.
const MAX_STREAMS: usize = 1024;
/// The initial window of each stream and of the connection (SPDY Draft 3.1, 2.6.8).
const INITIAL_WINDOW: u32 = 64 << 10;

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens streams with odd IDs.
    Client,
    /// Accepts connections; opens streams with even IDs.
    Server,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The transport failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The peer violated the protocol.
    #[error("peer violates SPDY/3.1: {0}")]
    Protocol(String),
}

impl From<FrameError> for ConnectionError {
    fn from(problem: FrameError) -> Self {
        Self::Protocol(problem.to_string())
    }
}

impl From<HeadersError> for ConnectionError {
    fn from(problem: HeadersError) -> Self {
        Self::Protocol(problem.to_string())
    }
}

/// A stream that either side opened.
pub struct Stream {
    /// Its ID.
    pub id: u32,
    /// The headers of its SYN_STREAM.
    pub headers: Headers,
    /// The receiving end.
    pub inlet: Inlet,
    /// The sending end.
    pub outlet: Outlet,
}

/// Opens streams. The connection ends cleanly when this and every [`Outlet`] of it are dropped.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    pieces: mpsc::Sender<Piece>,
}

impl Connection {
    /// Opens a stream. It can be used immediately; if the peer refuses it, it is reset.
    #[must_use]
    pub fn open(&self, headers: Headers) -> Stream {
        let (id, inlet, outlet) = self.shared.open(headers.clone(), &self.pieces);
        Stream { id, headers, inlet, outlet }
    }
}

/// Drives a connection: nothing happens while its future is not polled.
pub struct Driver<T> {
    shared: Arc<Shared>,
    read: ReadHalf<T>,
    write: WriteHalf<T>,
    pieces: mpsc::Receiver<Piece>,
    more_pieces: mpsc::WeakSender<Piece>,
    opened: mpsc::Sender<Stream>,
}

/// Starts a connection over `io`. Returns the handle to open streams, the streams that the peer opens, and the
/// driver.
pub fn connect<T: AsyncRead + AsyncWrite>(
    io: T,
    role: Role,
) -> (Connection, mpsc::Receiver<Stream>, Driver<T>) {
    let (read, write) = tokio::io::split(io);
    let (pieces, to_send) = mpsc::channel(PIECES);
    let (opened, streams) = mpsc::channel(MAX_STREAMS);
    let shared = Arc::new(Shared::new(role));
    let driver = Driver {
        shared: shared.clone(),
        read,
        write,
        pieces: to_send,
        more_pieces: pieces.downgrade(),
        opened,
    };
    (Connection { shared, pieces }, streams, driver)
}

impl<T: AsyncRead + AsyncWrite> Driver<T> {
    /// Drives the connection until the peer has closed it. When this side has dropped every sender, it sends GOAWAY,
    /// closes its half, and waits for the peer's; the caller bounds that wait.
    ///
    /// # Errors
    /// When the transport fails or the peer violates the protocol. In the latter case this side tries to send GOAWAY.
    pub async fn run(self) -> Result<(), ConnectionError> {
        let reading = reading::run(self.read, &self.shared, self.more_pieces, self.opened);
        let writing = writing::run(self.write, &self.shared, self.pieces);
        tokio::pin!(writing);
        // Not cancel-safe, and need not be: when reading has ended, only a GOAWAY is still written.
        tokio::select! {
            read = reading => {
                if let Err(ConnectionError::Protocol(_)) = &read {
                    self.shared.control(Control::GoAway { protocol_error: true });
                    // A GOAWAY fits into the socket's buffer, unless the peer does not read.
                    let patience = std::time::Duration::from_millis(100);
                    let _ = tokio::time::timeout(patience, writing).await;
                }
                read
            }
            failed = &mut writing => failed.map(|never| match never {}),
        }
    }
}

#[cfg(test)]
mod tests;
