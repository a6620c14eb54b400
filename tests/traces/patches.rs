//! What a client of an API server changes in pods, as far as the notes name it and the recorded calls and statuses tell the
//! rest. ◆

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod as ApiPod, ResourceRequirements};
use serde_json::Value;

use crate::pods::changed;
use crate::scenario::Scenario;
use crate::timeline::{Note, Step, step};

/// A deadline that no scenario reaches, in seconds.
const FAR: i64 = 3600;
/// How long after its cause the kubelet ends a pod at most, in seconds.
const AT_ONCE: f64 = 2.0;

pub(crate) fn label(pod: &mut ApiPod) {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("patched".to_owned(), "yes".to_owned());
}

pub(crate) fn annotation(pod: &mut ApiPod) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("patched".to_owned(), "yes".to_owned());
}

/// Gives a container the image that it was restarted with in the scenario; without a restart it keeps its own.
pub(crate) fn image(pod: &mut ApiPod, scenario: &Scenario, name: &str) {
    let mut created = scenario.calls_of("CreateContainer");
    let last = created.rfind(|call| call["request"]["config"]["metadata"]["name"] == name);
    let image = last.and_then(|call| {
        let image = &call["request"]["config"]["image"]["user_specified_image"];
        image.as_str().map(str::to_owned)
    });
    for container in containers(pod).filter(|container| container.name == name) {
        container.image = image.clone().or(container.image.take());
    }
    changed(pod);
}

/// Gives pods another deadline: this one, or one that explains when they were ended.
pub(crate) fn deadline(pod: &mut ApiPod, scenario: &Scenario, seconds: Option<i64>, at: f64) {
    let found = seconds.or_else(|| deadline_of(pod, scenario, at));
    if let Some(spec) = &mut pod.spec {
        spec.active_deadline_seconds = Some(found.unwrap_or(FAR));
    }
    changed(pod);
}

/// The deadline of a pod that was ended for it.
fn deadline_of(pod: &ApiPod, scenario: &Scenario, at: f64) -> Option<i64> {
    let mut own = scenario.history.iter().filter(|entry| is_of(entry, pod));
    let ended = own.find(|entry| entry["status"]["reason"] == "DeadlineExceeded")?;
    let started: Timestamp = ended["status"]["startTime"].as_str()?.parse().ok()?;
    let started = started.duration_since(scenario.zero()?).as_secs_f64();
    let ended = ended["t"].as_f64()?;
    // One that was over by then ends the pod at once.
    let ended = if ended - at < AT_ONCE { at } else { ended };
    Some(((ended - started).floor() as i64).max(1))
}

/// Gives the containers of a pod the resources that the kubelet reported, or refused, until the next resize.
pub(crate) fn resize(pod: &mut ApiPod, scenario: &Scenario, at: f64) {
    let notes = scenario.notes();
    let resizes = |note: &&Note| step(note) == Some(Step::Resize) && note.at > at;
    let next = notes.iter().find(resizes).map(|note| note.at);
    let until = next.map_or_else(|| scenario.removed_at(), |next| next - 0.1);
    let statuses = scenario.statuses_at(until);
    let own = statuses.iter().find(|entry| is_of(entry, pod));
    if let Some(status) = own.map(|entry| &entry["status"]) {
        for container in containers(pod) {
            if let Some(resources) = reported(status, &container.name) {
                container.resources = Some(resources);
            }
        }
        if let (Some((name, amount)), Some(container)) = (refused(status), containers(pod).next()) {
            request(container, &name, &amount);
        }
    }
    changed(pod);
}

/// The resources of a container in a status.
fn reported(status: &Value, name: &str) -> Option<ResourceRequirements> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists
        .iter()
        .filter_map(|list| status[*list].as_array())
        .flatten();
    let own = all.find(|container| container["name"] == name)?;
    serde_json::from_value(own["resources"].clone()).ok()
}

/// What a pod requested in a resize that its node did not grant: `Node didn't have enough capacity: cpu, requested: 9000, …`.
fn refused(status: &Value) -> Option<(String, String)> {
    let mut conditions = status["conditions"].as_array()?.iter();
    let pending = conditions.find(|condition| condition["type"] == "PodResizePending")?;
    let (before, after) = pending["message"].as_str()?.split_once(", requested: ")?;
    let name = before.rsplit(' ').next()?;
    let amount: String = after.chars().take_while(char::is_ascii_digit).collect();
    let unit = if name == "cpu" { "m" } else { "" };
    Some((name.to_owned(), format!("{amount}{unit}")))
}

/// Changes a request, and the limit if there is one.
fn request(container: &mut Container, name: &str, amount: &str) {
    let resources = container.resources.get_or_insert_default();
    for (list, always) in [
        (&mut resources.requests, true),
        (&mut resources.limits, false),
    ] {
        let has = list.as_ref().is_some_and(|list| list.contains_key(name));
        if always || has {
            let quantity = serde_json::from_value(amount.into()).unwrap();
            list.get_or_insert_default()
                .insert(name.to_owned(), quantity);
        }
    }
}

fn is_of(entry: &Value, pod: &ApiPod) -> bool {
    entry["metadata"]["uid"].as_str() == pod.metadata.uid.as_deref()
}

fn containers(pod: &mut ApiPod) -> impl Iterator<Item = &mut Container> {
    pod.spec.iter_mut().flat_map(|spec| {
        let inits = spec.init_containers.iter_mut().flatten();
        spec.containers.iter_mut().chain(inits)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refused_resize_is_read_from_its_condition() {
        let status = |resource: &str, requested: i64| {
            let message = format!(
                "Node didn't have enough capacity: {resource}, requested: {requested}, capacity: 2000"
            );
            json!({"conditions": [
                {"type": "Ready"},
                {"type": "PodResizePending", "reason": "Infeasible", "message": message},
            ]})
        };
        let pair = |name: &str, amount: &str| Some((name.to_owned(), amount.to_owned()));
        assert_eq!(refused(&status("cpu", 9000)), pair("cpu", "9000m"));
        assert_eq!(refused(&status("memory", 5)), pair("memory", "5"));
        assert_eq!(refused(&json!({"conditions": []})), None);
    }
}
