//! ◆ The functions of templates.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::Value;
use super::format::{display, go_json, print, printf};

/// The names of the functions.
pub(super) const NAMES: [&str; 20] = [
    "and",
    "eq",
    "ge",
    "gt",
    "index",
    "json",
    "le",
    "len",
    "lower",
    "lt",
    "ne",
    "not",
    "or",
    "print",
    "printf",
    "println",
    "slice",
    "title",
    "upper",
    "base64decode",
];

/// Calls a function.
pub(super) fn call(name: &str, arguments: Vec<Value>) -> Result<Value, String> {
    match (name, arguments.as_slice()) {
        ("print", all) => Ok(Value::text(print(all))),
        ("println", all) => {
            let words: Vec<String> = all.iter().map(display).collect();
            Ok(Value::text(words.join(" ") + "\n"))
        }
        ("printf", [format, rest @ ..]) => printf(&display(format), rest).map(Value::text),
        ("json", [value]) => Ok(Value::text(go_json(value))),
        ("not", [value]) => Ok(Value::Json(Json::Bool(!value.is_true()))),
        ("len", [value]) => length(value),
        ("title", [value]) => Ok(Value::text(title(&string(name, value)?))),
        ("lower", [value]) => Ok(Value::text(string(name, value)?.to_lowercase())),
        ("upper", [value]) => Ok(Value::text(string(name, value)?.to_uppercase())),
        ("base64decode", [value]) => {
            let bytes = STANDARD.decode(string(name, value)?);
            let bytes = bytes.map_err(|error| format!("base64decode: {error}"))?;
            Ok(Value::text(String::from_utf8_lossy(&bytes)))
        }
        ("index", [value, keys @ ..]) => keys.iter().try_fold(value.clone(), index),
        ("slice", [value, bounds @ ..]) if bounds.len() <= 2 => slice(value, bounds),
        ("eq", [value, others @ ..]) if !others.is_empty() => {
            let mut found = false;
            for other in others {
                found |= compare(value, other)? == Some(Ordering::Equal);
            }
            Ok(Value::Json(Json::Bool(found)))
        }
        ("ne", [a, b]) => Ok(Value::Json(Json::Bool(compare(a, b)? != Some(Ordering::Equal)))),
        ("lt" | "le" | "gt" | "ge", [a, b]) => {
            let order = match (a, b) {
                (Value::Json(Json::Bool(_)), _) => None,
                _ => compare(a, b)?,
            };
            let order = order.ok_or_else(|| format!("{} has no order", a.kind()))?;
            Ok(Value::Json(Json::Bool(match name {
                "lt" => order.is_lt(),
                "le" => order.is_le(),
                "gt" => order.is_gt(),
                _ => order.is_ge(),
            })))
        }
        _ => {
            let expected = match name {
                "not" | "len" | "json" | "title" | "lower" | "upper" | "base64decode" => {
                    "1 argument"
                }
                "ne" | "lt" | "le" | "gt" | "ge" => "2 arguments",
                "slice" => "1 to 3 arguments",
                "eq" => "2 arguments or more",
                _ => "an argument",
            };
            Err(format!("{name}: expected {expected}"))
        }
    }
}

fn string(name: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::Json(Json::String(text)) => Ok(text.clone()),
        Value::Json(Json::Number(number)) => Ok(number.to_string()),
        other => Err(format!("{name}: expected a string, not {}", other.kind())),
    }
}

fn length(value: &Value) -> Result<Value, String> {
    let length = match value {
        Value::Json(Json::String(text)) => text.len(),
        Value::Json(Json::Array(all)) => all.len(),
        Value::Json(Json::Object(all)) => all.len(),
        other => return Err(format!("len: {} has no length", other.kind())),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn index(value: Value, key: &Value) -> Result<Value, String> {
    match (value, key) {
        (Value::Json(Json::Object(mut all)), Value::Json(Json::String(key))) => {
            Ok(Value::Json(all.remove(key).unwrap_or(Json::Null)))
        }
        (Value::Json(Json::Array(mut all)), Value::Int(at)) => match usize::try_from(*at) {
            Ok(at) if at < all.len() => Ok(Value::Json(all.swap_remove(at))),
            Ok(_) | Err(_) => Err(format!("index {at} is out of range: 0 to {}", all.len())),
        },
        (value, Value::Json(Json::String(key))) => {
            Err(format!("{} has no index {key:?}", value.kind()))
        }
        (value, key) => Err(format!("{} has no index {}", value.kind(), display(key))),
    }
}

fn slice(value: &Value, bounds: &[Value]) -> Result<Value, String> {
    let bound = |at: usize, default: usize| match bounds.get(at) {
        None => Ok(default),
        Some(Value::Int(number)) => {
            usize::try_from(*number).map_err(|_| format!("slice: index {number} is out of range"))
        }
        Some(other) => Err(format!("slice: {} is no index", other.kind())),
    };
    let out_of_range = || "slice: index is out of range".to_owned();
    match value {
        Value::Json(Json::String(text)) => {
            let range = bound(0, 0)?..bound(1, text.len())?;
            let part = text.get(range).ok_or_else(out_of_range)?;
            Ok(Value::text(part))
        }
        Value::Json(Json::Array(all)) => {
            let range = bound(0, 0)?..bound(1, all.len())?;
            let part = all.get(range).ok_or_else(out_of_range)?;
            Ok(Value::Json(Json::Array(part.to_vec())))
        }
        other => Err(format!("slice: {} has no parts", other.kind())),
    }
}

/// Compares two values. Numbers of the document compare with numbers, and with strings as in Go.
fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>, String> {
    let number = |value: &Value| match value {
        #[expect(clippy::cast_precision_loss, reason = "literals in templates are small")]
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::Json(Json::Number(number)) => number.as_f64(),
        Value::Json(_) => None,
    };
    let text = |value: &Value| match value {
        Value::Json(Json::String(text)) => Some(text.clone()),
        Value::Json(Json::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok(a.partial_cmp(&b));
    }
    if let (Some(a), Some(b)) = (text(a), text(b)) {
        return Ok(Some(a.cmp(&b)));
    }
    match (a, b) {
        (Value::Json(Json::Bool(a)), Value::Json(Json::Bool(b))) => Ok(Some(a.cmp(b))),
        (Value::Json(Json::Null), Value::Json(Json::Null)) => Ok(Some(Ordering::Equal)),
        (Value::Json(Json::Null), _) | (_, Value::Json(Json::Null)) => Ok(None),
        (a, b) => Err(format!("cannot compare {} with {}", a.kind(), b.kind())),
    }
}

/// Capitalises the first letter of each word.
fn title(text: &str) -> String {
    let mut in_word = false;
    let mut out = String::new();
    for c in text.chars() {
        match in_word {
            true => out.push(c),
            false => out.extend(c.to_uppercase()),
        }
        in_word = c.is_alphanumeric() || (in_word && c == '\'');
    }
    out
}
