//! ◆ How strategic merge patches treat the fields of a type.

/// The fields of a type that have a patch strategy or a merge key, or that contain such fields.
///
/// Other fields have the default strategy.
pub(super) struct TypeSchema(pub(super) &'static [FieldSchema]);

/// A field of a type.
#[derive(Clone, Copy)]
pub(super) struct FieldSchema {
    pub(super) name: &'static str,
    pub(super) strategy: Strategy,
    /// Whether patches of the field's value, or of its elements, list the fields to keep in `$retainKeys`.
    pub(super) retain_keys: bool,
    /// The field that identifies the elements of a list; `None` for lists of scalars.
    pub(super) merge_key: Option<&'static str>,
    /// The type of the value, or of its elements.
    pub(super) fields: &'static TypeSchema,
}

/// How a patch changes the value of a field: the tag `patchStrategy` of Kubernetes' types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Merges objects and replaces lists.
    Default,
    /// Merges objects and lists.
    Merge,
    /// Replaces objects and lists.
    Replace,
}

impl TypeSchema {
    /// The field with this name. A name that the type does not have gets the default strategy; Kubernetes rejects it.
    pub(super) fn field(&self, name: &str) -> FieldSchema {
        let found = self.0.iter().find(|field| field.name == name);
        found.copied().unwrap_or(object("", &UNTAGGED))
    }
}

/// A type whose fields all have the default strategy.
pub(super) static UNTAGGED: TypeSchema = TypeSchema(&[]);

/// An object that is merged.
pub(super) const fn object(name: &'static str, fields: &'static TypeSchema) -> FieldSchema {
    let strategy = Strategy::Default;
    FieldSchema { name, strategy, retain_keys: false, merge_key: None, fields }
}

/// A list of objects that is merged by a key.
pub(super) const fn list(
    name: &'static str,
    key: &'static str,
    fields: &'static TypeSchema,
) -> FieldSchema {
    let merge_key = Some(key);
    FieldSchema { name, strategy: Strategy::Merge, retain_keys: false, merge_key, fields }
}

/// A list of scalars that is merged.
pub(super) const fn set(name: &'static str) -> FieldSchema {
    FieldSchema {
        name,
        strategy: Strategy::Merge,
        retain_keys: false,
        merge_key: None,
        fields: &UNTAGGED,
    }
}

/// An object that is replaced.
pub(super) const fn replaced(name: &'static str) -> FieldSchema {
    FieldSchema { strategy: Strategy::Replace, ..object(name, &UNTAGGED) }
}

/// The same field with the strategy `retainKeys` as well.
pub(super) const fn retained(field: FieldSchema) -> FieldSchema {
    FieldSchema { retain_keys: true, ..field }
}
