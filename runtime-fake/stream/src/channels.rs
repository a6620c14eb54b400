//! A WebSocket whose messages begin with a channel number, for clients and servers (Kubernetes 1.36,
//! `k8s.io/streaming`, `wsstream`).
//!
//! | protocols | a message is |
//! |---|---|
//! | `v5.channel.k8s.io`, `v4.channel.k8s.io`, `channel.k8s.io`, none | the number as a byte, then the bytes |
//! | `v4.base64.channel.k8s.io`, `base64.channel.k8s.io` | the number as a digit, then the bytes in base64 |
//!
//! In v5, the byte 255 followed by a channel number half-closes that channel. Only clients send it: Go clients
//! reject it from a server.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    Role,
    pipe::{CHUNKS, Inlet, Outlet, PIECE, PIECES, Piece, PieceKind, deliver},
};

/// In place of a channel number: half-closes the channel that follows.
const CLOSE: u8 = 255;

/// The encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Raw bytes.
    Binary,
    /// Base64 in text messages.
    Base64,
}

/// The channels of a WebSocket. The owner first creates inlets and outlets for the channels that it uses, then
/// drives the socket with [`Channels::run`].
pub struct Channels<T> {
    socket: WebSocketStream<T>,
    codec: Codec,
    half_close: bool,
    role: Role,
    inlets: HashMap<u8, mpsc::Sender<Bytes>>,
    pieces: mpsc::Sender<Piece>,
    to_send: mpsc::Receiver<Piece>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Channels<T> {
    /// Channels over `socket`, at the end `role`. With `half_close`, as in v5, a client can close channels one by
    /// one.
    #[must_use]
    pub fn new(socket: WebSocketStream<T>, codec: Codec, half_close: bool, role: Role) -> Self {
        let (pieces, to_send) = mpsc::channel(PIECES);
        Self { socket, codec, half_close, role, inlets: HashMap::new(), pieces, to_send }
    }

    /// The receiving end of a channel. Data on a channel without an inlet is dropped.
    pub fn inlet(&mut self, channel: u8) -> Inlet {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        self.inlets.insert(channel, sender);
        Inlet::new(chunks, None)
    }

    /// The sending end of a channel.
    pub fn outlet(&mut self, channel: u8) -> Outlet {
        Outlet {
            id: u32::from(channel),
            to: self.pieces.clone(),
            flows: Vec::new(),
            reset: CancellationToken::new(),
        }
    }

    /// Drives the socket until the peer has closed it. When every [`Outlet`] is dropped, this side sends a Close
    /// frame and waits for the peer's; the caller bounds that wait.
    ///
    /// # Errors
    /// When the connection fails or the peer sends an invalid message.
    pub async fn run(self) -> Result<(), Error> {
        let Self { socket, codec, half_close, role, inlets, pieces, to_send } = self;
        let more_pieces = pieces.downgrade();
        drop(pieces);
        let (sink, stream) = socket.split();
        // Not cancel-safe, and need not be: when either ends, the connection is over.
        tokio::select! {
            ended = read(stream, codec, half_close, inlets, more_pieces) => ended,
            failed = write(sink, codec, half_close && role == Role::Client, to_send) => failed,
        }
    }
}

async fn read<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: SplitStream<WebSocketStream<T>>,
    codec: Codec,
    half_close: bool,
    mut inlets: HashMap<u8, mpsc::Sender<Bytes>>,
    pieces: mpsc::WeakSender<Piece>,
) -> Result<(), Error> {
    while let Some(message) = stream.next().await {
        let message: Bytes = match message? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            // The library answers these when it is polled again; after the answer to a Close frame the stream ends.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) | Message::Close(_) => continue,
        };
        match decode(message, codec, half_close) {
            Some(ChannelMessage::Data(channel, mut bytes)) => {
                let Some(inlet) = inlets.get(&channel) else {
                    continue;
                };
                while !bytes.is_empty() {
                    let chunk = bytes.split_to(bytes.len().min(PIECE));
                    deliver(chunk, inlet, || heartbeat(&pieces)).await;
                }
            }
            Some(ChannelMessage::End(channel)) => {
                inlets.remove(&channel);
            }
            None => {}
        }
    }
    Ok(())
}

/// Queues a heartbeat, unless the queue is full.
fn heartbeat(pieces: &mpsc::WeakSender<Piece>) {
    if let Some(pieces) = pieces.upgrade() {
        let what = PieceKind::Heartbeat;
        let _ = pieces.try_send(Piece { id: 0, what });
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ChannelMessage {
    Data(u8, Bytes),
    End(u8),
}

/// Decodes a message. Returns `None` if it is empty or invalid, which Kubernetes ignores too.
fn decode(mut message: Bytes, codec: Codec, half_close: bool) -> Option<ChannelMessage> {
    let first = *message.first()?;
    if half_close && first == CLOSE {
        return match message[..] {
            [_, channel] => Some(ChannelMessage::End(channel)),
            _ => None,
        };
    }
    let bytes = message.split_off(1);
    match codec {
        Codec::Binary => Some(ChannelMessage::Data(first, bytes)),
        Codec::Base64 => {
            let channel = first.checked_sub(b'0')?;
            let bytes = BASE64_STANDARD.decode(&bytes).ok()?;
            Some(ChannelMessage::Data(channel, bytes.into()))
        }
    }
}

async fn write<T: AsyncRead + AsyncWrite + Unpin>(
    mut sink: SplitSink<WebSocketStream<T>, Message>,
    codec: Codec,
    half_close: bool,
    mut pieces: mpsc::Receiver<Piece>,
) -> Result<(), Error> {
    while let Some(Piece { id, what }) = pieces.recv().await {
        let channel = u8::try_from(id).unwrap_or(CLOSE);
        match what {
            PieceKind::Data(bytes) => sink.send(encode(channel, &bytes, codec)).await?,
            PieceKind::End | PieceKind::Reset if half_close => {
                let end = Bytes::copy_from_slice(&[CLOSE, channel]);
                sink.send(Message::Binary(end)).await?;
            }
            PieceKind::Heartbeat => sink.send(Message::Ping(Bytes::new())).await?,
            // The other protocols have no message for it.
            PieceKind::End | PieceKind::Reset => {}
        }
    }
    let farewell = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    sink.send(Message::Close(Some(farewell))).await?;
    // The peer's Close frame ends the reading half.
    std::future::pending().await
}

fn encode(channel: u8, bytes: &[u8], codec: Codec) -> Message {
    match codec {
        Codec::Binary => {
            let mut message = BytesMut::with_capacity(bytes.len() + 1);
            message.put_u8(channel);
            message.put_slice(bytes);
            Message::Binary(message.freeze())
        }
        Codec::Base64 => {
            let mut message = String::from(char::from(b'0'.wrapping_add(channel)));
            BASE64_STANDARD.encode_string(bytes, &mut message);
            Message::Text(message.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(b"", Codec::Binary, None)]
    #[case::bytes(b"\x01abc", Codec::Binary, Some(ChannelMessage::Data(1, "abc".into())))]
    #[case::no_bytes(b"\x04", Codec::Binary, Some(ChannelMessage::Data(4, Bytes::new())))]
    #[case::end(b"\xff\x00", Codec::Binary, Some(ChannelMessage::End(0)))]
    #[case::end_of_nothing(b"\xff", Codec::Binary, None)]
    #[case::too_many_ends(b"\xff\x00\x01", Codec::Binary, None)]
    #[case::text(b"0Zm9vCgo=", Codec::Base64, Some(ChannelMessage::Data(0, "foo\n\n".into())))]
    #[case::no_text(b"0", Codec::Base64, Some(ChannelMessage::Data(0, Bytes::new())))]
    #[case::no_base64(b"0!", Codec::Base64, None)]
    #[case::no_digit(b"\x00Zm9v", Codec::Base64, None)]
    fn channel_messages_are_decoded(
        #[case] message: &'static [u8],
        #[case] codec: Codec,
        #[case] says: Option<ChannelMessage>,
    ) {
        assert_eq!(decode(Bytes::from_static(message), codec, true), says);
    }

    #[test]
    fn messages_round_trip() {
        for codec in [Codec::Binary, Codec::Base64] {
            let message = encode(3, b"any\x00bytes", codec).into_data();
            let back = decode(message, codec, false);
            assert_eq!(back, Some(ChannelMessage::Data(3, "any\0bytes".into())));
        }
        // Without half-close, 255 is an ordinary channel.
        let data = decode(Bytes::from_static(b"\xff\x00"), Codec::Binary, false);
        assert_eq!(data, Some(ChannelMessage::Data(255, "\0".into())));
    }
}
