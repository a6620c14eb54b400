//! ◆ One object: its version, and its JSON for clients. Pure.

use serde_json::{Map, Value};

use crate::error::Error;
use crate::key::Key;
use crate::kind::Kind;

impl Key {
    /// The key of an object as a client writes it. Namespaced objects without a namespace are in `default`.
    pub fn of(value: &Value) -> Result<Self, Error> {
        let text = |field: &'static str| match value.get(field).and_then(Value::as_str) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(Error::BadRequest(format!("{field}: missing in the object"))),
        };
        let kind = Kind::of(text("apiVersion")?, text("kind")?);
        let metadata = value.get("metadata").and_then(Value::as_object);
        let metadata = |field: &str| {
            let text = metadata.and_then(|metadata| metadata.get(field)).and_then(Value::as_str);
            text.unwrap_or_default()
        };
        let (namespace, name) = (metadata("namespace"), metadata("name"));
        let namespace = match kind.rules().namespaced {
            Some(true) if namespace.is_empty() => "default",
            Some(true) | None => namespace,
            Some(false) if namespace.is_empty() => "",
            Some(false) => {
                let message = "metadata.namespace: the kind has no namespaces: leave it out";
                return Err(Error::BadRequest(message.to_owned()));
            }
        };
        Ok(Self::new(kind, namespace, name))
    }
}

/// A version of an object. Never changed: a write creates another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// The object's key.
    pub key: Key,
    /// `metadata.resourceVersion`: the number of the write that created it, among all writes of the store.
    pub version: u64,
    /// The object, with its `apiVersion`, `kind` and `metadata.resourceVersion`.
    pub value: Value,
}

impl Object {
    /// A string in the metadata; empty if absent.
    #[must_use]
    pub fn metadata(&self, field: &str) -> &str {
        metadata(&self.value, field).and_then(Value::as_str).unwrap_or_default()
    }

    /// `metadata.uid`.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata("uid")
    }

    /// Whether it was deleted and waits for the end of its grace period, or for its finalizers.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        !self.metadata("deletionTimestamp").is_empty()
    }

    /// `metadata.finalizers`.
    pub fn finalizers(&self) -> impl Iterator<Item = &str> {
        let finalizers = metadata(&self.value, "finalizers").and_then(Value::as_array);
        finalizers.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The uids of its owners, each with whether it blocks the owner's deletion in the foreground.
    pub fn owners(&self) -> impl Iterator<Item = (&str, bool)> {
        let owners = metadata(&self.value, "ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().filter_map(|owner| {
            let uid = owner.get("uid").and_then(Value::as_str)?;
            let blocks = owner.get("blockOwnerDeletion").and_then(Value::as_bool);
            Some((uid, blocks.unwrap_or_default()))
        })
    }
}

/// A field of an object's metadata.
pub(crate) fn metadata<'v>(value: &'v Value, field: &str) -> Option<&'v Value> {
    value.get("metadata")?.get(field).filter(|value| !value.is_null())
}

/// The metadata of an object, created if absent.
pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let metadata = &mut value["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    #[expect(clippy::unwrap_used, reason = "it was made an object above")]
    metadata.as_object_mut().unwrap()
}

/// Sets or removes a field of an object's metadata.
pub(crate) fn set_metadata(value: &mut Value, field: &str, to: Option<Value>) {
    let metadata = metadata_mut(value);
    match to {
        Some(to) => metadata.insert(field.to_owned(), to),
        None => metadata.remove(field),
    };
}
