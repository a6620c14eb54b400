//! The stream of a watch: a sequence of JSON objects, one per event, in the body of one response.

use fetch::Response;
use serde_json::Value;
use tokio::sync::watch;

use super::error::ApiError;
use super::shape;

/// The maximum size of an event.
const MAX_EVENT_BYTES: usize = 32 << 20;

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchEvent {
    /// The object was added or changed.
    Upserted(Value),
    /// The object was deleted; this is its last state.
    Deleted(Value),
    /// Nothing has changed up to this version.
    Bookmark(String),
}

/// ◆ Splits a body into the lines of events.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    /// The length of the prefix that contains no line end.
    searched: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > MAX_EVENT_BYTES {
            let problem = format!("watch event larger than {MAX_EVENT_BYTES} bytes");
            return Err(ApiError::Malformed(problem));
        }
        Ok(())
    }

    /// The next complete, non-empty line.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let rest = &self.buffer[self.searched..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let end = self.searched + end;
            let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
            line.pop();
            self.searched = 0;
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(line);
            }
        }
    }
}

/// A watch.
#[derive(Debug)]
pub(crate) struct WatchStream {
    response: Response,
    lines: Lines,
    /// Changes when the client is another one (the server is to see its new certificate), or has closed its connections.
    client: watch::Receiver<u64>,
}

impl WatchStream {
    pub(super) fn new(response: Response, client: watch::Receiver<u64>) -> Self {
        Self { response, lines: Lines::default(), client }
    }

    /// Waits for the next event; `None` when the server ends the watch, or the client has got another certificate or closed its
    /// connections. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchEvent>, ApiError> {
        loop {
            if let Some(line) = self.lines.next() {
                return event(&line).map(Some);
            }
            let chunk = tokio::select! {
                biased;
                Ok(()) = self.client.changed() => return Ok(None),
                chunk = self.response.chunk() => chunk,
            };
            match chunk.map_err(ApiError::Unreachable)? {
                Some(chunk) => self.lines.push(&chunk)?,
                None => return Ok(None),
            }
        }
    }
}

/// The resource version of an object or a list.
pub(crate) fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

/// Parses a line. An event with a status is an error.
fn event(line: &[u8]) -> Result<WatchEvent, ApiError> {
    let mut event: Value =
        serde_json::from_slice(line).map_err(|error| ApiError::Malformed(error.to_string()))?;
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    match event["type"].as_str() {
        Some("ADDED" | "MODIFIED") => shape::object(object).map(WatchEvent::Upserted),
        Some("DELETED") => shape::object(object).map(WatchEvent::Deleted),
        Some("BOOKMARK") => Ok(WatchEvent::Bookmark(version(&object).to_owned())),
        Some("ERROR") => Err(ApiError::of_status(500, &object)),
        kind => Err(ApiError::Malformed(format!("unknown watch event type {kind:?}"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_split_at_line_ends_across_chunks() {
        let text = "{\"a\":1}\n\n{\"b\":2}\r\n{\"c\":";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                lines.push(chunk).unwrap();
                while let Some(line) = lines.next() {
                    found.push(String::from_utf8(line).unwrap().trim().to_owned());
                }
            }
            assert_eq!(found, ["{\"a\":1}", "{\"b\":2}"], "{size}");
        }
    }

    #[test]
    fn oversized_event_ends_the_watch() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; MAX_EVENT_BYTES];
        assert!(lines.push(&chunk).is_ok());
        assert!(lines.push(b"x").is_err());
    }

    #[test]
    fn events_are_changes_bookmarks_or_errors() {
        let pod = json!({"metadata": {"name": "p", "resourceVersion": "7"}});
        let parse = |kind: &str| event(json!({"type": kind, "object": pod}).to_string().as_bytes());
        assert_eq!(parse("ADDED").unwrap(), WatchEvent::Upserted(pod.clone()));
        assert_eq!(parse("MODIFIED").unwrap(), WatchEvent::Upserted(pod.clone()));
        assert_eq!(parse("DELETED").unwrap(), WatchEvent::Deleted(pod.clone()));
        assert_eq!(parse("BOOKMARK").unwrap(), WatchEvent::Bookmark("7".to_owned()));
        assert!(matches!(parse("OTHER"), Err(ApiError::Malformed(_))));
        let status = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "m"});
        let error = json!({"type": "ERROR", "object": status}).to_string();
        assert!(event(error.as_bytes()).unwrap_err().is_expired());
    }

    #[test]
    fn event_without_object_is_malformed() {
        let labels = r#"{"type": "MODIFIED", "object": {"metadata": {"labels": ["a"]}}}"#;
        let number = r#"{"type": "DELETED", "object": 1}"#;
        for line in ["1", "[]", "null", r#""ADDED""#, r#"{"type": "ADDED"}"#, number, labels] {
            let error = event(line.as_bytes());
            assert!(matches!(error, Err(ApiError::Malformed(_))), "{line}: {error:?}");
        }
    }
}
