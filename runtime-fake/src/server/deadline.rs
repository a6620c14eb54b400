//! Enforces a client's deadline for a call (`grpc-timeout`) in the server.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response};
use tonic::{Status, body::Body};
use tower::Service;

const HEADER: &str = "grpc-timeout";
/// Limit on the digits in the header (gRPC over HTTP/2: `TimeoutValue` is at most 8 digits).
const DIGITS: usize = 8;

/// Answers DEADLINE_EXCEEDED when a call exceeds its client's deadline. Tonic's own server answers CANCELLED,
/// which means that the client cancelled the call.
#[derive(Debug, Clone)]
pub(super) struct Deadline<S>(pub(super) S);

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S, B> Service<Request<B>> for Deadline<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        let deadline = timeout(request.headers());
        let answer = self.0.call(request);
        Box::pin(async move {
            let Some(deadline) = deadline else {
                return answer.await;
            };
            match tokio::time::timeout(deadline, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok(late(deadline).into_http()),
            }
        })
    }
}

fn late(deadline: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "the call took longer than the {deadline:?} that its client gave it"
    ))
}

/// Parses the client's header; an invalid one is ignored.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > DIGITS || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::hours("2H", Some(Duration::from_secs(7200)))]
    #[case::minutes("3M", Some(Duration::from_secs(180)))]
    #[case::seconds("4S", Some(Duration::from_secs(4)))]
    #[case::milliseconds("5m", Some(Duration::from_millis(5)))]
    #[case::microseconds("6u", Some(Duration::from_micros(6)))]
    #[case::nanoseconds("99999999n", Some(Duration::from_nanos(99_999_999)))]
    #[case::the_longest("99999999H", Some(Duration::from_secs(99_999_999 * 3600)))]
    #[case::too_long("100000000n", None)]
    #[case::no_unit("12", None)]
    #[case::no_number("S", None)]
    #[case::a_sign("+1S", None)]
    #[case::negative("-1S", None)]
    #[case::nothing("", None)]
    #[case::another_alphabet("1µ", None)]
    fn grpc_timeout_header_is_parsed(#[case] text: &str, #[case] expected: Option<Duration>) {
        let mut headers = HeaderMap::new();
        let value = http::HeaderValue::from_bytes(text.as_bytes()).expect("a header");
        headers.insert(HEADER, value);
        assert_eq!(timeout(&headers), expected);
    }

    #[rstest]
    #[case::in_time("100m", Duration::from_millis(99), None)]
    #[case::too_late("100m", Duration::from_millis(101), Some("4"))]
    #[tokio::test(start_paused = true)]
    async fn call_ends_at_client_deadline(
        #[case] given: &str,
        #[case] taken: Duration,
        #[case] code: Option<&str>,
    ) {
        let slow = tower::service_fn(move |_: Request<()>| async move {
            tokio::time::sleep(taken).await;
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let request = Request::builder().header(HEADER, given).body(()).expect("a request");
        let answer = Deadline(slow).call(request).await.expect("an answer");
        let status = answer.headers().get("grpc-status");
        assert_eq!(status.map(|v| v.to_str().expect("text")), code);
    }
}
