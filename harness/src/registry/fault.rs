//! What a registry does wrong when a test asks for it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Something that goes wrong with the requests it fits.
///
/// ```
/// use harness::registry::Fault;
///
/// let _ = Fault::status(503).retry_after(1).on("/manifests/").times(2);
/// let _ = Fault::cut(4096).on("/blobs/").times(1);
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    pub(super) what: What,
    path: String,
    method: Option<String>,
    left: Option<u32>,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// This status, with the seconds after which to try again.
    Status(u16, Option<u32>),
    /// The same path at another address.
    Redirect(String),
    /// The connection is closed without an answer.
    Disconnect,
    /// The connection is closed after so many bytes of the body.
    Cut(u64),
    /// Nothing more comes after so many bytes of the body.
    Stall(u64),
    /// A bit of the body is wrong.
    Corrupt,
    /// The body lacks so many bytes at its end, and its length says the same.
    Shorten(u64),
    /// So many bytes of the body a second.
    Slow(u64),
    /// The answer begins after a while.
    Delay(Duration),
}

impl Fault {
    fn new(what: What) -> Self {
        Self {
            what,
            path: String::new(),
            method: None,
            left: None,
        }
    }

    /// Answers with this status instead of what was asked for.
    #[must_use]
    pub fn status(code: u16) -> Self {
        Self::new(What::Status(code, None))
    }

    /// Says after how many seconds to try again, together with a [`Fault::status`].
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        if let What::Status(_, after) = &mut self.what {
            *after = Some(seconds);
        }
        self
    }

    /// Sends the client to the same path below `url`, as registries do that keep blobs elsewhere.
    #[must_use]
    pub fn redirect(url: &str) -> Self {
        Self::new(What::Redirect(url.trim_end_matches('/').to_owned()))
    }

    /// Closes the connection instead of answering.
    #[must_use]
    pub fn disconnect() -> Self {
        Self::new(What::Disconnect)
    }

    /// Closes the connection after this many bytes of the answer's body; a client that reads slowly gets a little less.
    #[must_use]
    pub fn cut(bytes: u64) -> Self {
        Self::new(What::Cut(bytes))
    }

    /// Says nothing any more after this many bytes of the answer's body, and leaves the connection open.
    #[must_use]
    pub fn stall(bytes: u64) -> Self {
        Self::new(What::Stall(bytes))
    }

    /// Changes a bit of the answer's body.
    #[must_use]
    pub fn corrupt() -> Self {
        Self::new(What::Corrupt)
    }

    /// Leaves this many bytes out at the end of the answer's body, with a length that agrees.
    #[must_use]
    pub fn shorten(bytes: u64) -> Self {
        Self::new(What::Shorten(bytes))
    }

    /// Sends the answer's body with this many bytes a second.
    #[must_use]
    pub fn slow(bytes_per_second: u64) -> Self {
        Self::new(What::Slow(bytes_per_second.max(1)))
    }

    /// Answers after a while.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self::new(What::Delay(time))
    }

    /// Only for requests with `part` in their path: `/blobs/`, `/manifests/`, a repository or a digest.
    #[must_use]
    pub fn on(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path);
        self
    }

    /// Only for requests with this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Only so many times.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    fn fits(&self, method: &str, path: &str) -> bool {
        self.left != Some(0)
            && path.contains(&self.path)
            && self.method.as_deref().is_none_or(|wanted| wanted == method)
    }
}

/// The faults that are asked for, in their order.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    /// One more.
    pub(super) fn add(&self, fault: Fault) {
        self.with(|faults| faults.push(fault));
    }

    /// No more.
    pub(super) fn clear(&self) {
        self.with(Vec::clear);
    }

    /// The first that fits a request; it counts as used.
    pub(super) fn next(&self, method: &str, path: &str) -> Option<What> {
        self.with(|faults| {
            let fault = faults.iter_mut().find(|fault| fault.fits(method, path))?;
            fault.left = fault.left.map(|left| left - 1);
            Some(fault.what.clone())
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Vec<Fault>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_applies_to_matching_requests_until_used_up() {
        let faults = Faults::default();
        faults.add(Fault::status(500).on("/blobs/").method("GET").times(2));
        faults.add(Fault::disconnect().on("/manifests/"));
        let next = |method, path| faults.next(method, path);
        assert_eq!(next("HEAD", "/v2/a/blobs/x"), None);
        for _ in 0..2 {
            assert_eq!(next("GET", "/v2/a/blobs/x"), Some(What::Status(500, None)));
        }
        assert_eq!(next("GET", "/v2/a/blobs/x"), None);
        for _ in 0..3 {
            assert_eq!(next("GET", "/v2/a/manifests/x"), Some(What::Disconnect));
        }
        faults.clear();
        assert_eq!(next("GET", "/v2/a/manifests/x"), None);
    }
}
