//! ◆ Computes the node's status and the patch that publishes it. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodestatus/setters.go and pkg/kubelet/kubelet_node_status.go.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use agent::Pressure;
use agent::cri::{Capabilities, Image};
use api::patch::{PatchError, strategic};
use api::quantity::{Format, Quantity};
use compact::Set;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::limits::Limits;
use super::machine::Machine;
use crate::time::whole_seconds;

/// The maximum number of names of an image.
const MAX_NAMES: usize = 5;

/// The Kubernetes version that the agent implements, followed by crib's own version.
pub const VERSION: &str = concat!("v1.36.2+crib", env!("CARGO_PKG_VERSION"));

/// The resources without which a node is not ready.
const REQUIRED: [&str; 4] = ["cpu", "memory", "pods", "ephemeral-storage"];

/// The current facts of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The node's name, which is also its host name.
    pub(crate) name: String,
    /// The node's own addresses, the primary one first.
    pub(crate) addresses: Vec<String>,
    /// Whether a cloud controller sets the addresses, so that the agent leaves them unchanged.
    pub(crate) external_cloud: bool,
    /// Whether only the cloud controller knows the addresses, because none were given to the agent.
    pub(crate) awaits_addresses: bool,
    /// The port of the agent's server; `None` without a server.
    pub(crate) server_port: Option<u16>,
    pub(crate) machine: Machine,
    /// The runtime, as `crib://0.1.0`.
    pub(crate) runtime: String,
    /// Quantities by resource name.
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) allocatable: BTreeMap<String, String>,
    /// The swap space in bytes.
    pub(crate) swap_capacity: i64,
    /// The images of the runtime; `None` if it does not answer.
    pub(crate) images: Option<Vec<Image>>,
    /// The maximum number of images in the status (`nodeStatusMaxImages`).
    pub(crate) max_images: usize,
    /// The runtime's capabilities; `None` until it has reported them.
    pub(crate) capabilities: Option<Capabilities>,
    /// The features that the node declares, sorted.
    pub(crate) declared_features: Vec<&'static str>,
    /// The pressures that the node is under.
    pub(crate) pressure: Pressure,
    /// The reasons why the node is not ready.
    pub(crate) problems: Vec<String>,
    /// Limitations of the pod network.
    pub(crate) limits: Limits,
    /// The attachable volumes in use, by their unique names; `None` while unknown.
    pub(crate) volumes_in_use: Option<Arc<Set<String>>>,
}

/// The condition with the limitations of the pod network.
const LIMITED: &str = "PodNetworkLimited";

/// A condition that the agent sets.
struct Condition {
    kind: &'static str,
    status: &'static str,
    reason: Cow<'static, str>,
    message: String,
}

/// The node's status with these facts, after `before`. Fields that the agent does not set stay.
pub(crate) fn status(facts: &Facts, before: &Value, now: Timestamp) -> Value {
    let mut status = before.as_object().cloned().unwrap_or_default();
    let internal = facts.addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip}));
    let hostname = json!({"type": "Hostname", "address": facts.name});
    let is_addressed = before["addresses"].as_array().is_some_and(|all| !all.is_empty());
    if !(facts.external_cloud && is_addressed) {
        let internal = internal.filter(|_| !facts.awaits_addresses);
        status.insert("addresses".to_owned(), internal.chain([hostname]).collect());
    }
    // The agent keeps resources that other clients have set, all of them allocatable.
    let foreign = foreign_resources(&before["capacity"]);
    for (field, own) in [("capacity", &facts.capacity), ("allocatable", &facts.allocatable)] {
        let mut amounts = foreign.clone();
        amounts.extend(quantities(own));
        status.insert(field.to_owned(), Value::Object(amounts));
    }
    status.insert("nodeInfo".to_owned(), node_info(facts));
    match facts.server_port {
        Some(port) => {
            let endpoint = json!({"kubeletEndpoint": {"Port": port}});
            status.insert("daemonEndpoints".to_owned(), endpoint);
        }
        None => drop(status.remove("daemonEndpoints")),
    }
    if let Some(images) = &facts.images {
        set_or_remove(&mut status, "images", image_list(images, facts.max_images));
    }
    if let Some(capabilities) = &facts.capabilities {
        let handlers = capabilities.handlers.iter().flatten().map(|(name, features)| {
            let features = json!({
                "recursiveReadOnlyMounts": features.recursive_read_only_mounts,
                "userNamespaces": features.user_namespaces,
            });
            json!({"name": name, "features": features})
        });
        set_or_remove(&mut status, "runtimeHandlers", handlers.collect());
        let strict = capabilities.strict_supplemental_groups;
        status.insert("features".to_owned(), json!({"supplementalGroupsPolicy": strict}));
    }
    let declared = facts.declared_features.iter().map(|name| json!(name));
    set_or_remove(&mut status, "declaredFeatures", declared.collect());
    if let Some(volumes) = &facts.volumes_in_use {
        let volumes = volumes.iter().map(|name| json!(name)).collect();
        set_or_remove(&mut status, "volumesInUse", volumes);
    }
    let known = before["conditions"].as_array().cloned().unwrap_or_default();
    let limited = limited(facts, known.iter().any(|condition| condition["type"] == LIMITED));
    let own = limited.into_iter().chain(conditions(facts));
    status.insert("conditions".to_owned(), with_conditions(known, own, now));
    Value::Object(status)
}

fn set_or_remove(status: &mut Map<String, Value>, field: &str, list: Vec<Value>) {
    if list.is_empty() {
        status.remove(field);
    } else {
        status.insert(field.to_owned(), Value::Array(list));
    }
}

/// Quantities in the API server's canonical form, so that they compare equal to its own.
fn quantities(amounts: &BTreeMap<String, String>) -> Map<String, Value> {
    let text = |name: &String, text: &String| match Quantity::parse(text) {
        Ok(amount) if is_bytes(name) => {
            Quantity::whole(amount.value(), Format::BinarySi).to_string()
        }
        Ok(amount) => amount.to_string(),
        Err(_) => text.clone(),
    };
    amounts.iter().map(|(name, amount)| (name.clone(), Value::from(text(name, amount)))).collect()
}

/// The resources among these amounts that an agent does not measure: all but the node's own ones and huge pages, of which the
/// machine may no longer support a size.
fn foreign_resources(amounts: &Value) -> Map<String, Value> {
    let is_own = |name: &str| REQUIRED.contains(&name) || name.starts_with("hugepages-");
    let amounts = amounts.as_object().into_iter().flatten();
    let foreign = amounts.filter(|(name, _)| !is_own(name));
    foreign.map(|(name, amount)| (name.clone(), amount.clone())).collect()
}

fn is_bytes(resource: &str) -> bool {
    matches!(resource, "memory" | "ephemeral-storage") || resource.starts_with("hugepages-")
}

fn node_info(facts: &Facts) -> Value {
    let machine = &facts.machine;
    let mut info = json!({
        "machineID": machine.machine_id,
        "systemUUID": machine.system_uuid,
        "bootID": machine.boot_id,
        "kernelVersion": machine.kernel_version,
        "osImage": machine.os_image,
        "containerRuntimeVersion": facts.runtime,
        "kubeletVersion": VERSION,
        // Deprecated, and empty since 1.33.
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture(),
    });
    // On a node without swap the field is absent.
    if facts.swap_capacity != 0 {
        info["swap"] = json!({"capacity": facts.swap_capacity});
    }
    info
}

/// The machine's architecture, as Go names it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Images sorted by size and then by id, largest first (pkg/kubelet/util/sliceutils ByImageSize); digests before tags.
fn image_list(images: &[Image], most: usize) -> Vec<Value> {
    let mut images: Vec<&Image> = images.iter().collect();
    compact::sort_by(&mut images, |one, other| {
        other.size.cmp(&one.size).then_with(|| other.id.cmp(&one.id))
    });
    let image = |image: &Image| {
        let names: Vec<&String> =
            image.repo_digests.iter().chain(&image.repo_tags).take(MAX_NAMES).collect();
        json!({"names": names, "sizeBytes": image.size})
    };
    images.into_iter().take(most).map(image).collect()
}

/// The conditions that the kubelet sets, in its order, `Ready` last.
fn conditions(facts: &Facts) -> [Condition; 4] {
    // The two pairs are reason and message under pressure, and without pressure.
    let pressure = |kind, is_short: bool, [short, enough]: [(&'static str, &str); 2]| {
        let (status, (reason, message)) =
            if is_short { ("True", short) } else { ("False", enough) };
        Condition { kind, status, reason: reason.into(), message: message.to_owned() }
    };
    let missing = REQUIRED.iter().filter(|name| !facts.capacity.contains_key(**name));
    let missing: Vec<&str> = missing.copied().collect();
    let mut problems = facts.problems.clone();
    if !missing.is_empty() {
        problems.push(format!("missing node capacity for resources: {}", missing.join(", ")));
    }
    let (status, reason, message) = match problems.as_slice() {
        [] => ("True", "KubeletReady", "kubelet is posting ready status".to_owned()),
        [one] => ("False", "KubeletNotReady", one.clone()),
        several => ("False", "KubeletNotReady", format!("[{}]", several.join(", "))),
    };
    [
        pressure(
            "MemoryPressure",
            facts.pressure.memory,
            [
                ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
                ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ],
        ),
        pressure(
            "DiskPressure",
            facts.pressure.disk,
            [
                ("KubeletHasDiskPressure", "kubelet has disk pressure"),
                ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ],
        ),
        pressure(
            "PIDPressure",
            facts.pressure.pids,
            [
                ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
                ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ],
        ),
        Condition { kind: "Ready", status, reason: reason.into(), message },
    ]
}

/// crib's own condition: limitations of the pod network. A node that never had one lacks the condition.
fn limited(facts: &Facts, is_known: bool) -> Option<Condition> {
    let messages: Vec<&str> = facts.limits.values().map(String::as_str).collect();
    let (status, reason, message) = match facts.limits.keys().next() {
        Some(reason) => ("True", reason.clone(), messages.join("; ")),
        None if is_known => {
            ("False", "PodNetworkComplete".to_owned(), "pods lack nothing that is known".to_owned())
        }
        None => return None,
    };
    Some(Condition { kind: LIMITED, status, reason: reason.into(), message })
}

/// Conditions of other clients keep their place. The transition time of a condition is that of its last status change.
fn with_conditions(
    mut known: Vec<Value>,
    own: impl IntoIterator<Item = Condition>,
    now: Timestamp,
) -> Value {
    for condition in own {
        let before = known.iter().position(|before| before["type"] == condition.kind);
        let at = whole_seconds(now);
        let since = before.map(|index| &known[index]);
        let since = since.filter(|before| before["status"] == condition.status);
        let since = since.and_then(|before| before["lastTransitionTime"].as_str());
        let value = json!({
            "type": condition.kind,
            "status": condition.status,
            "lastHeartbeatTime": at,
            "lastTransitionTime": since.unwrap_or(&at),
            "reason": condition.reason,
            "message": condition.message,
        });
        match before {
            Some(index) => known[index] = value,
            None => known.push(value),
        }
    }
    Value::Array(known)
}

/// Whether two statuses differ in more than the heartbeat times.
pub(crate) fn differs(before: &Value, after: &Value) -> bool {
    let timeless = |status: &Value| {
        let mut status = status.clone();
        let conditions = status["conditions"].as_array_mut().into_iter().flatten();
        for condition in conditions {
            if let Some(fields) = condition.as_object_mut() {
                fields.remove("lastHeartbeatTime");
            }
        }
        status
    };
    timeless(before) != timeless(after)
}

/// The patch of the node's status, labels and annotations from `before` to `after`; `None` if they are equal.
///
/// Addresses are merged by type, and a type may occur twice, so the patch replaces the list as a whole (pkg/util/node/node.go
/// fixupPatchForNodeStatusAddresses).
pub(crate) fn patch(before: &Value, after: &Value) -> Result<Option<Value>, PatchError> {
    let Some(schema) = strategic::schema_of("v1", "Node") else {
        return Ok(None);
    };
    let counted = |node: &Value| {
        let metadata = &node["metadata"];
        let metadata =
            json!({"labels": metadata["labels"], "annotations": metadata["annotations"]});
        json!({"metadata": metadata, "status": node["status"]})
    };
    let mut patch = strategic::between(schema, &counted(before), &counted(after))?;
    let (old, new) = (&before["status"]["addresses"], &after["status"]["addresses"]);
    if let Some(status) = patch.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("$setElementOrder/addresses");
        status.remove("addresses");
        if old != new {
            let mut addresses = new.as_array().cloned().unwrap_or_default();
            addresses.push(json!({"$patch": "replace"}));
            status.insert("addresses".to_owned(), Value::Array(addresses));
        }
    }
    let is_empty = patch.as_object().is_some_and(Map::is_empty);
    Ok((!is_empty).then_some(patch))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use agent::HandlerFeatures;
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn facts() -> Facts {
        let amounts = [
            ("cpu", "2"),
            ("memory", "16777216000"),
            ("pods", "110"),
            ("ephemeral-storage", "1024"),
        ];
        let amounts: BTreeMap<String, String> =
            amounts.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        Facts {
            name: "n".to_owned(),
            addresses: vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()],
            server_port: Some(10250),
            runtime: "crib://0.1.0".to_owned(),
            declared_features: vec!["Feature"],
            capacity: amounts.clone(),
            allocatable: amounts,
            ..Facts::default()
        }
    }

    fn condition(status: &Value, kind: &str) -> Value {
        let mut conditions = status["conditions"].as_array().unwrap().iter();
        conditions.find(|condition| condition["type"] == kind).unwrap().clone()
    }

    #[test]
    fn ready_node_keeps_conditions_of_other_clients() {
        let before =
            json!({"conditions": [{"type": "Mine", "status": "True"}], "volumesInUse": ["v"]});
        let status = status(&facts(), &before, at(0));
        let kinds: Vec<&Value> =
            status["conditions"].as_array().unwrap().iter().map(|known| &known["type"]).collect();
        assert_eq!(kinds, ["Mine", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        let ready = condition(&status, "Ready");
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("True"), &json!("KubeletReady")));
        assert_eq!(status["volumesInUse"], json!(["v"]));
        assert_eq!(status["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 10250}}));
        assert_eq!(status["capacity"]["memory"], "16000Mi");
        assert_eq!(
            status["addresses"],
            json!([
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "InternalIP", "address": "fd00::1"},
                {"type": "Hostname", "address": "n"},
            ])
        );
    }

    #[test]
    fn problems_and_missing_resources_make_a_node_not_ready() {
        let mut facts = facts();
        let first = status(&facts, &Value::Null, at(0));
        facts.problems.push("container runtime is down".to_owned());
        let second = status(&facts, &first, at(60));
        assert_eq!(condition(&second, "Ready")["message"], "container runtime is down");
        facts.capacity.remove("pods");
        let third = status(&facts, &second, at(120));
        let ready = condition(&third, "Ready");
        assert_eq!(
            ready["message"],
            "[container runtime is down, missing node capacity for resources: pods]"
        );
        assert_eq!(ready["lastTransitionTime"], whole_seconds(at(60)));
        assert_eq!(ready["lastHeartbeatTime"], whole_seconds(at(120)));
        assert_eq!(condition(&third, "MemoryPressure")["lastTransitionTime"], whole_seconds(at(0)));
    }

    #[rstest]
    #[case("MemoryPressure", "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory")]
    #[case("DiskPressure", "KubeletHasDiskPressure", "KubeletHasNoDiskPressure")]
    #[case("PIDPressure", "KubeletHasInsufficientPID", "KubeletHasSufficientPID")]
    fn pressures_are_conditions(#[case] kind: &str, #[case] short: &str, #[case] not: &str) {
        let of = |is_short: bool, before: &Value, second: i64| {
            let pressure = Pressure {
                memory: is_short && kind == "MemoryPressure",
                disk: is_short && kind == "DiskPressure",
                pids: is_short && kind == "PIDPressure",
            };
            status(&Facts { pressure, ..facts() }, before, at(second))
        };
        let first = of(false, &Value::Null, 0);
        assert_eq!(condition(&first, kind)["reason"], not);
        let second = of(true, &first, 60);
        let found = condition(&second, kind);
        assert_eq!((&found["status"], &found["reason"]), (&json!("True"), &json!(short)));
        assert_eq!(found["lastTransitionTime"], whole_seconds(at(60)));
        assert_eq!(condition(&second, "Ready")["status"], "True");
        assert!(differs(&first, &second));
    }

    #[test]
    fn swap_is_reported_if_present() {
        let of = |swap_capacity, before: &Value| {
            status(&Facts { swap_capacity, ..facts() }, before, at(0))
        };
        let without = of(0, &Value::Null);
        assert_eq!(without["nodeInfo"].get("swap"), None);
        let with = of(2_147_479_552, &without);
        assert_eq!(with["nodeInfo"]["swap"], json!({"capacity": 2_147_479_552_i64}));
        assert_eq!(of(0, &with)["nodeInfo"].get("swap"), None);
        let node = |status: &Value| json!({"status": status});
        let off = patch(&node(&with), &node(&without)).unwrap().unwrap();
        assert_eq!(off["status"]["nodeInfo"], json!({"swap": null}));
    }

    #[test]
    fn volumes_in_use_are_kept_while_unknown() {
        let before = json!({"volumesInUse": ["kubernetes.io/csi/d^old"]});
        assert_eq!(status(&facts(), &before, at(0))["volumesInUse"], before["volumesInUse"]);
        let of = |names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            let facts = Facts { volumes_in_use: Some(Arc::new(names)), ..facts() };
            status(&facts, &before, at(0))["volumesInUse"].clone()
        };
        assert_eq!(of(&["b", "a"]), json!(["a", "b"]));
        assert_eq!(of(&[]), Value::Null);
    }

    #[test]
    fn cloud_addresses_are_kept() {
        let facts = Facts { external_cloud: true, ..facts() };
        let first = status(&facts, &Value::Null, at(0));
        assert_eq!(first["addresses"][0]["type"], "InternalIP");
        let facts = Facts { awaits_addresses: true, ..facts };
        let first = status(&facts, &Value::Null, at(0));
        assert_eq!(first["addresses"], json!([{"type": "Hostname", "address": "n"}]));
        let theirs = json!({"addresses": [{"type": "ExternalIP", "address": "203.0.113.1"}]});
        assert_eq!(status(&facts, &theirs, at(0))["addresses"], theirs["addresses"]);
    }

    #[rstest]
    #[case::extended("example.com/licence", Some("3"))]
    #[case::of_kubernetes_domain("kubernetes.io/batch-cpu", Some("3"))]
    #[case::attachments("attachable-volumes-example", Some("3"))]
    #[case::huge_pages_of_another_machine("hugepages-1Gi", None)]
    #[case::own("pods", Some("110"))]
    fn resources_of_other_clients_are_kept(#[case] name: &str, #[case] expected: Option<&str>) {
        let before = json!({"capacity": {name: "3"}, "allocatable": {name: "2"}});
        let status = status(&facts(), &before, at(0));
        for field in ["capacity", "allocatable"] {
            assert_eq!(status[field][name].as_str(), expected, "{field}");
        }
    }

    #[test]
    fn heartbeat_times_are_ignored_by_differs() {
        let first = status(&facts(), &Value::Null, at(0));
        let second = status(&facts(), &first, at(10));
        assert_ne!(first, second);
        assert!(!differs(&first, &second));
        let other = Facts { runtime: "crib://0.2.0".to_owned(), ..facts() };
        assert!(differs(&first, &status(&other, &second, at(20))));
    }

    #[test]
    fn images_are_the_largest_with_digests_first() {
        let image = |size: u64| Image {
            id: format!("sha256:{size}"),
            repo_tags: vec![format!("tag:{size}")],
            repo_digests: vec![format!("digest@{size}")],
            size,
            ..Image::default()
        };
        let images: Vec<Image> = (0..60).map(image).collect();
        let facts = Facts { images: Some(images), max_images: 50, ..facts() };
        let status = status(&facts, &Value::Null, at(0));
        let images = status["images"].as_array().unwrap();
        assert_eq!(images.len(), 50);
        assert_eq!(images[0], json!({"names": ["digest@59", "tag:59"], "sizeBytes": 59}));
    }

    #[test]
    fn images_of_equal_size_are_in_descending_order_of_their_ids() {
        let image = |id: &str| Image {
            id: id.to_owned(),
            repo_tags: vec![format!("tag:{id}")],
            size: 7,
            ..Image::default()
        };
        let images = vec![image("b"), image("c"), image("a")];
        let facts = Facts { images: Some(images), max_images: 2, ..facts() };
        let status = status(&facts, &Value::Null, at(0));
        let names = |tag: &str| json!({"names": [tag], "sizeBytes": 7});
        assert_eq!(status["images"], json!([names("tag:c"), names("tag:b")]));
    }

    #[test]
    fn status_has_runtime_handlers_and_features() {
        let features = HandlerFeatures { recursive_read_only_mounts: true, user_namespaces: false };
        let capabilities = Capabilities {
            handlers: Some(compact::Map::from([(String::new(), features)])),
            strict_supplemental_groups: true,
            ..Capabilities::default()
        };
        let facts = Facts { capabilities: Some(capabilities), ..facts() };
        let status = status(&facts, &Value::Null, at(0));
        let features = json!({"recursiveReadOnlyMounts": true, "userNamespaces": false});
        assert_eq!(status["runtimeHandlers"], json!([{"name": "", "features": features}]));
        assert_eq!(status["features"], json!({"supplementalGroupsPolicy": true}));
        assert_eq!(status["declaredFeatures"], json!(["Feature"]));
    }

    #[test]
    fn node_without_features_removes_those_of_an_earlier_agent() {
        let before = status(&facts(), &Value::Null, at(0));
        let without = Facts { declared_features: Vec::new(), ..facts() };
        assert_eq!(status(&without, &before, at(1)).get("declaredFeatures"), None);
    }

    /// The node after the API server has applied a patch.
    fn patched(before: &Value, patch: &Value) -> Value {
        let mut node = before.clone();
        strategic::apply(strategic::schema_of("v1", "Node").unwrap(), &mut node, patch).unwrap();
        node
    }

    #[test]
    fn patch_keeps_unknown_fields() {
        let mut status_before = status(&facts(), &Value::Null, at(0));
        status_before["declaredFeatures"] = json!(["OfAnotherVersion"]);
        status_before["future"] = json!("kept");
        let before = json!({"metadata": {"labels": {"a": "b"}}, "status": status_before});
        let other =
            Facts { addresses: vec!["10.0.0.9".to_owned(), "fd00::9".to_owned()], ..facts() };
        let mut after = before.clone();
        after["metadata"]["labels"]["c"] = json!("d");
        after["status"] = status(&other, &before["status"], at(10));
        let found = patch(&before, &after).unwrap().unwrap();
        assert_eq!(patched(&before, &found), after);
        assert_eq!(patch(&before, &before).unwrap(), None);
        // A concurrent change of another client remains.
        let mut meanwhile = before.clone();
        meanwhile["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "X"}));
        let merged = patched(&meanwhile, &found);
        assert_eq!(condition(&merged["status"], "X"), json!({"type": "X"}));
    }

    #[test]
    fn limitation_is_a_condition_until_resolved() {
        let complete = status(&facts(), &Value::Null, at(0));
        let has = |status: &Value| {
            let mut conditions = status["conditions"].as_array().unwrap().iter();
            conditions.any(|condition| condition["type"] == LIMITED)
        };
        assert!(!has(&complete));
        let limit = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        let limits = Limits::from([limit("Rootless", "a"), limit("ServicesNotServed", "b")]);
        let lacking = status(&Facts { limits, ..facts() }, &complete, at(1));
        let shown = condition(&lacking, LIMITED);
        assert_eq!((&shown["status"], &shown["reason"]), (&json!("True"), &json!("Rootless")));
        assert_eq!(shown["message"], "a; b");
        let again = condition(&status(&facts(), &lacking, at(2)), LIMITED);
        assert_eq!(again["status"], "False");
        assert_ne!(again["lastTransitionTime"], shown["lastTransitionTime"]);
    }
}
