//! ◆ Patches of objects: applies JSON merge patches and strategic merge patches, and computes strategic ones from two versions of
//! an object. Pure.
//!
//! Objects and patches are JSON values. The caller decodes and validates the result: it may have null fields, and fields
//! that its type does not have.

mod lists;
pub mod merge;
mod schema;
pub mod strategic;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

/// A JSON object.
type Object = Map<String, Value>;

/// Why a patch cannot be applied or computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", self.prefix())]
pub struct PatchError {
    /// The field, such as `spec.containers[name="app"].env`; empty for the object itself.
    path: String,
    problem: PatchProblem,
}

/// What is wrong with a patch, or with its object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PatchProblem {
    /// An object or a patch is not a JSON object.
    #[error("expected an object")]
    NotObject,
    /// A directive for a list is used for a field that is not a list.
    #[error("expected a list")]
    NotList,
    /// The elements of a list have different JSON types, or the first one is null.
    #[error("elements of a list to merge have different types")]
    MixedElements,
    /// A list that is merged has lists as elements.
    #[error("lists of lists cannot be merged")]
    ListOfLists,
    /// A directive needs the merge key of a list of objects that has none.
    #[error("list has no merge key")]
    NoMergeKey,
    /// An element of a list does not have the merge key.
    #[error("element without merge key {0:?}")]
    MissingMergeKey(String),
    /// `$patch` has an unknown value, or one that is not valid in this place.
    #[error("unknown $patch directive {0}")]
    UnknownDirective(String),
    /// `$retainKeys` is not a list, or the patch sets a field that is not in it.
    #[error("fields set by the patch are not all in $retainKeys")]
    RetainKeys,
    /// The name of the field is missing after `$deleteFromPrimitiveList/`.
    #[error("malformed $deleteFromPrimitiveList directive")]
    PrimitiveList,
    /// `$setElementOrder` is not a list, or the name of the field is missing after `$setElementOrder/`.
    #[error("malformed $setElementOrder directive")]
    ElementOrder,
    /// The elements of the patch are in another order than in `$setElementOrder`, or one is missing there.
    #[error("elements set by the patch do not follow $setElementOrder")]
    OrderMismatch,
}

impl PatchError {
    /// The HTTP status with which an API server rejects the patch.
    ///
    /// Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go,
    /// `interpretStrategicMergePatchError`.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self.problem {
            PatchProblem::NotObject
            | PatchProblem::PrimitiveList
            | PatchProblem::RetainKeys
            | PatchProblem::ElementOrder => 400,
            PatchProblem::ListOfLists => 422,
            PatchProblem::NotList
            | PatchProblem::MixedElements
            | PatchProblem::NoMergeKey
            | PatchProblem::MissingMergeKey(_)
            | PatchProblem::UnknownDirective(_)
            | PatchProblem::OrderMismatch => 500,
        }
    }

    /// Adds a field to the error's path.
    fn within(self, field: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        Self { path: format!("{field}{dot}{}", self.path), ..self }
    }

    /// Adds an element of a list, whose merge key is `value`, to the error's path.
    fn within_element(self, key: &str, value: &Value) -> Self {
        self.within(&format!("[{key}={value}]"))
    }

    fn prefix(&self) -> String {
        if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) }
    }
}

impl From<PatchProblem> for PatchError {
    fn from(problem: PatchProblem) -> Self {
        Self { path: String::new(), problem }
    }
}
