//! ◆ The conditions of `crib wait`. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/cmd/wait.

use std::str::FromStr;

use serde_json::Value;

use crate::objects::jsonpath::{Path, text_of};

const JSONPATH_FORM: &str = "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'";

/// A condition to wait for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    /// The object exists.
    Created,
    /// The object does not exist.
    Deleted,
    /// The object has a condition of this type with this status, ignoring case.
    Status { name: String, status: String },
    /// The path has this value, or any value.
    JsonPath { path: Path, value: Option<String> },
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_lowercase().as_str() {
            "create" => return Ok(Self::Created),
            "delete" => return Ok(Self::Deleted),
            _ => {}
        }
        if let Some(condition) = text.strip_prefix("condition=") {
            let (name, status) = condition.split_once('=').unwrap_or((condition, "true"));
            return Ok(Self::Status { name: name.to_owned(), status: status.to_owned() });
        }
        match text.strip_prefix("jsonpath=") {
            Some(input) => jsonpath(input),
            None => Err(format!("unrecognized condition: {text:?}")),
        }
    }
}

fn jsonpath(input: &str) -> Result<Condition, String> {
    let (path, value) = match split(input).as_slice() {
        [path] => (path.clone(), None),
        [path, value] => {
            let value = value.trim_matches(['\'', '"']);
            if value.is_empty() {
                return Err("jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3".to_owned());
            }
            (path.clone(), Some(value.to_owned()))
        }
        _ => return Err(JSONPATH_FORM.to_owned()),
    };
    if path.is_empty() {
        return Err("jsonpath expression cannot be empty".to_owned());
    }
    Ok(Condition::JsonPath { path: Path::relaxed(&path)?, value })
}

/// Splits text at each single `=`; `==` belongs to a path.
fn split(input: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = input;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("==") {
            parts.last_mut().into_iter().for_each(|part| part.push_str("=="));
            rest = after;
            continue;
        }
        match c {
            '=' => parts.push(String::new()),
            c => parts.last_mut().into_iter().for_each(|part| part.push(c)),
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    parts
}

impl Condition {
    /// Whether the object meets the condition; `None` if the object does not exist. An error means that the condition can never be
    /// met.
    pub(super) fn is_met(&self, object: Option<&Value>) -> Result<bool, String> {
        match (self, object) {
            (Self::Created, object) => Ok(object.is_some()),
            (Self::Deleted, object) => Ok(object.is_none()),
            (_, None) => Ok(false),
            (Self::Status { name, status }, Some(object)) => Ok(has_status(object, name, status)),
            (Self::JsonPath { path, value }, Some(object)) => {
                leads_to(path, value.as_deref(), object)
            }
        }
    }
}

fn has_status(object: &Value, name: &str, wanted: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let same = |one: &str, other: &str| one.to_lowercase() == other.to_lowercase();
    for condition in conditions.into_iter().flatten() {
        let text = |field: &str| condition.get(field).and_then(Value::as_str);
        let (Some(kind), Some(status)) = (text("type"), text("status")) else {
            continue;
        };
        if same(kind, name) {
            return is_current(object, condition) && same(status, wanted);
        }
    }
    false
}

/// Whether a condition was observed for the current generation, if its controller records this.
fn is_current(object: &Value, condition: &Value) -> bool {
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64);
    let observed = condition.get("observedGeneration").and_then(Value::as_i64);
    let of_status = || object.pointer("/status/observedGeneration").and_then(Value::as_i64);
    let observed = observed.or_else(of_status);
    generation.zip(observed).is_none_or(|(generation, observed)| observed >= generation)
}

fn leads_to(path: &Path, wanted: Option<&str>, object: &Value) -> Result<bool, String> {
    let found = path.find(object)?;
    let value = match found.as_slice() {
        [] => return Ok(false),
        [value] => value,
        _ => return Err("given jsonpath expression matches more than one value".to_owned()),
    };
    let Some(wanted) = wanted else {
        return Ok(true);
    };
    if value.is_object() || value.is_array() {
        let problem = "jsonpath leads to a nested object or list which is not supported";
        return Err(problem.to_owned());
    }
    Ok(text_of(value).trim() == wanted.trim())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    // The cases are from TestConditionFuncFor in kubectl/pkg/cmd/wait/wait_test.go.
    #[rstest]
    #[case("create")]
    #[case("DELETE")]
    #[case("condition=hello")]
    #[case("condition=hello=world")]
    #[case("jsonpath={.metadata.name}")]
    #[case("jsonpath=abc")]
    #[case("jsonpath={.metadata.name}=foo-b6699dcfb-rnv7t")]
    #[case("jsonpath=.metadata.name=foo-b6699dcfb-rnv7t")]
    #[case(r#"jsonpath={.status.containerStatuses[?(@.name=="foo")].ready}=True"#)]
    #[case(r#"jsonpath=status.conditions[?(@.type=="Available")].status=True"#)]
    #[case(r#"jsonpath={.status.containerStatuses[?(@.name=="foo")].ready}"#)]
    fn conditions_of_kubectl_are_read(#[case] text: &str) {
        text.parse::<Condition>().unwrap();
    }

    #[rstest]
    #[case("jsonpath=", "jsonpath expression cannot be empty")]
    #[case("jsonpath={.metadata.name}='test=wrong'", JSONPATH_FORM)]
    #[case("jsonpath={.metadata.name}=", "jsonpath wait has to have a value after equal sign")]
    #[case(
        r#"jsonpath={.status.conditions[?(@.type=="Failed"||@.type=="Complete")].status}=True"#,
        ""
    )]
    #[case("jsonpath={=True", "is not a path such as .metadata.name")]
    #[case("cond=invalid", "unrecognized condition: \"cond=invalid\"")]
    #[case("", "unrecognized condition: \"\"")]
    fn other_conditions_are_refused(#[case] text: &str, #[case] words: &str) {
        let error = text.parse::<Condition>().unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    fn pod() -> Value {
        json!({
            "metadata": {"name": "foo", "generation": 2},
            "spec": {"nodeName": "knode0", "containers": [{"ports": [{"containerPort": 80}]}]},
            "status": {
                "conditions": [
                    {"status": "True"},
                    {"type": "Ready", "status": "True", "observedGeneration": 2},
                    {"type": "Stale", "status": "True", "observedGeneration": 1},
                    {"type": "Initialized", "status": "False"},
                ],
                "containerStatuses": [{"ready": true, "restartCount": 0}],
            },
        })
    }

    // Most cases are from TestWaitForDifferentJSONPathExpression.
    #[rstest]
    #[case("condition=Ready", Ok(true))]
    #[case("condition=ready=true", Ok(true))]
    #[case("condition=Ready=false", Ok(false))]
    #[case("condition=Initialized=FALSE", Ok(true))]
    #[case("condition=Stale", Ok(false))]
    #[case("condition=Other", Ok(false))]
    #[case("create", Ok(true))]
    #[case("delete", Ok(false))]
    #[case("jsonpath={.foo.bar}=baz", Ok(false))]
    #[case("jsonpath={.foo.bar}", Ok(false))]
    #[case("jsonpath={.status.containerStatuses[0].ready}=true", Ok(true))]
    #[case("jsonpath={.status.containerStatuses[0].ready}=false", Ok(false))]
    #[case("jsonpath={.spec.containers[0].ports[0].containerPort}=80", Ok(true))]
    #[case("jsonpath={.spec.containers[0].ports[0].containerPort}=81", Ok(false))]
    #[case("jsonpath={.spec.nodeName}=knode0", Ok(true))]
    #[case("jsonpath={.spec.nodeName}='knode0'", Ok(true))]
    #[case("jsonpath={.spec.nodeName}", Ok(true))]
    #[case("jsonpath={.spec}", Ok(true))]
    #[case("jsonpath={.spec.nodeName}=kmaster", Ok(false))]
    #[case(r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}=True"#, Ok(true))]
    #[case("jsonpath={.status.conditions[*]}=foo", Err("more than one value"))]
    #[case("jsonpath={.status.conditions[*]}", Err("more than one value"))]
    #[case("jsonpath={.status.conditions}=True", Err("a nested object or list"))]
    #[case("jsonpath={.spec}=foo", Err("a nested object or list"))]
    fn conditions_are_met_as_with_kubectl(
        #[case] text: &str,
        #[case] expected: Result<bool, &str>,
    ) {
        let met = text.parse::<Condition>().unwrap().is_met(Some(&pod()));
        match expected {
            Ok(expected) => assert_eq!(met, Ok(expected)),
            Err(words) => assert!(met.unwrap_err().contains(words)),
        }
    }

    #[test]
    fn missing_object_meets_only_its_deletion() {
        for (text, expected) in
            [("delete", true), ("create", false), ("condition=Ready=False", false)]
        {
            assert_eq!(text.parse::<Condition>().unwrap().is_met(None), Ok(expected), "{text}");
        }
    }
}
