//! ◆ Computes the strategic merge patch between two versions of an object.

use std::cmp::Ordering;

use serde_json::Value;

use super::super::schema::{FieldSchema, Strategy, TypeSchema};
use super::super::{Object, PatchError, PatchProblem};
use super::elements::{Elements, deduplicate};
use super::{DELETE, DELETE_FROM_LIST, DIRECTIVE, ELEMENT_ORDER, RETAIN_KEYS};

/// The parts of a patch that concern one list.
#[derive(Default)]
struct ListPatch {
    /// The elements to set, and the objects to delete.
    set: Vec<Value>,
    /// The scalars to delete.
    deleted: Vec<Value>,
    /// The order of all elements; empty if nothing changes.
    order: Vec<Value>,
}

/// Computes the patch from `original` to `modified`.
pub(super) fn diff(
    original: &Object,
    modified: &Object,
    fields: &'static TypeSchema,
) -> Result<Object, PatchError> {
    let mut patch = Object::new();
    for (name, after) in modified {
        let Some(before) = original.get(name) else {
            patch.insert(name.clone(), after.clone());
            continue;
        };
        diff_field(&mut patch, name, (before, after), fields.field(name))
            .map_err(|error| error.within(name))?;
    }
    let deleted = original.keys().filter(|name| !modified.contains_key(*name));
    patch.extend(deleted.map(|name| (name.clone(), Value::Null)));
    Ok(patch)
}

/// Computes the patch of a field's object or element, with `$retainKeys` if the field has this strategy.
fn diff_retaining(
    original: &Object,
    modified: &Object,
    field: &FieldSchema,
) -> Result<Object, PatchError> {
    let mut patch = diff(original, modified, field.fields)?;
    if !field.retain_keys {
        return Ok(patch);
    }
    let mut kept: Vec<&String> =
        modified.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name).collect();
    kept.sort();
    let mut set = original.iter().filter(|(_, value)| !value.is_null());
    let clears = set.any(|(name, _)| !modified.contains_key(name));
    if !kept.is_empty() && (clears || !patch.is_empty()) {
        let kept = kept.into_iter().cloned().map(Value::String).collect();
        patch.insert(RETAIN_KEYS.to_owned(), Value::Array(kept));
    }
    Ok(patch)
}

fn diff_field(
    patch: &mut Object,
    name: &str,
    (before, after): (&Value, &Value),
    field: FieldSchema,
) -> Result<(), PatchError> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) if field.strategy != Strategy::Replace => {
            let fields = diff_retaining(before, after, &field)?;
            if !fields.is_empty() {
                patch.insert(name.to_owned(), Value::Object(fields));
            }
        }
        (Value::Array(before), Value::Array(after)) if field.strategy == Strategy::Merge => {
            let ListPatch { set, deleted, order } = diff_lists(before, after, &field)?;
            let parts = [
                (name.to_owned(), set),
                (format!("{DELETE_FROM_LIST}/{name}"), deleted),
                (format!("{ELEMENT_ORDER}/{name}"), order),
            ];
            let present = parts.into_iter().filter(|(_, part)| !part.is_empty());
            patch.extend(present.map(|(name, part)| (name, Value::Array(part))));
        }
        _ => {
            if before != after {
                patch.insert(name.to_owned(), after.clone());
            }
        }
    }
    Ok(())
}

fn diff_lists(
    original: &[Value],
    modified: &[Value],
    field: &FieldSchema,
) -> Result<ListPatch, PatchError> {
    if original.is_empty() {
        return Ok(ListPatch { set: modified.to_vec(), ..ListPatch::default() });
    }
    match Elements::of(field, [original, modified])? {
        None => Ok(ListPatch::default()),
        Some(Elements::Scalars) => Ok(diff_scalars(original, modified)?),
        Some(Elements::Objects(key)) => diff_objects(original, modified, key, field),
    }
}

fn diff_scalars(original: &[Value], modified: &[Value]) -> Result<ListPatch, PatchProblem> {
    let mut patch = ListPatch::default();
    for (before, after) in pairs(by_text(original, text), by_text(modified, text), text) {
        match (before, after) {
            (None, Some(added)) => patch.set.push(added.clone()),
            (Some(deleted), None) => patch.deleted.push(deleted.clone()),
            _ => {}
        }
    }
    deduplicate(&mut patch.deleted);
    patch.set = Elements::Scalars.sorted(patch.set, &modified.iter().collect::<Vec<_>>())?;
    // Kubernetes compares with the sorted original, and so sets the order of equal lists that are not sorted.
    if original != modified {
        patch.order = modified.to_vec();
    }
    Ok(patch)
}

fn diff_objects(
    original: &[Value],
    modified: &[Value],
    key: &str,
    field: &FieldSchema,
) -> Result<ListPatch, PatchError> {
    let elements = Elements::Objects(key);
    let (old_order, new_order) = (elements.identities(original)?, elements.identities(modified)?);
    let key_text = |element: &Value| text(&element[key]);
    let mut set = Vec::new();
    let mut deleted = Vec::new();
    for pair in pairs(by_text(original, key_text), by_text(modified, key_text), key_text) {
        match pair {
            (Some(Value::Object(before)), Some(Value::Object(after))) => {
                let mut patch = diff_retaining(before, after, field)
                    .map_err(|error| error.within_element(key, &after[key]))?;
                if !patch.is_empty() {
                    patch.insert(key.to_owned(), after[key].clone());
                    set.push(Value::Object(patch));
                }
            }
            (None, Some(added)) => set.push(added.clone()),
            (Some(before), None) => {
                deleted.push(deletion(key, before[key].clone()));
            }
            _ => {}
        }
    }
    let mut set = elements.sorted(set, &new_order)?;
    set.extend(deleted);
    let order = if !set.is_empty() || old_order != new_order {
        new_order.into_iter().map(|identity| named(key, identity.clone())).collect()
    } else {
        Vec::new()
    };
    Ok(ListPatch { set, deleted: Vec::new(), order })
}

fn named(key: &str, value: Value) -> Value {
    Value::Object(Object::from_iter([(key.to_owned(), value)]))
}

fn deletion(key: &str, value: Value) -> Value {
    let directive = (DIRECTIVE.to_owned(), Value::from(DELETE));
    Value::Object(Object::from_iter([(key.to_owned(), value), directive]))
}

/// Sorts elements by a text. Elements with equal text come in reverse order, as Kubernetes' sort leaves them in lists of at
/// most twelve.
fn by_text(list: &[Value], text: impl Fn(&Value) -> String) -> Vec<&Value> {
    let mut sorted: Vec<&Value> = list.iter().rev().collect();
    sorted.sort_by_cached_key(|element| text(element));
    sorted
}

/// Pairs the elements of two sorted lists by their text; `None` stands for a missing counterpart.
fn pairs<'v>(
    left: Vec<&'v Value>,
    right: Vec<&'v Value>,
    text: impl Fn(&Value) -> String,
) -> Vec<(Option<&'v Value>, Option<&'v Value>)> {
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    let mut pairs = Vec::new();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return pairs,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => text(left).cmp(&text(right)),
        };
        let first = if order == Ordering::Greater { None } else { left.next() };
        let second = if order == Ordering::Less { None } else { right.next() };
        pairs.push((first, second));
    }
}

/// A scalar as Kubernetes compares it: `80` and `"80"` are equal.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
