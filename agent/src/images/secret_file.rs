//! ◆ Pull secrets in a file of manifests, for an agent without an API server.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;

use crate::objects::ObjectMap;

/// Why a text does not contain Secrets. No message contains a part of a Secret's data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFileError {
    /// It is neither YAML nor JSON.
    #[error("failed to parse: {0}")]
    Syntax(String),
    /// A document is of another kind.
    #[error("document {document} is a {kind:?}, expected apiVersion: v1, kind: Secret or List")]
    Kind {
        /// Counted from 1.
        document: usize,
        /// The kind in the document.
        kind: String,
    },
    /// A Secret is malformed.
    #[error("document {0} is not a valid Secret with a name")]
    Secret(usize),
}

/// A document, or an item of a list.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    items: Vec<serde_json::Value>,
}

/// Parses the Secrets in one or several documents of YAML or JSON; a List contains several. A Secret without a namespace is in
/// `default`, `stringData` replaces `data`.
///
/// # Errors
/// If the text contains anything else.
pub fn parse_secrets(text: &str) -> Result<ObjectMap, SecretFileError> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| SecretFileError::Syntax(error.without_snippet().to_string()))?;
    let mut objects = ObjectMap::default();
    for (document, value) in (1..).zip(documents) {
        for secret in secrets(value, document, true)? {
            objects.insert_secret(secret);
        }
    }
    Ok(objects)
}

fn secrets(
    value: serde_json::Value,
    document: usize,
    may_be_list: bool,
) -> Result<Vec<Secret>, SecretFileError> {
    // An empty document, as after a last `---`.
    if value.is_null() {
        return Ok(Vec::new());
    }
    let head = Head::deserialize(&value).map_err(|_| SecretFileError::Secret(document))?;
    match (head.api_version.as_str(), head.kind.as_str()) {
        ("v1", "Secret") => {}
        ("v1", "List" | "SecretList") if may_be_list => {
            let mut all = Vec::new();
            for item in head.items {
                all.extend(secrets(item, document, false)?);
            }
            return Ok(all);
        }
        (_, _) => {
            let kind = head.kind;
            return Err(SecretFileError::Kind { document, kind });
        }
    }
    let mut secret: Secret =
        serde_json::from_value(value).map_err(|_| SecretFileError::Secret(document))?;
    if secret.metadata.name.as_deref().is_none_or(str::is_empty) {
        return Err(SecretFileError::Secret(document));
    }
    secret.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    for (key, text) in secret.string_data.take().unwrap_or_default() {
        let data = secret.data.get_or_insert_default();
        data.insert(key, ByteString(text.into_bytes()));
    }
    Ok(vec![secret])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[test]
    fn secrets_of_documents_and_lists_are_found() {
        let text = "
apiVersion: v1
kind: Secret
metadata: {name: a, namespace: ns}
type: kubernetes.io/dockerconfigjson
data: {.dockerconfigjson: e30=, other: eA==}
stringData: {other: text}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: b}}
---
";
        let objects = parse_secrets(text).unwrap();
        let data = objects.secret("ns", "a").unwrap().data.clone().unwrap();
        assert_eq!(data[".dockerconfigjson"].0, b"{}");
        assert_eq!(data["other"].0, b"text");
        let b = objects.secret("default", "b").unwrap();
        assert_eq!(b.metadata.namespace.as_deref(), Some("default"));
    }

    #[rstest]
    #[case("a: b: c", "failed to parse")]
    #[case("{apiVersion: v1, kind: Pod}", "document 1 is a \"Pod\"")]
    #[case("{apiVersion: v1, kind: Secret}", "document 1 is not a valid Secret")]
    #[case(
        "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {x: hidden!}}",
        "document 1 is not"
    )]
    #[case(
        "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List}]}",
        "document 1 is a \"List\""
    )]
    #[case("text", "document 1 is not")]
    fn other_texts_are_refused_without_their_data(#[case] text: &str, #[case] expected: &str) {
        let error = parse_secrets(text).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("hidden"), "{error}");
    }
}
