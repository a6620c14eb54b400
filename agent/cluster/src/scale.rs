//! ◆ The subresource `scale`: the desired and the current number of an object's pods. Pure.
//!
//! Source: Kubernetes 1.36, ScaleREST of pkg/registry/apps/deployment/storage/storage.go and of the other workloads,
//! pkg/apis/autoscaling/validation/validation.go ValidateScale.

use serde_json::{Value, json};

use crate::error::Error;
use crate::key::Key;
use crate::object::{Object, metadata, set_metadata};

/// The kinds with a scale: group and name.
const SCALABLE: [(&str, &str); 4] = [
    ("", "ReplicationController"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
];

fn expect_scalable(key: &Key) -> Result<(), Error> {
    if SCALABLE.contains(&(&*key.kind.group, &*key.kind.name)) {
        return Ok(());
    }
    Err(Error::BadRequest(format!("{} have no subresource scale", key.kind.resource())))
}

/// The scale of an object, as in autoscaling/v1.
pub(crate) fn of(object: &Object) -> Result<Value, Error> {
    expect_scalable(&object.key)?;
    let value = &object.value;
    let replicas = |part: &str| {
        let part = value.get(part).and_then(|part| part.get("replicas"));
        part.and_then(Value::as_i64)
    };
    let mut own = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(found) = metadata(value, field) {
            own[field] = found.clone();
        }
    }
    Ok(json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": own,
        // An API server's default.
        "spec": {"replicas": replicas("spec").unwrap_or(1)},
        "status": {"replicas": replicas("status").unwrap_or_default(), "selector": selector(value)},
    }))
}

/// The object with this scale. A uid or a version in the scale must match the object's.
pub(crate) fn scaled(old: &Object, scale: &Value) -> Result<Value, Error> {
    expect_scalable(&old.key)?;
    if scale.get("kind").and_then(Value::as_str) != Some("Scale") {
        return Err(Error::BadRequest("expected an object of kind Scale".to_owned()));
    }
    let replicas = scale.get("spec").and_then(|spec| spec.get("replicas"));
    let replicas = match replicas.map(Value::as_i64) {
        // A zero may be omitted.
        None => 0,
        Some(Some(number)) if i32::try_from(number).is_ok() => number,
        Some(_) => {
            return Err(Error::BadRequest("spec.replicas: not a number of 32 bits".to_owned()));
        }
    };
    if replicas < 0 {
        let why =
            format!("spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0");
        return Err(Error::invalid(&old.key, why));
    }
    let mut value = old.value.clone();
    value["spec"]["replicas"] = json!(replicas);
    for field in ["uid", "resourceVersion"] {
        set_metadata(&mut value, field, metadata(scale, field).cloned());
    }
    Ok(value)
}

/// The object's selector as text: `app=web,tier in (a,b)`.
fn selector(value: &Value) -> String {
    let selector = value.get("spec").and_then(|spec| spec.get("selector"));
    let pairs = selector.map(|selector| selector.get("matchLabels").unwrap_or(selector));
    let pairs = pairs.and_then(Value::as_object).into_iter().flatten();
    // The selector of a ReplicationController has only pairs of strings.
    let pairs =
        pairs.filter_map(|(key, value)| Some((key.clone(), format!("{key}={}", value.as_str()?))));
    let expressions = selector.and_then(|selector| selector.get("matchExpressions"));
    let expressions = expressions.and_then(Value::as_array).into_iter().flatten();
    let mut all: Vec<(String, String)> = pairs.chain(expressions.filter_map(requirement)).collect();
    all.sort();
    all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

/// The key and the text of one requirement.
fn requirement(expression: &Value) -> Option<(String, String)> {
    let key = expression.get("key")?.as_str()?;
    let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
    let mut values: Vec<&str> = values.filter_map(Value::as_str).collect();
    values.sort_unstable();
    let values = values.join(",");
    let text = match expression.get("operator")?.as_str()? {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "Exists" => key.to_owned(),
        _ => format!("!{key}"),
    };
    Some((key.to_owned(), text))
}
