//! ◆ Differences between a kubelet's and the agent's behaviour.

use std::fmt;

use serde_json::Value;

/// A difference.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// The kind of the compared data: `calls`, `order`, `time`, `config`, `status`, `events`.
    pub(crate) kind: &'static str,
    /// The object, and its field.
    pub(crate) place: String,
    pub(crate) kubelet: String,
    pub(crate) crib: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, place, kubelet, crib } = self;
        write!(f, "{kind} {place}\n    kubelet: {kubelet}\n    crib:    {crib}")
    }
}

/// Compares two values, field by field.
pub(crate) fn values(
    kind: &'static str,
    place: &str,
    kubelet: &Value,
    crib: &Value,
    into: &mut Vec<Difference>,
) {
    match (kubelet, crib) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> =
                left.keys().chain(right.keys()).collect();
            for key in keys {
                let of = |side: &serde_json::Map<String, Value>| {
                    side.get(key).cloned().unwrap_or_default()
                };
                values(kind, &format!("{place}.{key}"), &of(left), &of(right), into);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                values(kind, &format!("{place}[{index}]"), left, right, into);
            }
        }
        _ if kubelet == crib => {}
        _ => into.push(Difference {
            kind,
            place: place.to_owned(),
            kubelet: shown(kubelet),
            crib: shown(crib),
        }),
    }
}

/// Shown for a value that one side does not have.
pub(crate) const NONE: &str = "(none)";

fn shown(value: &Value) -> String {
    if value.is_null() { NONE.to_owned() } else { value.to_string() }
}
