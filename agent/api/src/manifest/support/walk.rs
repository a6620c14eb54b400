//! ◆ Visits every field that an object gives, with its path, its type and its name.

use crate::manifest::typed_value::TypedValue;

/// What a visitor says of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Look into its value.
    Enter,
    /// Leave its value alone.
    Skip,
}

/// Calls `visit` with the path, the type and the name of each field that `object` gives.
pub(super) fn walk(object: &TypedValue, visit: &mut Visit<'_>) {
    value(object, "", visit);
}

type Visit<'a> = dyn FnMut(&str, &'static str, &'static str) -> Next + 'a;

/// Visits the fields of a value; those of maps have none in Kubernetes' types.
fn value(whole: &TypedValue, path: &str, visit: &mut Visit<'_>) {
    match whole {
        TypedValue::List(items) => {
            for (index, item) in items.iter().enumerate() {
                value(item, &format!("{path}[{index}]"), visit);
            }
        }
        TypedValue::Struct { name, fields } => {
            for (key, field) in fields.iter().filter(|(_, field)| field.is_given()) {
                let path =
                    if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
                if visit(&path, name, key) == Next::Enter {
                    value(field, &path, visit);
                }
            }
        }
        TypedValue::Null
        | TypedValue::Bool(_)
        | TypedValue::Number(_)
        | TypedValue::Text(_)
        | TypedValue::Map(_) => {}
    }
}
