//! Inspects one pod: lists it, and gets the details that the last inspection did not already get.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::diff::Listing;
use crate::cri::{Cri, CriError, ListedContainer, ListedState, PodRef};
use crate::observed::{
    ContainerId, ContainerState, Observed, ObservedContainer, ObservedSandbox, SandboxId,
};
use crate::pod::PodUid;

/// Details from earlier inspections. They do not change while the state is the same, so each state is queried once; only a
/// resize changes them.
#[derive(Clone, Debug, Default)]
pub(super) struct DetailCache {
    /// Boxed, since a map has room for eleven at least, and a pod one or two.
    containers: BTreeMap<ContainerId, Box<(ListedState, ObservedContainer)>>,
    sandboxes: BTreeMap<SandboxId, Box<ObservedSandbox>>,
}

/// The result of an inspection.
pub(super) struct Inspection {
    pub(super) observed: Observed,
    pub(super) listing: Listing,
    pub(super) details: DetailCache,
}

/// Inspects a pod now.
///
/// # Errors
/// Returns the first call's error. An object that disappears between two calls is not an error.
pub(super) async fn inspect(
    cri: &dyn Cri,
    uid: &PodUid,
    cache: Arc<DetailCache>,
    runtime_name: String,
    now: Timestamp,
) -> Result<Inspection, CriError> {
    let runtime_name = match runtime_name {
        name if name.is_empty() => cri.version().await?.runtime_name,
        name => name,
    };
    let (sandboxes, containers) = tokio::try_join!(
        cri.list_sandboxes(Some(uid)),
        cri.list_containers(Some(uid))
    )?;
    let listing = Listing::of(&sandboxes, &containers);
    let mut found = DetailCache::default();
    for listed in &sandboxes {
        let seen = cache
            .sandboxes
            .get(&listed.id)
            .filter(|seen| seen.ready == listed.ready && has_address(seen));
        let sandbox = match seen {
            Some(seen) => Some(seen.as_ref().clone()),
            None => unless_not_found(cri.sandbox_status(&listed.id).await)?,
        };
        found
            .sandboxes
            .extend(sandbox.map(|sandbox| (listed.id.clone(), Box::new(sandbox))));
    }
    for listed in &containers {
        let seen = cache
            .containers
            .get(&listed.id)
            .filter(|seen| seen.0 == listed.state);
        let container = match seen {
            Some(seen) => Some(seen.1.clone()),
            None => unless_not_found(cri.container_status(listed).await)?,
        };
        found.containers.extend(
            container.map(|container| (listed.id.clone(), Box::new((listed.state, container)))),
        );
    }
    Ok(found.inspection(listing, runtime_name, now))
}

/// Inspects one container of a pod, of which everything else is as it was at `last`. `None` if it was not inspected before.
///
/// # Errors
/// Returns the call's error. A container that is gone is not an error.
pub(super) async fn inspect_container(
    cri: &dyn Cri,
    pod: PodRef,
    id: &ContainerId,
    details: &DetailCache,
    mut listing: Listing,
    last: &Observed,
) -> Result<Option<Inspection>, CriError> {
    let mut details = details.clone();
    let Some(before) = details.containers.remove(id) else {
        return Ok(None);
    };
    let (_, before) = *before;
    let listed = ListedContainer {
        id: before.id.clone(),
        sandbox_id: before.sandbox_id.clone(),
        pod,
        name: before.name.clone(),
        state: ListedState::Unknown,
        created_at: before.created_at,
    };
    match unless_not_found(cri.container_status(&listed).await)? {
        Some(seen) => {
            let state = match seen.state {
                ContainerState::Created => ListedState::Created,
                ContainerState::Running { .. } => ListedState::Running,
                ContainerState::Exited(_) => ListedState::Exited,
                ContainerState::Unknown => ListedState::Unknown,
            };
            listing.set_state(id, state);
            details
                .containers
                .insert(id.clone(), Box::new((state, seen)));
        }
        None => listing.remove_container(id),
    }
    Ok(Some(details.inspection(
        listing,
        last.runtime_name.clone(),
        last.at,
    )))
}

impl DetailCache {
    /// All but those of running containers.
    pub(super) fn without_running(&self) -> Self {
        let mut others = self.clone();
        others
            .containers
            .retain(|_, seen| seen.0 != ListedState::Running);
        others
    }

    /// What was found, as an inspection at this time.
    fn inspection(self, listing: Listing, runtime_name: String, at: Timestamp) -> Inspection {
        let found = self;
        let mut observed = Observed::nothing(at);
        observed.runtime_name = runtime_name;
        observed.sandboxes = found
            .sandboxes
            .values()
            .map(|seen| seen.as_ref().clone())
            .collect();
        observed
            .sandboxes
            .sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_at, sandbox.attempt)));
        observed.containers = found
            .containers
            .values()
            .map(|seen| seen.1.clone())
            .collect();
        observed.containers.sort_by_key(|container| {
            std::cmp::Reverse((container.created_at, container.restart_count))
        });
        Inspection {
            observed,
            listing,
            details: found,
        }
    }
}

/// A sandbox without an address may still get one.
fn has_address(sandbox: &ObservedSandbox) -> bool {
    !sandbox.ready
        || sandbox
            .ips
            .as_ref()
            .and_then(|ips| ips.first())
            .is_some_and(|ip| !ip.is_empty())
}

/// Maps NotFound to `None`: the object was removed after it was listed.
fn unless_not_found<T>(answer: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
