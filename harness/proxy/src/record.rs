//! The recorded calls: stored as bytes, and decoded when they are read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tonic::Code;

use super::frames::Frame;
use super::json;

/// The maximum size of the recorded messages of a call, in bytes: a stream may be endless.
const LIMIT: usize = 64 << 20;

/// The calls that a proxy has forwarded. Clones share them.
#[derive(Debug, Clone)]
pub struct Recording {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    zero: Mutex<Instant>,
    /// By number, in the order of their starts.
    calls: Mutex<BTreeMap<usize, Stored>>,
    begun: AtomicUsize,
    /// The number of changes of `calls`.
    changes: watch::Sender<u64>,
}

/// A call, with times of the monotonic clock.
#[derive(Debug, Clone)]
struct Stored {
    path: Arc<str>,
    connection: u64,
    start: Instant,
    end: Option<Instant>,
    deadline: Option<Duration>,
    // Shared with the calls that were returned, so that returning a long stream copies nothing.
    requests: Arc<Vec<Frame>>,
    responses: Arc<Vec<(Instant, Frame)>>,
    /// The size of all messages, including those that are not recorded.
    bytes: usize,
    code: Option<Code>,
    message: String,
}

/// A recorded call.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method, without its service.
    pub method: String,
    /// The number of the client's connection, beginning with 1.
    pub connection: u64,
    /// When the request arrived, in seconds since the recording's zero.
    pub start: f64,
    /// When the call ended, in seconds since the recording's zero; `None` if it has not ended.
    pub end: Option<f64>,
    /// The remaining time when the request arrived.
    pub deadline: Option<Duration>,
    /// The gRPC status; `None` if the call has not ended. `Cancelled` if the client has cancelled the call or disconnected.
    pub code: Option<Code>,
    /// The message of the gRPC status.
    pub message: String,
    path: Arc<str>,
    zero: Instant,
    requests: Arc<Vec<Frame>>,
    responses: Arc<Vec<(Instant, Frame)>>,
}

/// A message of a stream.
#[derive(Debug, Clone)]
pub struct Message {
    /// When the message passed, in seconds since the recording's zero.
    pub at: f64,
    /// The message as JSON.
    pub value: Value,
}

/// The place at which a call is recorded.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    recording: Recording,
    index: usize,
}

impl Recording {
    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                zero: Mutex::new(Instant::now()),
                calls: Mutex::default(),
                begun: AtomicUsize::new(0),
                changes: watch::Sender::new(0),
            }),
        }
    }

    /// Sets the recording's zero to now, for earlier calls too. Initially it is the start of the proxy.
    pub fn set_zero(&self) {
        *lock(&self.shared.zero) = Instant::now();
    }

    /// The calls so far, in the order of their starts.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        let zero = *lock(&self.shared.zero);
        let calls = lock(&self.shared.calls);
        calls.values().map(|stored| stored.call(zero)).collect()
    }

    /// Removes the ended calls from the recording, so that it does not grow, and returns them.
    #[must_use]
    pub fn take_ended(&self) -> Vec<Call> {
        let zero = *lock(&self.shared.zero);
        let mut calls = lock(&self.shared.calls);
        let ended = calls.extract_if(.., |_, stored| stored.end.is_some());
        ended.map(|(_, stored)| stored.call(zero)).collect()
    }

    /// Waits until `found` returns a value for the calls, and returns the value. `found` is called after each change.
    pub async fn until<T>(&self, mut found: impl FnMut(&[Call]) -> Option<T>) -> T {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(it) = found(&self.calls()) {
                return it;
            }
            // This cannot fail: `self` holds the sender.
            let _ = changes.changed().await;
        }
    }

    /// Waits for ended calls, and removes them from the recording.
    pub async fn next_ended(&self) -> Vec<Call> {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let ended = self.take_ended();
            if !ended.is_empty() {
                return ended;
            }
            // This cannot fail: `self` holds the sender.
            let _ = changes.changed().await;
        }
    }

    pub(super) fn begin(&self, path: &str, connection: u64, deadline: Option<Duration>) -> Slot {
        let mut calls = lock(&self.shared.calls);
        let index = self.shared.begun.fetch_add(1, Ordering::Relaxed);
        let stored = Stored {
            path: path.into(),
            connection,
            start: Instant::now(),
            end: None,
            deadline,
            requests: Arc::default(),
            responses: Arc::default(),
            bytes: 0,
            code: None,
            message: String::new(),
        };
        calls.insert(index, stored);
        drop(calls);
        self.changed();
        Slot { recording: self.clone(), index }
    }

    fn changed(&self) {
        self.shared.changes.send_modify(|changes| *changes += 1);
    }
}

impl Slot {
    fn change(&self, change: impl FnOnce(&mut Stored)) {
        if let Some(stored) = lock(&self.recording.shared.calls).get_mut(&self.index) {
            change(stored);
        }
        self.recording.changed();
    }

    pub(super) fn request(&self, frame: Frame) {
        self.change(|stored| {
            if stored.has_room_for(&frame) {
                Arc::make_mut(&mut stored.requests).push(frame);
            }
        });
    }

    pub(super) fn response(&self, frame: Frame) {
        let now = Instant::now();
        self.change(|stored| {
            if stored.has_room_for(&frame) {
                Arc::make_mut(&mut stored.responses).push((now, frame));
            }
        });
    }

    /// Records the end of the call. Only the first end counts.
    pub(super) fn end(&self, code: Code, message: String) {
        self.change(|stored| {
            if stored.end.is_none() {
                stored.end = Some(Instant::now());
                stored.code = Some(code);
                stored.message = message;
            }
        });
    }
}

impl Stored {
    /// Counts a message. Returns whether the messages of the call are within the limit.
    fn has_room_for(&mut self, frame: &Frame) -> bool {
        let was_full = self.bytes > LIMIT;
        let size = size_of::<(Instant, Frame)>() + frame.bytes.len();
        self.bytes = self.bytes.saturating_add(size);
        let is_full = self.bytes > LIMIT;
        if is_full && !was_full {
            tracing::warn!(method = %self.path, limit_mib = LIMIT >> 20, "not recording later messages of a call: too many bytes");
        }
        !is_full
    }

    fn call(&self, zero: Instant) -> Call {
        let seconds = |at| seconds_between(zero, at);
        let (_, method) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        Call {
            method: method.to_owned(),
            connection: self.connection,
            start: seconds(self.start),
            end: self.end.map(seconds),
            deadline: self.deadline,
            code: self.code,
            message: self.message.clone(),
            path: Arc::clone(&self.path),
            zero,
            requests: Arc::clone(&self.requests),
            responses: Arc::clone(&self.responses),
        }
    }
}

impl Call {
    /// Whether the response is a stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        json::method(&self.path).is_some_and(|method| method.is_server_streaming())
    }

    /// The name of the gRPC status in Go, which Kubernetes logs show.
    #[must_use]
    pub fn code_name(&self) -> Option<String> {
        self.code.map(code_name)
    }

    /// The request as JSON; null if it did not arrive. A message that cannot be decoded is a text with the reason.
    #[must_use]
    pub fn request(&self) -> Value {
        let descriptor = json::method(&self.path).map(|method| method.input());
        self.requests.first().map_or(Value::Null, |frame| value(descriptor, frame))
    }

    /// The response as JSON, for a stream its first message; null if there is none.
    #[must_use]
    pub fn response(&self) -> Value {
        self.responses().into_iter().next().map_or(Value::Null, |message| message.value)
    }

    /// Every message of the response; at most one unless the call is a stream.
    #[must_use]
    pub fn responses(&self) -> Vec<Message> {
        let method = json::method(&self.path);
        self.responses
            .iter()
            .map(|(at, frame)| Message {
                at: seconds_between(self.zero, *at),
                value: value(method.as_ref().map(|method| method.output()), frame),
            })
            .collect()
    }

    /// The call as one object, in the form of a recording's line.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut line = Map::new();
        line.insert("t_start".to_owned(), json!(self.start));
        if let Some(end) = self.end {
            line.insert("t_end".to_owned(), json!(end));
        }
        line.insert("method".to_owned(), json!(self.method));
        line.insert("connection".to_owned(), json!(self.connection));
        if let Some(deadline) = self.deadline {
            line.insert("deadline_s".to_owned(), json!(deadline.as_secs_f64()));
        }
        line.insert("request".to_owned(), self.request());
        if self.is_stream() {
            let messages = self.responses().into_iter();
            let messages = messages.map(|m| json!({"t": m.at, "message": m.value}));
            line.insert("responses".to_owned(), messages.collect());
        } else if !self.responses.is_empty() {
            line.insert("response".to_owned(), self.response());
        }
        if let Some(code) = self.code_name() {
            line.insert("code".to_owned(), json!(code));
        }
        if !self.message.is_empty() {
            line.insert("message".to_owned(), json!(self.message));
        }
        Value::Object(line)
    }
}

/// The code with a name as returned by [`Call::code_name`].
pub(super) fn code_of(name: &str) -> Option<Code> {
    let mut codes = (0..=16).map(Code::from_i32);
    codes.find(|code| code_name(*code) == name)
}

/// The name of a gRPC code in Go, which Kubernetes logs show.
fn code_name(code: Code) -> String {
    let name = format!("{code:?}");
    match name.as_str() {
        "Ok" => "OK".to_owned(),
        "Cancelled" => "Canceled".to_owned(),
        _ => name,
    }
}

fn value(descriptor: Option<prost_reflect::MessageDescriptor>, frame: &Frame) -> Value {
    let undecoded = |why: &str| json!(format!("{} bytes: {why}", frame.message.len()));
    match descriptor {
        _ if frame.compressed => undecoded("compressed"),
        None => undecoded("the CRI has no such call"),
        Some(descriptor) => {
            json::decode(descriptor, &frame.message).unwrap_or_else(|error| undecoded(&error))
        }
    }
}

fn seconds_between(zero: Instant, at: Instant) -> f64 {
    match at.checked_duration_since(zero) {
        Some(after) => after.as_secs_f64(),
        None => -zero.duration_since(at).as_secs_f64(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Decodes a status message: bytes outside printable ASCII are percent-encoded (gRPC over HTTP/2, Status-Message).
pub(super) fn status_message(header: &[u8]) -> String {
    let mut text = Vec::with_capacity(header.len());
    let mut rest = header;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(escaped) => {
                text.push(escaped);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                text.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Parses the header `grpc-timeout`: at most eight digits and a unit (gRPC over HTTP/2, Timeout).
pub(super) fn deadline(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(count.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_stream_fills_no_memory() {
        let recording = Recording::new();
        let slot = recording.begin("/runtime.v1.RuntimeService/GetContainerEvents", 1, None);
        // Clones share the bytes.
        let frame = Frame::of(&vec![0; 8 << 20]);
        for _ in 0..1000 {
            slot.response(frame.clone());
        }
        slot.end(Code::Ok, String::new());
        let call = recording.take_ended().remove(0);
        assert_eq!((call.responses.len(), call.code), (7, Some(Code::Ok)));
    }

    #[test]
    fn status_message_is_decoded() {
        for (header, expected) in
            [("plain", "plain"), ("100%25 of %C3%A9", "100% of é"), ("%", "%"), ("%zz%4", "%zz%4")]
        {
            assert_eq!(status_message(header.as_bytes()), expected);
        }
    }

    #[test]
    fn deadline_has_six_units() {
        for (header, expected) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("5m", Some(Duration::from_millis(5))),
            ("5u", Some(Duration::from_micros(5))),
            ("5n", Some(Duration::from_nanos(5))),
            ("5é", None),
            ("5", None),
            ("", None),
        ] {
            assert_eq!(deadline(header), expected, "{header}");
        }
    }
}
