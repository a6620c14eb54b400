//! Inspects one pod: lists it, and gets the details that the last inspection did not already get.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::diff::Listing;
use crate::cri::{Cri, CriError, ListedState};
use crate::observed::{ContainerId, Observed, ObservedContainer, ObservedSandbox, SandboxId};
use crate::pod::PodUid;

/// Details from earlier inspections. They do not change while the state is the same, so each state is queried once.
#[derive(Clone, Debug, Default)]
pub(super) struct DetailCache {
    containers: BTreeMap<ContainerId, (ListedState, ObservedContainer)>,
    sandboxes: BTreeMap<SandboxId, ObservedSandbox>,
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
            Some(seen) => Some(seen.clone()),
            None => unless_not_found(cri.sandbox_status(&listed.id).await)?,
        };
        found
            .sandboxes
            .extend(sandbox.map(|sandbox| (listed.id.clone(), sandbox)));
    }
    for listed in &containers {
        let seen = cache
            .containers
            .get(&listed.id)
            .filter(|(state, _)| *state == listed.state);
        let container = match seen {
            Some((_, seen)) => Some(seen.clone()),
            None => unless_not_found(cri.container_status(listed).await)?,
        };
        found
            .containers
            .extend(container.map(|container| (listed.id.clone(), (listed.state, container))));
    }
    let mut observed = Observed::nothing(now);
    observed.runtime_name = runtime_name;
    observed.sandboxes = found.sandboxes.values().cloned().collect();
    observed
        .sandboxes
        .sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_at, sandbox.attempt)));
    observed.containers = found
        .containers
        .values()
        .map(|(_, container)| container.clone())
        .collect();
    observed.containers.sort_by_key(|container| {
        std::cmp::Reverse((container.created_at, container.restart_count))
    });
    Ok(Inspection {
        observed,
        listing,
        details: found,
    })
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
