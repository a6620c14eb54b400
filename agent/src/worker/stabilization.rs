//! ◆ How long to wait before a pod is repaired: an external change often consists of several steps.
//!
//! The end of a sandbox first appears as the end of its containers, one after the other. A kubelet lists its pods once a second, so
//! that it usually observes all steps together; an agent that repaired the pod at the first event would start a container in a
//! sandbox that is about to end. Intermediate steps are not published either.

use jiff::{SignedDuration, Timestamp};

use crate::clock::after;
use crate::decide::plan::{PodPlan, SandboxStep, When};
use crate::observed::Observed;

/// The delay between the last end of a container or sandbox and the repair of its pod: the mean delay until a kubelet observes it.
const STABILIZATION_WINDOW: SignedDuration = SignedDuration::from_millis(500);

/// The last observed state of a pod, and when ends and removals were observed.
#[derive(Clone, Debug, Default)]
pub(super) struct Stabilization {
    /// The ids of containers and sandboxes, and whether each runs or is ready. A list, because a map has room for eleven entries at
    /// least.
    seen: Vec<(String, bool)>,
    last_end: Option<Timestamp>,
    last_loss: Option<Timestamp>,
}

impl Stabilization {
    /// Records an observation. Returns the ids of removed containers and sandboxes that had ended before.
    pub(super) fn observe(&mut self, observed: &Observed, now: Timestamp) -> Vec<String> {
        let containers = observed.containers.iter();
        let containers = containers.map(|seen| (seen.id.to_string(), seen.state.is_running()));
        let sandboxes = observed.sandboxes.iter();
        let sandboxes = sandboxes.map(|seen| (seen.id.to_string(), seen.ready));
        let present: Vec<_> = containers.chain(sandboxes).collect();
        let mut removed = Vec::new();
        for (id, ran) in &self.seen {
            let now_seen = present.iter().find(|(present, _)| present == id);
            match now_seen.map(|(_, runs)| runs) {
                Some(runs) if *runs || !ran => {}
                Some(_) => self.last_end = Some(now),
                None => {
                    self.last_loss = Some(now);
                    if !ran {
                        removed.push(id.clone());
                    }
                }
            }
        }
        self.seen = present;
        removed
    }

    /// Removes an object that the agent itself removes, so that its removal is not observed as a loss.
    pub(super) fn forget(&mut self, id: &str) {
        self.seen.retain(|(seen, _)| seen != id);
    }

    /// The time until which the execution of the plan, and publishing, must wait, if it is later than `now`.
    #[must_use]
    pub(super) fn until(
        &self,
        plan: &PodPlan,
        observed: &Observed,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let replaces_sandbox = matches!(plan.sandbox, SandboxStep::Create { .. });
        let starts_now = || plan.starts().filter(|start| start.when == When::Now);
        let repairs = replaces_sandbox || starts_now().any(|start| start.previous_end.is_some());
        let exits = observed.containers.iter().filter_map(|seen| seen.state.exit());
        let ends = exits.map(|exit| exit.finished_at).chain(self.last_end).filter(|_| repairs);
        // A removal may be the first step of the pod's removal.
        let loss = self.last_loss.filter(|_| repairs || starts_now().next().is_some());
        let stable_at = ends.chain(loss).max()?.checked_add(STABILIZATION_WINDOW).ok()?;
        // The runtime's clock may differ.
        let latest = after(now, STABILIZATION_WINDOW.unsigned_abs());
        (now < stable_at).then(|| stable_at.min(latest))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use api::pod::Pod;
    use serde_json::json;

    use super::*;
    use crate::decide::plan::{self, History};
    use crate::fixtures;
    use crate::observed::{ContainerState, Exit};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    /// A pod's sandbox and its only container, which has ended at this time.
    fn ended(ready: bool, finished_at: i64) -> Observed {
        let exit = Exit { finished_at: at(finished_at), ..fixtures::exit(1) };
        Observed {
            sandboxes: vec![fixtures::sandbox("s", ready)],
            containers: vec![fixtures::container("c", "app", ContainerState::Exited(exit))],
            ..Observed::nothing(at(0))
        }
    }

    fn pod() -> Pod {
        let containers = json!([{"name": "app", "image": "i"}]);
        fixtures::pod_of("u", "p", json!({"restartPolicy": "Always", "containers": containers}))
    }

    #[test]
    fn repair_waits_half_a_second_after_the_last_end() {
        let pod = pod();
        let nothing = Observed::nothing(at(0));
        let table = [
            (ended(true, 1000), 1001, Some(1500)),
            (ended(true, 1000), 1500, None),
            (ended(false, 1000), 1001, Some(1500)),
            (ended(false, 1000), 1500, None),
            // The runtime's clock is ahead.
            (ended(true, 9000), 1001, Some(1501)),
            // The pod starts.
            (nothing, 1001, None),
        ];
        for (observed, now, expected) in table {
            let plan = plan::plan(&pod, &observed, &History::default(), at(now));
            assert!(plan.does_something());
            let stable_at = Stabilization::default().until(&plan, &observed, at(now));
            assert_eq!(stable_at, expected.map(at), "{now} {observed:?}");
        }
    }

    #[test]
    fn repair_waits_half_a_second_after_the_last_observed_removal() {
        let pod = pod();
        let without_container =
            |ready: bool| Observed { containers: Vec::new(), ..ended(ready, 0) };
        let nothing = Observed::nothing(at(0));
        let table = [
            // It has not changed since it was first observed.
            (ended(true, 0), 2000, None),
            (without_container(true), 3000, Some(3500)),
            (without_container(false), 3100, Some(3600)),
            (without_container(false), 3600, None),
            (nothing.clone(), 3700, Some(4200)),
            (nothing, 4200, None),
        ];
        let mut stabilization = Stabilization::default();
        for (observed, now, expected) in table {
            stabilization.observe(&observed, at(now));
            let plan = plan::plan(&pod, &observed, &History::default(), at(now));
            assert!(plan.does_something());
            let stable_at = stabilization.until(&plan, &observed, at(now));
            assert_eq!(stable_at, expected.map(at), "{now} {observed:?}");
        }
        // Removals by the agent itself cause no delay.
        let mut stabilization = Stabilization::default();
        stabilization.observe(&ended(true, 0), at(2000));
        stabilization.forget("c");
        let left = without_container(true);
        stabilization.observe(&left, at(3000));
        let plan = plan::plan(&pod, &left, &History::default(), at(3000));
        assert_eq!(stabilization.until(&plan, &left, at(3000)), None);
    }
}
