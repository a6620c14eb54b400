//! Tests of patches.

mod apply;
mod diff;
mod errors;
mod generated;
mod kubernetes;
mod lists;

use serde_json::Value;

use super::strategic::{self, Schema};

/// The schema of the kind of an object, by its `apiVersion` and `kind`.
fn schema(object: &Value) -> Schema {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let found = strategic::schema_of(text("apiVersion"), text("kind"));
    found.unwrap_or_else(|| panic!("no schema for {object}"))
}

/// A pod with this specification.
fn pod(spec: Value) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})
}

/// A Deployment with this specification.
fn deployment(spec: Value) -> Value {
    serde_json::json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec})
}

/// Metadata of a ConfigMap.
fn metadata(metadata: Value) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}
