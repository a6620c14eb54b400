//! The ephemeral containers that were added to the pods of a scenario, from their statuses and from the calls that created
//! them. ◆

use agent::manifest;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::{EnvVar, EphemeralContainer, Pod as ApiPod, VolumeMount};
use serde_json::Value;

use crate::pods::changed;
use crate::scenario::Scenario;
use crate::timeline::{Step, step};

/// Adds the containers that the pods had before more were added.
pub(crate) fn add(pod: &mut ApiPod, scenario: &Scenario, at: f64) {
    let notes = scenario.notes();
    let later = notes.iter().filter(|note| note.at > at);
    let later = later.filter(|note| step(note) == Some(Step::AddEphemeral));
    let uid = pod.metadata.uid.as_deref();
    let mut of_pod = scenario.status.iter();
    let own = of_pod.find(|entry| entry["metadata"]["uid"].as_str() == uid);
    let statuses = own.and_then(|own| own["status"]["ephemeralContainerStatuses"].as_array());
    let statuses = statuses.map(Vec::as_slice).unwrap_or_default();
    let count = statuses.len().saturating_sub(later.count()).max(1);
    let added = statuses.iter().take(count);
    let added = added
        .map(|status| container(pod, scenario, status))
        .collect();
    if let Some(spec) = &mut pod.spec {
        spec.ephemeral_containers = Some(added);
    }
    changed(pod);
    let (admitted, _) = manifest::admit(pod.clone());
    *pod = admitted;
}

fn container(pod: &ApiPod, scenario: &Scenario, status: &Value) -> EphemeralContainer {
    let name = status["name"].as_str().unwrap();
    let mut created = scenario
        .calls_of("CreateContainer")
        .map(|call| &call["request"]["config"]);
    let config = created.rfind(|config| config["metadata"]["name"] == name);
    let words = |key: &str| {
        let list = config?.get(key)?.as_array()?;
        let words = list.iter().filter_map(Value::as_str);
        Some(words.map(str::to_owned).collect())
    };
    let text = |key: &str| Some(config?.get(key)?.as_str()?.to_owned());
    let set = |key: &str| config.and_then(|config| config.get(key)?.as_bool());
    EphemeralContainer {
        name: name.to_owned(),
        image: status["image"].as_str().map(str::to_owned),
        command: words("command"),
        args: words("args"),
        working_dir: text("working_dir"),
        stdin: set("stdin"),
        stdin_once: set("stdin_once"),
        tty: set("tty"),
        env: config.map(variables),
        volume_mounts: config.map(|config| mounts(pod, config)),
        target_container_name: config.and_then(|config| target(scenario, config)),
        ..Default::default()
    }
}

/// The name of the container whose processes this one sees.
fn target(scenario: &Scenario, config: &Value) -> Option<String> {
    let id = config
        .pointer("/linux/security_context/namespace_options/target_id")?
        .as_str()
        .filter(|id| !id.is_empty())?;
    let mut created = scenario.calls_of("CreateContainer");
    let target = created.find(|call| call["response"]["container_id"] == id)?;
    let name = &target["request"]["config"]["metadata"]["name"];
    name.as_str().map(str::to_owned)
}

/// The variables of a container. Those that come with Services have no order, and are the node's.
fn variables(config: &Value) -> Vec<EnvVar> {
    let variables = config["envs"].as_array().into_iter().flatten();
    let variables = variables.filter_map(|variable| {
        let name = variable["key"].as_str()?;
        let value = BASE64_STANDARD
            .decode(variable["value"].as_str().unwrap_or_default())
            .ok()?;
        Some(EnvVar {
            name: name.to_owned(),
            value: Some(String::from_utf8(value).ok()?),
            ..Default::default()
        })
    });
    variables
        .filter(|variable| !crate::normal::is_of_service(&variable.name))
        .collect()
}

/// The mounts of the pod's volumes: their paths on the host contain `volumes/KIND/NAME`.
fn mounts(pod: &ApiPod, config: &Value) -> Vec<VolumeMount> {
    let spec = pod.spec.as_ref();
    let volumes = spec.and_then(|spec| spec.volumes.as_deref());
    let mounts = config["mounts"].as_array().into_iter().flatten();
    let mounts = mounts.filter_map(|mount| {
        let host_path = mount["host_path"].as_str()?;
        let (_, rest) = host_path.split_once("/volumes/")?;
        let name = rest.split('/').nth(1)?;
        volumes?.iter().find(|volume| volume.name == name)?;
        Some(VolumeMount {
            name: name.to_owned(),
            mount_path: mount["container_path"].as_str()?.to_owned(),
            read_only: mount["readonly"].as_bool(),
            ..Default::default()
        })
    });
    mounts.collect()
}
