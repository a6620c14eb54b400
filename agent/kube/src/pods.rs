//! The pods that are bound to the node: they are followed with the objects that they refer to, and what becomes of them is written
//! back. Those of other sources are shown by mirror pods.

use api::pod::{Pod, PodUid};
use compact::Map;

mod claim;
pub(crate) mod due;
mod followed;
pub(crate) mod mirror;
pub(crate) mod mirror_writer;
pub(crate) mod objects;
pub(crate) mod source;
pub(crate) mod status_json;
pub(crate) mod writer;

/// The pods at the server, mirror pods too, as they were seen last.
pub(crate) type KnownPods = Map<PodUid, Pod>;

/// Where a pod's object is.
fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}
