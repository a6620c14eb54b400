//! The pods that are bound to the node: follows them and the objects that they refer to, and writes their statuses back. Mirror
//! pods represent the pods of other sources.

use api::pod::{Pod, PodUid};
use compact::Map;

mod claim;
pub(crate) mod due;
pub(crate) mod mirror;
pub(crate) mod mirror_writer;
pub(crate) mod objects;
pub(crate) mod source;
pub(crate) mod status_json;
mod watch_targets;
pub(crate) mod writer;

/// The last known pods at the server, including mirror pods.
pub(crate) type KnownPods = Map<PodUid, Pod>;

/// The path of a pod's object.
fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}
