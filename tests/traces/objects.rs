//! The API objects of a scenario beside its pods. ◆
//!
//! Of objects that appear or change later the manifest may say nothing: then they have what the recorded containers got.

use agent::manifest::{self, Strictness};
use agent::objects::ObjectMap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::normal::is_of_service;
use crate::scenario::Scenario;
use crate::timeline::ObjectKind;

/// The objects that there are at a time, as documents.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiObjects {
    documents: Vec<Value>,
}

impl ApiObjects {
    /// The ConfigMaps, Secrets and Services of the scenario's manifest. A Service has the address that the API server gave it.
    pub(crate) fn of_manifest(scenario: &Scenario) -> Self {
        let documents = scenario.documents().into_iter();
        let first = documents.filter(|(replaces, text)| !replaces && !appears_later(text));
        let objects = first.map(|(_, text)| document(&text));
        let mut documents: Vec<Value> = objects.filter(|it| it["kind"] != "Pod").collect();
        for service in documents.iter_mut().filter(|it| it["kind"] == "Service") {
            let name = service["metadata"]["name"].as_str().unwrap();
            let variable = format!("{}_SERVICE_HOST", name.to_uppercase().replace('-', "_"));
            service["spec"]["clusterIP"] = json!(recorded(scenario, &variable).first());
        }
        Self { documents }
    }

    /// Adds the objects of a kind that the manifest has, or that its pods refer to.
    pub(crate) fn create(&mut self, scenario: &Scenario, kind: ObjectKind) {
        let documents = scenario.documents().into_iter();
        let own = documents.filter(|(replaces, _)| !replaces);
        let own: Vec<Value> = own.map(|(_, text)| document(&text)).collect();
        for object in own.into_iter().chain(referred(scenario, kind, First)) {
            if object["kind"] == kind.as_str() && !self.has(&object) {
                self.documents.push(object);
            }
        }
    }

    /// Replaces the objects of a kind by those that the manifest has for it, or by what containers got in the end.
    pub(crate) fn update(&mut self, scenario: &Scenario, kind: ObjectKind) {
        let documents = scenario.documents().into_iter();
        let new = documents.filter(|(replaces, _)| *replaces);
        let new = new.map(|(_, text)| document(&text));
        let mut new: Vec<Value> = new.filter(|it| it["kind"] == kind.as_str()).collect();
        if new.is_empty() {
            new = referred(scenario, kind, Last);
        }
        for object in new {
            let known = self.documents.iter_mut().find(|it| is_same(it, &object));
            match known {
                Some(known) => merge(known, object),
                None => self.documents.push(object),
            }
        }
    }

    /// Removes the objects of a kind.
    pub(crate) fn delete(&mut self, kind: ObjectKind) {
        self.documents.retain(|it| it["kind"] != kind.as_str());
    }

    /// For an agent.
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

    fn has(&self, object: &Value) -> bool {
        self.documents.iter().any(|known| is_same(known, object))
    }
}

fn document(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_default()
}

/// Whether a comment says that an object is not there from the beginning.
fn appears_later(text: &str) -> bool {
    let mut comments = text.lines().take_while(|line| line.starts_with('#'));
    comments.any(|line| line.contains("later"))
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

/// Takes over what a new version says; keys that it does not name stay.
fn merge(known: &mut Value, new: Value) {
    for list in ["data", "stringData"] {
        if let Some(values) = new[list].as_object() {
            for (key, value) in values {
                known[list][key] = value.clone();
            }
        }
    }
}

/// Which of the values that containers got one after another counts.
#[derive(Clone, Copy)]
enum Which {
    First,
    Last,
}
use Which::{First, Last};

/// The objects of a kind that the scenario's pods refer to, with the values that containers got.
fn referred(scenario: &Scenario, kind: ObjectKind, which: Which) -> Vec<Value> {
    let (of_key, of_env, of_volume, name_of_volume, data) = match kind {
        ObjectKind::ConfigMap => (
            "configMapKeyRef",
            "configMapRef",
            "configMap",
            "name",
            "data",
        ),
        ObjectKind::Secret => (
            "secretKeyRef",
            "secretRef",
            "secret",
            "secretName",
            "stringData",
        ),
    };
    let mut objects: Vec<Value> = Vec::new();
    for pod in scenario.documents().iter().map(|(_, text)| document(text)) {
        if pod["kind"] != "Pod" {
            continue;
        }
        let namespace = pod["metadata"]["namespace"].as_str();
        let namespace = namespace.unwrap_or("default");
        let mut set = |name: &Value, values: Vec<(String, String)>| {
            let object = json!({
                "apiVersion": "v1",
                "kind": kind.as_str(),
                "metadata": {"name": name, "namespace": namespace},
            });
            let known = objects.iter().position(|it| is_same(it, &object));
            let index = known.unwrap_or_else(|| {
                objects.push(object);
                objects.len() - 1
            });
            let entries = values.into_iter().map(|(key, value)| (key, json!(value)));
            let entries: Map<String, Value> = entries.collect();
            let wanted = json!({ data: entries });
            merge(&mut objects[index], wanted);
        };
        let spec = &pod["spec"];
        let containers = list(&spec["containers"]).chain(list(&spec["initContainers"]));
        for container in containers {
            for variable in list(&container["env"]) {
                let source = &variable["valueFrom"][of_key];
                let (Some(key), Some(name)) = (source["key"].as_str(), variable["name"].as_str())
                else {
                    continue;
                };
                let values = recorded(scenario, name);
                let value = match which {
                    First => values.first(),
                    Last => values.last(),
                };
                let value = value.map(|value| (key.to_owned(), value.clone()));
                set(&source["name"], value.into_iter().collect());
            }
            for source in list(&container["envFrom"]) {
                if source[of_env].is_object() {
                    let prefix = source["prefix"].as_str().unwrap_or_default();
                    let values = rest_of_environment(scenario, container, prefix, which);
                    set(&source[of_env]["name"], values);
                }
            }
        }
        let volumes: Vec<&Value> = list(&spec["volumes"]).collect();
        let projected = volumes
            .iter()
            .flat_map(|volume| list(&volume["projected"]["sources"]));
        for (source, name) in volumes
            .iter()
            .map(|volume| (&volume[of_volume], name_of_volume))
            .chain(projected.map(|source| (&source[of_volume], "name")))
        {
            if source.is_object() {
                // No call has what is in a file.
                let keys = list(&source["items"]).filter_map(|item| item["key"].as_str());
                set(
                    &source[name],
                    keys.map(|key| (key.to_owned(), String::new())).collect(),
                );
            }
        }
    }
    objects
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The variables that a container got from elsewhere than its own list, without a prefix.
fn rest_of_environment(
    scenario: &Scenario,
    container: &Value,
    prefix: &str,
    which: Which,
) -> Vec<(String, String)> {
    let named: Vec<&Value> = list(&container["env"]).map(|it| &it["name"]).collect();
    let own = |call: &&Value| call["request"]["config"]["metadata"]["name"] == container["name"];
    let mut calls = scenario.calls_of("CreateContainer").filter(own);
    let call = match which {
        First => calls.next(),
        Last => calls.next_back(),
    };
    let variables = call.map(|call| &call["request"]["config"]["envs"]);
    let variables = variables.into_iter().flat_map(list);
    let variables = variables.filter(|it| !named.contains(&&it["key"]));
    let pairs = variables.filter_map(|variable| {
        let name = variable["key"].as_str()?;
        let key = name.strip_prefix(prefix).filter(|_| !is_of_service(name))?;
        Some((key.to_owned(), value_of(variable)?))
    });
    pairs.collect()
}

/// The values of a variable in the containers of the scenario, in order.
fn recorded(scenario: &Scenario, name: &str) -> Vec<String> {
    let created = scenario.calls_of("CreateContainer");
    let variables = created.flat_map(|call| list(&call["request"]["config"]["envs"]));
    let found = variables.filter(|variable| variable["key"] == name);
    found.filter_map(value_of).collect()
}

fn value_of(variable: &Value) -> Option<String> {
    let value = variable["value"].as_str().unwrap_or_default();
    let value = BASE64_STANDARD.decode(value).ok()?;
    String::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MANIFEST: &str = r"
kind: Pod
apiVersion: v1
metadata: {name: p}
spec:
  volumes:
  - name: v
    secret: {secretName: s2, items: [{key: k, path: p}]}
  containers:
  - name: c
    env:
    - name: A
      valueFrom: {secretKeyRef: {name: s, key: a}}
    envFrom:
    - prefix: P_
      configMapRef: {name: m}
";

    /// A scenario whose container got these variables, one after another.
    fn scenario(manifest: &str, environments: &[&[(&str, &str)]]) -> Scenario {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("s");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("manifest.yaml"), manifest).unwrap();
        let calls = environments.iter().map(|environment| {
            let variables: Vec<Value> = environment
                .iter()
                .map(|(key, value)| json!({"key": key, "value": BASE64_STANDARD.encode(value)}))
                .collect();
            let config = json!({"metadata": {"name": "c"}, "envs": variables});
            format!(
                "{}\n",
                json!({"method": "CreateContainer", "request": {"config": config}})
            )
        });
        fs::write(directory.join("trace.jsonl"), calls.collect::<String>()).unwrap();
        Scenario::read(&directory)
    }

    #[test]
    fn missing_objects_have_what_containers_got() {
        let first: &[(&str, &str)] = &[("A", "1"), ("P_X", "2"), ("KUBERNETES_PORT", "3")];
        let last: &[(&str, &str)] = &[("A", "4"), ("P_X", "5")];
        let scenario = scenario(MANIFEST, &[first, last]);
        let mut objects = ApiObjects::of_manifest(&scenario);
        assert!(objects.documents.is_empty());
        objects.create(&scenario, ObjectKind::Secret);
        objects.create(&scenario, ObjectKind::ConfigMap);
        let text = |objects: &ApiObjects| -> Vec<String> {
            let of = |it: &Value| {
                format!(
                    "{} {} {}",
                    it["metadata"]["name"], it["data"], it["stringData"]
                )
            };
            objects.documents.iter().map(of).collect()
        };
        let expected = [
            r#""s" null {"a":"1"}"#,
            r#""s2" null {"k":""}"#,
            r#""m" {"X":"2"} null"#,
        ];
        assert_eq!(text(&objects), expected);
        assert_eq!(objects.map().secrets().count(), 2);
        objects.update(&scenario, ObjectKind::Secret);
        assert_eq!(text(&objects)[0], r#""s" null {"a":"4"}"#);
        objects.delete(ObjectKind::Secret);
        assert_eq!(text(&objects), [r#""m" {"X":"2"} null"#]);
    }

    #[test]
    fn objects_of_manifest_come_back_and_are_replaced() {
        let map = |value: &str| {
            format!(
                "kind: ConfigMap\napiVersion: v1\nmetadata: {{name: m}}\ndata: {{k: '{value}'}}\n"
            )
        };
        let replacing = format!("# replaces the document of the same name\n{}", map("new"));
        let scenario = scenario(&format!("{}---\n{replacing}", map("old")), &[]);
        let mut objects = ApiObjects::of_manifest(&scenario);
        let value = |objects: &ApiObjects| objects.documents[0]["data"]["k"].clone();
        assert_eq!(value(&objects), "old");
        objects.update(&scenario, ObjectKind::ConfigMap);
        assert_eq!(value(&objects), "new");
        objects.delete(ObjectKind::ConfigMap);
        objects.create(&scenario, ObjectKind::ConfigMap);
        assert_eq!(value(&objects), "old");
    }
}
