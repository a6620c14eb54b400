//! pod-validation: defaults and validation errors of a pod.

use agent::manifest::{self, Rule};
use serde_json::{Value, json};

use crate::support::{self, Case};

#[test]
fn pod_validation_matches_kubernetes() {
    support::check("pod-validation", judge);
}

fn judge(case: &Case) -> Result<(), String> {
    let text = support::text(&case.input["manifest"]);
    if case.expected["stage"] == "decode" {
        let parsed = manifest::parse("pod.json", text, manifest::Strictness::Lenient);
        return if parsed.problems.is_empty() {
            Err(format!("read, but expected {}", case.expected))
        } else {
            Ok(())
        };
    }
    let api = serde_json::from_str(text)
        .map_err(|error| format!("not read: {error}; expected {}", case.expected))?;
    let (pod, errors) = manifest::admit(api);
    let expected = support::list(&case.expected["errors"]);
    if expected.is_empty() {
        if let Some(first) = errors.first() {
            return Err(format!("refused for {} ({first})", first.field));
        }
        return support::same(
            "pod",
            &tidy(serde_json::to_value(&pod).unwrap()),
            &tidy(case.expected["pod"].clone()),
        );
    }
    let mut ours: Vec<(String, &str)> = errors
        .iter()
        .map(|error| (error.field.clone(), name(error.rule)))
        .collect();
    let mut theirs: Vec<(String, &str)> = expected
        .iter()
        .map(|error| {
            (
                support::text(&error["field"]).to_owned(),
                support::text(&error["type"]),
            )
        })
        .collect();
    for list in [&mut ours, &mut theirs] {
        list.sort();
        list.dedup();
    }
    support::same("errors", &json!(ours), &json!(theirs))
}

fn name(rule: Rule) -> &'static str {
    match rule {
        Rule::Required => "FieldValueRequired",
        Rule::Invalid => "FieldValueInvalid",
        Rule::NotSupported => "FieldValueNotSupported",
        Rule::Duplicate => "FieldValueDuplicate",
        Rule::Forbidden => "FieldValueForbidden",
        Rule::NotFound => "FieldValueNotFound",
        Rule::TooLong => "FieldValueTooLong",
    }
}

/// Removes empty values, which mean the same as absent in most of the API.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, tidy(value)))
                .filter(|(key, value)| {
                    !value.is_null()
                        && *value != json!([])
                        && !(*value == json!({}) && is_optional(key))
                        && *value != json!("")
                })
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(tidy).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

/// An empty object with a meaning: the source of an emptyDir volume.
fn is_optional(key: &str) -> bool {
    key != "emptyDir"
}
