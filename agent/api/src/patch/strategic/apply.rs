//! ◆ Merges a strategic merge patch into an object.

use serde_json::Value;

use super::super::schema::{FieldSchema, Strategy, TypeSchema};
use super::super::{Object, PatchError, PatchProblem};
use super::elements::{Elements, deduplicate, is_deletion};
use super::{DELETE, DELETE_FROM_LIST, DIRECTIVE, ELEMENT_ORDER, REPLACE, RETAIN_KEYS, field_of};

/// Merges a patch into `target`.
pub(super) fn merge(
    target: &mut Object,
    mut patch: Object,
    fields: &'static TypeSchema,
) -> Result<(), PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        *target = match directive.as_str() {
            Some(REPLACE) => patch,
            Some(DELETE) => Object::new(),
            _ => return Err(PatchProblem::UnknownDirective(directive.to_string()).into()),
        };
        return Ok(());
    }
    if let Some(kept) = patch.remove(RETAIN_KEYS) {
        retain_keys(target, kept, &patch)?;
    }
    for name in names(&patch, ELEMENT_ORDER) {
        let order = patch.remove(&name).unwrap_or_default();
        set_element_order(target, &mut patch, (&name, order), fields)?;
    }
    for name in names(&patch, DELETE_FROM_LIST) {
        let scalars = patch.remove(&name).unwrap_or_default();
        delete_scalars(target, &name, scalars, fields)?;
    }
    for (name, value) in patch {
        set_field(target, &name, value, fields.field(&name))
            .map_err(|error| error.within(&name))?;
    }
    Ok(())
}

/// The names of a patch's directives of one kind.
fn names(patch: &Object, directive: &str) -> Vec<String> {
    patch.keys().filter(|name| name.starts_with(directive)).cloned().collect()
}

fn set_field(
    target: &mut Object,
    name: &str,
    value: Value,
    field: FieldSchema,
) -> Result<(), PatchError> {
    if value.is_null() {
        target.remove(name);
        return Ok(());
    }
    match (target.get_mut(name), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            if field.strategy == Strategy::Replace {
                *old = new;
                return Ok(());
            }
            merge(old, new, field.fields)
        }
        (Some(Value::Array(old)), Value::Array(new)) => merge_list(old, new, &field),
        (_, mut value) => {
            if clean(&mut value) {
                target.insert(name.to_owned(), value);
            } else {
                target.remove(name);
            }
            Ok(())
        }
    }
}

/// Removes the fields that are not in `kept`, the value of `$retainKeys`.
fn retain_keys(target: &mut Object, kept: Value, patch: &Object) -> Result<(), PatchError> {
    let Value::Array(kept) = kept else { return Err(PatchProblem::RetainKeys.into()) };
    let is_kept = |name: &str| kept.iter().any(|kept| kept == name);
    let mut set = patch.iter().filter(|(name, value)| !value.is_null() && !is_list_directive(name));
    if let Some((name, _)) = set.find(|(name, _)| !is_kept(name)) {
        return Err(PatchError::from(PatchProblem::RetainKeys).within(name));
    }
    target.retain(|name, _| is_kept(name));
    Ok(())
}

/// Merges the list of a `$setElementOrder` directive, and sorts it by the directive.
fn set_element_order(
    target: &mut Object,
    patch: &mut Object,
    (directive, order): (&str, Value),
    fields: &'static TypeSchema,
) -> Result<(), PatchError> {
    let Value::Array(order) = order else {
        return Err(PatchError::from(PatchProblem::ElementOrder).within(directive));
    };
    let name = field_of(directive, ELEMENT_ORDER)
        .ok_or_else(|| PatchError::from(PatchProblem::ElementOrder).within(directive))?;
    let field = fields.field(name);
    let new = patch.remove(name);
    let merged = ordered_list(target.get(name), new, &order, &field);
    if let Some(list) = merged.map_err(|error| error.within(name))? {
        target.insert(name.to_owned(), Value::Array(list));
    }
    Ok(())
}

/// The merged list of a field in the order of `order`; `None` if neither the target nor the patch has the field.
fn ordered_list(
    old: Option<&Value>,
    new: Option<Value>,
    order: &[Value],
    field: &FieldSchema,
) -> Result<Option<Vec<Value>>, PatchError> {
    let old = match old {
        Some(Value::Array(list)) => Some(list),
        Some(_) => return Err(PatchProblem::NotList.into()),
        None => None,
    };
    let new = match new {
        Some(Value::Array(list)) => Some(list),
        Some(_) => return Err(PatchProblem::NotList.into()),
        None => None,
    };
    let before = old.map_or(&[][..], Vec::as_slice);
    let set = new.as_deref().unwrap_or_default();
    let Some(elements) = Elements::of(field, [before, set])? else {
        return Ok(old.cloned().or(new));
    };
    follows_order(elements, set, order)?;
    let server = server_order(elements, before, set, field)?;
    let merged = match (old, new) {
        (Some(old), Some(new)) => {
            let mut merged = old.clone();
            merge_list(&mut merged, new, field)?;
            merged
        }
        (Some(old), None) => old.clone(),
        (None, new) => {
            let mut added = new.unwrap_or_default();
            added.retain_mut(clean);
            added
        }
    };
    Ok(Some(elements.arrange(merged, order, &server)?))
}

/// Checks that the elements that a patch sets are among those of `order`, and in this order.
fn follows_order(
    elements: Elements<'_>,
    set: &[Value],
    order: &[Value],
) -> Result<(), PatchProblem> {
    if order.is_empty() {
        return Ok(());
    }
    let mut order = elements.identities(order)?.into_iter();
    for element in set.iter().filter(|element| directive(element).is_none()) {
        let identity = elements.identity(element)?;
        if !order.any(|next| next == identity) {
            return Err(PatchProblem::OrderMismatch);
        }
    }
    Ok(())
}

/// The order in which elements missing in `$setElementOrder` are placed.
///
/// Kubernetes reads this order after the merge, from the memory in which elements were deleted and appended: as many new elements
/// as were deleted count as the last ones of the target.
fn server_order(
    elements: Elements<'_>,
    before: &[Value],
    set: &[Value],
    field: &FieldSchema,
) -> Result<Vec<Value>, PatchProblem> {
    let replaces = |element: &Value| directive(element).is_some_and(|found| found == REPLACE);
    if field.strategy != Strategy::Merge || set.iter().any(replaces) {
        return Ok(before.to_vec());
    }
    let deleted = elements.identities(set.iter().filter(|element| is_deletion(element)))?;
    let mut order = Vec::with_capacity(before.len());
    for element in before {
        if !deleted.contains(&elements.identity(element)?) {
            order.push(element.clone());
        }
    }
    let known = elements.identities(&order)?;
    let mut added = Vec::new();
    for element in set.iter().filter(|element| directive(element).is_none()) {
        if !known.contains(&elements.identity(element)?) {
            added.push(element.clone());
        }
    }
    added.truncate(before.len() - order.len());
    order.extend(added);
    Ok(order)
}

/// Merges a list into another, or replaces it, according to the field's strategy.
fn merge_list(
    target: &mut Vec<Value>,
    patch: Vec<Value>,
    field: &FieldSchema,
) -> Result<(), PatchError> {
    if field.strategy != Strategy::Merge {
        *target = patch;
        return Ok(());
    }
    let (merged, server, patch) = match Elements::of(field, [target, &patch])? {
        None => return Ok(()),
        Some(Elements::Scalars) => {
            let mut merged = target.clone();
            merged.extend(patch.iter().cloned());
            deduplicate(&mut merged);
            (merged, target.clone(), patch)
        }
        Some(Elements::Objects(key)) => {
            let (server, patch) = apply_element_directives(target.clone(), patch, key)?;
            let mut merged = server.clone();
            for element in &patch {
                merge_element(&mut merged, element, key, field)?;
            }
            (merged, server, patch)
        }
    };
    if let Some(elements) = Elements::of(field, [&merged, &patch])? {
        *target = elements.arrange(merged, &patch, &server)?;
    } else {
        target.clear();
    }
    Ok(())
}

/// Deletes or replaces elements according to the `$patch` of the patch's elements. Returns the remaining elements of the target and
/// the elements of the patch without `$patch`.
fn apply_element_directives(
    mut target: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut replaced = false;
    let mut rest = Vec::new();
    for element in patch {
        match directive(&element).map(Value::as_str) {
            None => rest.push(element),
            Some(Some(DELETE)) => {
                let identity = Elements::Objects(key).identity(&element)?;
                target.retain(|known| known.get(key) != Some(identity));
            }
            Some(Some(REPLACE)) => replaced = true,
            Some(_) => {
                return Err(PatchProblem::UnknownDirective(element[DIRECTIVE].to_string()).into());
            }
        }
    }
    Ok(if replaced { (rest, Vec::new()) } else { (target, rest) })
}

/// Merges an object into the list element with the same merge key, or adds it.
fn merge_element(
    list: &mut Vec<Value>,
    element: &Value,
    key: &str,
    field: &FieldSchema,
) -> Result<(), PatchError> {
    let identity = Elements::Objects(key).identity(element)?;
    let known = list.iter_mut().find(|known| known.get(key) == Some(identity));
    match (known, element) {
        (Some(Value::Object(known)), Value::Object(patch)) => {
            merge(known, patch.clone(), field.fields)
                .map_err(|error| error.within_element(key, identity))
        }
        _ => {
            let mut element = element.clone();
            if clean(&mut element) {
                list.push(element);
            }
            Ok(())
        }
    }
}

/// Removes the scalars in a `$deleteFromPrimitiveList` directive.
fn delete_scalars(
    target: &mut Object,
    directive: &str,
    scalars: Value,
    fields: &'static TypeSchema,
) -> Result<(), PatchError> {
    let name = field_of(directive, DELETE_FROM_LIST)
        .ok_or_else(|| PatchError::from(PatchProblem::PrimitiveList).within(directive))?;
    if let (Some(Value::Array(list)), Value::Array(scalars)) = (target.get_mut(name), scalars) {
        let elements = Elements::of(&fields.field(name), [list, &scalars])
            .map_err(|problem| PatchError::from(problem).within(name))?;
        if let Some(Elements::Objects(_)) = elements {
            return Err(PatchError::from(PatchProblem::PrimitiveList).within(name));
        }
        list.retain(|scalar| !scalars.contains(scalar));
    }
    Ok(())
}

fn directive(element: &Value) -> Option<&Value> {
    element.get(DIRECTIVE)
}

/// Removes directives and null fields from a part of a patch without a counterpart in the target. Returns `false` for an object
/// with `$patch`.
///
/// Kubernetes keeps directives other than `$patch` there, and null fields of new elements: its next decoding ignores them as
/// unknown fields.
fn clean(value: &mut Value) -> bool {
    let is_value = |name: &str, value: &Value| {
        !value.is_null() && name != RETAIN_KEYS && !is_list_directive(name)
    };
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => return false,
        Value::Object(fields) => {
            fields.retain(|name, value| is_value(name, value) && clean(value));
        }
        Value::Array(list) => list.retain_mut(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    true
}

/// Whether the name of a field is `$setElementOrder/…` or `$deleteFromPrimitiveList/…`.
fn is_list_directive(name: &str) -> bool {
    name.starts_with(DELETE_FROM_LIST) || name.starts_with(ELEMENT_ORDER)
}
