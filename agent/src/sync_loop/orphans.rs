//! ◆ Finds pods of the runtime that have neither a source nor a worker.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go HandlePodCleanups and pkg/kubelet/kuberuntime/kuberuntime_gc.go: the next
//! housekeeping stops all containers of a running orphan; ended ones are left to garbage collection.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use compact::Map;
use jiff::Timestamp;

use crate::cri::PodRef;
use crate::observation::pleg::RuntimeListing;
use crate::observation::pleg::diff::Listing;

/// The pods that are not orphans.
pub(crate) struct KnownPods<'a> {
    pub(crate) desired: &'a [Pod],
    pub(crate) has_worker: &'a dyn Fn(&PodUid) -> bool,
    /// When workers ended. A listing that began earlier is outdated for their pods.
    pub(crate) ended: &'a Map<PodUid, Timestamp>,
}

/// The orphans of a listing. Call it only after every source's first update. `owns` takes the id of the agent that created a pod:
/// pods of other agents are not orphans.
#[must_use]
pub(crate) fn orphans<'a>(
    listed: &'a RuntimeListing,
    known: &KnownPods<'_>,
    owns: impl Fn(Option<&str>) -> bool,
) -> Orphans<'a> {
    // In most cases each pod has a worker.
    let desired =
        LazyCell::new(|| -> HashSet<&PodUid> { known.desired.iter().map(Pod::uid).collect() });
    let mut orphans = Orphans::default();
    for (uid, (pod, listing)) in listed.pods.iter() {
        let is_stale = known.ended.get(uid).is_some_and(|at| listed.begun <= *at);
        if is_stale
            || (known.has_worker)(uid)
            || desired.contains(uid)
            || !owns(pod.agent.as_deref())
        {
            continue;
        }
        if listing.anything_runs() {
            orphans.running.push(pod);
        } else {
            orphans.ended.push((pod, listing));
        }
    }
    orphans
}

/// Pods that no source has.
#[derive(Debug, Default)]
pub(crate) struct Orphans<'a> {
    /// Pods with a running container or a ready sandbox.
    pub(crate) running: Vec<&'a PodRef>,
    /// Pods whose rest can be removed.
    pub(crate) ended: Vec<(&'a PodRef, &'a Arc<Listing>)>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::cri::ListedState;
    use crate::fixtures;
    use crate::observed::{ContainerId, SandboxId};

    /// The listing of a pod: whether its sandbox is ready, and a container's state.
    fn listing(ready: bool, state: ListedState) -> Listing {
        let mut listing = Listing::default();
        listing.add_sandbox(SandboxId::new("s"), ready);
        listing.add_container(ContainerId::new("c"), "app".to_owned(), state);
        listing
    }

    fn listed(pods: &[(&str, Option<&str>, Listing)]) -> RuntimeListing {
        let pods = pods.iter().map(|(uid, agent, listing)| {
            let agent = agent.map(str::to_owned);
            let of = PodRef { agent, ..fixtures::pod_ref(uid, uid) };
            (of.uid.clone(), (of, Arc::new(listing.clone())))
        });
        RuntimeListing {
            begun: Timestamp::from_second(10).unwrap(),
            pods: Arc::new(pods.collect()),
        }
    }

    /// The uids of the running orphans, and of the ended ones.
    fn found(listed: &RuntimeListing, known: &KnownPods<'_>) -> (Vec<String>, Vec<String>) {
        let orphans = orphans(listed, known, |maker| maker != Some("other"));
        let running = orphans.running.iter().map(|of| of.uid.to_string());
        let ended = orphans.ended.iter().map(|(of, _)| of.uid.to_string());
        (running.collect(), ended.collect())
    }

    #[test]
    fn pods_of_no_source_and_no_worker_are_orphans() {
        let running = || listing(true, ListedState::Running);
        let listed = listed(&[
            ("desired", None, running()),
            ("ended-before", None, running()),
            ("ended-since", None, running()),
            ("orphan", None, running()),
            ("other", Some("other"), running()),
            ("own", Some("own"), running()),
            ("worker", None, running()),
        ]);
        let pod = fixtures::pod(
            json!({"metadata": {"name": "d", "uid": "desired"}, "spec": {"containers": []}}),
        );
        let of = listed.pods[&PodUid::new("worker")].0.clone();
        let at = |second| Timestamp::from_second(second).unwrap();
        let known = KnownPods {
            desired: &[pod],
            has_worker: &|uid| *uid == of.uid,
            ended: &[(PodUid::new("ended-before"), at(9)), (PodUid::new("ended-since"), at(10))]
                .into(),
        };
        let (running, ended) = found(&listed, &known);
        assert_eq!(running, ["ended-before", "orphan", "own"]);
        assert_eq!(ended, Vec::<String>::new());
    }

    #[test]
    fn orphan_runs_while_a_container_runs_or_a_sandbox_is_ready() {
        let known = KnownPods { desired: &[], has_worker: &|_| false, ended: &Map::new() };
        let table = [
            (true, ListedState::Running, true),
            (true, ListedState::Exited, true),
            (false, ListedState::Running, true),
            (false, ListedState::Exited, false),
            (false, ListedState::Created, false),
            (false, ListedState::Unknown, false),
        ];
        for (ready, state, runs) in table {
            let listed = listed(&[("u", None, listing(ready, state))]);
            let (running, ended) = found(&listed, &known);
            assert_eq!((running.len(), ended.len()), (usize::from(runs), usize::from(!runs)));
        }
    }
}
