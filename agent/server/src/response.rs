//! Responses in the kubelet's form: errors are plain text.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, SizeHint};

/// A response body, whole or streamed.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// An error response.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl ErrorResponse {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = text(self.message);
        *response.status_mut() = self.status;
        response
    }
}

/// A body from bytes in memory.
pub(crate) fn full_body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A body that owns a value until the body is sent or the client disconnects.
pub(crate) fn body_with_guard<T: Send + Unpin + 'static>(body: Body, guard: T) -> Body {
    GuardedBody { body, _guard: guard }.boxed_unsync()
}

struct GuardedBody<T> {
    body: Body,
    _guard: T,
}

impl<T: Unpin> hyper::body::Body for GuardedBody<T> {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A plain text response.
pub(crate) fn text(text: impl Into<Bytes>) -> Response<Body> {
    with_media_type("text/plain; charset=utf-8", full_body(text))
}

/// A JSON response.
pub(crate) fn json(json: String) -> Response<Body> {
    with_media_type("application/json", full_body(json))
}

/// A response with a media type.
pub(crate) fn with_media_type(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
