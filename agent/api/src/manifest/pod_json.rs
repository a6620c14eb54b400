//! ◆ Pods as JSON for communication between programs, with `#[serde(with = "api::manifest::pod_json")]`.
//!
//! A pod consists of a few hundred types. A package that encodes or decodes pods with this module has no copy of their generic
//! functions for its own formats.

use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

use super::decode;
use super::tree::{Entry, Node, Position, Value};
use super::typed_value::TypedValue;

/// Writes a pod.
pub fn serialize<S: Serializer>(pod: &Pod, serializer: S) -> Result<S::Ok, S::Error> {
    encode(pod).serialize(serializer)
}

/// Reads a pod. Unknown fields are ignored.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pod, D::Error> {
    decode(Json::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Decodes a pod from a JSON value. Unknown fields are ignored.
///
/// # Errors
/// The field, and its error.
pub fn from_json(json: Json) -> Result<Pod, String> {
    decode(json)
}

/// Encodes a list of pods.
pub fn list(pods: &List<Pod>) -> String {
    TypedValue::of(pods).json()
}

fn encode(pod: &Pod) -> TypedValue {
    TypedValue::of(pod)
}

fn decode(json: Json) -> Result<Pod, String> {
    let node = node(json);
    let (pod, findings) = decode::decode(&node);
    match (pod, findings.into_iter().find(|finding| !finding.unknown_field)) {
        (_, Some(finding)) => Err(format!("{}: {}", finding.path, finding.message)),
        (Some(pod), None) => Ok(pod),
        (None, None) => Err("expected a pod".to_owned()),
    }
}

/// Converts the value for the decoder, without a position.
fn node(json: Json) -> Node {
    let plain = |text: String| Value::Scalar { text, plain: true };
    let value = match json {
        Json::Null => plain("null".to_owned()),
        Json::Bool(value) => plain(value.to_string()),
        Json::Number(number) => plain(number.to_string()),
        Json::String(text) => Value::Scalar { text, plain: false },
        Json::Array(items) => Value::Sequence(items.into_iter().map(node).collect()),
        Json::Object(fields) => {
            let entry =
                |(key, value)| Entry { key, key_place: Position::default(), value: node(value) };
            Value::Mapping(fields.into_iter().map(entry).collect())
        }
    };
    Node { place: Position::default(), value }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "super")]
        pod: Pod,
    }

    #[test]
    fn pod_is_read_as_it_was_written() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"yes": "null"}},
            "spec": {
                "priority": -5,
                "containers": [{
                    "name": "1",
                    "tty": true,
                    "resources": {"requests": {"cpu": "100m"}},
                    "livenessProbe": {"tcpSocket": {"port": 80}},
                }],
            },
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:01Z"},
        }))
        .unwrap();
        let pods = vec![pod, Pod::default()];
        for pod in pods.clone() {
            let text = serde_json::to_string(&Holder { pod: pod.clone() }).unwrap();
            assert_eq!(text, format!("{{\"pod\":{}}}", serde_json::to_string(&pod).unwrap()));
            assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), Holder { pod });
        }
        let pods = List { items: pods, ..List::default() };
        assert_eq!(list(&pods), serde_json::to_string(&pods).unwrap());
    }

    #[test]
    fn mismatch_is_an_error_with_its_path() {
        let text = r#"{"pod":{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":5}]}}}"#;
        let error = serde_json::from_str::<Holder>(text).unwrap_err().to_string();
        assert!(error.starts_with("spec.containers[0].name: expected text"), "{error}");
    }
}
