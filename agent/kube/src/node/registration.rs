//! Registers the node: creates its object, or adopts the existing one.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_node_status.go registerWithAPIServer, tryRegisterWithAPIServer, initialNode,
//! updateDefaultLabels, reconcileExtendedResource.

use std::time::Duration;

use api::manifest::is_extended;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::facts::{NodeFacts, Registration};
use super::status::{patch, status};
use crate::client::{ApiClient, ApiError, PatchKind};

/// The first back-off delay and the maximum.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(7);

/// The annotation of nodes for which the attach/detach controller attaches volumes.
const ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The annotation with the node addresses given on the command line, which the cloud controller verifies.
const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

/// The taint of nodes that the cloud controller has not initialized yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The labels that a repeated registration overwrites.
const DEFAULT_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The path of the node's object.
pub(crate) fn path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// The object of a new node.
pub(crate) fn initial(registration: &Registration, status: &Value) -> Value {
    let mut spec = json!({});
    let mut taints = registration.taints.clone();
    if registration.external_cloud {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    if !taints.is_empty() {
        spec["taints"] = api::manifest::to_json(&taints);
    }
    if let Some(id) = &registration.provider_id {
        spec["providerID"] = json!(id);
    }
    let mut annotations = json!({ATTACH: "true"});
    if registration.external_cloud && !registration.provided_addresses.is_empty() {
        annotations[PROVIDED] = json!(registration.provided_addresses.join(","));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": registration.name,
            "labels": registration.labels,
            "annotations": annotations,
        },
        "spec": spec,
        "status": status,
    })
}

/// ◆ The existing node, with the default labels and the annotations of a new one. Its taints stay. With `resets_extended`, its
/// extended resources are 0 until device plugins or other clients advertise them again: the old amounts may be those of an
/// earlier machine.
fn reconciled(existing: &Value, initial: &Value, resets_extended: bool) -> Value {
    let mut node = existing.clone();
    for label in DEFAULT_LABELS {
        let Some(expected) = initial["metadata"]["labels"].get(label) else {
            continue;
        };
        if expected == "" {
            node["metadata"]["labels"].as_object_mut().and_then(|all| all.remove(label));
        } else {
            node["metadata"]["labels"][label] = expected.clone();
        }
    }
    if resets_extended {
        let capacity = existing["status"]["capacity"].as_object().into_iter().flatten();
        for (resource, _) in capacity.filter(|(resource, _)| is_extended(resource)) {
            for field in ["capacity", "allocatable"] {
                let amounts = &mut node["status"][field];
                if !amounts.is_object() {
                    *amounts = json!({});
                }
                amounts[resource] = json!("0");
            }
        }
    }
    let annotations = &initial["metadata"]["annotations"];
    node["metadata"]["annotations"][ATTACH] = annotations[ATTACH].clone();
    match annotations.get(PROVIDED) {
        Some(addresses) => node["metadata"]["annotations"][PROVIDED] = addresses.clone(),
        None => {
            node["metadata"]["annotations"].as_object_mut().and_then(|all| all.remove(PROVIDED));
        }
    }
    node
}

/// Registers the node, and retries until it succeeds. Returns the status of a new node, or `None` if it existed.
pub(crate) async fn register(client: &ApiClient, node: &NodeFacts) -> Option<Value> {
    let name = &node.registration.name;
    if !node.registration.registers {
        tracing::info!(node = %name, "waiting for another client to register the node");
        return None;
    }
    node.startup.attempted(Timestamp::now());
    let only_existing = node.gates.enabled("KubeletRegistrationGetOnExistsOnly");
    let mut wait = RETRY;
    loop {
        let status = status(&node.now().await, &Value::Null, Timestamp::now());
        let resets_extended = node.view.resets_extended_resources();
        let object = initial(&node.registration, &status);
        match try_register(client, &object, resets_extended, only_existing).await {
            Ok(existed) => {
                tracing::info!(node = %name, existed, "registered node");
                if !existed {
                    node.startup.registered_new(Timestamp::now());
                }
                return (!existed).then_some(status);
            }
            Err(error) => {
                let (node, error) = (name, &error as &dyn std::error::Error);
                tracing::warn!(%node, error, "failed to register node; will retry");
            }
        }
        sleep(wait).await;
        wait = wait.saturating_mul(2).min(RETRY_MAX);
    }
}

/// Whether there may be a node of that name, given the error of its creation. A client that may not create nodes may have one
/// nevertheless, unless the agent gets only those that exist (gate KubeletRegistrationGetOnExistsOnly).
fn may_exist(error: &ApiError, only_existing: bool) -> bool {
    error.is_already_exists() || !only_existing && error.is_forbidden()
}

/// Returns whether there was a node of that name.
async fn try_register(
    client: &ApiClient,
    node: &Value,
    resets_extended: bool,
    only_existing: bool,
) -> Result<bool, ApiError> {
    match client.create("/api/v1/nodes", node).await {
        Ok(_) => return Ok(false),
        Err(error) if may_exist(&error, only_existing) => {}
        Err(error) => return Err(error),
    }
    let path = path(node["metadata"]["name"].as_str().unwrap_or_default());
    let existing = client.get(&path, &[]).await?;
    let patch = patch(&existing, &reconciled(&existing, node, resets_extended));
    if let Some(patch) = patch.map_err(|error| ApiError::Malformed(error.to_string()))? {
        let path = format!("{path}/status");
        client.patch(&path, PatchKind::StrategicMerge, &patch).await?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::exists(409, "AlreadyExists", true, true)]
    #[case::forbidden(403, "Forbidden", true, false)]
    #[case::invalid(422, "Invalid", false, false)]
    fn node_may_exist_after_failed_creation(
        #[case] code: u16,
        #[case] reason: &str,
        #[case] expected: bool,
        #[case] with_gate: bool,
    ) {
        let (reason, message) = (reason.to_owned(), String::new());
        let error = ApiError::Refused { code, reason, message };
        assert_eq!(may_exist(&error, false), expected);
        assert_eq!(may_exist(&error, true), with_gate);
    }

    fn registration() -> Registration {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Registration {
            name: "n".to_owned(),
            labels: std::collections::BTreeMap::from([
                label("kubernetes.io/os", "linux"),
                label("disk", "ssd"),
            ]),
            taints: vec![Taint {
                key: "k".to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            }],
            registers: true,
            ..Registration::default()
        }
    }

    #[test]
    fn new_node_has_labels_and_taints() {
        let node = initial(&registration(), &json!({"phase": "x"}));
        assert_eq!(node["metadata"]["labels"]["disk"], "ssd");
        assert_eq!(node["metadata"]["annotations"][ATTACH], "true");
        assert_eq!(node["spec"]["taints"], json!([{"key": "k", "effect": "NoSchedule"}]));
        assert_eq!(node["status"], json!({"phase": "x"}));
    }

    #[test]
    fn node_of_a_cloud_has_its_id_and_the_first_taint() {
        let registration = Registration {
            provider_id: Some("cloud:///1".to_owned()),
            external_cloud: true,
            ..registration()
        };
        let node = initial(&registration, &Value::Null);
        assert_eq!(node["spec"]["providerID"], "cloud:///1");
        let first = json!({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"});
        assert_eq!(node["spec"]["taints"][1], first);
    }

    #[test]
    fn provided_addresses_are_annotated_for_the_cloud() {
        let provided = Registration {
            provided_addresses: vec!["192.0.2.1".to_owned(), "2001:db8::1".to_owned()],
            ..registration()
        };
        let of_cloud = Registration { external_cloud: true, ..provided.clone() };
        let node = initial(&of_cloud, &Value::Null);
        assert_eq!(node["metadata"]["annotations"][PROVIDED], "192.0.2.1,2001:db8::1");
        let existing = json!({"metadata": {"name": "n"}});
        let known = reconciled(&existing, &node, false);
        assert_eq!(known["metadata"]["annotations"][PROVIDED], "192.0.2.1,2001:db8::1");
        // Without a cloud provider the annotation is removed.
        let later = reconciled(&known, &initial(&provided, &Value::Null), false);
        assert_eq!(later["metadata"]["annotations"], json!({ATTACH: "true"}));
    }

    #[test]
    fn existing_node_keeps_its_own_labels_and_taints() {
        let existing = json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/os": "plan9", "theirs": "1"}},
            "spec": {"taints": [{"key": "theirs"}], "podCIDR": "10.0.0.0/24"},
        });
        let node = reconciled(&existing, &initial(&registration(), &Value::Null), false);
        let labels = json!({"kubernetes.io/os": "linux", "theirs": "1"});
        assert_eq!(node["metadata"]["labels"], labels);
        assert_eq!(node["metadata"]["annotations"][ATTACH], "true");
        assert_eq!(node["spec"], existing["spec"]);
    }

    #[test]
    fn empty_default_label_is_removed() {
        let zone = "topology.kubernetes.io/zone";
        let mut without_zone = registration();
        without_zone.labels.insert(zone.to_owned(), String::new());
        let initial = initial(&without_zone, &Value::Null);
        for labels in [json!({zone: "old", "theirs": "1"}), json!({"theirs": "1"})] {
            let existing = json!({"metadata": {"name": "n", "labels": labels}});
            let labels = json!({"kubernetes.io/os": "linux", "theirs": "1"});
            assert_eq!(reconciled(&existing, &initial, false)["metadata"]["labels"], labels);
        }
    }

    #[rstest]
    #[case::missing(json!(null))]
    #[case::array(json!(["1"]))]
    #[case::text(json!("1"))]
    fn malformed_resources_of_an_earlier_machine_are_replaced(#[case] allocatable: Value) {
        let status = json!({"capacity": {"example.com/gpu": "3"}, "allocatable": allocatable});
        let existing = json!({"metadata": {"name": "n"}, "status": status});
        let node = reconciled(&existing, &initial(&registration(), &Value::Null), true);
        assert_eq!(node["status"]["allocatable"], json!({"example.com/gpu": "0"}));
    }

    #[test]
    fn extended_resources_of_an_earlier_machine_are_zero() {
        let amounts = json!({"cpu": "2", "hugepages-2Mi": "4Mi", "example.com/gpu": "3"});
        let status = json!({"capacity": amounts, "allocatable": amounts});
        let existing = json!({"metadata": {"name": "n"}, "status": status});
        let initial = initial(&registration(), &Value::Null);
        assert_eq!(reconciled(&existing, &initial, false)["status"], status);
        let zero = json!({"cpu": "2", "hugepages-2Mi": "4Mi", "example.com/gpu": "0"});
        let node = reconciled(&existing, &initial, true);
        assert_eq!(node["status"], json!({"capacity": zero, "allocatable": zero}));
        let patch = patch(&existing, &node).unwrap().unwrap();
        let zero = json!({"example.com/gpu": "0"});
        assert_eq!(patch["status"], json!({"capacity": zero, "allocatable": zero}));
    }
}
