//! Responses that the proxy itself creates.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response};
use tonic::Code;

use super::body::{Forwarded, whole};
use super::fault::Status;
use super::frames::Frame;

pub(super) fn success() -> Status {
    Status { code: Code::Ok, message: String::new() }
}

pub(super) fn head(response: &mut Response<Forwarded>) {
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
}

/// A response with an error: headers and no body.
pub(super) fn error_response(status: &Status) -> Response<Forwarded> {
    let mut response = Response::new(whole(Bytes::new()));
    head(&mut response);
    set_status(response.headers_mut(), status);
    response
}

/// Writes a status into headers or trailers.
pub(super) fn set_status(headers: &mut HeaderMap, status: &Status) {
    headers.insert("grpc-status", HeaderValue::from(i32::from(status.code)));
    headers.remove("grpc-message");
    headers.remove("grpc-status-details-bin");
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(&status.message))
        && status.code != Code::Ok
    {
        headers.insert("grpc-message", message);
    }
}

/// A successful response with an empty message.
pub(super) fn empty() -> Response<Forwarded> {
    let mut trailers = HeaderMap::new();
    set_status(&mut trailers, &success());
    let mut response = Response::new(with_trailers(Frame::of(b"").bytes, Some(trailers)));
    head(&mut response);
    response
}

pub(super) fn with_trailers(bytes: Bytes, trailers: Option<HeaderMap>) -> Forwarded {
    match trailers {
        None => whole(bytes),
        Some(trailers) => {
            whole(bytes).with_trailers(std::future::ready(Some(Ok(trailers)))).boxed_unsync()
        }
    }
}

/// Encodes a status message for the header: bytes outside printable ASCII are percent-encoded (gRPC over HTTP/2, Status-Message).
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_message_is_percent_encoded() {
        assert_eq!(percent_encoded("100% of é\n"), "100%25 of %C3%A9%0A");
    }

    #[test]
    fn status_replaces_message_and_details() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("grpc-message", "old"), ("grpc-status-details-bin", "x")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let status = Status { code: Code::NotFound, message: "gone".to_owned() };
        set_status(&mut headers, &status);
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["grpc-status"], "5");
        assert_eq!(headers["grpc-message"], "gone");
    }
}
