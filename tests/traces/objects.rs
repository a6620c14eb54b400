//! The API objects of a scenario beside its pods. ◆

use agent::manifest::{self, Strictness};
use agent::objects::ObjectMap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::scenario::{Scenario, method};

/// The ConfigMaps, Secrets and Services of the scenario's manifest. A Service has the address that the API server gave it.
pub(crate) fn of_manifest(scenario: &Scenario) -> ObjectMap {
    let mut objects = ObjectMap::default();
    for (_, text) in scenario.documents() {
        let document: Value = serde_saphyr::from_str(&text).unwrap_or_default();
        if document["kind"] == "Service" {
            let name = document["metadata"]["name"].as_str().unwrap();
            let variable = format!("{}_SERVICE_HOST", name.to_uppercase().replace('-', "_"));
            let mut service = document.clone();
            service["spec"]["clusterIP"] = json!(variable_of(scenario, &variable).unwrap());
            objects.insert_service(serde_json::from_value(service).unwrap());
        } else if document["kind"] != "Pod" {
            let parsed = manifest::parse(&scenario.name, &text, Strictness::Lenient);
            objects.extend(parsed.objects);
        }
    }
    objects
}

/// The ConfigMaps that the scenario's pods have variables from and that appeared later, with the values that these got.
pub(crate) fn created_later(scenario: &Scenario) -> ObjectMap {
    let mut objects = of_manifest(scenario);
    for (_, text) in scenario.documents() {
        let parsed = manifest::parse(&scenario.name, &text, Strictness::Lenient);
        let containers = parsed.pods.iter().flat_map(|pod| pod.containers());
        for variable in containers.flat_map(|container| container.env.iter().flatten()) {
            let source = variable.value_from.as_ref();
            let Some(key) = source.and_then(|source| source.config_map_key_ref.as_ref()) else {
                continue;
            };
            let value = variable_of(scenario, &variable.name).unwrap();
            let map = json!({"metadata": {"name": key.name}, "data": {key.key.clone(): value}});
            objects.insert_config_map(serde_json::from_value(map).unwrap());
        }
    }
    objects
}

/// The value of a variable in the containers of the scenario.
fn variable_of(scenario: &Scenario, name: &str) -> Option<String> {
    let calls = scenario.calls.iter();
    let created = calls.filter(|call| method(call) == "CreateContainer");
    let mut variables = created
        .filter_map(|call| call["request"]["config"]["envs"].as_array())
        .flatten();
    let found = variables.find(|variable| variable["key"] == name)?;
    let value = BASE64_STANDARD.decode(found["value"].as_str()?).ok()?;
    String::from_utf8(value).ok()
}
