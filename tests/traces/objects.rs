//! ◆ The API objects of a scenario besides its pods.

use agent::objects::ObjectMap;
use api::manifest::{self, Strictness};
use serde_json::Value;

/// The current objects, as documents.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiObjects {
    documents: Vec<Value>,
}

impl ApiObjects {
    /// Adds objects, or replaces those with the same names.
    pub(crate) fn apply(&mut self, objects: &[Value]) {
        self.documents.retain(|known| !objects.iter().any(|new| is_same(known, new)));
        self.documents.extend_from_slice(objects);
    }

    /// Removes the objects of a kind.
    pub(crate) fn delete(&mut self, kind: &str) {
        self.documents.retain(|it| it["kind"] != kind);
    }

    /// The objects in the form that the agent uses.
    pub(crate) fn map(&self) -> ObjectMap {
        let mut objects = ObjectMap::default();
        for document in &self.documents {
            if document["kind"] == "Service" {
                objects.insert_service(serde_json::from_value(document.clone()).unwrap());
            } else {
                let text = document.to_string();
                let parsed = manifest::parse("objects", &text, Strictness::Lenient);
                objects.extend(parsed.objects);
            }
        }
        objects
    }
}

fn is_same(a: &Value, b: &Value) -> bool {
    let namespace = |of: &Value| {
        let namespace = of["metadata"]["namespace"].as_str();
        namespace.unwrap_or("default").to_owned()
    };
    a["kind"] == b["kind"]
        && a["metadata"]["name"] == b["metadata"]["name"]
        && namespace(a) == namespace(b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn applied_object_replaces_object_with_same_name() {
        let secret = |name: &str, value: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"k": value}});
        let mut objects = ApiObjects::default();
        objects.apply(&[secret("a", "old"), secret("b", "other")]);
        objects.apply(&[secret("a", "new")]);
        assert_eq!(objects.documents, [secret("b", "other"), secret("a", "new")]);
        assert_eq!(objects.map().json().len(), 2);
        objects.delete("ConfigMap");
        assert_eq!(objects.documents.len(), 2);
        objects.delete("Secret");
        assert_eq!(objects.map().json().len(), 0);
    }
}
