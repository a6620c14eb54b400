//! Calls of a recording, a line of JSON each, as `crib proxy record` and `--trace` write them. ◆

use serde::Deserialize;
use serde_json::Value;

use super::record::Call;

/// A call of a recording.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedCall {
    /// The line of the file, from 1 on; 0 if it is of no file.
    #[serde(skip)]
    pub line: usize,
    /// When it began, in seconds.
    pub t_start: f64,
    /// When it ended, in seconds.
    #[serde(default)]
    pub t_end: Option<f64>,
    /// The name of the call, without its service.
    pub method: String,
    /// The number of the client's connection; 0 in a recording that has none.
    #[serde(default)]
    pub connection: u64,
    /// The time that was left for it when it arrived, in seconds.
    #[serde(default)]
    pub deadline_s: Option<f64>,
    /// The request.
    #[serde(default)]
    pub request: Value,
    /// The answer of a call that is no stream.
    #[serde(default)]
    pub response: Option<Value>,
    /// The messages of a stream.
    #[serde(default)]
    pub responses: Vec<RecordedMessage>,
    /// The name of the gRPC status in Go's library.
    #[serde(default)]
    pub code: Option<String>,
    /// The message of the gRPC status.
    #[serde(default)]
    pub message: String,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedMessage {
    /// When it passed, in seconds.
    pub t: f64,
    /// The message.
    pub message: Value,
}

/// Why a text is no recording.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is no recorded call")]
pub struct BadRecording {
    line: usize,
    source: serde_json::Error,
}

impl RecordedCall {
    /// Reads a recording, in the order in which its calls began.
    ///
    /// # Errors
    /// A line is no call.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, BadRecording> {
        let mut calls = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let line_number = number + 1;
            let call: Self = serde_json::from_str(line).map_err(|source| BadRecording {
                line: line_number,
                source,
            })?;
            calls.push(Self {
                line: line_number,
                ..call
            });
        }
        // A recording has its calls in the order of their ends.
        calls.sort_by(|a, b| a.t_start.total_cmp(&b.t_start));
        Ok(calls)
    }

    /// The messages of its answer, with their times.
    pub fn messages(&self) -> impl Iterator<Item = (f64, &Value)> {
        let at = self.t_end.unwrap_or(self.t_start);
        let of_stream = self.responses.iter();
        let single = self.response.iter().map(move |response| (at, response));
        single.chain(of_stream.map(|message| (message.t, &message.message)))
    }
}

impl From<&Call> for RecordedCall {
    fn from(call: &Call) -> Self {
        let mut messages = call.responses();
        let is_stream = call.is_stream();
        let response = match is_stream || messages.is_empty() {
            true => None,
            false => Some(messages.remove(0).value),
        };
        let responses = messages.into_iter().map(|message| RecordedMessage {
            t: message.at,
            message: message.value,
        });
        Self {
            line: 0,
            t_start: call.start,
            t_end: call.end,
            method: call.method.clone(),
            connection: call.connection,
            deadline_s: call.deadline.map(|deadline| deadline.as_secs_f64()),
            request: call.request(),
            response,
            responses: responses.collect(),
            code: call.code_name(),
            message: call.message.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn calls_are_in_the_order_of_their_beginnings() {
        let text = r#"{"t_start": 2, "t_end": 3, "method": "Version", "request": {}, "response": {}, "code": "OK"}

{"t_start": 1, "method": "GetContainerEvents", "request": {}, "responses": [{"t": 1.5, "message": {"a": 1}}], "more": 1}
"#;
        let calls = RecordedCall::parse_all(text).unwrap();
        let lines: Vec<_> = calls.iter().map(|call| call.line).collect();
        assert_eq!(lines, [3, 1]);
        let messages: Vec<_> = calls.iter().flat_map(RecordedCall::messages).collect();
        let empty = serde_json::json!({});
        let event = serde_json::json!({"a": 1});
        assert_eq!(messages, [(1.5, &event), (3.0, &empty)]);
    }

    #[test]
    fn line_that_is_no_call_is_named() {
        let error = RecordedCall::parse_all("{\"t_start\": 1, \"method\": \"a\"}\n[]").unwrap_err();
        assert_eq!(error.to_string(), "line 2 is no recorded call");
    }
}
