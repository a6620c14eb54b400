//! A response of the registry, sent correctly or with a fault.

use std::io::{self, SeekFrom};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::fault::FaultKind;

/// A body that hyper sends.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// How much of a blob is read at a time.
const CHUNK: usize = 256 * 1024;

/// A response that has not been sent yet.
#[derive(Debug)]
pub(super) struct PendingResponse {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    content: Content,
    /// Whether to send only the headers.
    pub(super) head: bool,
}

#[derive(Debug)]
enum Content {
    Bytes(Bytes),
    /// A part of a file: its offset and length.
    File(tokio::fs::File, u64, u64),
}

impl PendingResponse {
    /// A response without a body.
    pub(super) fn empty(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            content: Content::Bytes(Bytes::new()),
            head: false,
        }
    }

    /// A response with a body of this media type.
    pub(super) fn bytes(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let mut response = Self::empty(StatusCode::OK).with(CONTENT_TYPE, media_type);
        response.content = Content::Bytes(bytes.into());
        response
    }

    /// A JSON document.
    pub(super) fn json(value: &serde_json::Value) -> Self {
        Self::bytes("application/json; charset=utf-8", value.to_string())
    }

    /// An error in the form of the specification.
    pub(super) fn refusal(status: StatusCode, code: &str, message: &str) -> Self {
        let errors = json!({"errors": [{"code": code, "message": message, "detail": null}]});
        let mut response = Self::json(&errors);
        response.status = status;
        response
    }

    /// A part of a file.
    pub(super) fn file(file: tokio::fs::File, from: u64, length: u64) -> Self {
        let mut response =
            Self::empty(StatusCode::OK).with(CONTENT_TYPE, "application/octet-stream");
        response.content = Content::File(file, from, length);
        response
    }

    /// Adds a header, unless HTTP does not allow its value.
    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Changes the status.
    pub(super) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    fn length(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(.., length) => *length,
        }
    }

    /// Converts the response for hyper, and applies the fault.
    pub(super) fn send(mut self, fault: Option<&FaultKind>) -> Response<Body> {
        if let (Some(FaultKind::Lengthen), Content::Bytes(bytes)) = (fault, &self.content) {
            self.content = Content::Bytes([bytes, &b"\n"[..]].concat().into());
        }
        let body_faults = BodyFaults::of(fault);
        let length = self.length().saturating_sub(body_faults.shorten);
        let mut response = Response::new(if self.head {
            Full::default().map_err(|never| match never {}).boxed_unsync()
        } else if matches!(self.content, Content::Bytes(_)) && body_faults == BodyFaults::default()
        {
            match self.content {
                Content::Bytes(bytes) => {
                    let full = Full::new(bytes);
                    full.map_err(|never| match never {}).boxed_unsync()
                }
                Content::File(..) => return Response::default(),
            }
        } else {
            let (sender, receiver) = mpsc::channel(2);
            tasks::spawn(pump(self.content, length, body_faults, sender));
            StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync()
        });
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if self.status != StatusCode::NO_CONTENT {
            let length = HeaderValue::from(length);
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        response
    }
}

/// How a body is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BodyFaults {
    cut: Option<u64>,
    stall: Option<u64>,
    corrupt: bool,
    corrupt_end: bool,
    shorten: u64,
    slow: Option<u64>,
}

impl BodyFaults {
    fn of(fault: Option<&FaultKind>) -> Self {
        let mut body_faults = Self::default();
        match fault {
            Some(FaultKind::Cut(bytes)) => body_faults.cut = Some(*bytes),
            Some(FaultKind::Stall(bytes)) => body_faults.stall = Some(*bytes),
            Some(FaultKind::Corrupt) => body_faults.corrupt = true,
            Some(FaultKind::CorruptEnd) => body_faults.corrupt_end = true,
            Some(FaultKind::Shorten(bytes)) => body_faults.shorten = *bytes,
            Some(FaultKind::Slow(rate)) => body_faults.slow = Some(*rate),
            Some(
                FaultKind::Status(..)
                | FaultKind::Redirect(_)
                | FaultKind::Disconnect
                | FaultKind::Delay(_)
                | FaultKind::Lengthen,
            )
            | None => {}
        }
        body_faults
    }
}

type Sender = mpsc::Sender<io::Result<Frame<Bytes>>>;

/// Reads the content and sends it, until the client disconnects.
async fn pump(content: Content, length: u64, body_faults: BodyFaults, sender: Sender) {
    if let Err(error) = pump_all(content, length, body_faults, &sender).await {
        // This fails if the client has disconnected.
        let _ = sender.send(Err(error)).await;
    }
}

async fn pump_all(
    content: Content,
    length: u64,
    body_faults: BodyFaults,
    sender: &Sender,
) -> io::Result<()> {
    let mut source: Box<dyn tokio::io::AsyncRead + Send + Unpin> = match content {
        Content::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
        Content::File(mut file, from, _) => {
            file.set_max_buf_size(CHUNK);
            file.seek(SeekFrom::Start(from)).await?;
            Box::new(file)
        }
    };
    // At a limited rate, ten pieces a second.
    let piece = body_faults.slow.map_or(CHUNK as u64, |rate| (rate / 10).clamp(1, CHUNK as u64));
    let mut sent = 0;
    while sent < length {
        let limit = body_faults.cut.or(body_faults.stall).unwrap_or(u64::MAX);
        let now = piece.min(length - sent).min(limit.saturating_sub(sent));
        if now == 0 {
            if body_faults.cut.is_some() {
                // hyper drops unwritten bytes on an error, so give it time to write them.
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Err(io::Error::other("a fault cuts the connection"));
            }
            sender.closed().await;
            return Ok(());
        }
        let mut buffer = BytesMut::with_capacity(CHUNK.min(usize::try_from(now).unwrap_or(CHUNK)));
        let mut part = (&mut source).take(now);
        while part.limit() > 0 {
            if part.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if let Some(byte) = buffer.first_mut().filter(|_| body_faults.corrupt && sent == 0) {
            *byte ^= 1;
        }
        sent += now;
        if let Some(byte) = buffer.last_mut().filter(|_| body_faults.corrupt_end && sent == length)
        {
            *byte ^= 1;
        }
        if sender.send(Ok(Frame::data(buffer.freeze()))).await.is_err() {
            return Ok(());
        }
        if body_faults.slow.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
