//! ◆ The object arguments of kubectl: kinds and names, selectors, JSONPath, the pods of an object, their containers and events. Pure.

pub(crate) mod events;
pub(crate) mod jsonpath;
pub(crate) mod kinds;
pub(crate) mod pod_containers;
pub(crate) mod selectors;
pub(crate) mod workload_pods;

use serde_json::Value;

/// A string in the metadata of an object; empty if it is not set.
pub(crate) fn metadata<'v>(object: &'v Value, field: &str) -> &'v str {
    let field = object.get("metadata").and_then(|metadata| metadata.get(field));
    field.and_then(Value::as_str).unwrap_or_default()
}
