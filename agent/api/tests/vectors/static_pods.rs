//! static-pods: the pod that a kubelet derives from a manifest, or why it rejects the manifest.

use api::manifest::static_pod::{self, ErrorClass, Location};
use api::quantity::Quantity;
use compact::Map;
use serde_json::{Value, json};

use crate::judge::Set;
use crate::read::{self, Case};
use crate::validation;

pub(crate) const SET: Set = Set::new(
    "static-pods",
    "a static pod's manifest after decoding, defaulting and binding to the node",
    judge,
);

fn judge(case: &Case) -> Result<(), String> {
    let path = read::text(&case.input["path"]);
    let node = read::text(&case.input["nodeName"]);
    let bytes = manifest(&case.input);
    let read =
        |path: &str, node: &str, bytes: &[u8]| static_pod::pod(Location::File(path), node, bytes);
    let pod = match read(path, node, &bytes) {
        Err(rejected) => return judge_error(case, &rejected),
        Ok(pod) => pod,
    };
    if !case.expected["pod"].is_object() {
        return Err(format!("accepted, but expected {}", case.expected));
    }
    let ours = serde_json::to_value(&pod).unwrap();
    let is_given = case.input["manifest"].as_str().is_some_and(|text| text.contains("uid:"));
    if !is_given {
        judge_uid(&ours["metadata"]["uid"], |path, node, bytes| {
            let pod = read(path, node, bytes).ok()?;
            pod.metadata.uid
        })(path, node, &bytes)?;
    }
    let tidy = |pod: Value| {
        let mut pod = validation::tidy(pod);
        if !is_given {
            pod["metadata"]["uid"] = Value::Null;
            pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = Value::Null;
        }
        canonical(&mut pod);
        pod
    };
    read::same("pod", &tidy(ours), &tidy(case.expected["pod"].clone()))
}

/// Checks that a uid has 32 hex digits, is stable, and depends on node and path.
fn judge_uid<'a>(
    uid: &'a Value,
    read: impl Fn(&str, &str, &[u8]) -> Option<String> + 'a,
) -> impl Fn(&str, &str, &[u8]) -> Result<(), String> + 'a {
    move |path, node, bytes| {
        let uid = read::text(uid);
        if uid.len() != 32 || !uid.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("uid {uid:?} is not 32 hex digits"));
        }
        let again = read(path, node, bytes);
        if again.as_deref() != Some(uid) {
            return Err(format!("uid {uid} is not stable: {again:?}"));
        }
        for (path, node) in [(format!("{path}.x"), node), (path.to_owned(), "another")] {
            if read(&path, node, bytes).as_deref() == Some(uid) {
                return Err(format!("uid {uid} does not depend on node and path"));
            }
        }
        Ok(())
    }
}

fn judge_error(case: &Case, rejected: &static_pod::Rejected) -> Result<(), String> {
    let class = match rejected.class {
        ErrorClass::TooLarge => "too-large",
        ErrorClass::Syntax => "syntax",
        ErrorClass::Kind => "kind",
        ErrorClass::Decode => "decode",
        ErrorClass::NotAPod => "not-a-pod",
        ErrorClass::MissingName => "missing-name",
        ErrorClass::Validation => "validation",
        ErrorClass::ApiReference => "api-reference",
        ErrorClass::Unsupported => "unsupported",
    };
    if case.expected["error_class"] != class {
        return Err(format!("{class} ({rejected}), expected {}", case.expected));
    }
    if rejected.class == ErrorClass::ApiReference {
        let ours = json!(rejected.problems[0].message);
        return read::same("message", &ours, &case.expected["error"]);
    }
    let theirs = read::list(&case.expected["validation"]).iter();
    let mut theirs: Vec<(String, &str)> = theirs
        .map(|error| (read::text(&error["field"]).to_owned(), read::text(&error["type"])))
        .collect();
    let mut ours: Vec<(String, &str)> = rejected
        .errors
        .iter()
        .map(|error| (error.field.clone(), validation::name(error.rule)))
        .collect();
    for list in [&mut ours, &mut theirs] {
        list.sort();
        list.dedup();
    }
    read::same("errors", &json!(ours), &json!(theirs))
}

fn manifest(input: &Value) -> Vec<u8> {
    let mut bytes = match input["manifest_base64"].as_str() {
        Some(encoded) => from_base64(encoded),
        None => read::text(&input["manifest"]).as_bytes().to_vec(),
    };
    let more = &input["append_repeat"];
    let count = more["count"].as_u64().unwrap_or_default();
    bytes.extend(read::text(&more["text"]).repeat(usize::try_from(count).unwrap()).bytes());
    bytes
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        digits.iter().position(|digit| *digit == c)
    };
    let digits: Vec<usize> = text.bytes().filter_map(digit).collect();
    let mut bytes = Vec::new();
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        let three = u32::try_from(bits).unwrap().to_be_bytes();
        bytes.extend_from_slice(&three[1..group.len()]);
    }
    bytes
}

/// Converts the amounts of requests and limits to numbers: `1.5Ki` becomes `1536`.
fn canonical(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                let amounts = matches!(key.as_str(), "limits" | "requests" | "overhead");
                match value.as_object_mut() {
                    Some(amounts_by_name) if amounts => {
                        let numbers: Map<String, i64> = amounts_by_name
                            .iter()
                            .filter_map(|(name, amount)| {
                                let amount = Quantity::parse(read::text(amount)).ok()?;
                                Some((name.clone(), amount.milli_value()))
                            })
                            .collect();
                        *value = json!(numbers);
                    }
                    Some(_) | None => canonical(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(canonical),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
