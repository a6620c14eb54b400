//! What a faulty runtime does with a call, as one line of text: `ContainerStatus drop status.labels`.
//!
//! `CALL [after N] [if [request|response] PATH = JSON] ACTION`. A fault with `after N` leaves the first N matching calls alone;
//! one with a condition, the messages that do not have that value. A path is field names of the contract, separated by dots;
//! a list on the way means each of its elements.
//!
//! | action | what the client sees |
//! |---|---|
//! | `answer CODE` | that code; the runtime does not see the call |
//! | `swallow` | an empty success; the runtime does not see the call |
//! | `fail CODE` | that code, after the runtime has done its work |
//! | `recode CODE CODE` | the second code where the runtime answered the first; `OK` is an empty success |
//! | `hang` | no answer |
//! | `delay SECONDS` | a late answer |
//! | `[request] drop PATH` | a response, or the runtime a request, without that field |
//! | `[request] set PATH JSON` | with that value in it |
//! | `lose` | a response, or a stream, without that message |
//! | `repeat` | that message twice |
//! | `late SECONDS` | that message so much later, after those that follow it |

use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;
use tonic::Code;

/// What a faulty runtime does with a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    text: String,
    pub(super) call: String,
    pub(super) after: usize,
    pub(super) condition: Option<Condition>,
    pub(super) action: Action,
}

/// The value that a message must have.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Condition {
    pub(super) of_request: bool,
    pub(super) path: Vec<String>,
    pub(super) value: Value,
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Answer(Code),
    Swallow,
    Fail(Code),
    Recode(Code, Code),
    Hang,
    Delay(Duration),
    /// Without a value the field is dropped.
    Alter {
        request: bool,
        path: Vec<String>,
        value: Option<Value>,
    },
    Lose,
    Repeat,
    Late(Duration),
}

/// Why a text is no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid fault {text:?}: {why}")]
pub struct BadFault {
    text: String,
    why: String,
}

impl Fault {
    /// The fault as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The call, without its service.
    #[must_use]
    pub fn call(&self) -> &str {
        &self.call
    }
}

impl FromStr for Fault {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let bad = |why: String| BadFault {
            text: text.to_owned(),
            why,
        };
        let (call, mut rest) = word(text);
        let known = super::json::methods();
        if !known.iter().any(|name| name == call) {
            return Err(bad(format!("the CRI has no call {call:?}")));
        }
        let mut after = 0;
        if let Some(tail) = rest.strip_prefix("after ") {
            let (count, tail) = word(tail);
            after = count
                .parse()
                .map_err(|_| bad(format!("{count:?} is not a number of calls")))?;
            rest = tail;
        }
        let mut condition = None;
        if let Some(tail) = rest.strip_prefix("if ") {
            let (parsed, tail) = parse_condition(tail).map_err(bad)?;
            condition = Some(parsed);
            rest = tail;
        }
        let action = parse_action(rest).map_err(bad)?;
        Ok(Self {
            text: text.to_owned(),
            call: call.to_owned(),
            after,
            condition,
            action,
        })
    }
}

/// The first word, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    (word, rest.trim_start())
}

fn path(text: &str) -> Result<Vec<String>, String> {
    let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
    match parts.iter().any(String::is_empty) {
        true => Err(format!("{text:?} is not a path of fields")),
        false => Ok(parts),
    }
}

/// A JSON value at the beginning of a text, and what follows it.
fn json_value(text: &str) -> Result<(Value, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => {
            let rest = text.get(values.byte_offset()..).unwrap_or_default();
            Ok((value, rest.trim_start()))
        }
        Some(Err(error)) => Err(format!(
            "{text:?} does not begin with a JSON value: {error}"
        )),
        None => Err("a JSON value is missing".to_owned()),
    }
}

fn parse_condition(text: &str) -> Result<(Condition, &str), String> {
    let (side, tail) = word(text);
    let (of_request, text) = match side {
        "request" => (true, tail),
        "response" => (false, tail),
        _ => (false, text),
    };
    let (fields, rest) = word(text);
    let rest = rest
        .strip_prefix('=')
        .ok_or_else(|| format!("there is no `= JSON` after {fields:?}"))?;
    let (value, rest) = json_value(rest.trim_start())?;
    let condition = Condition {
        of_request,
        path: path(fields)?,
        value,
    };
    Ok((condition, rest))
}

fn parse_action(text: &str) -> Result<Action, String> {
    let (verb, rest) = word(text);
    let (request, verb, rest) = match verb {
        "request" => {
            let (verb, rest) = word(rest);
            (true, verb, rest)
        }
        _ => (false, verb, rest),
    };
    let (first, second) = word(rest);
    let action = match verb {
        "drop" => Action::Alter {
            request,
            path: path(first)?,
            value: None,
        },
        "set" => {
            let (value, rest) = json_value(second)?;
            if !rest.is_empty() {
                return Err(format!("{rest:?} follows the value"));
            }
            return Ok(Action::Alter {
                request,
                path: path(first)?,
                value: Some(value),
            });
        }
        _ if request => return Err("only `drop` and `set` apply to a request".to_owned()),
        "answer" => Action::Answer(code(first)?),
        "fail" => Action::Fail(code(first)?),
        "recode" => return Ok(Action::Recode(code(first)?, code(second)?)),
        "delay" => Action::Delay(seconds(first)?),
        "late" => Action::Late(seconds(first)?),
        "swallow" | "hang" | "lose" | "repeat" if !rest.is_empty() => {
            return Err(format!("{rest:?} follows `{verb}`"));
        }
        "swallow" => Action::Swallow,
        "hang" => Action::Hang,
        "lose" => Action::Lose,
        "repeat" => Action::Repeat,
        other => return Err(format!("there is no action {other:?}")),
    };
    match second {
        "" => Ok(action),
        more => Err(format!("{more:?} follows `{verb} {first}`")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// A gRPC code by its name in the specification.
fn code(name: &str) -> Result<Code, String> {
    (0..=16)
        .map(Code::from_i32)
        .find(|code| constant(*code) == name)
        .ok_or_else(|| format!("{name:?} is not a gRPC code, such as NOT_FOUND"))
}

/// The name of a code in the specification: `NOT_FOUND`.
fn constant(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() && code != Code::Ok {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Version answer UNAVAILABLE", Action::Answer(Code::Unavailable))]
    #[case("Version fail DEADLINE_EXCEEDED", Action::Fail(Code::DeadlineExceeded))]
    #[case(
        "Version recode NOT_FOUND OK",
        Action::Recode(Code::NotFound, Code::Ok)
    )]
    #[case("Version delay 0.5", Action::Delay(Duration::from_millis(500)))]
    #[case("Version hang", Action::Hang)]
    #[case("GetContainerEvents late 2", Action::Late(Duration::from_secs(2)))]
    #[case("Version drop version", Action::Alter { request: false, path: vec!["version".to_owned()], value: None })]
    #[case("Version request set version \"a b\"", Action::Alter { request: true, path: vec!["version".to_owned()], value: Some("a b".into()) })]
    fn action_is_parsed(#[case] text: &str, #[case] expected: Action) {
        let fault: Fault = text.parse().unwrap();
        assert_eq!(
            (fault.action, fault.after, fault.condition),
            (expected, 0, None)
        );
    }

    #[test]
    fn count_and_condition_precede_action() {
        let text = "StopContainer after 2 if request container_id = \"a b\" swallow";
        let fault: Fault = text.parse().unwrap();
        let condition = Condition {
            of_request: true,
            path: vec!["container_id".to_owned()],
            value: "a b".into(),
        };
        assert_eq!((fault.after, fault.condition), (2, Some(condition)));
        assert_eq!((fault.action, fault.text.as_str()), (Action::Swallow, text));
    }

    #[rstest]
    #[case("Dance hang", "the CRI has no call \"Dance\"")]
    #[case("Version", "there is no action \"\"")]
    #[case("Version sing", "there is no action \"sing\"")]
    #[case("Version after x hang", "\"x\" is not a number of calls")]
    #[case("Version if a hang", "there is no `= JSON` after \"a\"")]
    #[case("Version drop a..b", "\"a..b\" is not a path of fields")]
    #[case("Version drop a b", "\"b\" follows `drop a`")]
    #[case("Version hang on", "\"on\" follows `hang`")]
    #[case(
        "Version answer NOTFOUND",
        "\"NOTFOUND\" is not a gRPC code, such as NOT_FOUND"
    )]
    #[case("Version set a", "a JSON value is missing")]
    #[case("Version request hang", "only `drop` and `set` apply to a request")]
    #[case(
        "Version delay -1",
        "cannot convert float seconds to Duration: value is negative"
    )]
    fn bad_fault_is_refused_with_reason(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<Fault>().unwrap_err();
        assert_eq!(error.to_string(), format!("invalid fault {text:?}: {why}"));
    }
}
