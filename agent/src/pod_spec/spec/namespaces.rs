//! ◆ The namespaces of a pod.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/util, pkg/kubelet/userns.

use api::pod::Pod;

use crate::node::{Node, UnknownRuntimeClass};
use crate::pod_spec::spec::{NamespaceMode, Namespaces, UserNamespace};

/// Why a pod cannot have its namespaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// The node does not have the pod's RuntimeClass.
    #[error(transparent)]
    RuntimeClass(#[from] UnknownRuntimeClass),
    /// The runtime does not support user namespaces.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces{unknown}")]
    Runtime {
        /// `: the handler "" is not known`, if the runtime lists others.
        unknown: String,
    },
    /// The runtime handler does not support user namespaces.
    #[error(
        "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces{unknown}"
    )]
    Handler {
        /// The handler.
        handler: String,
        /// `: the handler … is not known`, if the runtime lists others.
        unknown: String,
    },
    /// No ids are left for the pod.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    NoIds,
}

/// The namespaces of the pod's containers. `ids` are those of its user namespace.
pub(super) fn of_pod(
    pod: &Pod,
    node: &Node,
    ids: Option<&UserNamespace>,
) -> Result<Namespaces, NamespaceError> {
    let spec = pod.spec();
    let shared = |node: Option<bool>| {
        if node == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod }
    };
    Ok(Namespaces {
        network: shared(spec.host_network),
        ipc: shared(spec.host_ipc),
        pid: if spec.host_pid == Some(true) {
            NamespaceMode::Node
        } else if spec.share_process_namespace == Some(true) {
            NamespaceMode::Pod
        } else {
            NamespaceMode::Container
        },
        target_id: String::new(),
        user: user(pod, node, ids)?,
    })
}

/// The pod's user namespace; `None`: the node's.
fn user(
    pod: &Pod,
    node: &Node,
    ids: Option<&UserNamespace>,
) -> Result<Option<UserNamespace>, NamespaceError> {
    let handler = node.runtime_handler(pod.spec().runtime_class_name.as_deref())?;
    if pod.spec().host_users != Some(false) {
        return Ok(None);
    }
    let listed = node.runtime_handlers.as_ref().filter(|listed| !listed.is_empty());
    let features = listed.map(|listed| listed.get(&handler));
    if features.flatten().is_some_and(|features| features.user_namespaces) {
        return ids.cloned().map(Some).ok_or(NamespaceError::NoIds);
    }
    let unknown = match features {
        Some(None) => format!(": the handler {handler:?} is not known"),
        Some(Some(_)) | None => String::new(),
    };
    Err(if handler.is_empty() {
        NamespaceError::Runtime { unknown }
    } else {
        NamespaceError::Handler { handler, unknown }
    })
}
