//! `kubelet_http_…`: requests of clients, each from its head to the end of its response; and WebSockets among them.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/metrics/metrics.go, pkg/kubelet/server/server.go ServeHTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use agent::histogram::{DEFAULT_BOUNDS, Histogram};
use compact::Map;
use http::Method;

use super::text::{Description, Metrics, counter, gauge, histogram};

const REQUESTS: Description<'_> = counter(
    "kubelet_http_requests_total",
    "[ALPHA] Number of the http requests received since the server started",
);
const DURATION: Description<'_> = histogram(
    "kubelet_http_requests_duration_seconds",
    "[ALPHA] Duration in seconds to serve http requests",
);
const IN_FLIGHT: Description<'_> =
    gauge("kubelet_http_inflight_requests", "[ALPHA] Number of the inflight http requests");
const WEBSOCKETS: Description<'_> = counter(
    "kubelet_websocket_streaming_requests_total",
    "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
);

/// The paths with their own label value.
const PATHS: [&str; 19] = [
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "flagz",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
    "statusz",
];
/// The long-running requests.
const LONG_RUNNING: [&str; 3] = ["attach", "debug", "exec"];
const OTHER: &str = "other";

/// The node's server that received the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerType {
    /// The server without authentication.
    ReadOnly,
    /// The server with authentication.
    ReadWrite,
}

/// Method, path and server.
type Key = (&'static str, &'static str, ServerType);

/// The counts. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpCounts {
    requests: Arc<Mutex<Map<Key, Counts>>>,
    /// WebSockets by their subresource: `exec`.
    websockets: Arc<Mutex<Map<&'static str, u64>>>,
}

#[derive(Debug)]
struct Counts {
    in_flight: u64,
    requests: u64,
    durations: Histogram,
}

/// A request whose response is not complete.
#[derive(Debug)]
pub(crate) struct InFlight {
    counts: HttpCounts,
    key: Key,
    since: Instant,
}

impl HttpCounts {
    /// Counts a request as in flight until the returned value is dropped.
    pub(crate) fn begin(&self, method: &Method, path: &str, server: ServerType) -> InFlight {
        let key = (method_label(method), path_label(path), server);
        let mut all = self.lock();
        let counts = all.entry(key).or_insert_with(|| Counts {
            in_flight: 0,
            requests: 0,
            durations: Histogram::new(DEFAULT_BOUNDS),
        });
        counts.requests += 1;
        counts.in_flight += 1;
        InFlight { counts: self.clone(), key, since: Instant::now() }
    }

    /// Counts a WebSocket of a current client.
    pub(crate) fn count_websocket(&self, subresource: &'static str) {
        let mut counts = self.websockets.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(subresource).or_default() += 1;
    }

    pub(crate) fn add_to(&self, metrics: &mut Metrics) {
        let websockets = self.websockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (subresource, count) in websockets.iter() {
            metrics.add(&WEBSOCKETS, &[("subresource", subresource)], *count as f64);
        }
        for ((method, path, server), counts) in self.lock().iter() {
            let server = match server {
                ServerType::ReadOnly => "readonly",
                ServerType::ReadWrite => "readwrite",
            };
            let long_running = if LONG_RUNNING.contains(path) { "true" } else { "false" };
            let labels = [
                ("method", *method),
                ("path", *path),
                ("server_type", server),
                ("long_running", long_running),
            ];
            metrics.add(&REQUESTS, &labels, counts.requests as f64);
            metrics.add(&IN_FLIGHT, &labels, counts.in_flight as f64);
            metrics.add_histogram(&DURATION, &labels, &counts.durations);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Map<Key, Counts>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(counts) = self.counts.lock().get_mut(&self.key) {
            counts.in_flight = counts.in_flight.saturating_sub(1);
            counts.durations.observe(self.since.elapsed().as_secs_f64());
        }
    }
}

/// ◆ The method's label: only HTTP's own methods, so that clients cannot create label values.
fn method_label(method: &Method) -> &'static str {
    const METHODS: [&str; 8] =
        ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or(OTHER)
}

/// ◆ The path's label: its first segment, or the first two below `metrics`, if the path is known.
fn path_label(path: &str) -> &'static str {
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    let mut known = PATHS.into_iter();
    match second {
        Some(second) if first == "metrics" => {
            known.find(|known| known.strip_prefix("metrics/") == Some(second))
        }
        Some(_) | None => known.find(|known| *known == first),
    }
    .unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/pods", "pods")]
    #[case("/pods/", "pods")]
    #[case("/exec/ns/p/c", "exec")]
    #[case("/metrics", "metrics")]
    #[case("/metrics/cadvisor", "metrics/cadvisor")]
    #[case("/metrics/cadvisor/x", "metrics/cadvisor")]
    #[case("/metrics/slis", "other")]
    #[case("/statusz", "statusz")]
    #[case("/x", "other")]
    #[case("", "other")]
    fn path_has_a_label(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(path_label(path), expected);
    }

    #[test]
    fn websockets_are_counted_by_subresource() {
        let counts = HttpCounts::default();
        for subresource in ["exec", "portforward", "exec"] {
            counts.count_websocket(subresource);
        }
        let mut metrics = Metrics::default();
        counts.add_to(&mut metrics);
        let text = metrics.text();
        for (subresource, count) in [("exec", 2), ("portforward", 1)] {
            let line = format!(
                "kubelet_websocket_streaming_requests_total{{subresource=\"{subresource}\"}} {count}"
            );
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        }
    }

    #[test]
    fn request_is_counted_until_its_answer_has_ended() {
        let counts = HttpCounts::default();
        let shown = || {
            let mut metrics = Metrics::default();
            counts.add_to(&mut metrics);
            metrics.text()
        };
        let first = counts.begin(&Method::GET, "/exec/a/b/c", ServerType::ReadWrite);
        drop(counts.begin(
            &Method::from_bytes(b"ODD").unwrap_or_default(),
            "/pods",
            ServerType::ReadOnly,
        ));
        let of_exec = r#"{long_running="true",method="GET",path="exec",server_type="readwrite"}"#;
        let of_pods = r#"{long_running="false",method="other",path="pods",server_type="readonly"}"#;
        let has = |text: &str, name: &str, labels: &str, value: u8| {
            let line = format!("kubelet_http_{name}{labels} {value}");
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        };
        let text = shown();
        has(&text, "requests_total", of_exec, 1);
        has(&text, "inflight_requests", of_exec, 1);
        has(&text, "inflight_requests", of_pods, 0);
        has(&text, "requests_duration_seconds_count", of_pods, 1);
        has(&text, "requests_duration_seconds_count", of_exec, 0);
        drop(first);
        let text = shown();
        has(&text, "inflight_requests", of_exec, 0);
        has(&text, "requests_duration_seconds_count", of_exec, 1);
    }
}
