//! The two ends of one stream, whatever it shares a connection with.

use std::{
    io,
    sync::{
        Mutex, PoisonError,
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

/// The most that is sent at once, so that streams of one connection take turns.
pub(super) const PIECE: usize = 16 << 10;
/// How many pieces of all streams together wait to be sent.
pub(super) const PIECES: usize = 8;
/// How many chunks of one stream wait to be taken; each is of [`PIECE`] bytes at most.
pub(super) const CHUNKS: usize = 8;

/// While a stream is full nothing is read, so nobody hears of a peer that has gone. So often it is told that this side
/// lives: a peer that is not there any more makes that fail.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);

/// The peer has no more use for a stream, or there is no connection any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side has gone")]
pub struct Gone;

/// Something to be sent on a stream.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) id: u32,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Data(Bytes),
    /// A half-close.
    End,
    /// Neither direction is of use any more.
    Reset,
    /// A sign of life, of no stream.
    Heartbeat,
}

/// What comes in on a stream.
pub struct Inlet {
    chunks: mpsc::Receiver<Bytes>,
    /// Is told how much was taken: that much more may be sent.
    taken: Option<Box<dyn FnMut(usize) + Send>>,
}

impl Inlet {
    pub(super) fn new(
        chunks: mpsc::Receiver<Bytes>,
        taken: Option<Box<dyn FnMut(usize) + Send>>,
    ) -> Self {
        Self { chunks, taken }
    }

    /// The next bytes. None after the peer's half-close, or when there is no connection any more.
    ///
    /// Cancel-safe: what was not returned is still there.
    pub async fn next(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.recv().await?;
        if let Some(taken) = &mut self.taken {
            taken(chunk.len());
        }
        Some(chunk)
    }
}

/// How much may go out on a stream. Shared by those who send and those who hear from the peer.
#[derive(Debug)]
pub(super) struct Flow {
    /// Below zero when the peer has made it smaller since.
    window: Mutex<i64>,
    news: Notify,
    /// The peer has no use for the stream any more.
    pub(super) reset: CancellationToken,
    /// Whether the peer speaks of windows at all: see [`super::spdy`].
    heeded: AtomicBool,
}

impl Flow {
    pub(super) fn new(window: i64, heeded: bool) -> Self {
        Self {
            window: Mutex::new(window),
            news: Notify::new(),
            reset: CancellationToken::new(),
            heeded: AtomicBool::new(heeded),
        }
    }

    /// From now on nothing is sent that there is no room for.
    pub(super) fn heed(&self) {
        self.heeded.store(true, Ordering::Relaxed);
    }

    /// Widens the window, or narrows it; false when it became wider than the protocol allows.
    pub(super) fn widen(&self, delta: i64) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        *window += delta;
        let legal = *window <= i64::from(i32::MAX);
        drop(window);
        self.news.notify_waiters();
        legal
    }

    /// Takes room for up to `wanted` bytes, waiting for some. Cancelled, it has taken none.
    async fn room(&self, wanted: usize) -> usize {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Before the look: what changes afterwards is heard.
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
        let room = if self.heeded.load(Ordering::Relaxed) {
            all.min(*window)
        } else {
            all
        };
        if room <= 0 {
            return None;
        }
        *window -= room;
        usize::try_from(room).ok()
    }
}

/// What goes out on a stream.
pub struct Outlet {
    pub(super) id: u32,
    pub(super) to: mpsc::Sender<Piece>,
    /// The stream's room and the connection's, where there are such.
    pub(super) flows: Vec<std::sync::Arc<Flow>>,
    /// Told when the peer has no use for the stream any more.
    pub(super) reset: CancellationToken,
}

impl Outlet {
    /// Sends bytes, waiting until there is room for them.
    ///
    /// # Errors
    /// When nobody will read them.
    pub async fn send(&self, mut bytes: Bytes) -> Result<(), Gone> {
        loop {
            let mut length = bytes.len().min(PIECE);
            if length > 0 {
                length = self.room(length).await?;
            }
            let what = What::Data(bytes.split_to(length));
            self.push(what).await?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    async fn room(&self, wanted: usize) -> Result<usize, Gone> {
        let granted = async {
            let mut room = wanted;
            for (n, flow) in self.flows.iter().enumerate() {
                let more = flow.room(room).await;
                // What an earlier flow gave too much goes back to it.
                for earlier in &self.flows[..n] {
                    earlier.widen(i64::try_from(room - more).unwrap_or(0));
                }
                room = more;
            }
            room
        };
        // Whoever loses is not asked again: the stream is over.
        tokio::select! {
            room = granted => Ok(room),
            () = self.gone() => Err(Gone),
        }
    }

    async fn push(&self, what: What) -> Result<(), Gone> {
        if self.reset.is_cancelled() {
            return Err(Gone);
        }
        let piece = Piece { id: self.id, what };
        self.to.send(piece).await.map_err(|_| Gone)
    }

    /// Says that nothing more will be sent. What was sent before arrives before.
    pub async fn end(&self) {
        let _ = self.push(What::End).await;
    }

    /// Says that the stream is of no use any more, in either direction.
    pub async fn abort(&self) {
        let _ = self.push(What::Reset).await;
    }

    /// Whether there is no connection any more.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.to.is_closed()
    }

    /// Waits until nobody will read any more.
    pub async fn gone(&self) {
        tokio::select! {
            () = self.reset.cancelled() => {}
            () = self.to.closed() => {}
        }
    }
}

/// Hands on what came in, with signs of life while nobody takes it. Nobody may want it any more.
pub(super) async fn hand_on(chunk: Bytes, to: &mpsc::Sender<Bytes>, mut heartbeat: impl FnMut()) {
    let sent = to.send(chunk);
    tokio::pin!(sent);
    while tokio::time::timeout(HEARTBEAT, &mut sent).await.is_err() {
        heartbeat();
    }
}

/// Carries what comes in to `writer` until either ends, and flushes each time. The writer stays open.
///
/// # Errors
/// The writer's.
pub async fn pump_in(inlet: &mut Inlet, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    while let Some(chunk) = inlet.next().await {
        writer.write_all(&chunk).await?;
        writer.flush().await?;
    }
    Ok(())
}

/// Carries what `reader` gives to a stream until either ends. The stream stays open.
///
/// # Errors
/// The reader's; `BrokenPipe` when nobody reads the stream any more.
pub async fn pump_out(reader: &mut (impl AsyncRead + Unpin), outlet: &Outlet) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        // Cancel-safe: a read that is dropped has taken nothing.
        let read = tokio::select! {
            read = reader.read_buf(&mut buffer) => read?,
            () = outlet.gone() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        if read == 0 {
            return Ok(());
        }
        let sent = outlet.send(buffer.split().freeze()).await;
        sent.map_err(|gone| io::Error::new(io::ErrorKind::BrokenPipe, gone))?;
    }
}
