//! ◆ Fields of API objects as table cells. Pure.

use jiff::Timestamp;
use serde_json::Value;

use super::NONE;
use super::age::age;

/// The cell for a field that is not set.
pub const UNSET: &str = "<unset>";

/// The field at a JSON pointer, if it is set.
pub fn field<'v>(object: &'v Value, pointer: &str) -> Option<&'v Value> {
    object.pointer(pointer).filter(|value| !value.is_null())
}

/// A string; empty if it is not set.
pub fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    field(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A string, or `otherwise` if it is not set.
pub fn text_or(object: &Value, pointer: &str, otherwise: &str) -> String {
    match text(object, pointer) {
        "" => otherwise.to_owned(),
        text => text.to_owned(),
    }
}

/// A number; 0 if it is not set.
pub fn number(object: &Value, pointer: &str) -> i64 {
    field(object, pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// A boolean; false if it is not set.
pub fn flag(object: &Value, pointer: &str) -> bool {
    field(object, pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// A list; empty if it is not set.
pub fn list<'v>(object: &'v Value, pointer: &str) -> &'v [Value] {
    field(object, pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A list of strings.
pub fn texts<'v>(object: &'v Value, pointer: &str) -> Vec<&'v str> {
    list(object, pointer).iter().filter_map(Value::as_str).collect()
}

/// The number of entries of a map or list.
pub fn count(object: &Value, pointer: &str) -> usize {
    match field(object, pointer) {
        Some(Value::Object(entries)) => entries.len(),
        Some(Value::Array(entries)) => entries.len(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => 0,
    }
}

/// A map of strings: `app=web,tier=front`, or `<none>`.
pub fn pairs(object: &Value, pointer: &str) -> String {
    let map = field(object, pointer).and_then(Value::as_object);
    let pairs = map.into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let mut pairs: Vec<String> = pairs.collect();
    pairs.sort();
    or(pairs.join(","), NONE)
}

/// `text`, or `otherwise` if it is empty.
pub fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text }
}

/// A time.
pub fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// The time since the timestamp in a field.
pub fn since(object: &Value, pointer: &str, now: Timestamp) -> String {
    time(object, pointer).map_or_else(|| "<unknown>".to_owned(), |then| age(then, now))
}

/// The age of the object since its creation.
pub fn age_of(object: &Value, now: Timestamp) -> String {
    since(object, "/metadata/creationTimestamp", now)
}

/// Whether the object has a deletion timestamp.
pub fn is_terminating(object: &Value) -> bool {
    field(object, "/metadata/deletionTimestamp").is_some()
}

/// Whether the object has a condition of this type with the status True.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    let of_kind = |condition: &&Value| text(condition, "/type") == kind;
    let mut conditions = list(object, "/status/conditions").iter().filter(of_kind);
    conditions.any(|condition| text(condition, "/status") == "True")
}

/// The storage class of a claim or volume; empty if it is not set.
pub fn storage_class(object: &Value) -> &str {
    // The annotation overrides the field.
    let annotation = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    match field(object, annotation) {
        Some(_) => text(object, annotation),
        None => text(object, "/spec/storageClassName"),
    }
}

/// Access modes in Kubernetes' order: `RWO,ROX`.
pub fn access_modes(object: &Value, pointer: &str) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let set = texts(object, pointer);
    let modes = known.iter().filter(|(mode, _)| set.contains(mode)).map(|(_, short)| *short);
    modes.collect::<Vec<_>>().join(",")
}

/// A label selector: `app=web,tier in (a,b),!canary`. A selector that is not set selects nothing.
pub fn selector(object: &Value, pointer: &str) -> String {
    let Some(selector) = field(object, pointer) else {
        return NONE.to_owned();
    };
    let labels = field(selector, "/matchLabels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let mut all: Vec<(String, String)> = labels
        .map(|(key, value)| (key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for expression in list(selector, "/matchExpressions") {
        let key = text(expression, "/key");
        let mut values = texts(expression, "/values");
        values.sort_unstable();
        let values = values.join(",");
        let shown = match text(expression, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        all.push((key.to_owned(), shown));
    }
    compact::sort_by(&mut all, |(left, _), (right, _)| left.cmp(right));
    let all: Vec<String> = all.into_iter().map(|(_, shown)| shown).collect();
    or(all.join(","), NONE)
}

/// The names and the images of the containers of a pod's spec.
pub fn containers(object: &Value, pointer: &str) -> [String; 2] {
    let all = |field: &str| {
        let containers = list(object, pointer).iter();
        containers.map(|container| text(container, field)).collect::<Vec<_>>().join(",")
    };
    [all("/name"), all("/image")]
}
