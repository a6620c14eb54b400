//! ◆ Patches of objects in the store. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go.

use api::patch::{merge, strategic};
use serde_json::Value;

use crate::error::Error;
use crate::key::Key;

/// A change of an object's current version.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// A JSON merge patch (RFC 7386): lists are replaced.
    Merge(Value),
    /// A strategic merge patch: lists whose elements have a key are merged. Only Kubernetes' own kinds support it.
    Strategic(Value),
}

impl Patch {
    /// Applies the patch to the object.
    pub(crate) fn apply(&self, key: &Key, object: &mut Value) -> Result<(), Error> {
        match self {
            Self::Merge(patch) => {
                merge::apply(object, patch);
                Ok(())
            }
            Self::Strategic(patch) => {
                let text = |field: &str| object.get(field).and_then(Value::as_str);
                let schema = text("apiVersion")
                    .and_then(|version| strategic::schema_of(version, text("kind")?))
                    .ok_or(Error::UnsupportedMediaType)?;
                let patched = strategic::apply(schema, object, patch);
                patched.map_err(|error| match error.http_status() {
                    422 => Error::invalid(key, error.to_string()),
                    _ => Error::BadRequest(error.to_string()),
                })
            }
        }
    }
}
