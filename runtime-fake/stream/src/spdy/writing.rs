//! Writes frames to the connection: control frames first, then the streams' pieces in the order of their queue.

use std::{convert::Infallible, sync::Arc};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

use super::{
    ConnectionError, INITIAL_WINDOW,
    shared::{Control, Shared},
};
use crate::{
    frame::{Frame, INITIAL_WINDOW_SIZE, data_head, reset},
    headers::{Deflater, Headers},
    pipe::{Piece, PieceKind},
};

/// Limit on the bytes gathered for one write.
const BATCH: usize = 64 << 10;

/// Writes until every sender is dropped, sends GOAWAY, and then waits to be dropped.
pub(super) async fn run(
    mut write: impl AsyncWrite + Unpin,
    shared: &Arc<Shared>,
    mut pieces: mpsc::Receiver<Piece>,
) -> Result<Infallible, ConnectionError> {
    let mut deflater = Deflater::new();
    let mut out = Vec::new();
    let mut open = true;
    loop {
        let news = shared.news.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        answers(shared, &mut deflater, &mut out);
        while out.len() < BATCH
            && let Ok(next) = pieces.try_recv()
        {
            piece(next, shared, &mut deflater, &mut out);
        }
        if open && pieces.is_closed() && pieces.is_empty() {
            open = false;
            let last = shared.last();
            Frame::GoAway { last, status: 0 }.encode(&mut out);
        }
        if !out.is_empty() {
            write.write_all(&out).await?;
            out.clear();
            // Release the memory of a long piece.
            out.shrink_to(BATCH);
            write.flush().await?;
            if !open {
                write.shutdown().await?;
            }
            continue;
        }
        // Both arms are cancel-safe: neither consumes a message or a notification when cancelled.
        tokio::select! {
            () = news => {}
            next = pieces.recv(), if open => match next {
                Some(next) => piece(next, shared, &mut deflater, &mut out),
                None => continue,
            },
        }
        if !open {
            // This side is closed: discard further control frames.
            shared.take_control();
            std::future::pending::<()>().await;
        }
    }
}

fn answers(shared: &Arc<Shared>, deflater: &mut Deflater, out: &mut Vec<u8>) {
    for control in shared.take_control() {
        let frame = match control {
            Control::Open { id, headers } => Frame::SynStream {
                id,
                fin: false,
                unidirectional: false,
                block: deflater.block(&headers),
            },
            Control::Reply { id } => {
                Frame::SynReply { id, fin: false, block: deflater.block(&Headers::default()) }
            }
            Control::Reset { id, status } => Frame::Reset { id, status },
            Control::Ping(id) => Frame::Ping(id),
            Control::WindowUpdate { id, delta } => Frame::WindowUpdate { id, delta },
            Control::Settings => Frame::Settings(vec![(INITIAL_WINDOW_SIZE, INITIAL_WINDOW)]),
            Control::GoAway { protocol_error } => {
                Frame::GoAway { last: shared.last(), status: u32::from(protocol_error) }
            }
        };
        frame.encode(out);
    }
}

fn piece(piece: Piece, shared: &Arc<Shared>, deflater: &mut Deflater, out: &mut Vec<u8>) {
    // Send control frames first: the stream's SYN_STREAM or SYN_REPLY may be among them.
    answers(shared, deflater, out);
    let Piece { id, what } = piece;
    match what {
        PieceKind::Data(bytes) => {
            if shared.is_open(id) {
                out.extend_from_slice(&data_head(id, false, bytes.len()));
                out.extend_from_slice(&bytes);
            } else {
                shared.unsent(bytes.len());
            }
        }
        PieceKind::End => {
            if shared.ended(id) {
                out.extend_from_slice(&data_head(id, true, 0));
            }
        }
        // The reading half has queued a PING for it.
        PieceKind::Heartbeat => {}
        PieceKind::Reset => {
            if shared.reset(id) {
                let status = reset::CANCEL;
                Frame::Reset { id, status }.encode(out);
            }
        }
    }
}
