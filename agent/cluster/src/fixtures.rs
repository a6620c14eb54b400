//! Fixtures of unit tests of several modules.
#![allow(clippy::unwrap_used, reason = "tests")]

use api::manifest::{Parsed, Strictness, parse};
use api::pod::Pod;
use serde_json::{Value, json};

/// A pod in the namespace `default` with this specification.
pub(crate) fn pod_of(uid: &str, name: &str, spec: Value) -> Pod {
    let metadata = json!({"name": name, "namespace": "default", "uid": uid});
    Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

/// Parses a manifest without errors.
pub(crate) fn parsed(text: &str) -> Parsed {
    let parsed = parse("m.yaml", text, Strictness::Strict);
    assert_eq!(parsed.problems, []);
    parsed
}

/// The object `object` with the members `members`, which replace its own.
pub(crate) fn with(mut object: Value, members: &Value) -> Value {
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    object
}
