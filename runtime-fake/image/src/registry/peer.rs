//! The registry of a session: turns its error responses and broken connections into errors that name it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fetch::{FetchError, Response, Url};
use http::StatusCode;
use http::header::RETRY_AFTER;

use crate::ContentError;

use super::endpoint::Endpoint;
use super::retry;
use super::settings::Credentials;
use super::transport::chain;
use crate::error::PullError;

/// Limit on the body of an error response.
const LONGEST_TEXT: u64 = 64 << 10;

/// A registry, and the state of its connection.
pub(crate) struct Peer {
    pub(crate) endpoint: Endpoint,
    /// Whether it is used without TLS.
    pub(crate) plain: bool,
    /// Timeout without progress.
    pub(crate) patience: Duration,
    pub(crate) credentials: Credentials,
    /// Whether the registry has answered yet. Until then a refused connection is final.
    pub(crate) answered: AtomicBool,
}

impl Peer {
    pub(crate) fn scheme(&self) -> &'static str {
        if self.plain { "http" } else { "https" }
    }

    /// The error for a response that is not a success.
    pub(crate) async fn refusal(&self, response: Response, doing: &str, what: &str) -> PullError {
        let status = response.status;
        let after = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|value| retry::retry_after(value, jiff::Timestamp::now()));
        let own = self.is_at(&response.url);
        let text = self.read(response, LONGEST_TEXT, doing).await.unwrap_or_default();
        self.judge(status, explanation(&text, own), after, doing, what)
    }

    /// Whether the registry itself serves `url`, and not a host that it names as token server or in a redirect.
    fn is_at(&self, url: &Url) -> bool {
        let own = Url::of_server(&format!("{}://{}/", self.scheme(), self.endpoint.host));
        own.is_some_and(|own| own.origin() == url.origin())
    }

    pub(super) fn judge(
        &self,
        status: StatusCode,
        text: String,
        after: Option<Duration>,
        doing: &str,
        what: &str,
    ) -> PullError {
        let (host, doing) = (self.endpoint.host.clone(), doing.to_owned());
        let repository = self.endpoint.repository.clone();
        let why = match &self.credentials {
            Credentials::Anonymous => "no credentials were given",
            Credentials::Basic { .. } => "the name and password given were not accepted",
            Credentials::IdentityToken(_) => "the identity token given was not accepted",
            Credentials::RegistryToken(_) => "the registry token given was not accepted",
        };
        match status {
            StatusCode::UNAUTHORIZED => PullError::Unauthenticated { host, repository, why, text },
            StatusCode::FORBIDDEN => PullError::Denied { host, repository, why, text },
            StatusCode::NOT_FOUND => PullError::NotFound { host, what: named(&repository, what) },
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                PullError::ServerError { host, doing, status: status.to_string(), text, after }
            }
            _ if status.is_server_error() => {
                PullError::ServerError { host, doing, status: status.to_string(), text, after }
            }
            _ => PullError::Refused { host, doing, status: status.to_string(), text },
        }
    }

    /// Reads a whole body, within `limit`.
    pub(crate) async fn read(
        &self,
        mut response: Response,
        limit: u64,
        doing: &str,
    ) -> Result<Vec<u8>, PullError> {
        let mut bytes = Vec::new();
        let mut window = Window::begin();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.broken(&error, doing))?
        {
            bytes.extend_from_slice(&chunk);
            ContentError::within("the document", bytes.len() as u64, limit, "bytes")
                .map_err(|problem| self.content(problem))?;
            self.check_speed(&mut window, bytes.len() as u64, doing)?;
        }
        Ok(bytes)
    }

    /// Fails if the bytes of a body, `have` so far, come too slowly.
    pub(crate) fn check_speed(
        &self,
        window: &mut Window,
        have: u64,
        doing: &str,
    ) -> Result<(), PullError> {
        if window.is_too_slow(have, self.patience) { Err(self.dripping(doing)) } else { Ok(()) }
    }

    pub(crate) fn content(&self, problem: ContentError) -> PullError {
        PullError::Content {
            host: self.endpoint.host.clone(),
            image: self.endpoint.repository.clone(),
            source: Arc::new(problem),
        }
    }

    fn stalled(&self, doing: &str) -> PullError {
        PullError::Stalled {
            host: self.endpoint.host.clone(),
            doing: doing.to_owned(),
            patience: self.patience,
        }
    }

    fn dripping(&self, doing: &str) -> PullError {
        PullError::Dripping {
            host: self.endpoint.host.clone(),
            doing: doing.to_owned(),
            patience: self.patience,
        }
    }

    pub(crate) fn broken(&self, error: &FetchError, doing: &str) -> PullError {
        let host = self.endpoint.host.clone();
        if error.is_connect() && !self.answered.load(Ordering::Relaxed) {
            let mut why = chain(error);
            if why.contains("certificate") {
                why += "; `ca` of the runtime's configuration says which certificates to trust";
            }
            return PullError::Unreachable { host, scheme: self.scheme(), why };
        }
        if error.is_timeout() {
            return self.stalled(doing);
        }
        PullError::Broken { host, doing: doing.to_owned(), why: chain(error) }
    }
}

/// The time during which the speed of a download is measured, with all its attempts.
pub(crate) struct Window {
    began: Instant,
    /// The bytes of the download at its beginning.
    at: u64,
}

impl Window {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), at: 0 }
    }

    /// Leaves a pause before the next attempt out.
    pub(crate) fn exclude(&mut self, pause: Duration) {
        self.began += pause;
    }

    /// Records the begin of a response, before which the download had brought `have` bytes. The time before the first bytes is not
    /// measured, but the limit on attempts applies: a mirror may answer 504 until it has fetched the blob itself.
    pub(crate) fn answered(&mut self, have: u64) {
        if have == 0 {
            *self = Self::begin();
        }
    }

    /// Whether a window of the length `patience` has ended, and brought too few bytes.
    fn is_too_slow(&mut self, have: u64, patience: Duration) -> bool {
        let elapsed = self.began.elapsed();
        if elapsed < patience {
            return false;
        }
        let before = std::mem::replace(self, Self { began: Instant::now(), at: have });
        retry::is_too_slow(have.saturating_sub(before.at), elapsed)
    }
}

/// A tag is joined to its repository by a colon, a digest by an at sign.
fn named(repository: &str, what: &str) -> String {
    let separator = if what.contains(':') { '@' } else { ':' };
    format!("{repository}{separator}{what}")
}

/// The human-readable message in the body of an error response. The response is the registry's `own`, or of any host that the
/// registry named: the author of a pod might choose both to read what a server on this machine's network answers, so only the
/// messages of registries and token servers are taken from other hosts.
pub(super) fn explanation(body: &[u8], own: bool) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let Some(document) = parsed else {
        if !own {
            return String::new();
        }
        return match std::str::from_utf8(body) {
            // An HTML page is of no use in a message.
            Ok(text) if !text.contains('<') => shortened(text),
            Ok(_) | Err(_) => String::new(),
        };
    };
    let first = &document["errors"][0];
    let said = [
        &first["message"],
        &document["error_description"],
        &document["details"],
        &document["error"],
        &first["code"],
    ];
    let text = said.iter().find_map(|value| value.as_str().filter(|text| !text.is_empty()));
    shortened(text.unwrap_or_default())
}

/// One line, short enough for a message.
fn shortened(text: &str) -> String {
    let line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    const OF_REGISTRY: &str = r#"{"errors":[{"code":"DENIED","message":"not allowed"}]}"#;

    #[rstest]
    #[case::own_text("try again\n", true, "try again")]
    #[case::own_page("<html>no</html>", true, "")]
    #[case::own_document(OF_REGISTRY, true, "not allowed")]
    #[case::document_of_another_host(OF_REGISTRY, false, "not allowed")]
    #[case::token_server(r#"{"details":"incorrect password"}"#, false, "incorrect password")]
    #[case::text_of_another_host("key of the machine: 123", false, "")]
    #[case::document_of_another_server(r#"{"message":"key: 123"}"#, false, "")]
    fn only_errors_of_registries_are_read_from_other_hosts(
        #[case] body: &str,
        #[case] own: bool,
        #[case] want: &str,
    ) {
        assert_eq!(explanation(body.as_bytes(), own), want);
    }

    #[rstest]
    #[case::first_bytes(0, false)]
    #[case::resumed(1, true)]
    fn time_before_the_first_bytes_is_not_measured(#[case] have: u64, #[case] want: bool) {
        let hour = Duration::from_secs(3600);
        let mut window = Window::begin();
        window.began = window.began.checked_sub(hour).unwrap();
        window.answered(have);
        assert_eq!(window.is_too_slow(have + 1, hour), want);
    }
}
