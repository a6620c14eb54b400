//! ◆ The facts about a call that the linter needs; nothing else is kept, so that a long recording needs little memory. A proxy that
//! lints while it serves keeps them up to a limit.

use std::cmp::Ordering;

use serde_json::Value;

use crate::recorded::RecordedCall;

/// The facts about a call that the linter needs.
#[derive(Debug, Clone, PartialEq)]
pub struct CallFacts {
    pub(super) method: String,
    pub(super) connection: u64,
    pub(super) start: f64,
    pub(super) end: Option<f64>,
    pub(super) has_deadline: bool,
    pub(super) is_stream: bool,
    pub(super) is_success: bool,
    /// The request of a query or a stream, to detect equal ones.
    pub(super) request: String,
    pub(super) container: Option<String>,
    pub(super) sandbox: Option<String>,
    /// The id in the response of RunPodSandbox or CreateContainer.
    pub(super) created_id: Option<String>,
    /// The containers that the response reports as exited.
    pub(super) exited: Vec<String>,
    /// An ExecSync call without a timeout: its command may run indefinitely.
    is_endless: bool,
}

impl CallFacts {
    /// Orders calls by their starts.
    #[must_use]
    pub fn by_start(&self, other: &Self) -> Ordering {
        self.start.total_cmp(&other.start)
    }

    /// Whether the call needs a deadline and has none. Streams run indefinitely, a pull as long as it makes progress, and a command
    /// until its own timeout.
    pub(super) fn lacks_deadline(&self) -> bool {
        let needs = !self.is_stream && !self.is_endless && self.method != "PullImage";
        needs && !self.has_deadline
    }

    /// The approximate size in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        let ids = [&self.container, &self.sandbox, &self.created_id].into_iter().flatten();
        let texts = [&self.method, &self.request].into_iter().chain(ids).chain(&self.exited);
        size_of::<Self>() + texts.map(|text| size_of::<String>() + text.len()).sum::<usize>()
    }

    /// Whether the call only queries state.
    pub(super) fn is_query(&self) -> bool {
        is_query(&self.method)
    }
}

/// The facts about the calls of a running proxy, up to a limit of their size in memory.
#[derive(Debug)]
pub struct SeenCalls {
    calls: Vec<CallFacts>,
    /// How many more bytes the facts may need.
    room: usize,
    left_out: u64,
}

impl Default for SeenCalls {
    fn default() -> Self {
        Self::with_limit(Self::LIMIT)
    }
}

impl SeenCalls {
    /// The default limit, in bytes: enough for about half a million calls.
    pub const LIMIT: usize = 256 << 20;

    /// Without calls yet. The facts about all calls need at most this number of bytes.
    #[must_use]
    pub fn with_limit(bytes: usize) -> Self {
        Self { calls: Vec::new(), room: bytes, left_out: 0 }
    }

    /// Adds a call. After the first call that exceeds the limit, calls are only counted: the rules depend on the order of the calls,
    /// so the ones that are kept must have no gap.
    pub fn add(&mut self, call: CallFacts) {
        match self.room.checked_sub(call.size()) {
            Some(room) if self.left_out == 0 => {
                self.room = room;
                self.calls.push(call);
            }
            Some(_) | None => self.left_out += 1,
        }
    }

    /// The calls in the order of their starts, and the number of calls that exceeded the limit.
    #[must_use]
    pub fn finish(mut self) -> (Vec<CallFacts>, u64) {
        compact::sort_by(&mut self.calls, CallFacts::by_start);
        (self.calls, self.left_out)
    }
}

fn is_query(method: &str) -> bool {
    let ends = ["Status", "Stats", "Info", "Version", "RuntimeConfig"];
    method.starts_with("List") || ends.iter().any(|end| method.ends_with(end))
}

impl From<&RecordedCall> for CallFacts {
    fn from(call: &RecordedCall) -> Self {
        let text = |value: &Value, name: &str| value.get(name)?.as_str().map(str::to_owned);
        let answer = call.response.as_ref().unwrap_or(&Value::Null);
        let created_id = match call.method.as_str() {
            "RunPodSandbox" => text(answer, "pod_sandbox_id"),
            "CreateContainer" => text(answer, "container_id"),
            _ => None,
        };
        let mut exited = Vec::new();
        for (_, message) in call.messages() {
            find_exited(message, &mut exited);
        }
        let timeout = call.request.get("timeout");
        Self {
            method: call.method.clone(),
            connection: call.connection,
            start: call.t_start,
            end: call.t_end,
            has_deadline: call.deadline_s.is_some(),
            is_stream: call.method.starts_with("Stream") || call.method == "GetContainerEvents",
            is_success: call.code.as_deref() == Some("OK"),
            request: match is_query(&call.method) || call.method.starts_with("Stream") {
                true => call.request.to_string(),
                false => String::new(),
            },
            container: text(&call.request, "container_id"),
            sandbox: text(&call.request, "pod_sandbox_id"),
            created_id,
            exited,
            is_endless: call.method == "ExecSync" && timeout.is_none(),
        }
    }
}

/// Finds the containers that a message, at any depth, reports as exited.
fn find_exited(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let is = |name: &str, wanted: &str| fields.get(name).is_some_and(|v| v == wanted);
            let id = match (
                is("state", "CONTAINER_EXITED"),
                is("container_event_type", "CONTAINER_STOPPED_EVENT"),
            ) {
                (true, _) => fields.get("id"),
                (false, true) => fields.get("container_id"),
                (false, false) => None,
            };
            found.extend(id.and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|inner| find_exited(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| find_exited(inner, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
