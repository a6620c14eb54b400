//! Counts of requests to the API server by response code, and their durations.
//!
//! Source: Kubernetes 1.36, k8s.io/component-base/metrics/prometheus/restclient/metrics.go.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::histogram::{Histogram, observe};
use compact::Map;
use http::{Method, StatusCode};

/// The upper bounds of durations, in seconds.
const BOUNDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Counts and durations of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestCounts {
    /// Requests by response code and method. The code is `<error>` if there was no response.
    pub responses: Map<(String, String), u64>,
    /// The time until the response headers arrived, by method.
    pub durations: Map<String, Histogram>,
}

/// Counts requests.
#[derive(Debug, Default)]
pub(crate) struct Counter(Mutex<RequestCounts>);

impl Counter {
    /// Counts a request that was answered or has failed.
    pub(crate) fn count(&self, method: &Method, answer: Option<StatusCode>, took: Duration) {
        let code = answer.map_or_else(|| "<error>".to_owned(), |code| code.as_u16().to_string());
        let mut counts = self.lock();
        *counts.responses.entry((code, method.to_string())).or_default() += 1;
        observe(&mut counts.durations, method.to_string(), BOUNDS, took);
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_are_counted_by_code_and_method() {
        let counter = Counter::default();
        for answer in [Some(StatusCode::OK), Some(StatusCode::OK), None] {
            counter.count(&Method::GET, answer, Duration::from_millis(50));
        }
        counter.count(&Method::POST, Some(StatusCode::CONFLICT), Duration::ZERO);
        let counts = counter.counts();
        let responses: Vec<(&str, &str, u64)> = counts
            .responses
            .iter()
            .map(|((code, method), count)| (code.as_str(), method.as_str(), *count))
            .collect();
        assert_eq!(responses, [("200", "GET", 2), ("409", "POST", 1), ("<error>", "GET", 1)]);
        assert_eq!(counts.durations.get("GET").unwrap().count(), 3);
    }
}
