//! ◆ Which objects a list or a watch selects. Pure.

use serde_json::Value;

use crate::kind::Kind;
use crate::object::Object;

/// Selects the objects of a list or a watch: they must match all fields that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Objects of this kind.
    pub kind: Option<Kind>,
    /// Objects in this namespace.
    pub namespace: Option<String>,
    /// Objects with these fields, each a path and its value: `spec.nodeName`, `n1`. A missing field is empty.
    pub fields: Vec<(String, String)>,
}

impl Selection {
    /// All objects of a kind.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// Only those of a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// Only those whose field at this path has this value.
    #[must_use]
    pub fn with_field(mut self, path: &str, text: &str) -> Self {
        self.fields.push((path.to_owned(), text.to_owned()));
        self
    }

    /// Whether it selects the object.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        self.kind.as_ref().is_none_or(|kind| *kind == object.key.kind)
            && self.namespace.as_ref().is_none_or(|of| **of == *object.key.namespace)
            && self.fields.iter().all(|(path, wanted)| field(&object.value, path) == wanted)
    }
}

fn field<'v>(value: &'v Value, path: &str) -> &'v str {
    let field = path.split('.').try_fold(value, |value, field| value.get(field));
    field.and_then(Value::as_str).unwrap_or_default()
}
