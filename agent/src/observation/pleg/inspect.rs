//! Lists the whole runtime, and inspects one pod: lists it, and queries the details that the last inspection did not query.

use std::cmp::Reverse;
use std::sync::Arc;

use api::pod::PodUid;
use compact::Map;
use jiff::Timestamp;

use super::diff::Listing;
use crate::cri::{Cri, CriError, LastLists, ListedContainer, ListedState, PodRef};
use crate::observed::{ContainerId, ContainerState, Observed, ObservedContainer, ObservedSandbox};

/// The result of an inspection.
pub(super) struct Inspection {
    pub(super) observed: Observed,
    pub(super) listing: Listing,
}

/// Inspects a pod now. Details in `last`, the previous observation, do not change while the state is the same, so each state is
/// queried once; only a resize changes them, after which those of running containers (`resized`) are queried again.
///
/// # Errors
/// Returns the first call's error. An object that disappears between two calls is not an error.
pub(super) async fn inspect(
    cri: &dyn Cri,
    uid: &PodUid,
    last: Option<Arc<Observed>>,
    resized: bool,
    runtime_name: String,
    now: Timestamp,
) -> Result<Inspection, CriError> {
    let runtime_name = match runtime_name {
        name if name.is_empty() => cri.version().await?.runtime_name,
        name => name,
    };
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_sandboxes(Some(uid)), cri.list_containers(Some(uid)))?;
    let listing = Listing::of(&sandboxes, &containers);
    let mut observed = Observed::nothing(now);
    observed.runtime_name = runtime_name;
    for listed in &sandboxes {
        let mut seen = last.iter().flat_map(|last| &last.sandboxes);
        let seen = seen
            .find(|seen| seen.id == listed.id && seen.ready == listed.ready && has_address(seen));
        let sandbox = match seen {
            Some(seen) => Some(seen.clone()),
            None => ignore_not_found(cri.sandbox_status(&listed.id).await)?,
        };
        observed.sandboxes.extend(sandbox);
    }
    for listed in &containers {
        let mut seen = last.iter().flat_map(|last| &last.containers);
        let seen = seen.find(|seen| {
            let is_stale = resized && seen.state.is_running();
            seen.id == listed.id && listed_state(seen) == listed.state && !is_stale
        });
        let container = match seen {
            Some(seen) => Some(seen.clone()),
            None => ignore_not_found(cri.container_status(listed).await)?,
        };
        observed.containers.extend(container);
    }
    Ok(inspection(observed, listing))
}

/// Inspects one container of a pod; everything else is taken from `last`. `None` if the container was not inspected before.
///
/// # Errors
/// Returns the call's error. A container that was removed is not an error.
pub(super) async fn inspect_container(
    cri: &dyn Cri,
    pod: PodRef,
    id: &ContainerId,
    mut listing: Listing,
    last: &Observed,
) -> Result<Option<Inspection>, CriError> {
    let Some(before) = last.containers.iter().find(|seen| seen.id == *id) else {
        return Ok(None);
    };
    let listed = ListedContainer {
        id: before.id.clone(),
        sandbox_id: before.sandbox_id.clone(),
        pod,
        name: before.name.clone(),
        state: ListedState::Unknown,
        created_at: before.created_at,
    };
    let seen = ignore_not_found(cri.container_status(&listed).await)?;
    let mut observed = last.clone();
    observed.containers.retain(|seen| seen.id != *id);
    match &seen {
        Some(seen) => listing.set_state(id, listed_state(seen)),
        None => listing.remove_container(id),
    }
    observed.containers.extend(seen);
    Ok(Some(inspection(observed, listing)))
}

/// The state of a container as in a listing.
fn listed_state(seen: &ObservedContainer) -> ListedState {
    match seen.state {
        ContainerState::Created => ListedState::Created,
        ContainerState::Running { .. } => ListedState::Running,
        ContainerState::Exited(_) => ListedState::Exited,
        ContainerState::Unknown => ListedState::Unknown,
    }
}

/// Sorts the objects, newest first; objects created at the same time are sorted by id.
fn inspection(mut observed: Observed, listing: Listing) -> Inspection {
    compact::sort_by(&mut observed.sandboxes, |one, other| {
        let age = |of: &ObservedSandbox| Reverse((of.created_at, of.attempt));
        age(one).cmp(&age(other)).then_with(|| one.id.cmp(&other.id))
    });
    compact::sort_by(&mut observed.containers, |one, other| {
        let age = |of: &ObservedContainer| Reverse((of.created_at, of.restart_count));
        age(one).cmp(&age(other)).then_with(|| one.id.cmp(&other.id))
    });
    observed.sandboxes.shrink_to_fit();
    observed.containers.shrink_to_fit();
    Inspection { observed, listing }
}

/// A sandbox without an address may still get one.
fn has_address(sandbox: &ObservedSandbox) -> bool {
    !sandbox.ready
        || sandbox.ips.as_ref().and_then(|ips| ips.first()).is_some_and(|ip| !ip.is_empty())
}

/// Maps NotFound to `None`: the object was removed after it was listed.
fn ignore_not_found<T>(answer: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The sandboxes and containers of every pod in the runtime.
#[derive(Debug)]
pub(crate) struct RuntimeListing {
    /// The start of the listing: containers that ended before are not listed as running.
    pub(crate) begun: Timestamp,
    /// The pods.
    pub(crate) pods: Arc<ListedPods>,
}

/// Each pod's part of the listing.
pub(crate) type ListedPods = Map<PodUid, (PodRef, Arc<Listing>)>;

/// Lists all sandboxes and containers, grouped by pod; returns `before` if nothing changed.
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
    let mut pods = Map::new();
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

fn listing_of(pods: &mut Map<PodUid, (PodRef, Listing)>, pod: PodRef) -> &mut Listing {
    let found = pods.entry(pod.uid.clone());
    &mut found.or_insert_with(|| (pod, Listing::default())).1
}
