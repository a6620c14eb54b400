//! Answers in the kubelet's form: errors are plain text.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

/// A body, of one piece or streamed.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A request that is not served, and why.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
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

    pub(crate) fn answer(self) -> Response<Body> {
        let mut response = text(self.message);
        *response.status_mut() = self.status;
        response
    }
}

/// A body that is there.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// Plain text.
pub(crate) fn text(text: impl Into<Bytes>) -> Response<Body> {
    of_kind("text/plain; charset=utf-8", whole(text))
}

/// JSON.
pub(crate) fn json(json: String) -> Response<Body> {
    of_kind("application/json", whole(json))
}

/// A body of a media type.
pub(crate) fn of_kind(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
