//! A fault of a runtime, as one line of text: `ContainerStatus drop status.labels`.
//!
//! `[off] [NAME:] CALLS [after N] [every N] [times N] [probability P] [message N[..M]] [if CONDITION] ACTION`
//!
//! | part | |
//! |---|---|
//! | `off` | the rule has no effect until it is enabled |
//! | `NAME:` | its name, by which it is enabled and disabled; several rules may have the same name |
//! | `CALLS` | names of calls, separated by commas; `*` at the end of a name matches any letters |
//! | `after N` | skips the first N calls |
//! | `every N` | applies only to every N-th call |
//! | `times N` | applies to at most N calls |
//! | `probability P` | applies to this share of the calls, between 0 and 1; the seed decides to which ones |
//! | `message N`, `N..M`, `N..` | in a stream, applies to the N-th message that meets the condition, or to the N-th to M-th |
//! | `if CONDITION` | `PATH == JSON`, `!=`, `in [JSON, …]`, `prefix "TEXT"`, joined by `and`, `or`, `not`, `(…)` |
//!
//! `after`, `every`, `times` and `probability` count the calls that meet the condition. If the condition is about the response, a
//! call counts with the first message that meets it; otherwise it counts when the request arrives.
//!
//! A path consists of field names of the protocol, separated by dots: `status.labels["x"]`. A prefix `request.` or `response.`
//! selects the message. Without a prefix it is the response, or the request if only the request has such a field. In a list, a path
//! means each element; a condition holds if one element meets it. An unset field has its default value, and equals `null`.
//!
//! | action | effect for the client |
//! |---|---|
//! | `answer CODE ["TEXT"]` | receives this code; the runtime does not receive the call |
//! | `swallow` | receives an empty success; the runtime does not receive the call |
//! | `stale` | receives the runtime's last response to an equal request; the runtime does not receive the call |
//! | `fail CODE ["TEXT"]` | receives this code, after the runtime has completed the call |
//! | `recode CODE CODE ["TEXT"]` | receives the second code if the runtime returned the first; `OK` is an empty success |
//! | `hang` | receives no response; in a stream, nothing from that message on |
//! | `delay SECONDS` | receives the response late; in a stream, that message and all later ones |
//! | `disconnect` | is disconnected |
//! | `drop PATH`, `request drop PATH` | receives the response without that field; with `request`, the runtime the request |
//! | `set PATH JSON`, `request set PATH JSON` | the same, with that value in the field |
//! | `lose` | does not receive that message, or the response |
//! | `repeat` | receives that message twice |
//! | `late SECONDS` | receives that message later by this time, after those that follow it |
//! | `swap` | receives that message of a stream after the next one |
//! | `truncate [CODE ["TEXT"]]` | receives the end of the stream instead of that message, by default with `OK` |
//! | `throttle BYTES` | receives the response at this many bytes a second |

use std::ops::RangeInclusive;
use std::str::FromStr;

use prost_reflect::MethodDescriptor;

use super::json;
use super::schedule::Schedule;

mod action;
mod condition;
mod cursor;
mod path;
mod set;

use cursor::{Cursor, Problem, excerpt, suggestion};

pub(super) use action::{Action, Status};
pub(super) use condition::{Condition, Side};
pub use set::{ParseRulesError, RuleSet};

/// A fault of a runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    text: String,
    name: Option<String>,
    pub(super) is_on: bool,
    pub(super) schedule: Schedule,
    pub(super) calls: Vec<CallFault>,
}

/// A fault in one of its calls.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallFault {
    pub(super) method: MethodDescriptor,
    /// The numbers of a stream's messages, beginning with 1.
    pub(super) messages: Option<RangeInclusive<usize>>,
    pub(super) condition: Option<Condition>,
    pub(super) action: Action,
}

/// Why a text is not a valid fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid fault {text:?}, column {column}: {why}")]
pub struct ParseFaultError {
    text: String,
    /// The character, beginning with 1.
    pub(super) column: usize,
    pub(super) why: String,
}

impl Fault {
    /// The text that the fault was parsed from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl CallFault {
    /// Whether the action happens before the runtime receives the call.
    pub(super) fn is_of_request(&self) -> bool {
        let waits = self.messages.is_some() || self.needs_response();
        if self.action.may_wait() {
            !waits
        } else {
            self.action.is_before_response() && !matches!(self.action, Action::Throttle(_))
        }
    }

    fn needs_response(&self) -> bool {
        let condition = self.condition.as_ref();
        condition.is_some_and(Condition::needs_response)
    }
}

impl FromStr for Fault {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, ParseFaultError> {
        parse(text).map_err(|problem| {
            let before = text.get(..problem.at).unwrap_or(text);
            ParseFaultError {
                text: excerpt(text).into_owned(),
                column: before.chars().count() + 1,
                why: problem.why,
            }
        })
    }
}

fn parse(text: &str) -> Result<Fault, Problem> {
    let mut cursor = Cursor::new(text);
    let is_on = !cursor.consume_word("off");
    let name = rule_name(&mut cursor);
    let methods = methods(&mut cursor)?;
    let (schedule, messages) = schedule(&mut cursor)?;
    let mut calls = Vec::new();
    let mut rest = cursor.clone();
    for method in methods {
        rest = cursor.clone();
        calls.push(call_fault(&mut rest, method, messages.clone())?);
    }
    rest.end()?;
    Ok(Fault { text: text.trim().to_owned(), name, is_on, schedule, calls })
}

fn rule_name(cursor: &mut Cursor<'_>) -> Option<String> {
    let mut ahead = cursor.clone();
    let name = ahead.word().strip_suffix(':')?;
    *cursor = ahead;
    (!name.is_empty()).then(|| name.to_owned())
}

fn methods(cursor: &mut Cursor<'_>) -> Result<Vec<MethodDescriptor>, Problem> {
    let known = json::methods();
    let mut chosen: Vec<MethodDescriptor> = Vec::new();
    loop {
        let at = cursor.at();
        let name = cursor.until(&[' ', '\t', ',']);
        let is_meant = |method: &&MethodDescriptor| match name.strip_suffix('*') {
            Some(beginning) => method.name().starts_with(beginning),
            None => method.name() == name,
        };
        let before = chosen.len();
        for method in known.iter().filter(is_meant) {
            if !chosen.contains(method) {
                chosen.push(method.clone());
            }
        }
        if chosen.len() == before {
            let similar = suggestion(name, known.iter().map(MethodDescriptor::name));
            let why = format!("the CRI has no call {:?}{similar}", excerpt(name));
            return Err(Problem { at, why });
        }
        if !cursor.consume(",") {
            return Ok(chosen);
        }
    }
}

type Messages = Option<RangeInclusive<usize>>;

fn schedule(cursor: &mut Cursor<'_>) -> Result<(Schedule, Messages), Problem> {
    let mut schedule = Schedule::default();
    let mut messages = None;
    let mut seen = Vec::new();
    loop {
        let at = cursor.at();
        let problem = |why: String| Problem { at, why };
        let word = cursor.peek_name();
        if !["after", "every", "times", "probability", "message"].contains(&word) {
            return Ok((schedule, messages));
        }
        if seen.contains(&word) {
            return Err(problem(format!("`{word}` is given twice")));
        }
        seen.push(word);
        cursor.name();
        match word {
            "after" => schedule.after = cursor.number("a number of calls")?,
            "every" => schedule.every = cursor.number("a number of calls")?,
            "times" => schedule.times = Some(cursor.number("a number of calls")?),
            "probability" => schedule.probability = cursor.number("a number between 0 and 1")?,
            _ => messages = Some(range(cursor)?),
        }
        if schedule.every == 0 || schedule.times == Some(0) {
            return Err(problem(format!("`{word}` needs a number above 0")));
        }
        if !(0.0..=1.0).contains(&schedule.probability) {
            return Err(problem("a probability is between 0 and 1".to_owned()));
        }
    }
}

fn range(cursor: &mut Cursor<'_>) -> Result<RangeInclusive<usize>, Problem> {
    let at = cursor.at();
    let word = cursor.word();
    let (first, last) = match word.split_once("..") {
        None => (word, Some(word)),
        Some((first, "")) => (first, None),
        Some((first, last)) => (first, Some(last)),
    };
    let last = last.map_or(Ok(usize::MAX), str::parse);
    match (first.parse(), last) {
        (Ok(first), Ok(last)) if 1 <= first && first <= last => Ok(first..=last),
        _ => Err(Problem {
            at,
            why: format!(
                "{:?} is not a message number or range, such as 1, 2..4 or 3..",
                excerpt(word)
            ),
        }),
    }
}

fn call_fault(
    cursor: &mut Cursor<'_>,
    method: MethodDescriptor,
    messages: Messages,
) -> Result<CallFault, Problem> {
    let condition = match cursor.consume_word("if") {
        true => Some(Condition::parse(cursor, &method)?),
        false => None,
    };
    let at = cursor.at();
    let verb = cursor.peek_name();
    let action = Action::parse(cursor, &method)?;
    let fault = CallFault { method, messages, condition, action };
    let problem = |why: String| Err(Problem { at, why });
    if fault.messages.is_some() && !fault.method.is_server_streaming() {
        return problem(format!(
            "`message` applies only to streams, and {} is not a stream",
            fault.method.name()
        ));
    }
    if fault.messages.is_some() && fault.action.is_of_status() {
        return problem(format!("`{verb}` ends a call, not a message: use `truncate`"));
    }
    if fault.action.is_before_response() && (fault.messages.is_some() || fault.needs_response()) {
        return problem(format!(
            "`{verb}` acts before the response exists: its condition cannot refer to the response"
        ));
    }
    Ok(fault)
}

#[cfg(test)]
mod tests;
