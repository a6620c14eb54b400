//! A body that is recorded while it passes through.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::Code;

use super::frames::Frames;
use super::record::{Slot, status_message};

/// A forwarded body, of a request or of a response.
pub(super) type Forwarded = UnsyncBoxBody<Bytes, hyper::Error>;

/// A body of bytes in memory.
pub(super) fn whole(bytes: Bytes) -> Forwarded {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The message that a body belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// A body that is recorded while it is forwarded.
#[derive(Debug)]
pub(super) struct Recorded {
    inner: Incoming,
    side: Side,
    frames: Frames,
    slot: Slot,
    /// Whether the connection that the body comes from is lost.
    lost: bool,
}

impl Recorded {
    pub(super) fn new(inner: Incoming, side: Side, slot: Slot) -> Self {
        Self { inner, side, frames: Frames::default(), slot, lost: false }
    }
}

impl Body for Recorded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.lost {
            return Poll::Pending;
        }
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Ok(frame)) => frame,
            Some(Err(error)) if self.side == Side::Response && is_lost(&error) => {
                // The client must see a closed connection, not a reset stream. The proxy closes its connection.
                self.slot.end(Code::Unavailable, error.to_string());
                self.lost = true;
                return Poll::Pending;
            }
            Some(Err(error)) => {
                if self.side == Side::Response {
                    self.slot.end(Code::Internal, error.to_string());
                }
                return Poll::Ready(Some(Err(error)));
            }
        };
        if let Some(data) = frame.data_ref() {
            for message in self.frames.push(data) {
                match self.side {
                    Side::Request => self.slot.request(message),
                    Side::Response => self.slot.response(message),
                }
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            end(&self.slot, trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // A response without a status is dropped only if its client has disconnected or cancelled the call.
        if self.side == Side::Response {
            self.slot.end(Code::Cancelled, String::new());
        }
    }
}

/// Records the status in the headers or trailers of a response, if there is one.
pub(super) fn end(slot: &Slot, headers: &HeaderMap) {
    let Some(status) = headers.get("grpc-status") else {
        return;
    };
    let message = headers.get("grpc-message");
    let message = message.map(|message| status_message(message.as_bytes()));
    slot.end(Code::from_bytes(status.as_bytes()), message.unwrap_or_default());
}

/// Whether the error affects the whole connection, not only one stream.
pub(super) fn is_lost(error: &hyper::Error) -> bool {
    let of_transport = std::error::Error::source(error).is_some_and(|cause| {
        let cause_is_io = cause.is::<std::io::Error>();
        cause_is_io || cause.downcast_ref().is_some_and(h2::Error::is_io)
    });
    of_transport || error.is_canceled() || error.is_closed()
}
