//! ◆ Patches of objects: JSON merge patches and strategic merge patches are applied, and computed from two or three
//! versions of an object. Pure.
//!
//! Objects and patches are JSON values. The caller decodes and validates the result: it may have null fields, and fields
//! that its type does not have.

mod error;
mod lists;
pub mod merge;
mod schema;
pub mod strategic;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use error::{PatchError, PatchProblem};

/// A JSON object.
type Object = Map<String, Value>;
