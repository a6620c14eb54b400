//! Tests each rule with one pod that breaks it: the field and the kind of error.

#![allow(clippy::unwrap_used)]

mod containers;
mod metadata;
mod resources;
mod scheduling;
mod volumes;

use serde_json::{Value, json};

use crate::manifest::validate::Rule;

/// Adds the members of `more` to those of `base`.
fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// The errors of a pod with one container `c` and the members of `more`, without repetitions.
fn errors(more: Value) -> Vec<(String, Rule)> {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    merge(&mut pod, more);
    let (_, errors) = crate::manifest::admit(serde_json::from_value(pod).unwrap());
    let mut found: Vec<_> = errors.into_iter().map(|error| (error.field, error.rule)).collect();
    found.sort();
    found.dedup();
    found
}

/// The errors of a pod whose spec has `spec`.
fn spec_errors(spec: Value) -> Vec<(String, Rule)> {
    errors(json!({"spec": spec}))
}

/// The errors of a pod whose only container has `container`, without the container's path.
fn container_errors(container: Value) -> Vec<(String, Rule)> {
    let mut whole = json!({"name": "c", "image": "i"});
    merge(&mut whole, container);
    let found = spec_errors(json!({"containers": [whole]}));
    let inner = |(field, rule): (String, Rule)| {
        let inner = field.strip_prefix("spec.containers[0].");
        (inner.unwrap_or(&field).to_owned(), rule)
    };
    found.into_iter().map(inner).collect()
}

fn one(field: &str, rule: Rule) -> Vec<(String, Rule)> {
    vec![(field.to_owned(), rule)]
}
