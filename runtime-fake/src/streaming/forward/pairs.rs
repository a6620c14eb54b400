//! Pairs streams: one for data and one for errors form a connection ◆

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The half of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Data,
    Error,
}

impl Part {
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
pub(super) fn key(request: Option<&str>, part: Part, id: u32) -> String {
    match (request, part) {
        (Some(request), _) if !request.is_empty() => request.to_owned(),
        (_, Part::Error) => id.to_string(),
        (_, Part::Data) => id.saturating_sub(2).to_string(),
    }
}

/// The result of adding a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added<T> {
    /// The other half is missing.
    Half,
    Pair {
        data: T,
        error: T,
    },
    /// The same half exists already.
    Twice(T),
}

/// Halves whose other half is missing.
#[derive(Debug)]
pub(super) struct Pairs<T>(HashMap<String, (Part, T, Instant)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Pairs<T> {
    pub(super) fn add(&mut self, key: String, part: Part, stream: T, now: Instant) -> Added<T> {
        match (self.0.remove(&key), part) {
            (Some((Part::Error, error, _)), Part::Data) => Added::Pair { data: stream, error },
            (Some((Part::Data, data, _)), Part::Error) => Added::Pair { data, error: stream },
            (Some(first), _) => {
                self.0.insert(key, first);
                Added::Twice(stream)
            }
            (None, _) => {
                self.0.insert(key, (part, stream, now));
                Added::Half
            }
        }
    }

    /// When the oldest half was added.
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.values().map(|(.., since)| *since).min()
    }

    /// Removes the halves that have waited for at least `patience`.
    pub(super) fn late(&mut self, now: Instant, patience: Duration) -> Vec<(Part, T)> {
        let late = |_: &String, (.., since): &mut (Part, T, Instant)| {
            now.saturating_duration_since(*since) >= patience
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
        assert_eq!(add("a", Part::Error, 1), Added::Half);
        assert_eq!(add("b", Part::Data, 3), Added::Half);
        assert_eq!(add("a", Part::Error, 5), Added::Twice(5));
        let (data, error) = (7, 1);
        assert_eq!(add("a", Part::Data, 7), Added::Pair { data, error });
        let (data, error) = (3, 9);
        assert_eq!(add("b", Part::Error, 9), Added::Pair { data, error });
        assert_eq!(add("a", Part::Error, 11), Added::Half);
    }

    #[test]
    fn unpaired_streams_expire() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut pairs = Pairs::default();
        assert_eq!(pairs.first(), None);
        pairs.add("a".into(), Part::Error, 1, now);
        pairs.add("b".into(), Part::Data, 3, now + second);
        assert_eq!(pairs.first(), Some(now));
        assert_eq!(pairs.late(now + 2 * second, 2 * second), [(Part::Error, 1)]);
        assert_eq!(pairs.first(), Some(now + second));
    }

    #[rstest]
    #[case(Some("7"), Part::Data, 11, "7")]
    #[case(None, Part::Error, 5, "5")]
    #[case(None, Part::Data, 7, "5")]
    #[case(Some(""), Part::Data, 1, "0")]
    fn pair_key_is_request_id_or_stream_id(
        #[case] request: Option<&str>,
        #[case] part: Part,
        #[case] id: u32,
        #[case] is: &str,
    ) {
        assert_eq!(key(request, part, id), is);
    }
}
