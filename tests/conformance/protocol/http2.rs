//! An HTTP/2 client that sends arbitrary frames, including invalid ones.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::*;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// h2 also uses it for blocks that cannot be decompressed.
pub(crate) const PROTOCOL_ERROR: u32 = 1;

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A response with a message.
    Answered,
    /// Headers without a message: a gRPC or HTTP error.
    Failed,
    StreamError(u32),
    ConnectionError(u32),
    Closed,
}

/// A client that writes frames.
pub(crate) struct Http2 {
    stream: UnixStream,
}

impl Http2 {
    pub(crate) async fn connect(runtime: &Runtime) -> Self {
        let mut stream = UnixStream::connect(runtime.socket()).await.unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        stream.write_all(preface).await.unwrap();
        let mut client = Self { stream };
        client.frame(SETTINGS, 0, 0, &[]).await.unwrap();
        client
    }

    /// Sends an incomplete frame.
    pub(crate) async fn send_partial_frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        length: usize,
    ) {
        let frame = frame(kind, flags, stream, payload);
        self.stream.write_all(&frame[..length]).await.unwrap();
    }

    pub(crate) async fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        let frame = frame(kind, flags, stream, payload);
        self.stream.write_all(&frame).await
    }

    /// Sends a request with an empty message, as Version takes it, and returns the outcome.
    pub(crate) async fn call(&mut self, stream: u32, block: &[u8]) -> Outcome {
        let _ = self.frame(HEADERS, END_HEADERS, stream, block).await;
        self.finish(stream).await
    }

    pub(crate) async fn finish(&mut self, stream: u32) -> Outcome {
        let _ = self.frame(DATA, END_STREAM, stream, &[0; 5]).await;
        self.wait_for_outcome(stream).await
    }

    /// Waits for the outcome of a request.
    pub(crate) async fn wait_for_outcome(&mut self, stream: u32) -> Outcome {
        tokio::time::timeout(Duration::from_secs(60), self.outcome(stream))
            .await
            .expect("the server neither answers nor closes the connection")
    }

    async fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).await.is_err() {
                return Outcome::Closed;
            }
            let [a, b, c, kind, flags, id @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            if self.stream.read_exact(&mut payload).await.is_err() {
                return Outcome::Closed;
            }
            let ours = u32::from_be_bytes(id) == stream;
            let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            match kind {
                GOAWAY => return Outcome::ConnectionError(number(4)),
                RST_STREAM if ours => return Outcome::StreamError(number(0)),
                HEADERS if ours && flags & END_STREAM != 0 => return Outcome::Failed,
                DATA if ours && !payload.is_empty() => {
                    return Outcome::Answered;
                }
                _ => {}
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = payload.len().to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [&[a, b, c, kind, flags, d, e, f, g], payload].concat()
}

/// A literal field that uses no table and no Huffman coding.
pub(crate) fn literal(first: u8, name: &str, value: &[u8]) -> Vec<u8> {
    let mut field = vec![first];
    for text in [name.as_bytes(), value] {
        if text.len() < 127 {
            field.push(u8::try_from(text.len()).unwrap());
        } else {
            let rest = text.len() - 127;
            field.extend([0x7f, low(rest) | 0x80, low(rest >> 7) | 0x80, low(rest >> 14)]);
        }
        field.extend_from_slice(text);
    }
    field
}

fn low(number: usize) -> u8 {
    u8::try_from(number & 0x7f).unwrap()
}

pub(crate) const WITHOUT_INDEXING: u8 = 0;
pub(crate) const WITH_INDEXING: u8 = 0x40;
/// `:method: POST` and `:scheme: http` as indexes into the static table.
pub(crate) const METHOD_AND_SCHEME: [u8; 2] = [0x83, 0x86];

/// The header block of a Version request with this encoding of `:authority`.
pub(crate) fn request(authority: &[u8]) -> Vec<u8> {
    [&METHOD_AND_SCHEME[..], &path(VERSION), authority, &grpc()].concat()
}

pub(crate) const VERSION: &str = "/runtime.v1.RuntimeService/Version";

pub(crate) fn path(path: &str) -> Vec<u8> {
    literal(WITHOUT_INDEXING, ":path", path.as_bytes())
}

/// The fields of every gRPC request.
pub(crate) fn grpc() -> Vec<u8> {
    [
        literal(WITHOUT_INDEXING, "content-type", b"application/grpc"),
        literal(WITHOUT_INDEXING, "te", b"trailers"),
    ]
    .concat()
}
