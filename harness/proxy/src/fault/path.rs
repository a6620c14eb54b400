//! ◆ The path to a field of a message, by protobuf descriptors: lookups and changes.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    Value as Field,
};
use serde_json::Value;

use super::cursor::{Cursor, Problem, excerpt, suggestion};

/// The characters that end the key of a map in the form `labels.a.b/c`.
const KEY_ENDS: [char; 6] = [' ', '\t', ')', '=', '!', ','];

/// The path to a field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldPath {
    steps: Vec<Step>,
    /// The last field; in a map, the field of the map's values.
    leaf: FieldDescriptor,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(FieldDescriptor),
    /// An entry of the preceding map.
    Key(MapKey),
}

impl FieldPath {
    /// Parses a path: names of fields, separated by dots, and keys of maps, `labels["x"]` or `labels.x`.
    pub(super) fn parse(
        cursor: &mut Cursor<'_>,
        message: &MessageDescriptor,
    ) -> Result<Self, Problem> {
        let mut message = message.clone();
        let mut steps = Vec::new();
        loop {
            let at = cursor.at();
            let name = cursor.name();
            let field = field(&message, name).map_err(|why| Problem { at, why })?;
            steps.push(Step::Field(field.clone()));
            if field.is_map() {
                let Some(key) = key(cursor)? else {
                    return Ok(Self { steps, leaf: field });
                };
                steps.push(Step::Key(MapKey::String(key)));
                let leaf = if let Kind::Message(entry) = field.kind() {
                    entry.map_entry_value_field()
                } else {
                    field
                };
                return Ok(Self { steps, leaf });
            }
            if cursor.consume_here("[") {
                let why = format!("{name} is not a map: a rule applies to every element of a list");
                return Err(cursor.problem(why));
            }
            if !cursor.consume_here(".") {
                return Ok(Self { steps, leaf: field });
            }
            let Kind::Message(inner) = field.kind() else {
                return Err(cursor.problem(format!("{name} has no fields")));
            };
            message = inner;
        }
    }

    /// The value that the field is compared with; in a list, the value of an element.
    pub(super) fn comparable(&self, value: &Value) -> Result<Field, String> {
        if self.leaf.is_map() {
            return Err("compare a map by its keys, such as labels[\"x\"]".to_owned());
        }
        if !self.leaf.is_list() {
            return typed(&self.leaf, value);
        }
        let list = typed(&self.leaf, &Value::Array(vec![value.clone()]))?;
        let element = list.as_list().and_then(|list| list.first());
        element
            .cloned()
            .ok_or_else(|| format!("{} is not a single element", excerpt(&value.to_string())))
    }

    /// The value that the field is set to.
    pub(super) fn settable(&self, value: &Value) -> Result<Field, String> {
        typed(&self.leaf, value)
    }

    /// Whether the field is a string.
    pub(super) fn is_text(&self) -> bool {
        self.leaf.kind() == Kind::String && !self.leaf.is_map()
    }

    /// Whether a value at the path passes the test. An unset field has its default value; the fields of an unset message have no
    /// value.
    pub(super) fn any(&self, message: &DynamicMessage, test: &dyn Fn(&Field) -> bool) -> bool {
        any(message, &self.steps, test)
    }

    /// Whether the field, or a message on the path, is unset; in a list, whether it is unset in some element.
    pub(super) fn is_unset(&self, message: &DynamicMessage) -> bool {
        is_unset(message, &self.steps)
    }

    /// Sets the field, or clears it without a value, in each element of a list on the path. Returns whether the message has
    /// changed.
    pub(crate) fn change(&self, message: &mut DynamicMessage, value: Option<&Field>) -> bool {
        change(message, &self.steps, value)
    }
}

fn field(message: &MessageDescriptor, name: &str) -> Result<FieldDescriptor, String> {
    if name.is_empty() {
        return Err(format!("a field of {} is missing", message.name()));
    }
    message.get_field_by_name(name).ok_or_else(|| {
        let fields: Vec<_> = message.fields().collect();
        let similar = suggestion(name, fields.iter().map(FieldDescriptor::name));
        format!("{} has no field {:?}{similar}", message.name(), excerpt(name))
    })
}

/// Takes the key of a map, if one is next.
fn key(cursor: &mut Cursor<'_>) -> Result<Option<String>, Problem> {
    if cursor.consume_here("[") {
        let Value::String(key) = cursor.json()? else {
            return Err(cursor.problem("the key of a map must be in quotes"));
        };
        if !cursor.consume("]") {
            return Err(cursor.problem("] is missing"));
        }
        return Ok(Some(key));
    }
    if !cursor.consume_here(".") {
        return Ok(None);
    }
    let key = cursor.until(&KEY_ENDS);
    if key.is_empty() {
        return Err(cursor.problem("the key of a map is missing"));
    }
    Ok(Some(key.to_owned()))
}

/// Converts a field's value from its JSON form.
fn typed(field: &FieldDescriptor, value: &Value) -> Result<Field, String> {
    if let (Kind::Enum(all), Value::String(name)) = (field.kind(), value) {
        known_value(&all, name)?;
    }
    let mut parent = serde_json::Map::new();
    parent.insert(field.name().to_owned(), value.clone());
    let message =
        DynamicMessage::deserialize(field.parent_message().clone(), Value::Object(parent))
            .map_err(|error| {
                let (value, error) = (value.to_string(), error.to_string());
                let (value, error) = (excerpt(&value), excerpt(&error));
                format!("{value} is not a value of {}: {error}", field.name())
            })?;
    Ok(message.get_field(field).into_owned())
}

fn known_value(all: &EnumDescriptor, name: &str) -> Result<(), String> {
    if all.get_value_by_name(name).is_some() {
        return Ok(());
    }
    let values: Vec<_> = all.values().collect();
    let similar = suggestion(name, values.iter().map(|value| value.name()));
    Err(format!("{} has no value {:?}{similar}", all.name(), excerpt(name)))
}

fn any(message: &DynamicMessage, steps: &[Step], test: &dyn Fn(&Field) -> bool) -> bool {
    let Some((Step::Field(field), rest)) = steps.split_first() else {
        return false;
    };
    // An unset message has no fields, and cannot be compared.
    if !message.has_field(field) && (!rest.is_empty() || !is_scalar(field)) {
        return false;
    }
    let of_value = |value: &Field| match value.as_message() {
        Some(inner) if !rest.is_empty() => any(inner, rest, test),
        Some(_) | None => rest.is_empty() && test(value),
    };
    match (message.get_field(field).as_ref(), rest) {
        (Field::List(items), _) => items.iter().any(of_value),
        (Field::Map(entries), [Step::Key(key)]) => entries.get(key).is_some_and(test),
        (value, _) => of_value(value),
    }
}

fn is_scalar(field: &FieldDescriptor) -> bool {
    !field.is_list() && !field.is_map() && !matches!(field.kind(), Kind::Message(_))
}

fn is_unset(message: &DynamicMessage, steps: &[Step]) -> bool {
    let Some((Step::Field(field), rest)) = steps.split_first() else {
        return false;
    };
    if rest.is_empty() {
        return !message.has_field(field);
    }
    match (message.get_field(field).as_ref(), rest) {
        (Field::List(items), _) => {
            items.iter().filter_map(Field::as_message).any(|inner| is_unset(inner, rest))
        }
        (Field::Map(entries), [Step::Key(key)]) => !entries.contains_key(key),
        (Field::Message(inner), _) => !message.has_field(field) || is_unset(inner, rest),
        _ => false,
    }
}

fn change(message: &mut DynamicMessage, steps: &[Step], value: Option<&Field>) -> bool {
    let Some((Step::Field(field), rest)) = steps.split_first() else {
        return false;
    };
    if rest.is_empty() {
        return match value {
            None => message.take_field(field).is_some(),
            Some(value) => {
                let is_there = message.has_field(field) || is_scalar(field);
                let differs = !is_there || message.get_field(field).as_ref() != value;
                message.set_field(field, value.clone());
                differs
            }
        };
    }
    // Setting a field creates an unset message; clearing a field does not.
    if value.is_none() && !message.has_field(field) {
        return false;
    }
    match (message.get_field_mut(field), rest) {
        (Field::Message(inner), _) => change(inner, rest, value),
        (Field::List(items), _) => {
            let mut changed = false;
            for inner in items.iter_mut().filter_map(Field::as_message_mut) {
                changed |= change(inner, rest, value);
            }
            changed
        }
        (Field::Map(entries), [Step::Key(key)]) => match value {
            None => entries.remove(key).is_some(),
            Some(value) => entries.insert(key.clone(), value.clone()).as_ref() != Some(value),
        },
        _ => false,
    }
}
