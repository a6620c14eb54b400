//! The pods that are bound to the node: they are followed with the objects that they refer to, and what becomes of them is written
//! back. Those of other sources are shown by mirror pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use tokio::sync::watch;

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
pub(crate) type KnownPods = BTreeMap<PodUid, Pod>;

/// The mirror pods at the server, as they were seen last. Clones see the same.
#[derive(Clone, Debug)]
pub struct MirrorPods(watch::Receiver<Arc<KnownPods>>);

impl MirrorPods {
    pub(crate) fn new(known: watch::Receiver<Arc<KnownPods>>) -> Self {
        Self(known)
    }

    /// The uid of the static pod that the mirror pod of this uid shows; `None`: it is no mirror pod's.
    #[must_use]
    pub fn shown_by(&self, uid: &str) -> Option<PodUid> {
        let known = self.0.borrow();
        let pod = known.get(&PodUid::new(uid)).filter(|pod| mirror::is_mirror(pod))?;
        Some(mirror::reported_uid(pod))
    }
}

/// Where a pod's object is.
fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}
