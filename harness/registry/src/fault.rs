//! Faults that a test injects into a registry.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A fault for matching requests.
///
/// ```
/// use registry::Fault;
///
/// let _ = Fault::status(503).retry_after(1).on("/manifests/").times(2);
/// let _ = Fault::cut(4096).on("/blobs/").times(1);
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    pub(super) kind: FaultKind,
    path: String,
    method: Option<String>,
    left: Option<u32>,
}

/// The kind of fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// A status, with the seconds for `Retry-After`.
    Status(u16, Option<u32>),
    /// A redirect to the same path at another address.
    Redirect(String),
    /// Close the connection without a response.
    Disconnect,
    /// Close the connection after this many bytes of the body.
    Cut(u64),
    /// Send nothing after this many bytes of the body.
    Stall(u64),
    /// Flip a bit of the body.
    Corrupt,
    /// Flip a bit of the last byte of the body.
    CorruptEnd,
    /// Send one more line, empty, with a matching length.
    Lengthen,
    /// Omit this many bytes at the end of the body, with a matching length.
    Shorten(u64),
    /// Send this many bytes of the body a second.
    Slow(u64),
    /// Delay the response.
    Delay(Duration),
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { kind, path: String::new(), method: None, left: None }
    }

    /// Responds with this status.
    #[must_use]
    pub fn status(code: u16) -> Self {
        Self::new(FaultKind::Status(code, None))
    }

    /// Adds `Retry-After` in seconds to a [`Fault::status`].
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        if let FaultKind::Status(_, after) = &mut self.kind {
            *after = Some(seconds);
        }
        self
    }

    /// Redirects the client to the same path below `url`, as registries do if they store blobs elsewhere.
    #[must_use]
    pub fn redirect(url: &str) -> Self {
        Self::new(FaultKind::Redirect(url.trim_end_matches('/').to_owned()))
    }

    /// Closes the connection instead of responding.
    #[must_use]
    pub fn disconnect() -> Self {
        Self::new(FaultKind::Disconnect)
    }

    /// Closes the connection after this many bytes of the response's
    /// body; a client that reads slowly gets slightly less.
    #[must_use]
    pub fn cut(bytes: u64) -> Self {
        Self::new(FaultKind::Cut(bytes))
    }

    /// Sends nothing after this many bytes of the response's body, and keeps the connection open.
    #[must_use]
    pub fn stall(bytes: u64) -> Self {
        Self::new(FaultKind::Stall(bytes))
    }

    /// Flips a bit of the response's body.
    #[must_use]
    pub fn corrupt() -> Self {
        Self::new(FaultKind::Corrupt)
    }

    /// Flips a bit of the last byte of the response's body. In a layer this is after the end of the tar archive, which unpackers do
    /// not read.
    #[must_use]
    pub fn corrupt_end() -> Self {
        Self::new(FaultKind::CorruptEnd)
    }

    /// Appends an empty line to a document: its meaning is the same, its digest is not. Files are sent unchanged.
    #[must_use]
    pub fn lengthen() -> Self {
        Self::new(FaultKind::Lengthen)
    }

    /// Omits this many bytes at the end of the response's body, with a matching length.
    #[must_use]
    pub fn shorten(bytes: u64) -> Self {
        Self::new(FaultKind::Shorten(bytes))
    }

    /// Sends the response's body at this many bytes a second.
    #[must_use]
    pub fn slow(bytes_per_second: u64) -> Self {
        Self::new(FaultKind::Slow(bytes_per_second.max(1)))
    }

    /// Delays the response.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self::new(FaultKind::Delay(time))
    }

    /// Limits the fault to requests with `part` in their path: `/blobs/`, `/manifests/`, a repository or a digest.
    #[must_use]
    pub fn on(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path);
        self
    }

    /// Limits the fault to requests with this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Limits the fault to this many requests.
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

/// The injected faults, in order.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(super) fn add(&self, fault: Fault) {
        self.with(|faults| faults.push(fault));
    }

    pub(super) fn clear(&self) {
        self.with(Vec::clear);
    }

    /// The first fault that matches a request; it counts as used.
    pub(super) fn next(&self, method: &str, path: &str) -> Option<FaultKind> {
        self.with(|faults| {
            let fault = faults.iter_mut().find(|fault| fault.fits(method, path))?;
            fault.left = fault.left.map(|left| left - 1);
            Some(fault.kind.clone())
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
            assert_eq!(next("GET", "/v2/a/blobs/x"), Some(FaultKind::Status(500, None)));
        }
        assert_eq!(next("GET", "/v2/a/blobs/x"), None);
        for _ in 0..3 {
            assert_eq!(next("GET", "/v2/a/manifests/x"), Some(FaultKind::Disconnect));
        }
        faults.clear();
        assert_eq!(next("GET", "/v2/a/manifests/x"), None);
    }
}
