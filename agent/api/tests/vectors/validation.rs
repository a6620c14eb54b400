//! pod-validation: defaults and validation errors of a pod.

use api::manifest::{self, Rule};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::judge::Set;
use crate::read::{self, Case};

pub(crate) const SET: Set =
    Set::new("pod-validation", "a pod's defaults and validation errors", judge);

fn judge(case: &Case) -> Result<(), String> {
    let text = read::text(&case.input["manifest"]);
    if case.expected["stage"] == "decode" {
        let parsed = manifest::parse("pod.json", text, manifest::Strictness::Lenient);
        return if parsed.problems.is_empty() {
            Err(format!("read, but expected {}", case.expected))
        } else {
            Ok(())
        };
    }
    let api = match serde_json::from_str(text) {
        Ok(api) => api,
        // serde_json rejects null for a quantity.
        Err(_) => read_leniently(text).ok_or("not read")?,
    };
    let (pod, errors) = manifest::admit(api);
    let expected = read::list(&case.expected["errors"]);
    if expected.is_empty() {
        if let Some(first) = errors.first() {
            return Err(format!("refused for {} ({first})", first.field));
        }
        return read::same(
            "pod",
            &tidy(serde_json::to_value(&pod).unwrap()),
            &tidy(case.expected["pod"].clone()),
        );
    }
    let mut ours: Vec<(String, &str)> =
        errors.iter().map(|error| (error.field.clone(), name(error.rule))).collect();
    let mut theirs: Vec<(String, &str)> = expected
        .iter()
        .map(|error| (read::text(&error["field"]).to_owned(), read::text(&error["type"])))
        .collect();
    for list in [&mut ours, &mut theirs] {
        list.sort();
        list.dedup();
    }
    read::same("errors", &json!(ours), &json!(theirs))
}

/// Decodes the pod as crib does, without the uid and the account that it adds.
fn read_leniently(text: &str) -> Option<Pod> {
    let parsed = manifest::parse("pod.json", text, manifest::Strictness::Lenient);
    let mut pod = parsed.pods.first()?.api().clone();
    let given: Value = serde_json::from_str(text).ok()?;
    if given["metadata"].get("uid").is_none() {
        pod.metadata.uid = None;
    }
    if let Some(spec) = &mut pod.spec {
        for (field, name) in [
            (&mut spec.service_account, "serviceAccount"),
            (&mut spec.service_account_name, "serviceAccountName"),
        ] {
            *field = given["spec"][name].as_str().map(str::to_owned);
        }
    }
    Some(pod)
}

pub(crate) fn name(rule: Rule) -> &'static str {
    match rule {
        Rule::Required => "FieldValueRequired",
        Rule::Invalid => "FieldValueInvalid",
        Rule::NotSupported => "FieldValueNotSupported",
        Rule::Duplicate => "FieldValueDuplicate",
        Rule::Forbidden => "FieldValueForbidden",
        Rule::NotFound => "FieldValueNotFound",
        Rule::TooLong => "FieldValueTooLong",
        Rule::TooMany => "FieldValueTooMany",
    }
}

/// Removes empty values, which are equivalent to absent ones in most of the API.
pub(crate) fn tidy(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, tidy(value)))
                .filter(|(key, value)| !means_absent(key, value))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(tidy).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

/// Fields that the API server omits if they are false or 0.
const WITHOUT_ZERO: [&str; 14] = [
    "chapAuthDiscovery",
    "chapAuthSession",
    "generation",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "partition",
    "readOnly",
    "sslEnabled",
    "stdin",
    "stdinOnce",
    "tty",
];

fn means_absent(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value && WITHOUT_ZERO.contains(&key),
        Value::Number(value) => value.as_i64() == Some(0) && WITHOUT_ZERO.contains(&key),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        // The source of an emptyDir volume has a meaning even without members.
        Value::Object(members) => members.is_empty() && key != "emptyDir",
    }
}
