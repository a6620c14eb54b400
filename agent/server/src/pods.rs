//! Pods and their containers, from the agent and the runtime.

use agent::cri::{Cri, CriError, ListedContainer, ListedState, PodRef};
use api::pod::PodUid;
use compact::Map;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::node_api::NodeApi;
use super::response::ErrorResponse;

/// The pod that a URL names, and its uid. A uid in the URL must be the pod's or that of its mirror pod.
///
/// The kubelet checks only the uids of port-forwards, and does not accept a mirror pod's there.
pub(crate) fn named(
    node_api: &NodeApi,
    pod: Option<Pod>,
    requested_uid: Option<&str>,
) -> Result<(Pod, PodUid), ErrorResponse> {
    let pod = pod.ok_or_else(|| ErrorResponse::not_found("pod does not exist"))?;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    if requested_uid.is_some_and(|requested_uid| !node_api.matches_uid(requested_uid, &uid)) {
        return Err(ErrorResponse::not_found("pod not found"));
    }
    Ok((pod, PodUid::new(uid)))
}

/// Whether the pod has a container of this name.
pub(crate) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    spec.containers.iter().chain(init).any(|container| container.name == name)
        || ephemeral.map(|container| &container.name).any(|own| own == name)
}

/// Whether the pod's container has a terminal.
pub(crate) fn has_terminal(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let init = spec.init_containers.iter().flatten();
    let own = spec.containers.iter().chain(init).find(|container| container.name == name);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.filter(|container| container.name == name);
    let terminals = own.map(|own| own.tty).into_iter().chain(ephemeral.map(|own| own.tty));
    terminals.flatten().any(|tty| tty)
}

/// The newest running attempt of a container.
pub(crate) async fn running(
    cri: &dyn Cri,
    uid: &PodUid,
    name: &str,
) -> Result<Option<ListedContainer>, CriError> {
    let listed = cri.list_containers(Some(uid)).await?;
    let running = listed
        .into_iter()
        .filter(|listed| listed.name == name && listed.state == ListedState::Running);
    Ok(running.max_by_key(|listed| listed.created_at))
}

/// The pods with a ready sandbox or a running container, as a PodList.
pub(crate) async fn running_list(cri: &dyn Cri) -> Result<String, CriError> {
    let sandboxes = cri.list_sandboxes(None).await?;
    let containers = cri.list_containers(None).await?;
    let mut pods: Map<PodRef, Vec<Value>> = Map::new();
    for sandbox in sandboxes.into_iter().filter(|sandbox| sandbox.ready) {
        pods.entry(sandbox.pod).or_default();
    }
    for container in containers {
        if container.state == ListedState::Running {
            let item = json!({"name": container.name, "resources": {}});
            pods.entry(container.pod).or_default().push(item);
        }
    }
    let item = |(pod, containers): (PodRef, Vec<Value>)| {
        json!({
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid.as_str(),
            },
            "spec": {"containers": containers},
            "status": {},
        })
    };
    let items: Vec<Value> = pods.into_iter().map(item).collect();
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    Ok(list.to_string())
}
