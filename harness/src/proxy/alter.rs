//! Alters fields of encoded messages, by the contract's descriptors.

use prost_reflect::prost::Message as _;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, ReflectMessage as _, Value as Field,
};
use serde_json::Value;

/// A message with the fields at `path` dropped or set. What cannot be decoded, or has no such field, stays as it is.
pub(super) fn altered(
    descriptor: MessageDescriptor,
    message: &[u8],
    path: &[String],
    value: Option<&Value>,
) -> Vec<u8> {
    match DynamicMessage::decode(descriptor, message) {
        Ok(mut decoded) => {
            change(&mut decoded, path, value);
            decoded.encode_to_vec()
        }
        Err(_) => message.to_vec(),
    }
}

/// Whether a field on the path has the value; of lists, whether one element has it.
pub(super) fn has(value: &Value, path: &[String], wanted: &Value) -> bool {
    match (value, path.split_first()) {
        (Value::Array(all), _) => all.iter().any(|one| has(one, path, wanted)),
        (value, None) => value == wanted,
        (Value::Object(fields), Some((name, rest))) => match fields.get(name) {
            Some(field) => has(field, rest, wanted),
            None => rest.is_empty() && wanted.is_null(),
        },
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), Some(_)) => false,
    }
}

fn change(message: &mut DynamicMessage, path: &[String], value: Option<&Value>) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let Some(field) = message.descriptor().get_field_by_name(name) else {
        return;
    };
    if rest.is_empty() {
        match value.map(|value| parsed(&field, value)) {
            None => message.clear_field(&field),
            Some(Some(value)) => message.set_field(&field, value),
            Some(None) => {}
        }
        return;
    }
    // A message that is not there is made to hold a value, not to lose one.
    if value.is_none() && !message.has_field(&field) {
        return;
    }
    match message.get_field_mut(&field) {
        Field::Message(inner) => change(inner, rest, value),
        Field::List(items) => {
            for item in items {
                if let Field::Message(inner) = item {
                    change(inner, rest, value);
                }
            }
        }
        Field::Map(entries) => {
            let key = MapKey::String(rest.join("."));
            match value.and_then(Value::as_str) {
                None => drop(entries.remove(&key)),
                Some(text) => drop(entries.insert(key, Field::String(text.to_owned()))),
            }
        }
        Field::Bool(_)
        | Field::I32(_)
        | Field::I64(_)
        | Field::U32(_)
        | Field::U64(_)
        | Field::F32(_)
        | Field::F64(_)
        | Field::String(_)
        | Field::Bytes(_)
        | Field::EnumNumber(_) => {}
    }
}

/// A field's value from its JSON form; `None` if it has another type.
fn parsed(field: &FieldDescriptor, value: &Value) -> Option<Field> {
    let mut parent = serde_json::Map::new();
    parent.insert(field.name().to_owned(), value.clone());
    let parent = Value::Object(parent);
    let message = DynamicMessage::deserialize(field.parent_message().clone(), parent).ok()?;
    Some(message.get_field(field).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use cri::v1;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::proxy::json::{decode, method};

    fn listing() -> Vec<u8> {
        let container = |id: &str| v1::Container {
            id: id.to_owned(),
            labels: [("a.b/c".to_owned(), "1".to_owned())].into(),
            metadata: Some(v1::ContainerMetadata {
                name: "n".to_owned(),
                attempt: 2,
            }),
            ..Default::default()
        };
        v1::ListContainersResponse {
            containers: vec![container("x"), container("y")],
        }
        .encode_to_vec()
    }

    #[rstest]
    #[case("containers", None, json!({}))]
    #[case("containers.labels", None, json!({"containers": [{"id": "x", "metadata": {"name": "n", "attempt": 2}}, {"id": "y", "metadata": {"name": "n", "attempt": 2}}]}))]
    #[case("containers.labels.a.b/c", Some(json!("2")), json!({"containers": [{"id": "x", "metadata": {"name": "n", "attempt": 2}, "labels": {"a.b/c": "2"}}, {"id": "y", "metadata": {"name": "n", "attempt": 2}, "labels": {"a.b/c": "2"}}]}))]
    #[case("containers", Some(json!([{"state": "CONTAINER_EXITED"}])), json!({"containers": [{"state": "CONTAINER_EXITED"}]}))]
    fn field_is_altered_in_each_element(
        #[case] path: &str,
        #[case] value: Option<Value>,
        #[case] expected: Value,
    ) {
        let descriptor = method("/runtime.v1.RuntimeService/ListContainers")
            .unwrap()
            .output();
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        let changed = altered(descriptor.clone(), &listing(), &path, value.as_ref());
        assert_eq!(decode(descriptor, &changed).unwrap(), expected);
    }

    #[rstest]
    #[case(json!({"a": {"b": 1}}), "a.b", json!(1), true)]
    #[case(json!({"a": [{"b": 1}, {"b": 2}]}), "a.b", json!(2), true)]
    #[case(json!({"a": {"b": 1}}), "a.b", json!(2), false)]
    #[case(json!({}), "a", Value::Null, true)]
    #[case(json!({"a": 1}), "a.b", json!(1), false)]
    fn condition_finds_value(
        #[case] value: Value,
        #[case] path: &str,
        #[case] wanted: Value,
        #[case] expected: bool,
    ) {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        assert_eq!(has(&value, &path, &wanted), expected);
    }
}
