//! The two ends of one stream, for both protocols.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{Notify, mpsc},
};
use tokio_util::sync::CancellationToken;

/// Limit on the bytes sent in one turn, so that the streams of a connection take turns.
pub(super) const PIECE: usize = 16 << 10;
/// Limit on the pieces of all streams that wait to be sent.
pub(super) const PIECES: usize = 8;
/// Limit on the chunks of one stream that wait to be read; each has at most [`PIECE`] bytes.
pub(super) const CHUNKS: usize = 8;

/// The interval of heartbeats while a stream's queue is full. Nothing is read from the connection meanwhile, so only a failing
/// write shows that the peer has disconnected.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);

/// The peer reset the stream, or the connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stream was closed by the peer")]
pub struct StreamClosed;

/// A piece of data or a control message to be sent on a stream.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) id: u32,
    pub(super) what: PieceKind,
}

#[derive(Debug)]
pub(super) enum PieceKind {
    Data(Bytes),
    /// A half-close.
    End,
    /// Reset: ends both directions.
    Reset,
    /// A heartbeat, which belongs to no stream.
    Heartbeat,
}

/// The receiving end of a stream.
pub struct Inlet {
    chunks: mpsc::Receiver<Bytes>,
    /// Called with the number of bytes read, to widen the peer's window.
    taken: Option<Box<dyn FnMut(usize) + Send>>,
}

impl Inlet {
    pub(super) fn new(
        chunks: mpsc::Receiver<Bytes>,
        taken: Option<Box<dyn FnMut(usize) + Send>>,
    ) -> Self {
        Self { chunks, taken }
    }

    /// The next bytes, or `None` after the peer's half-close or the connection's end.
    ///
    /// Cancel-safe: a chunk that was not returned stays in the queue.
    pub async fn next(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.recv().await?;
        if let Some(taken) = &mut self.taken {
            taken(chunk.len());
        }
        Some(chunk)
    }
}

/// The send window of a stream, shared by the sender and the reader of the peer's frames.
#[derive(Debug)]
pub(super) struct Flow {
    /// Negative if the peer has shrunk it below the bytes already sent.
    window: Mutex<i64>,
    news: Notify,
    /// The peer has reset the stream.
    pub(super) reset: CancellationToken,
    /// Whether the peer uses windows: see [`super::spdy`].
    heeded: AtomicBool,
    /// Reading from the connection is paused, so no window can be widened.
    stalled: Arc<AtomicBool>,
}

impl Flow {
    pub(super) fn new(window: i64, heeded: bool, stalled: Arc<AtomicBool>) -> Self {
        Self {
            window: Mutex::new(window),
            news: Notify::new(),
            reset: CancellationToken::new(),
            heeded: AtomicBool::new(heeded),
            stalled,
        }
    }

    /// Wakes waiting senders, because reading from the connection is paused: they continue without room in the window.
    pub(super) fn stalled(&self) {
        self.news.notify_waiters();
    }

    /// From now on the sender waits for room in the window.
    pub(super) fn start_limiting(&self) {
        self.heeded.store(true, Ordering::Relaxed);
    }

    /// Widens the window, or narrows it. Returns false if it exceeds the protocol's maximum.
    pub(super) fn widen(&self, delta: i64) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        *window += delta;
        let legal = *window <= i64::from(i32::MAX);
        drop(window);
        self.news.notify_waiters();
        legal
    }

    /// Reserves room for up to `wanted` bytes, waiting until there is some. Cancel-safe: it reserves nothing when
    /// cancelled.
    async fn room(&self, wanted: usize) -> usize {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Register before checking, so that no notification is missed.
            news.as_mut().enable();
            if let Some(room) = self.take(wanted) {
                return room;
            }
            news.await;
        }
    }

    fn take(&self, wanted: usize) -> Option<usize> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let all = i64::try_from(wanted).unwrap_or(i64::MAX);
        let obeyed = self.heeded.load(Ordering::Relaxed) && !self.stalled.load(Ordering::SeqCst);
        let room = if obeyed { all.min(*window) } else { all };
        if room <= 0 {
            return None;
        }
        *window -= room;
        usize::try_from(room).ok()
    }
}

/// The sending end of a stream.
pub struct Outlet {
    pub(super) id: u32,
    pub(super) to: mpsc::Sender<Piece>,
    /// The windows of the stream and of the connection, if the protocol has them.
    pub(super) flows: Vec<Arc<Flow>>,
    /// Cancelled when the peer has reset the stream.
    pub(super) reset: CancellationToken,
}

impl Outlet {
    /// Sends bytes, waiting until there is room for them.
    ///
    /// # Errors
    /// When the peer will not read them.
    pub async fn send(&self, mut bytes: Bytes) -> Result<(), StreamClosed> {
        loop {
            let mut length = bytes.len().min(PIECE);
            if length > 0 {
                length = self.room(length).await?;
            }
            let what = PieceKind::Data(bytes.split_to(length));
            self.push(what).await?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    async fn room(&self, wanted: usize) -> Result<usize, StreamClosed> {
        let granted = async {
            let mut room = wanted;
            for (n, flow) in self.flows.iter().enumerate() {
                let more = flow.room(room).await;
                // Give back the room that an earlier window granted beyond this one's.
                for earlier in &self.flows[..n] {
                    earlier.widen(i64::try_from(room - more).unwrap_or(0));
                }
                room = more;
            }
            room
        };
        // The losing arm need not be cancel-safe: the stream is over.
        tokio::select! {
            room = granted => Ok(room),
            () = self.closed() => Err(StreamClosed),
        }
    }

    async fn push(&self, what: PieceKind) -> Result<(), StreamClosed> {
        if self.reset.is_cancelled() {
            return Err(StreamClosed);
        }
        let piece = Piece { id: self.id, what };
        self.to.send(piece).await.map_err(|_| StreamClosed)
    }

    /// Half-closes the stream, after everything that was sent before.
    pub async fn end(&self) {
        let _ = self.push(PieceKind::End).await;
    }

    /// Resets the stream: ends both directions.
    pub async fn abort(&self) {
        let _ = self.push(PieceKind::Reset).await;
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.to.is_closed()
    }

    /// Waits until the peer has reset the stream or the connection has ended.
    pub async fn closed(&self) {
        tokio::select! {
            () = self.reset.cancelled() => {}
            () = self.to.closed() => {}
        }
    }
}

/// Delivers a chunk to the stream's reader and sends heartbeats while the queue is full. The reader may have been dropped.
pub(super) async fn deliver(chunk: Bytes, to: &mpsc::Sender<Bytes>, mut heartbeat: impl FnMut()) {
    let sent = to.send(chunk);
    tokio::pin!(sent);
    while tokio::time::timeout(HEARTBEAT, &mut sent).await.is_err() {
        heartbeat();
    }
}

/// Copies from the stream to `writer` until either ends, flushing after each chunk. The writer stays open.
///
/// # Errors
/// The writer's error.
pub async fn pump_in(inlet: &mut Inlet, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    while let Some(chunk) = inlet.next().await {
        writer.write_all(&chunk).await?;
        writer.flush().await?;
    }
    Ok(())
}

/// Copies from `reader` to the stream until either ends. The stream stays open.
///
/// # Errors
/// The reader's error; `BrokenPipe` when the peer no longer reads the stream.
pub async fn pump_out(reader: &mut (impl AsyncRead + Unpin), outlet: &Outlet) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        // Cancel-safe: a dropped read has consumed nothing.
        let read = tokio::select! {
            read = reader.read_buf(&mut buffer) => read?,
            () = outlet.closed() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        if read == 0 {
            return Ok(());
        }
        let sent = outlet.send(buffer.split().freeze()).await;
        sent.map_err(|gone| io::Error::new(io::ErrorKind::BrokenPipe, gone))?;
    }
}
