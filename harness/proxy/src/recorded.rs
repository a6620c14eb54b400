//! Calls of a recording, a line of JSON each, as `crib proxy record` and `--trace` write them. ◆

use prost_reflect::DynamicMessage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::json;
use super::record::{Call, code_of};

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
#[error("line {line} is not a recorded call: {why}")]
pub struct BadRecording {
    line: usize,
    why: String,
}

/// The longest that a recording may go on, in seconds: about thirty years.
const LONGEST: f64 = 1e9;

/// The lines of a recording without the last one, if that was not written to its end: its recorder was killed.
#[must_use]
pub fn finished_lines(text: &str) -> &str {
    let (finished, last) = match text.rfind('\n') {
        Some(end) => text.split_at(end + 1),
        None => ("", text),
    };
    let is_cut = serde_json::from_str::<IgnoredAny>(last).is_err_and(|error| error.is_eof());
    if is_cut { finished } else { text }
}

impl RecordedCall {
    /// Reads a recording, in the order in which its calls began.
    ///
    /// # Errors
    /// A line is no call: it has no times or impossible ones, a code that gRPC does not have, or a request that is not one of
    /// its call. A call that the CRI does not have is one of a later protocol.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, BadRecording> {
        let mut calls = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let line_number = number + 1;
            let bad = |why| BadRecording { line: line_number, why };
            let call: Self = serde_json::from_str(line).map_err(|error| bad(in_line(&error)))?;
            call.validate().map_err(bad)?;
            calls.push(Self { line: line_number, ..call });
        }
        // A recording has its calls in the order of their ends.
        compact::sort_by(&mut calls, |a, b| a.t_start.total_cmp(&b.t_start));
        Ok(calls)
    }

    fn validate(&self) -> Result<(), String> {
        let times = [("t_start", Some(self.t_start)), ("t_end", self.t_end)];
        let of_messages = self.responses.iter().map(|message| ("t", Some(message.t)));
        for (name, time) in times.into_iter().chain(of_messages) {
            if let Some(time) = time.filter(|time| time.abs() > LONGEST) {
                return Err(format!("{name} is {time:e} s, and {LONGEST:e} is the most"));
            }
        }
        if self.t_end.is_some_and(|end| end < self.t_start) {
            return Err("t_end is before t_start".to_owned());
        }
        if let Some(code) = self.code.as_ref().filter(|code| code_of(code).is_none()) {
            return Err(format!("{code:?} is not a gRPC code"));
        }
        // Bytes that are no message are recorded as a text.
        let method = json::methods().into_iter();
        match method.into_iter().find(|one| one.name() == self.method) {
            Some(method) if self.request.is_object() => {
                DynamicMessage::deserialize(method.input(), &self.request)
                    .map(drop)
                    .map_err(|error| format!("the request of {} is invalid: {error}", self.method))
            }
            _ => Ok(()),
        }
    }

    /// The messages of its answer, with their times.
    pub fn messages(&self) -> impl Iterator<Item = (f64, &Value)> {
        let at = self.t_end.unwrap_or(self.t_start);
        let of_stream = self.responses.iter();
        let single = self.response.iter().map(move |response| (at, response));
        single.chain(of_stream.map(|message| (message.t, &message.message)))
    }
}

/// What is wrong with a line: the parser counts lines too, and sees only this one.
fn in_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

impl From<&Call> for RecordedCall {
    fn from(call: &Call) -> Self {
        let mut messages = call.responses();
        let is_stream = call.is_stream();
        let response = match is_stream || messages.is_empty() {
            true => None,
            false => Some(messages.remove(0).value),
        };
        let responses = messages
            .into_iter()
            .map(|message| RecordedMessage { t: message.at, message: message.value });
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
    use rstest::rstest;

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

    #[rstest]
    #[case("[]", "invalid length 0, expected struct RecordedCall with 10 elements at column 2")]
    #[case(r#"{"method": "Version"}"#, "missing field `t_start` at column 21")]
    #[case(r#"{"t_start": 1e300, "method": "Version"}"#, "t_start is 1e300 s, and 1e9 is the most")]
    #[case(r#"{"t_start": 2, "t_end": 1, "method": "Version"}"#, "t_end is before t_start")]
    #[case(r#"{"t_start": 0, "method": "Version", "code": "Fine"}"#, "\"Fine\" is not a gRPC code")]
    #[case(
        r#"{"t_start": 0, "method": "StopContainer", "request": {"id": "c"}}"#,
        "the request of StopContainer is invalid: unrecognized field name 'id'"
    )]
    fn line_that_is_no_call_is_named(#[case] line: &str, #[case] expected: &str) {
        let text = format!("{{\"t_start\": 1, \"method\": \"a\"}}\n{line}\n");
        let error = RecordedCall::parse_all(&text).unwrap_err();
        assert_eq!(error.to_string(), format!("line 2 is not a recorded call: {expected}"));
    }

    #[rstest]
    #[case("{}\n{\"a\": [1", "{}\n")]
    #[case("{\"a\"", "")]
    #[case("{}\n{}", "{}\n{}")]
    #[case("{}\n{]", "{}\n{]")]
    #[case("{}\n", "{}\n")]
    #[case("", "")]
    fn last_line_that_was_cut_is_left_out(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(finished_lines(text), expected);
    }
}
