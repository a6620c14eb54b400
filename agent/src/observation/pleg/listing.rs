//! A full listing of the runtime.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::PodUid;
use jiff::Timestamp;

use super::diff::Listing;
use crate::cri::{Cri, CriError, LastLists, PodRef};

/// The sandboxes and containers of every pod in the runtime.
#[derive(Debug)]
pub(crate) struct RuntimeListing {
    /// What ended before this is not listed as running.
    pub(crate) begun: Timestamp,
    /// The pods.
    pub(crate) pods: Arc<ListedPods>,
}

/// What is listed of each pod.
pub(crate) type ListedPods = BTreeMap<PodUid, (PodRef, Arc<Listing>)>;

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
    let mut pods = BTreeMap::new();
    for sandbox in sandboxes {
        listing_of(&mut pods, sandbox.pod).add_sandbox(sandbox.id, sandbox.ready);
    }
    for container in containers {
        let (id, name) = (container.id, container.name);
        listing_of(&mut pods, container.pod).add_container(id, name, container.state);
    }
    let shared = pods.into_iter().map(|(uid, (pod, listing))| (uid, (pod, Arc::new(listing))));
    let pods = Arc::new(shared.collect());
    Ok(RuntimeListing { begun, pods })
}

fn listing_of(pods: &mut BTreeMap<PodUid, (PodRef, Listing)>, pod: PodRef) -> &mut Listing {
    let found = pods.entry(pod.uid.clone());
    &mut found.or_insert_with(|| (pod, Listing::default())).1
}
