//! Reflects a collection: lists it, watches it from the list's version, and lists it again when that version has expired.
//!
//! | event | reaction |
//! |---|---|
//! | the watch ends | watch again from the last version |
//! | 410, as an answer or in the watch | list again, at the latest version |
//! | any other failure | repeat after a delay; the known objects remain |
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/tools/cache/reflector.go.

use std::time::Duration;

use compact::Map;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::backoff::Backoff;
use super::error::ApiError;
use super::requests::ApiClient;
use super::watch::{WatchEvent, WatchStream, version};
use crate::chance::chance;

/// The default minimum length of a watch; the maximum is twice that.
const MIN_WATCH: Duration = Duration::from_secs(300);
/// The grace period for the server to end the watch.
const WATCH_GRACE_PERIOD: Duration = Duration::from_secs(30);
/// A watch that ends sooner, without an event, counts as a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Namespace and name.
pub(crate) type Key = (String, String);

/// A change of the collection.
#[derive(Debug)]
pub enum Change {
    /// All objects were listed.
    Listed,
    /// One object was added, changed or deleted.
    Object,
    /// A request failed. It is repeated.
    Failed(ApiError),
}

/// The next step.
#[derive(Debug)]
enum Step {
    /// List, at this version or a later one; empty: at the latest.
    List(&'static str),
    /// Watch from this version.
    Watch(String),
    Watching(Box<Watching>),
}

#[derive(Debug)]
struct Watching {
    stream: WatchStream,
    version: String,
    since: Instant,
    until: Instant,
    has_events: bool,
}

/// The known objects of a collection.
#[derive(Debug)]
pub struct Reflector {
    client: ApiClient,
    path: String,
    /// The field selector.
    fields: Option<String>,
    labels: Option<String>,
    /// The minimum length of a watch.
    watch: Duration,
    objects: Map<Key, Value>,
    step: Step,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

impl Reflector {
    /// Creates a reflector of the collection at a path.
    #[must_use]
    pub fn new(client: ApiClient, path: impl Into<String>) -> Self {
        Self {
            client,
            path: path.into(),
            fields: None,
            labels: None,
            watch: MIN_WATCH,
            objects: Map::new(),
            // Any version, which the server can serve from its cache.
            step: Step::List("0"),
            backoff: Backoff::default(),
            retry_at: None,
        }
    }

    /// Restricts it to the objects that a field selector matches.
    #[must_use]
    pub fn with_fields(self, selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), ..self }
    }

    /// Restricts it to the objects that a label selector matches.
    #[must_use]
    pub fn with_labels(self, selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..self }
    }

    /// Sets the minimum length of watches.
    #[must_use]
    pub(crate) fn with_min_watch(self, watch: Duration) -> Self {
        Self { watch, ..self }
    }

    /// The last known objects, by namespace and name.
    #[must_use]
    pub fn objects(&self) -> &Map<Key, Value> {
        &self.objects
    }

    /// Waits for the next change. Cancel-safe.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(at) = self.retry_at {
                sleep_until(at).await;
                self.retry_at = None;
            }
            match self.advance().await {
                Ok(Some(change)) => return change,
                Ok(None) => {}
                Err(error) => {
                    self.recover(&error);
                    return Change::Failed(error);
                }
            }
        }
    }

    /// Takes one step. If the future is dropped, the next call repeats or continues the step.
    async fn advance(&mut self) -> Result<Option<Change>, ApiError> {
        match &mut self.step {
            Step::List(at) => {
                let at = *at;
                let list =
                    self.client.get(&self.path, &self.query(&[("resourceVersion", at)])).await;
                let list = list?;
                self.step = Step::Watch(version(&list).to_owned());
                self.objects = listed(list);
                Ok(Some(Change::Listed))
            }
            Step::Watch(from) => {
                let from = from.clone();
                let limit = self.watch.mul_f64(1.0 + chance());
                let seconds = limit.as_secs().to_string();
                let query = self.query(&[
                    ("watch", "true"),
                    ("allowWatchBookmarks", "true"),
                    ("resourceVersion", &from),
                    ("timeoutSeconds", &seconds),
                ]);
                let stream = self.client.watch(&self.path, &query).await?;
                let since = Instant::now();
                let until = since + limit + WATCH_GRACE_PERIOD;
                let watching = Watching { stream, version: from, since, until, has_events: false };
                self.step = Step::Watching(Box::new(watching));
                Ok(None)
            }
            Step::Watching(watching) => {
                let event = timeout_at(watching.until, watching.stream.next()).await;
                let Some(event) = event.unwrap_or(Ok(None))? else {
                    let is_short = !watching.has_events && watching.since.elapsed() < SHORT_WATCH;
                    self.step = Step::Watch(std::mem::take(&mut watching.version));
                    if is_short {
                        self.back_off();
                    }
                    return Ok(None);
                };
                watching.has_events = true;
                match event {
                    WatchEvent::Bookmark(version) => {
                        watching.version = version;
                        Ok(None)
                    }
                    WatchEvent::Upserted(object) => {
                        version(&object).clone_into(&mut watching.version);
                        self.objects.insert(key(&object), object);
                        Ok(Some(Change::Object))
                    }
                    WatchEvent::Deleted(object) => {
                        version(&object).clone_into(&mut watching.version);
                        self.objects.remove(&key(&object));
                        Ok(Some(Change::Object))
                    }
                }
            }
        }
    }

    /// Repeats a failed request after this delay instead of the back-off, which starts anew.
    pub(crate) fn retry_after(&mut self, delay: Duration) {
        self.backoff = Backoff::default();
        self.retry_at = Some(Instant::now() + delay);
    }

    fn query<'q>(&'q self, own: &[(&'q str, &'q str)]) -> Vec<(&'q str, &'q str)> {
        let fields = self.fields.as_deref().map(|fields| ("fieldSelector", fields));
        let labels = self.labels.as_deref().map(|labels| ("labelSelector", labels));
        fields.into_iter().chain(labels).chain(own.iter().copied()).collect()
    }

    /// Delays the next request by the back-off.
    fn back_off(&mut self) {
        let at = self.backoff.failed(Instant::now().into_std(), chance());
        self.retry_at = Some(Instant::from_std(at));
    }

    /// Sets the step that follows a failure, and its delay.
    fn recover(&mut self, error: &ApiError) {
        let (is_expired, was_list) = (error.is_expired(), matches!(self.step, Step::List(_)));
        match &mut self.step {
            _ if is_expired => self.step = Step::List(""),
            Step::Watching(watching) => {
                self.step = Step::Watch(std::mem::take(&mut watching.version));
            }
            Step::List(_) | Step::Watch(_) => {}
        }
        // An expired version is no server failure: the list follows without delay, unless the expired request was itself a list.
        if !is_expired || was_list {
            self.back_off();
        }
    }
}

fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn listed(mut list: Value) -> Map<Key, Value> {
    let items = list.get_mut("items").map(Value::take);
    let Some(Value::Array(items)) = items else {
        return Map::new();
    };
    items.into_iter().map(|object| (key(&object), object)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::plain_client;

    /// A client of a server that answers each request on its own connection with the next body.
    async fn client(bodies: &'static [&'static str]) -> ApiClient {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks::spawn(async move {
            for body in bodies {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        plain_client(address)
    }

    #[tokio::test]
    async fn malformed_lists_and_events_are_failures_that_are_retried() {
        let client = client(&[
            "[]",
            r#"{"metadata": {"resourceVersion": "1"}, "items": {}}"#,
            r#"{"metadata": {"resourceVersion": "1"}, "items": ["x"]}"#,
            r#"{"metadata": {"resourceVersion": "1"}, "items": []}"#,
            "1\n",
            "{\"type\": \"ADDED\", \"object\": {\"metadata\": {\"name\": \"p\", \"resourceVersion\": \"2\"}}}\n",
        ])
        .await;
        let mut pods = Reflector::new(client, "/api/v1/pods");
        let mut seen = Vec::new();
        while pods.objects().is_empty() {
            seen.push(match pods.next().await {
                Change::Listed => "listed",
                Change::Object => "object",
                Change::Failed(ApiError::Malformed(_)) => "malformed",
                Change::Failed(error) => panic!("{error}"),
            });
            pods.retry_after(Duration::ZERO);
        }
        assert_eq!(seen, ["malformed", "malformed", "malformed", "listed", "malformed", "object"]);
    }
}
