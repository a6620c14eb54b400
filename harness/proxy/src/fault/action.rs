//! The actions of rules.

use std::time::Duration;

use prost_reflect::{MethodDescriptor, Value as Field};
use tonic::Code;

use super::condition::{Side, side_and_path};
use super::cursor::{Cursor, Problem, excerpt, suggestion};
use super::path::FieldPath;

/// The default message of a status that the proxy creates.
const MESSAGE: &str = "a fault of the proxy";
/// The names of all actions.
const ACTIONS: [&str; 16] = [
    "answer",
    "swallow",
    "fail",
    "recode",
    "hang",
    "delay",
    "disconnect",
    "drop",
    "set",
    "lose",
    "repeat",
    "late",
    "swap",
    "truncate",
    "stale",
    "throttle",
];

/// An action.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Answer(Status),
    Swallow,
    Fail(Status),
    Recode(Code, Status),
    Hang,
    Delay(Duration),
    Disconnect,
    /// Without a value, the field is cleared.
    Alter {
        side: Side,
        path: FieldPath,
        value: Option<Field>,
    },
    Lose,
    Repeat,
    Late(Duration),
    /// Swaps the message with the next one.
    Swap,
    Truncate(Status),
    Stale,
    /// In bytes per second.
    Throttle(u32),
}

/// The maximum delay.
const LONGEST: Duration = Duration::from_hours(24);

/// A gRPC status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Action {
    pub(super) fn parse(
        cursor: &mut Cursor<'_>,
        method: &MethodDescriptor,
    ) -> Result<Self, Problem> {
        let at = cursor.at();
        let problem = |why| Problem { at, why };
        // `request drop x` is another form of `drop request.x`.
        let side = match cursor.peek_name() {
            "request" => Some(Side::Request),
            "response" => Some(Side::Response),
            _ => None,
        };
        if side.is_some() {
            cursor.name();
        }
        let verb = cursor.name();
        if side.is_some() && !["drop", "set"].contains(&verb) {
            return Err(problem(
                "`request` and `response` can precede only `drop` and `set`".to_owned(),
            ));
        }
        let is_stream = method.is_server_streaming();
        if ["swap", "truncate"].contains(&verb) && !is_stream {
            let why =
                format!("`{verb}` applies only to streams, and {} is not a stream", method.name());
            return Err(problem(why));
        }
        if verb == "stale" && is_stream {
            let why =
                format!("`stale` applies only to unary calls, and {} is a stream", method.name());
            return Err(problem(why));
        }
        Ok(match verb {
            "answer" => Self::Answer(refusal(cursor, verb)?),
            "swallow" => Self::Swallow,
            "fail" => Self::Fail(refusal(cursor, verb)?),
            "recode" => Self::Recode(code(cursor)?, status(cursor)?),
            "hang" => Self::Hang,
            "delay" => Self::Delay(seconds(cursor)?),
            "disconnect" => Self::Disconnect,
            "drop" | "set" => alter(cursor, method, side, verb == "set")?,
            "lose" => Self::Lose,
            "repeat" => Self::Repeat,
            "late" => Self::Late(seconds(cursor)?),
            "swap" => Self::Swap,
            "truncate" if is_end(cursor) => {
                Self::Truncate(Status { code: Code::Ok, message: String::new() })
            }
            "truncate" => Self::Truncate(status(cursor)?),
            "stale" => Self::Stale,
            "throttle" => Self::Throttle(rate(cursor)?),
            "" => return Err(problem("an action is missing".to_owned())),
            other => {
                let similar = suggestion(other, ACTIONS);
                return Err(problem(format!("unknown action {:?}{similar}", excerpt(other))));
            }
        })
    }

    /// Whether the action never needs the runtime's response.
    pub(super) fn is_before_response(&self) -> bool {
        match self {
            Self::Answer(_) | Self::Swallow | Self::Stale | Self::Throttle(_) => true,
            Self::Alter { side, .. } => *side == Side::Request,
            Self::Fail(_)
            | Self::Recode(..)
            | Self::Hang
            | Self::Delay(_)
            | Self::Disconnect
            | Self::Lose
            | Self::Repeat
            | Self::Late(_)
            | Self::Swap
            | Self::Truncate(_) => false,
        }
    }

    /// Whether the action changes the status of a call, not a message.
    pub(super) fn is_of_status(&self) -> bool {
        matches!(self, Self::Fail(_) | Self::Recode(..))
    }

    /// Whether the action can wait for a message. Without one, it happens before the runtime receives the call.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self, Self::Hang | Self::Delay(_) | Self::Disconnect)
    }
}

fn is_end(cursor: &mut Cursor<'_>) -> bool {
    cursor.clone().end().is_ok()
}

fn alter(
    cursor: &mut Cursor<'_>,
    method: &MethodDescriptor,
    side: Option<Side>,
    sets: bool,
) -> Result<Action, Problem> {
    let (side, path) = match side {
        None => side_and_path(cursor, method)?,
        Some(Side::Request) => (Side::Request, FieldPath::parse(cursor, &method.input())?),
        Some(Side::Response) => (Side::Response, FieldPath::parse(cursor, &method.output())?),
    };
    let at = cursor.at();
    let value = match sets {
        true => {
            let value = path.settable(&cursor.json()?);
            Some(value.map_err(|why| Problem { at, why })?)
        }
        false => None,
    };
    Ok(Action::Alter { side, path, value })
}

fn seconds(cursor: &mut Cursor<'_>) -> Result<Duration, Problem> {
    let at = cursor.at();
    let seconds: f64 = cursor.number("a number of seconds")?;
    let time = Duration::try_from_secs_f64(seconds).ok();
    time.filter(|time| *time <= LONGEST).ok_or_else(|| Problem {
        at,
        why: format!("a number of seconds from 0 to {} is needed", LONGEST.as_secs()),
    })
}

fn rate(cursor: &mut Cursor<'_>) -> Result<u32, Problem> {
    let at = cursor.at();
    match cursor.number("a number of bytes per second")? {
        0 => Err(Problem { at, why: "0 bytes per second is not allowed: use `hang`".to_owned() }),
        rate => Ok(rate),
    }
}

/// A code other than `OK`, optionally with a quoted message.
fn refusal(cursor: &mut Cursor<'_>, verb: &str) -> Result<Status, Problem> {
    let at = cursor.at();
    let status = status(cursor)?;
    if status.code == Code::Ok {
        let why =
            format!("`{verb}` needs a code other than OK: use `swallow` for an empty response");
        return Err(Problem { at, why });
    }
    Ok(status)
}

/// A code, optionally with a quoted message.
fn status(cursor: &mut Cursor<'_>) -> Result<Status, Problem> {
    let code = code(cursor)?;
    let message = if cursor.consume("\"") {
        let message = cursor.until(&['"']).to_owned();
        if !cursor.consume_here("\"") {
            return Err(cursor.problem("the message has no closing quote"));
        }
        message
    } else {
        MESSAGE.to_owned()
    };
    Ok(Status { code, message })
}

/// A gRPC code by its name in the specification.
fn code(cursor: &mut Cursor<'_>) -> Result<Code, Problem> {
    let at = cursor.at();
    let name = cursor.name();
    let codes: Vec<_> = (0..=16).map(Code::from_i32).collect();
    let found = codes.iter().find(|code| constant(**code) == name);
    found.copied().ok_or_else(|| {
        let names: Vec<_> = codes.iter().map(|code| constant(*code)).collect();
        let similar = suggestion(name, names.iter().map(String::as_str));
        let name = excerpt(name);
        Problem { at, why: format!("{name:?} is not a gRPC code, such as NOT_FOUND{similar}") }
    })
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
