//! ◆ Strategic merge patches, as far as the scenarios use them.
//!
//! Objects are merged by key: null removes a key, and `"$patch": "replace"` replaces the whole object. Items of lists are merged by
//! name; a list without names is replaced.

use serde_json::{Map, Value};

const DIRECTIVE: &str = "$patch";

/// Applies a patch to a value.
pub(crate) fn apply(target: &mut Value, patch: &Value) {
    match (&mut *target, patch) {
        (Value::Object(known), Value::Object(changes)) if !changes.contains_key(DIRECTIVE) => {
            for (key, change) in changes {
                if change.is_null() {
                    known.remove(key);
                } else {
                    apply(known.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Array(known), Value::Array(changes)) if changes.iter().all(is_named) => {
            for change in changes {
                match known.iter_mut().find(|item| item["name"] == change["name"]) {
                    Some(item) => apply(item, change),
                    None => known.push(change.clone()),
                }
            }
        }
        (Value::Null, Value::Object(changes)) if !changes.contains_key(DIRECTIVE) => {
            *target = Value::Object(Map::new());
            apply(target, patch);
        }
        (_, patch) => {
            target.clone_from(patch);
            if let Some(object) = target.as_object_mut() {
                object.remove(DIRECTIVE);
            }
        }
    }
}

fn is_named(item: &Value) -> bool {
    item["name"].is_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_and_named_items_are_merged() {
        let mut pod = json!({
            "labels": {"a": "1", "b": "2"},
            "containers": [
                {"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}},
                {"name": "d", "args": ["x", "y"]},
            ],
        });
        let patch = json!({
            "labels": {"b": null, "c": "3"},
            "containers": [
                {"name": "c", "resources": {"$patch": "replace", "limits": {"cpu": "2"}}},
                {"name": "d", "args": ["z"], "env": [{"name": "E"}], "resources": {"$patch": "replace"}},
                {"name": "e"},
            ],
            "spec": {"none": null},
        });
        apply(&mut pod, &patch);
        let expected = json!({
            "labels": {"a": "1", "c": "3"},
            "containers": [
                {"name": "c", "image": "i", "resources": {"limits": {"cpu": "2"}}},
                {"name": "d", "args": ["z"], "env": [{"name": "E"}], "resources": {}},
                {"name": "e"},
            ],
            "spec": {},
        });
        assert_eq!(pod, expected);
    }
}
