//! ◆ Strategic merge patches: the API server's own kind of patch, which merges lists by the keys of their elements.
//!
//! Beside fields to set, and null for fields to remove, a patch has directives:
//!
//! | directive | meaning |
//! |---|---|
//! | `$patch: delete` | empties an object, or removes the element of a list that has the merge key beside it |
//! | `$patch: replace` | replaces an object, or a whole list |
//! | `$retainKeys: [field, …]` | removes the fields that are not listed |
//! | `$deleteFromPrimitiveList/FIELD: […]` | removes scalars from the list FIELD |
//! | `$setElementOrder/FIELD: […]` | puts the elements of the list FIELD into an order |
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go and meta.go.

mod apply;
mod diff;
mod elements;

use std::fmt;

use apply::merge;
use diff::diff;
use serde_json::Value;

use super::schema::TypeSchema;
use super::{Object, PatchError, PatchProblem, lists};

const DIRECTIVE: &str = "$patch";
const DELETE: &str = "delete";
const REPLACE: &str = "replace";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

/// The merge keys and patch strategies of a built-in kind.
#[derive(Clone, Copy)]
pub struct Schema(&'static TypeSchema);

#[cfg(test)]
impl Schema {
    /// The schema of a type that is not a kind.
    pub(super) const fn of_type(fields: &'static TypeSchema) -> Self {
        Self(fields)
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.0.iter().map(|field| field.name)).finish()
    }
}

/// The schema of a built-in kind, such as `apps/v1` and `Deployment`.
///
/// Custom resources have none: an API server answers a strategic merge patch of one with 415 (unsupported media type).
#[must_use]
pub fn schema_of(api_version: &str, kind: &str) -> Option<Schema> {
    lists::type_of(api_version, kind).map(Schema)
}

/// Applies a patch to an object. A null object or patch counts as an empty one.
///
/// # Errors
/// If a directive is malformed, or an element of a merged list lacks the merge key. The object stays unchanged.
///
/// Source: `StrategicMergePatch`.
pub fn apply(schema: Schema, object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let mut patched = fields(object)?;
    merge(&mut patched, fields(patch)?, schema.0)?;
    *object = Value::Object(patched);
    Ok(())
}

/// Computes the patch that turns `original` into `modified`: `{}` if they are equal.
///
/// Null counts as an empty object.
///
/// # Errors
/// If an element of a merged list lacks the merge key, or is not an object.
///
/// Source: `CreateTwoWayMergePatch`.
pub fn between(schema: Schema, original: &Value, modified: &Value) -> Result<Value, PatchError> {
    diff(&fields(original)?, &fields(modified)?, schema.0).map(Value::Object)
}

fn fields(value: &Value) -> Result<Object, PatchError> {
    match value {
        Value::Object(fields) => Ok(fields.clone()),
        Value::Null => Ok(Object::new()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(PatchProblem::NotObject.into())
        }
    }
}

/// The field of a directive such as `$setElementOrder/finalizers`.
fn field_of<'n>(name: &'n str, directive: &str) -> Option<&'n str> {
    name.strip_prefix(directive)?.strip_prefix('/').filter(|field| !field.is_empty())
}
