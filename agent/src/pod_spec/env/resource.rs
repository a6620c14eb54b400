//! ◆ Requests and limits of containers as values of environment variables (`resourceFieldRef`).
//!
//! Source: Kubernetes 1.36, pkg/api/v1/resource/helpers.go, pkg/kubelet/kubelet_resources.go.

use api::pod::Pod;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};

use crate::node::Node;

/// Why a resource has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// The pod has no such container.
    #[error("container {name} not found")]
    Container {
        /// The name.
        name: String,
    },
    /// The resource is not supported.
    #[error("unsupported container resource : {resource}")]
    Resource {
        /// The resource.
        resource: String,
    },
}

/// The value of a resource of a container, rounded up to a multiple of the divisor.
pub(super) fn value(
    pod: &Pod,
    container: &Container,
    node: &Node,
    wanted: &ResourceFieldSelector,
) -> Result<String, ResourceError> {
    let (about, defaulted) = match wanted.container_name.as_deref() {
        None | Some("") => (container, true),
        Some(name) => named(pod, name)?,
    };
    let default = |name: &str| {
        if defaulted { default_limit(pod, node, name) } else { Quantity::ZERO }
    };
    of_container(about, default, wanted)
}

/// The value of a resource of the named container for a downwardAPI volume: the default limit of an init container is the node's
/// too, and pod-level limits are ignored.
pub(crate) fn of_named(
    pod: &Pod,
    node: &Node,
    wanted: &ResourceFieldSelector,
) -> Result<String, ResourceError> {
    let (about, _) = named(pod, wanted.container_name.as_deref().unwrap_or_default())?;
    of_container(about, |name| of_node(node, name), wanted)
}

/// `default` is the limit of a container without one.
fn of_container(
    about: &Container,
    default: impl Fn(&str) -> Quantity,
    wanted: &ResourceFieldSelector,
) -> Result<String, ResourceError> {
    let unsupported = || ResourceError::Resource { resource: wanted.resource.clone() };
    let (list, name) = wanted.resource.split_once('.').ok_or_else(unsupported)?;
    let huge = name.starts_with("hugepages-");
    if !huge && !matches!(name, "cpu" | "memory" | "ephemeral-storage") {
        return Err(unsupported());
    }
    let resources = about.resources.as_ref();
    let listed = match list {
        "limits" => resources.and_then(|resources| resources.limits.as_ref()),
        "requests" => resources.and_then(|resources| resources.requests.as_ref()),
        _ => return Err(unsupported()),
    };
    let parsed = |text: &str| Quantity::parse(text).unwrap_or(Quantity::ZERO);
    let mut amount = listed
        .and_then(|listed| listed.get(name))
        .map_or(Quantity::ZERO, |amount| parsed(&amount.0));
    if amount.is_zero() && list == "limits" && !huge {
        amount = default(name);
    }
    let divisor = wanted.divisor.as_ref().map_or(Quantity::ZERO, |divisor| parsed(&divisor.0));
    let divisor = if divisor.is_zero() { Quantity::ONE } else { divisor };
    // CPUs are counted in thousandths, so that a divisor of 1m is exact.
    let (amount, divisor) = if name == "cpu" {
        (amount.milli_value(), divisor.milli_value())
    } else {
        (amount.value(), divisor.value())
    };
    Ok(divided(amount, divisor).to_string())
}

/// The container of this name, and whether the node's limits apply to it: as in the kubelet, not to an init container.
fn named<'a>(pod: &'a Pod, name: &str) -> Result<(&'a Container, bool), ResourceError> {
    let find = |list: &'a [Container]| list.iter().find(|container| container.name == name);
    let app = find(pod.containers()).map(|app| (app, true));
    app.or_else(|| find(pod.init_containers()).map(|init| (init, false)))
        .ok_or_else(|| ResourceError::Container { name: name.to_owned() })
}

/// The limit of a container without its own: the pod's, or else the node's allocatable amount.
fn default_limit(pod: &Pod, node: &Node, name: &str) -> Quantity {
    if !node.allocatable.contains_key(name) {
        return Quantity::ZERO;
    }
    let limits = pod.spec().resources.as_ref();
    let of_pod = limits
        .and_then(|resources| resources.limits.as_ref()?.get(name))
        .filter(|_| name == "cpu" || name == "memory")
        .and_then(|limit| Quantity::parse(&limit.0).ok())
        .filter(|limit| !limit.is_zero());
    of_pod.unwrap_or_else(|| of_node(node, name))
}

/// The node's allocatable amount.
fn of_node(node: &Node, name: &str) -> Quantity {
    let amount = node.allocatable.get(name);
    let amount = amount.and_then(|amount| Quantity::parse(amount).ok());
    amount.unwrap_or(Quantity::ZERO)
}

/// The quotient, rounded up, computed with floating point numbers as in the kubelet.
fn divided(amount: i64, divisor: i64) -> i64 {
    (amount as f64 / divisor as f64).ceil() as i64
}
