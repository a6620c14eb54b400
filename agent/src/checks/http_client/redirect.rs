//! Decides whether a redirect is followed, as Go's HTTP client and the kubelet do.

use fetch::Url;
use http::header::LOCATION;
use http::{Response, StatusCode};

use super::error::Problem;
use crate::checks::http_action::HttpRequest;

/// The maximum number of requests.
const MAX_HOPS: usize = 10;

/// The next step after a response.
pub(super) enum Follow {
    /// It is the final response.
    Stop,
    /// Request the URL in its Location header.
    To(Box<HttpRequest>),
    /// The redirect exceeds the limit.
    TooMany(String),
}

/// Decides about the response to `hop`, the last of `hops` requests, of which `first` was the first.
pub(super) fn follow<T>(
    first: &HttpRequest,
    hop: &HttpRequest,
    response: &Response<T>,
    hops: usize,
) -> Result<Follow, Problem> {
    let redirects = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let location =
        response.headers().get(LOCATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let Some(location) = location.filter(|location| redirects && !location.is_empty()) else {
        return Ok(Follow::Stop);
    };
    let url = hop.url.join(&location).map_err(|error| Problem::Location {
        location: location.clone().into_owned(),
        problem: error.to_string(),
    })?;
    if url.hostname() != first.url.hostname() {
        return Ok(Follow::Stop);
    }
    if hops >= MAX_HOPS {
        return Ok(Follow::TooMany(location.into_owned()));
    }
    let mut headers = first.headers.clone();
    let downgraded = hop.url.scheme() == "https" && url.scheme() == "http";
    if !downgraded && !headers.contains_key("Referer") {
        headers.insert("Referer".to_owned(), vec![hop.url.without_user()]);
    }
    // A Host header of the manifest is kept if the redirect names no host.
    let kept = hop.host_header.clone().filter(|_| !Url::is_absolute(&location));
    Ok(Follow::To(Box::new(HttpRequest { url, host_header: kept, headers })))
}
