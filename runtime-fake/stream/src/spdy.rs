//! A SPDY/3.1 connection, either end of it.
//!
//! ```text
//!              ┌ frames ─▶ reading ─┬ data ──────▶ Inlet   (waits while it is full: then nothing is read)
//!  connection ─┤                    └ SYN_STREAM ▶ Stream, with an answer in `control`
//!              └ frames ◀─ writing ─┬ control: answers, updates of windows
//!                                   └ pieces ◀──── Outlet  (waits while it is full)
//! ```
//!
//! The peers that matter (moby/spdystream 0.5, in every Kubernetes client) know no windows: they neither widen ours nor
//! heed theirs. So windows are heeded from the moment when a peer speaks of them; until then, as always, what is not read
//! makes the sender wait by TCP's. Ours are widened as bytes are taken, for those who heed them.
//!
//! What a peer can make this side hold is bounded: frames of data are handed on in chunks, control frames and headers have
//! a greatest length, streams a greatest number, and whoever asks for answers without reading them is cut off.

mod reading;
mod shared;
mod writing;

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    sync::mpsc,
};

use super::{
    frame::Malformed,
    headers::{BadHeaders, Headers},
    pipe::{Inlet, Outlet, PIECES, Piece},
};
use shared::{Control, Shared};

/// The most streams that a peer may have open at once.
const MAX_STREAMS: usize = 1024;
/// What each stream, and all together, may send before they hear of more room (SPDY Draft 3.1, 2.6.8).
const INITIAL_WINDOW: u32 = 64 << 10;

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It opens streams with odd ids.
    Client,
    /// It takes them.
    Server,
}

/// Why a connection ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The transport failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The peer does not keep to the protocol.
    #[error("the peer does not speak SPDY/3.1: {0}")]
    Protocol(String),
}

impl From<Malformed> for ConnectionError {
    fn from(problem: Malformed) -> Self {
        Self::Protocol(problem.to_string())
    }
}

impl From<BadHeaders> for ConnectionError {
    fn from(problem: BadHeaders) -> Self {
        Self::Protocol(problem.to_string())
    }
}

/// A stream that either side has opened.
pub struct Stream {
    /// Its number.
    pub id: u32,
    /// What the side that opened it said about it.
    pub headers: Headers,
    /// What comes in.
    pub inlet: Inlet,
    /// What goes out.
    pub outlet: Outlet,
}

/// The way to open streams. The connection ends in order when this and every [`Outlet`] of it was dropped.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    pieces: mpsc::Sender<Piece>,
}

impl Connection {
    /// Opens a stream. It can be used at once; whether the peer takes it is seen by what comes of it.
    #[must_use]
    pub fn open(&self, headers: Headers) -> Stream {
        let (id, inlet, outlet) = self.shared.open(headers.clone(), &self.pieces);
        Stream {
            id,
            headers,
            inlet,
            outlet,
        }
    }
}

/// What makes a connection go on: nothing happens while its future is not polled.
pub struct Driver<T> {
    shared: Arc<Shared>,
    read: ReadHalf<T>,
    write: WriteHalf<T>,
    pieces: mpsc::Receiver<Piece>,
    more_pieces: mpsc::WeakSender<Piece>,
    opened: mpsc::Sender<Stream>,
}

/// A connection over `io`: the way to open streams, those that the peer opens, and what drives it all.
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
    /// Drives the connection until the peer has closed it. When this side has dropped all that could send, it says so,
    /// closes its half, and waits for the peer's: whoever calls this decides for how long.
    ///
    /// # Errors
    /// When the transport fails or the peer breaks the protocol. The peer was told, if it could be.
    pub async fn run(self) -> Result<(), ConnectionError> {
        let reading = reading::run(self.read, &self.shared, self.more_pieces, self.opened);
        let writing = writing::run(self.write, &self.shared, self.pieces);
        tokio::pin!(writing);
        // Not cancel-safe, nor need be: when reading has ended, there is nobody to write to but for a last word.
        tokio::select! {
            read = reading => {
                if let Err(ConnectionError::Protocol(_)) = &read {
                    self.shared.control(Control::GoAway { protocol_error: true });
                    // The last word is short: it fits into the socket's buffer, or the peer does not read.
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
