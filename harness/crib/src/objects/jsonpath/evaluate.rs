//! ◆ Evaluates templates and paths. Pure.

use std::cmp::Ordering;

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::{Comparison, Filter, Node, Operand, Path, Slice, Step, text_of};

/// Renders a template.
pub(super) fn fill(nodes: &[Node], document: &Value) -> Result<String, String> {
    let mut text = String::new();
    visit(nodes, document, document, &mut |values: &[&Value]| -> Result<(), String> {
        let words: Vec<String> = values.iter().map(|value| text_of(value)).collect();
        text.push_str(&words.join(" "));
        Ok(())
    })?;
    Ok(text)
}

/// Renders a template as JSON: an array of values, and a newline, for each text and each path.
pub(super) fn fill_json(nodes: &[Node], document: &Value) -> Result<String, String> {
    let mut text = String::new();
    visit(nodes, document, document, &mut |values: &[&Value]| -> Result<(), String> {
        let mut bytes = Vec::new();
        let formatter = PrettyFormatter::with_indent(b"    ");
        let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
        values.serialize(&mut serializer).map_err(|error| error.to_string())?;
        text.push_str(&String::from_utf8_lossy(&bytes));
        text.push('\n');
        Ok(())
    })?;
    Ok(text)
}

/// Calls `found` with the values of each text and each path.
fn visit(
    nodes: &[Node],
    root: &Value,
    at: &Value,
    found: &mut dyn FnMut(&[&Value]) -> Result<(), String>,
) -> Result<(), String> {
    for node in nodes {
        match node {
            Node::Text(words) => found(&[&Value::String(words.clone())])?,
            Node::Path(path) => found(&find(path, root, at)?)?,
            Node::Range(path, nodes) => {
                for value in find(path, root, at)? {
                    visit(nodes, root, value, found)?;
                }
            }
        }
    }
    Ok(())
}

/// The values at a path, from the root of the document or from `at`.
pub(super) fn find<'v>(
    path: &Path,
    root: &'v Value,
    at: &'v Value,
) -> Result<Vec<&'v Value>, String> {
    let mut found = vec![if path.from_root { root } else { at }];
    for step in &path.steps {
        let mut next = Vec::new();
        for value in found {
            take(step, root, value, &mut next)?;
        }
        found = next;
    }
    Ok(found)
}

fn take<'v>(
    step: &Step,
    root: &'v Value,
    value: &'v Value,
    found: &mut Vec<&'v Value>,
) -> Result<(), String> {
    match step {
        Step::Fields(names) => {
            found.extend(names.iter().filter_map(|name| value.as_object()?.get(name)));
        }
        Step::Wildcard => found.extend(children(value)),
        Step::Descend => descend(value, found),
        Step::Slices(_) if value.is_null() => {}
        Step::Slices(slices) => {
            let array = value.as_array().ok_or_else(|| not_array(value))?;
            for slice in slices {
                found.extend(elements(array, *slice)?);
            }
        }
        Step::Filter(_) if value.is_null() => {}
        Step::Filter(filter) => {
            for element in value.as_array().ok_or_else(|| not_array(value))? {
                if holds(filter, root, element)? {
                    found.push(element);
                }
            }
        }
    }
    Ok(())
}

fn not_array(value: &Value) -> String {
    format!("{value} is not an array")
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(all) => all.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn descend<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
    found.push(value);
    for child in children(value) {
        descend(child, found);
    }
}

fn elements(array: &[Value], slice: Slice) -> Result<Vec<&Value>, String> {
    let length = i64::try_from(array.len()).unwrap_or(i64::MAX);
    let absolute = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let from = absolute(slice.from.unwrap_or(0));
    let to = match slice.single {
        true => from.saturating_add(1),
        false => absolute(slice.to.unwrap_or(length)),
    };
    if from == to {
        return Ok(Vec::new());
    }
    let out_of_bounds =
        |index: i64| Err(format!("array index out of bounds: index {index}, length {length}"));
    if !(0..length).contains(&from) {
        return out_of_bounds(from);
    }
    if !(0..=length).contains(&to) {
        return out_of_bounds(to.saturating_sub(1));
    }
    if from > to {
        return Err(format!("starting index {from} is greater than ending index {to}"));
    }
    let step = match usize::try_from(slice.step.unwrap_or(1)) {
        Ok(step @ 1..) => step,
        Ok(_) | Err(_) => return Err("step must be > 0".to_owned()),
    };
    let index = |index: i64| usize::try_from(index).unwrap_or(usize::MAX);
    let some = array.get(index(from)..index(to)).unwrap_or_default();
    Ok(some.iter().step_by(step).collect())
}

fn holds(filter: &Filter, root: &Value, element: &Value) -> Result<bool, String> {
    let left = find(&filter.left, root, element)?;
    let Some((comparison, operand)) = &filter.test else {
        return Ok(!left.is_empty());
    };
    let right = match operand {
        Operand::Literal(value) => vec![value],
        Operand::Path(path) => find(path, root, element)?,
    };
    match (left.as_slice(), right.as_slice()) {
        ([], _) | (_, []) => Ok(false),
        ([left], [right]) => Ok(compare(*comparison, left, right)),
        _ => Err("can only compare one element at a time".to_owned()),
    }
}

fn compare(comparison: Comparison, left: &Value, right: &Value) -> bool {
    let order = match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => {
            left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right))
        }
        (left, right) => (left == right).then_some(Ordering::Equal),
    };
    match comparison {
        Comparison::Equal => order == Some(Ordering::Equal),
        Comparison::NotEqual => order != Some(Ordering::Equal),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => order.is_some_and(Ordering::is_le),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
    }
}
