//! ◆ JSON merge patches (RFC 7386, now RFC 7396): null removes a field, and a list replaces a list. Pure.

use serde_json::Value;

use super::Object;

/// Applies a patch to a value.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Object::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(name);
        } else {
            apply(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}

/// Computes the smallest patch that turns `old` into `new`: `{}` if two objects are equal.
///
/// A patch cannot set a field to null: of an object that has one, the patch turns `old` into `new` without it.
#[must_use]
pub fn between(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let removed = old.keys().filter(|name| !new.contains_key(*name));
    let mut patch: Object = removed.map(|name| (name.clone(), Value::Null)).collect();
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            Some(before) => {
                patch.insert(name.clone(), between(before, value));
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}
