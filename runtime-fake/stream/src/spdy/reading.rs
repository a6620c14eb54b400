//! Reads frames from the connection and dispatches them to streams.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    sync::mpsc::{self, error::TrySendError},
};

use super::{
    ConnectionError, Stream,
    shared::{Control, Shared},
};
use crate::{
    frame::{self, Frame, HEAD, Head, INITIAL_WINDOW_SIZE, reset},
    headers::Inflater,
    pipe::{PIECE, Piece, deliver},
};

/// Reads until the peer closes its half.
pub(super) async fn run(
    read: impl AsyncRead + Unpin,
    shared: &Arc<Shared>,
    pieces: mpsc::WeakSender<Piece>,
    opened: mpsc::Sender<Stream>,
) -> Result<(), ConnectionError> {
    let mut reader = Reader {
        read: BufReader::with_capacity(PIECE, read),
        shared,
        inflater: Inflater::new(),
        pieces,
        opened,
    };
    let read = reader.frames().await;
    shared.close();
    read
}

struct Reader<'a, R> {
    read: BufReader<R>,
    shared: &'a Arc<Shared>,
    inflater: Inflater,
    pieces: mpsc::WeakSender<Piece>,
    opened: mpsc::Sender<Stream>,
}

impl<R: AsyncRead + Unpin> Reader<'_, R> {
    async fn frames(&mut self) -> Result<(), ConnectionError> {
        while !self.read.fill_buf().await?.is_empty() {
            let mut first = [0; HEAD];
            self.read.read_exact(&mut first).await?;
            match frame::head(first)? {
                Head::Data { id, fin, length } => self.data(id, fin, length).await?,
                Head::Control { kind, flags, length } => {
                    let mut payload = vec![0; length];
                    self.read.read_exact(&mut payload).await?;
                    self.frame(frame::control(kind, flags, &payload)?)?;
                }
            }
            self.shared.check()?;
        }
        Ok(())
    }

    /// Delivers data as it arrives, however long the frame is.
    async fn data(&mut self, id: u32, fin: bool, mut left: usize) -> Result<(), ConnectionError> {
        while left > 0 {
            let buffer = self.read.fill_buf().await?;
            if buffer.is_empty() {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            let chunk = Bytes::copy_from_slice(&buffer[..buffer.len().min(left)]);
            let length = chunk.len();
            self.read.consume(length);
            left -= length;
            self.shared.arrived(u32::try_from(length).unwrap_or(0));
            // Drop data for a closed stream: the peer sent it before it saw the close. spdystream drops it too.
            if let Some(chunks) = self.shared.chunks(id)
                && let Err(TrySendError::Full(chunk)) = chunks.try_send(chunk)
            {
                self.shared.stall(true);
                deliver(chunk, &chunks, || self.shared.heartbeat()).await;
                self.shared.stall(false);
            }
        }
        if fin {
            self.shared.finished(id);
        }
        Ok(())
    }

    fn frame(&mut self, frame: Frame) -> Result<(), ConnectionError> {
        match frame {
            Frame::SynStream { id, fin, unidirectional, block } => {
                // Decode a block in any case: the next one depends on its compression state.
                let headers = self.inflater.headers(&block)?;
                let stream = self.shared.opened(id, fin, headers, &self.pieces)?;
                if unidirectional {
                    self.shared.ended(id);
                }
                // The queue has room for as many streams as may be open, but the receiver may have been dropped.
                if let Some(stream) = stream
                    && self.opened.try_send(stream).is_err()
                    && self.shared.reset(id)
                {
                    let status = reset::REFUSED_STREAM;
                    self.shared.control(Control::Reset { id, status });
                }
            }
            Frame::SynReply { id, fin, block } | Frame::Headers { id, fin, block } => {
                self.inflater.headers(&block)?;
                if fin {
                    self.shared.finished(id);
                }
            }
            Frame::Reset { id, .. } => {
                self.shared.reset(id);
            }
            Frame::Settings(entries) => {
                for (setting, value) in entries {
                    if setting == INITIAL_WINDOW_SIZE {
                        self.shared.initial_window(value);
                    }
                }
            }
            Frame::Ping(id) => self.shared.pinged(id),
            Frame::WindowUpdate { id, delta } => self.shared.widen(id, delta)?,
            // After GOAWAY the peer opens no more streams; the open ones continue.
            Frame::GoAway { .. } | Frame::Unknown => {}
        }
        Ok(())
    }
}
