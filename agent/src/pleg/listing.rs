//! A full listing of the runtime.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::diff::Listing;
use crate::cri::{Cri, CriError, LastLists, PodRef};
use crate::pod::PodUid;

/// The sandboxes and containers of every pod in the runtime.
#[derive(Debug)]
pub(crate) struct RuntimeListing {
    /// What ended before this is not listed as running.
    pub(crate) begun: Timestamp,
    /// The pods.
    pub(crate) pods: Arc<ListedPods>,
}

/// What is listed of each pod.
pub(crate) type ListedPods = BTreeMap<PodUid, (PodRef, Listing)>;

/// Lists all sandboxes and containers, grouped by pod; `before` if they are as they were.
pub(super) async fn list(
    cri: &dyn Cri,
    begun: Timestamp,
    last: &mut LastLists,
    before: Arc<ListedPods>,
) -> Result<RuntimeListing, CriError> {
    let Some((sandboxes, containers)) = cri.list_all(last).await? else {
        let pods = before;
        return Ok(RuntimeListing { begun, pods });
    };
    let mut pods = ListedPods::new();
    for sandbox in &sandboxes {
        listing_of(&mut pods, &sandbox.pod).add_sandbox(sandbox);
    }
    for container in &containers {
        listing_of(&mut pods, &container.pod).add_container(container);
    }
    let pods = Arc::new(pods);
    Ok(RuntimeListing { begun, pods })
}

fn listing_of<'a>(pods: &'a mut ListedPods, pod: &PodRef) -> &'a mut Listing {
    &mut pods
        .entry(pod.uid.clone())
        .or_insert_with(|| (pod.clone(), Listing::default()))
        .1
}
