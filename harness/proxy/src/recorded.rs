//! ◆ Calls of a recording, one line of JSON each, as written by `crib proxy record` and `--trace`.

use std::io::{self, BufRead, Read as _};

use prost_reflect::DynamicMessage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::json;
use super::record::{Call, code_of};

/// A call of a recording.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedCall {
    /// The line in the file, beginning with 1; 0 if the call is not from a file.
    #[serde(skip)]
    pub line: usize,
    /// When it started, in seconds.
    pub t_start: f64,
    /// When it ended, in seconds.
    #[serde(default)]
    pub t_end: Option<f64>,
    /// The method, without its service.
    pub method: String,
    /// The number of the client's connection; 0 in a recording that has none.
    #[serde(default)]
    pub connection: u64,
    /// The remaining time when the request arrived, in seconds.
    #[serde(default)]
    pub deadline_s: Option<f64>,
    /// The request.
    #[serde(default)]
    pub request: Value,
    /// The response, unless the call is a stream.
    #[serde(default)]
    pub response: Option<Value>,
    /// The messages of a stream.
    #[serde(default)]
    pub responses: Vec<RecordedMessage>,
    /// The name of the gRPC status in Go.
    #[serde(default)]
    pub code: Option<String>,
    /// The message of the gRPC status.
    #[serde(default)]
    pub message: String,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedMessage {
    /// When the message passed, in seconds.
    pub t: f64,
    /// The message.
    pub message: Value,
}

/// Why a text is not a valid recording.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is not a recorded call: {why}")]
pub struct ParseRecordingError {
    line: usize,
    why: String,
}

/// Why a recording could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It cannot be read, or is too large.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is not a valid call.
    #[error(transparent)]
    Line(#[from] ParseRecordingError),
}

/// The maximum length of a line, in bytes: 64 MiB.
const MAX_LINE: u64 = 64 << 20;
/// The maximum number of calls: readers keep some data of each.
const MAX_CALLS: usize = 1_000_000;
/// The maximum absolute value of a time in a recording, in seconds: about thirty years.
const LONGEST: f64 = 1e9;

/// The text of a recording without an incomplete last line, which a killed recorder leaves.
#[must_use]
pub fn finished_lines(text: &str) -> &str {
    let (finished, last) = match text.rfind('\n') {
        Some(end) => text.split_at(end + 1),
        None => ("", text),
    };
    if is_cut(last.as_bytes()) { finished } else { text }
}

/// Whether a last line is incomplete; it may end within a character.
fn is_cut(last: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(last).is_err_and(|error| error.is_eof())
}

fn too_large(why: String) -> RecordingError {
    io::Error::new(io::ErrorKind::FileTooLarge, why).into()
}

impl RecordedCall {
    /// Parses a recording, and sorts its calls by their starts.
    ///
    /// # Errors
    /// A line is not a valid call: its times are missing or impossible, its code is not a gRPC code, or its request is invalid.
    /// Unknown methods are accepted, since a later protocol may have them.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, ParseRecordingError> {
        let mut calls = Vec::new();
        for (number, line) in text.lines().enumerate() {
            calls.extend(Self::parse_line(number + 1, line)?);
        }
        // A recording has its calls in the order of their ends.
        compact::sort_by(&mut calls, |a, b| a.t_start.total_cmp(&b.t_start));
        Ok(calls)
    }

    /// Reads a recording of at most `most` bytes line by line, and passes its calls to `take` in the order of the file. Returns
    /// whether it skipped an incomplete last line, as [`finished_lines`] does.
    ///
    /// # Errors
    /// Reading fails, a limit is exceeded, or a line is not a valid call: see [`Self::parse_all`].
    pub fn read_each(
        mut from: impl BufRead,
        most: u64,
        mut take: impl FnMut(Self),
    ) -> Result<bool, RecordingError> {
        let mut line = Vec::new();
        let (mut number, mut calls, mut total) = (0, 0, 0);
        loop {
            line.clear();
            number += 1;
            let length = from.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line)? as u64;
            total += length;
            if length == 0 {
                return Ok(false);
            }
            if length > MAX_LINE {
                let limit = MAX_LINE >> 20;
                return Err(too_large(format!("line {number} has more than {limit} MiB")));
            }
            if total > most {
                return Err(too_large(format!("it has more than {} MiB", most >> 20)));
            }
            if !line.ends_with(b"\n") && !line.trim_ascii().is_empty() && is_cut(&line) {
                return Ok(true);
            }
            let text = std::str::from_utf8(&line)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))?;
            let Some(call) = Self::parse_line(number, text.trim_end_matches(['\r', '\n']))? else {
                continue;
            };
            calls += 1;
            if calls > MAX_CALLS {
                return Err(too_large(format!("it has more than {MAX_CALLS} calls")));
            }
            take(call);
        }
    }

    /// Parses a line; `None` if it is empty.
    fn parse_line(number: usize, line: &str) -> Result<Option<Self>, ParseRecordingError> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let bad = |why| ParseRecordingError { line: number, why };
        let call: Self = serde_json::from_str(line).map_err(|error| bad(in_line(&error)))?;
        call.validate().map_err(bad)?;
        Ok(Some(Self { line: number, ..call }))
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
        // Bytes that cannot be decoded are recorded as a text.
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

    /// The messages of the response, with their times.
    pub fn messages(&self) -> impl Iterator<Item = (f64, &Value)> {
        let at = self.t_end.unwrap_or(self.t_start);
        let of_stream = self.responses.iter();
        let single = self.response.iter().map(move |response| (at, response));
        single.chain(of_stream.map(|message| (message.t, &message.message)))
    }
}

/// The parser's error without its line number: the parser sees only this line.
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

    const CALL: &str = r#"{"t_start": 1, "method": "a"}"#;

    #[rstest]
    #[case::whole(format!("{CALL}\n\r\n{CALL}\r\n"), vec![1, 3], false)]
    #[case::without_last_end(format!("{CALL}\n{CALL}"), vec![1, 2], false)]
    #[case::cut(format!("{CALL}\n{{\"t_start\": 1, \"meth"), vec![1], true)]
    #[case::empty(String::new(), Vec::new(), false)]
    #[case::blanks_at_the_end(format!("{CALL}\n  "), vec![1], false)]
    fn calls_are_read_line_by_line(
        #[case] text: String,
        #[case] expected: Vec<usize>,
        #[case] is_cut: bool,
    ) {
        let mut lines = Vec::new();
        let read = RecordedCall::read_each(text.as_bytes(), 1 << 20, |call| lines.push(call.line));
        assert_eq!((read.unwrap(), lines), (is_cut, expected));
    }

    #[test]
    fn line_cut_within_character_is_left_out() {
        let mut text = format!("{CALL}\n{{\"message\": \"é").into_bytes();
        text.pop();
        assert!(RecordedCall::read_each(text.as_slice(), 1 << 20, drop).unwrap());
    }

    #[test]
    fn reading_ends_at_limits() {
        let error = |from: &mut dyn BufRead, most| {
            RecordedCall::read_each(from, most, drop).unwrap_err().to_string()
        };
        let many = format!("{}\n", " ".repeat(1000)).repeat(1100);
        assert_eq!(error(&mut many.as_bytes(), 1 << 20), "it has more than 1 MiB");
        let mut endless = io::BufReader::new(io::repeat(0));
        assert_eq!(error(&mut endless, u64::MAX), "line 1 has more than 64 MiB");
        let mut not_text = &b"\xff\n"[..];
        assert_eq!(error(&mut not_text, 1 << 20), "it is not UTF-8");
        let bad = format!("{CALL}\n{{\"t_start\": 1\n");
        let error = error(&mut bad.as_bytes(), 1 << 20);
        let expected = "line 2 is not a recorded call: EOF while parsing an object at column ";
        assert!(error.starts_with(expected), "{error}");
    }
}
