//! Pairs streams: one for data and one for errors form a connection ◆

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The half of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    Data,
    Error,
}

impl StreamKind {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "data" => Some(Self::Data),
            "error" => Some(Self::Error),
            _ => None,
        }
    }
}

/// The key of a pair: the client's request ID; or, for old clients without one, the ID of the error stream, which
/// they open right before the data stream (Kubernetes 1.36, `k8s.io/cri-streaming`, portforward).
pub(super) fn key(request: Option<&str>, part: StreamKind, id: u32) -> String {
    match (request, part) {
        (Some(request), _) if !request.is_empty() => request.to_owned(),
        (_, StreamKind::Error) => id.to_string(),
        (_, StreamKind::Data) => id.saturating_sub(2).to_string(),
    }
}

/// The result of adding a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AddResult<T> {
    /// The other half is missing.
    Half,
    Pair {
        data: T,
        error: T,
    },
    /// The same half exists already.
    Duplicate(T),
}

/// Halves whose other half is missing.
#[derive(Debug)]
pub(super) struct Pairs<T>(HashMap<String, (StreamKind, T, Instant)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Pairs<T> {
    pub(super) fn add(
        &mut self,
        key: String,
        part: StreamKind,
        stream: T,
        now: Instant,
    ) -> AddResult<T> {
        match (self.0.remove(&key), part) {
            (Some((StreamKind::Error, error, _)), StreamKind::Data) => {
                AddResult::Pair { data: stream, error }
            }
            (Some((StreamKind::Data, data, _)), StreamKind::Error) => {
                AddResult::Pair { data, error: stream }
            }
            (Some(first), _) => {
                self.0.insert(key, first);
                AddResult::Duplicate(stream)
            }
            (None, _) => {
                self.0.insert(key, (part, stream, now));
                AddResult::Half
            }
        }
    }

    /// When the oldest half was added.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.values().map(|(.., since)| *since).min()
    }

    /// Removes the halves that have waited for at least `timeout`.
    pub(super) fn take_expired(&mut self, now: Instant, timeout: Duration) -> Vec<(StreamKind, T)> {
        let late = |_: &String, (.., since): &mut (StreamKind, T, Instant)| {
            now.saturating_duration_since(*since) >= timeout
        };
        let late = self.0.extract_if(late);
        late.map(|(_, (part, stream, _))| (part, stream)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn error_and_data_stream_form_pair() {
        let now = Instant::now();
        let mut pairs = Pairs::default();
        let mut add = |key: &str, part, n| pairs.add(key.to_owned(), part, n, now);
        assert_eq!(add("a", StreamKind::Error, 1), AddResult::Half);
        assert_eq!(add("b", StreamKind::Data, 3), AddResult::Half);
        assert_eq!(add("a", StreamKind::Error, 5), AddResult::Duplicate(5));
        let (data, error) = (7, 1);
        assert_eq!(add("a", StreamKind::Data, 7), AddResult::Pair { data, error });
        let (data, error) = (3, 9);
        assert_eq!(add("b", StreamKind::Error, 9), AddResult::Pair { data, error });
        assert_eq!(add("a", StreamKind::Error, 11), AddResult::Half);
    }

    #[test]
    fn unpaired_streams_expire() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut pairs = Pairs::default();
        assert_eq!(pairs.oldest(), None);
        pairs.add("a".into(), StreamKind::Error, 1, now);
        pairs.add("b".into(), StreamKind::Data, 3, now + second);
        assert_eq!(pairs.oldest(), Some(now));
        assert_eq!(pairs.take_expired(now + 2 * second, 2 * second), [(StreamKind::Error, 1)]);
        assert_eq!(pairs.oldest(), Some(now + second));
    }

    #[rstest]
    #[case(Some("7"), StreamKind::Data, 11, "7")]
    #[case(None, StreamKind::Error, 5, "5")]
    #[case(None, StreamKind::Data, 7, "5")]
    #[case(Some(""), StreamKind::Data, 1, "0")]
    fn pair_key_is_request_id_or_stream_id(
        #[case] request: Option<&str>,
        #[case] part: StreamKind,
        #[case] id: u32,
        #[case] is: &str,
    ) {
        assert_eq!(key(request, part, id), is);
    }
}
