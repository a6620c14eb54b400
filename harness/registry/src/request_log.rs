//! The answered requests, for tests. Clients without credentials send some of them too, so only the last ones are kept.

use std::collections::VecDeque;

/// The maximum size of the requests that are kept, in bytes.
const LIMIT: usize = 16 << 20;

/// An answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// `GET`, `HEAD`, `PUT` and so on.
    pub method: String,
    /// The path.
    pub path: String,
    /// The query, as it was sent.
    pub query: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// Whether it had the header `Authorization`.
    pub authorized: bool,
    /// The status of the response; 0 if the connection was closed instead.
    pub status: u16,
}

impl RecordedRequest {
    /// The memory that it uses.
    fn bytes(&self) -> usize {
        let range = self.range.as_ref().map_or(0, String::len);
        size_of::<Self>() + self.method.len() + self.path.len() + self.query.len() + range
    }
}

/// The last answered requests.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    requests: VecDeque<RecordedRequest>,
    bytes: usize,
}

impl RequestLog {
    /// Adds a request, and removes the oldest ones beyond the limit.
    pub(super) fn push(&mut self, request: RecordedRequest) {
        self.bytes += request.bytes();
        self.requests.push_back(request);
        while self.bytes > LIMIT
            && let Some(oldest) = self.requests.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// The requests, the oldest first.
    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        self.requests.iter().cloned().collect()
    }

    /// Removes all requests.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_requests_make_room_for_later_ones() {
        let request = |path: &str, bytes: usize| RecordedRequest {
            method: "GET".to_owned(),
            path: path.to_owned(),
            query: "x".repeat(bytes),
            range: None,
            authorized: false,
            status: 401,
        };
        let mut log = RequestLog::default();
        for path in ["a", "b", "c"] {
            log.push(request(path, LIMIT / 3));
        }
        log.push(request("d", 0));
        let paths: Vec<String> = log.all().into_iter().map(|request| request.path).collect();
        assert_eq!(paths, ["b", "c", "d"]);
        log.clear();
        log.push(request("e", LIMIT / 2));
        assert_eq!(log.all().len(), 1);
    }
}
