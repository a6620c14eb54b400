//! ◆ Formats values as Go's `fmt` and `encoding/json` do.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value as Json;

use super::Value;

/// A value in the output.
pub(super) fn display(value: &Value) -> String {
    match value {
        Value::Json(Json::Null) => "<no value>".to_owned(),
        value => plain(value),
    }
}

/// A value in the format `%v`.
fn plain(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Json(json) => inner(json),
    }
}

fn inner(json: &Json) -> String {
    match json {
        Json::Null => "<nil>".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => text.clone(),
        Json::Array(all) => {
            let all: Vec<String> = all.iter().map(inner).collect();
            format!("[{}]", all.join(" "))
        }
        Json::Object(all) => {
            let mut pairs: Vec<(&String, &Json)> = all.iter().collect();
            compact::sort_by_key(&mut pairs, |(key, _)| *key);
            let pairs: Vec<String> =
                pairs.into_iter().map(|(key, value)| format!("{key}:{}", inner(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
    }
}

/// Joins values, with a space between two that are not strings. Numbers of the document count as strings.
pub(super) fn print(values: &[Value]) -> String {
    let is_text = |value: &Value| matches!(value, Value::Json(Json::String(_) | Json::Number(_)));
    let mut out = String::new();
    let mut before: Option<&Value> = None;
    for value in values {
        if before.is_some_and(|before| !is_text(before) && !is_text(value)) {
            out.push(' ');
        }
        out.push_str(&plain(value));
        before = Some(value);
    }
    out
}

/// A value as JSON and a newline, with Go's HTML escapes.
pub(super) fn go_json(value: &Value) -> String {
    let json = match value {
        Value::Json(json) => json.to_string(),
        other => plain(other),
    };
    let mut out = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('\n');
    out
}

/// The flags, width and precision of a verb.
#[derive(Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
}

/// Formats values with the verbs v, s, q, d, x, f and t.
pub(super) fn printf(format: &str, values: &[Value]) -> Result<String, String> {
    let mut out = String::new();
    let mut values = values.iter();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '0' | '+')) {
            match flag {
                '-' => spec.left = true,
                '0' => spec.zero = true,
                _ => spec.plus = true,
            }
        }
        spec.width = number(&mut chars);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars));
        }
        let verb = chars.next().ok_or("printf: no verb after %")?;
        if verb == '%' {
            out.push('%');
            continue;
        }
        if !"vsqdxft".contains(verb) {
            return Err(format!("printf: verb %{verb} is not supported"));
        }
        let value = values.next().ok_or_else(|| format!("printf: no argument for %{verb}"))?;
        out.push_str(&pad(&spec, verb, one(&spec, verb, value)?));
    }
    match values.next() {
        Some(_) => Err("printf: too many arguments".to_owned()),
        None => Ok(out),
    }
}

/// A width or precision; 0 if there is none. Limited, because a huge value would only allocate memory.
fn number(chars: &mut Peekable<Chars<'_>>) -> usize {
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    digits.parse::<usize>().map_or(0, |number| number.min(4096))
}

fn one(spec: &Spec, verb: char, value: &Value) -> Result<String, String> {
    let refused = || format!("printf: %{verb} of {}", value.kind());
    let whole = match value {
        Value::Int(number) => Some(*number),
        Value::Json(Json::Number(number)) => number.as_i64(),
        Value::Float(_) | Value::Json(_) => None,
    };
    let sign = |number: i64| if spec.plus && number >= 0 { "+" } else { "" };
    match verb {
        'v' => Ok(plain(value)),
        's' => match value {
            Value::Int(_) | Value::Float(_) | Value::Json(Json::Null | Json::Bool(_)) => {
                Err(refused())
            }
            value => Ok(match spec.precision {
                Some(length) => plain(value).chars().take(length).collect(),
                None => plain(value),
            }),
        },
        'q' => match value {
            Value::Json(Json::String(_) | Json::Number(_)) => Ok(format!("{:?}", plain(value))),
            _ => Err(refused()),
        },
        'd' => whole.map(|number| format!("{}{number}", sign(number))).ok_or_else(refused),
        'x' => match (whole, value) {
            (Some(number), _) if number < 0 => Ok(format!("-{:x}", number.unsigned_abs())),
            (Some(number), _) => Ok(format!("{number:x}")),
            (None, Value::Json(Json::String(text))) => {
                Ok(text.bytes().map(|byte| format!("{byte:02x}")).collect())
            }
            _ => Err(refused()),
        },
        't' => match value {
            Value::Json(Json::Bool(value)) => Ok(value.to_string()),
            _ => Err(refused()),
        },
        _ => match value {
            Value::Float(number) => Ok(format!("{number:.*}", spec.precision.unwrap_or(6))),
            Value::Json(Json::Number(number)) => number
                .as_f64()
                .map(|number| format!("{number:.*}", spec.precision.unwrap_or(6)))
                .ok_or_else(refused),
            _ => Err(refused()),
        },
    }
}

fn pad(spec: &Spec, verb: char, text: String) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    if spec.left {
        return text + &" ".repeat(missing);
    }
    if spec.zero && matches!(verb, 'd' | 'x' | 'f') {
        let digits = text.trim_start_matches(['-', '+']);
        let (sign, digits) = text.split_at(text.len() - digits.len());
        return format!("{sign}{}{digits}", "0".repeat(missing));
    }
    " ".repeat(missing) + &text
}
