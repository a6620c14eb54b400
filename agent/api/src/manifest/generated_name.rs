//! ◆ Names of objects that give `metadata.generateName` and no name. Pure.
//!
//! Source: Kubernetes 1.36, apiserver/pkg/storage/names/generate.go. Its five characters are random; here they depend on the file,
//! so that a file that is read again has the same objects.

use std::collections::BTreeMap;

use super::tree::{Entry, Node, Value};
use super::{Loader, is_empty};
use crate::generated_names::generated_name;

/// How many names of each kind and prefix were generated.
pub(super) type Generated = BTreeMap<(String, String), usize>;

impl Loader<'_> {
    /// Gives an object a name if it has only a prefix for one.
    pub(super) fn generate_name(&mut self, kind: &str, node: &mut Node) {
        let Value::Mapping(fields) = &mut node.value else {
            return;
        };
        let Some(metadata) = fields.iter_mut().find(|field| field.key == "metadata") else {
            return;
        };
        let given = |field: &str| metadata.value.get(field).map(|entry| &entry.value);
        let has_name = given("name").is_some_and(|name| !is_empty(name) && name.text() != Some(""));
        let prefix = given("generateName").filter(|prefix| !has_name && !is_empty(prefix));
        let Some((text, place)) = prefix.and_then(|prefix| Some((prefix.text()?, prefix.place)))
        else {
            return;
        };
        if text.is_empty() {
            return;
        }
        let prefix = text.to_owned();
        // Documents of another kind or prefix do not change the name.
        let number = self.generated.entry((kind.to_owned(), prefix.clone())).or_default();
        let text = generated_name(&prefix, &format!("{number}\0{kind}\0{}", self.file));
        *number += 1;
        if let Value::Mapping(entries) = &mut metadata.value.value {
            entries.retain(|entry| entry.key != "name");
            let value = Node { place, value: Value::Scalar { text, plain: false } };
            entries.push(Entry { key: "name".to_owned(), key_place: place, value });
        }
    }
}

#[cfg(test)]
#[path = "generated_name/tests.rs"]
mod tests;
