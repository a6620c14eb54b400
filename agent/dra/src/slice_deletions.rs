//! ◆ Schedules the deletion of ResourceSlices: of all drivers when the agent starts, and of a driver after it was unreachable for
//! a while, so that the scheduler places no pods with its claims on the node. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go sync, wipeResourceSlices.

use std::time::{Duration, Instant};

use compact::{Map, Set};

/// How long a driver may be unreachable.
const ABSENCE: Duration = Duration::from_secs(30);

/// The first delay before a failed deletion is retried, and the maximum. The delay doubles each time.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// A scheduled deletion.
#[derive(Clone, Copy, Debug)]
struct SliceDeletion {
    /// `None` if it is done.
    due_at: Option<Instant>,
    retry: Duration,
}

/// The deletions by driver; the key `None` means all drivers.
#[derive(Debug)]
pub(crate) struct SliceDeletions(Map<Option<String>, SliceDeletion>);

impl SliceDeletions {
    /// The deletions of an agent that starts.
    pub(crate) fn new(now: Instant) -> Self {
        Self([(None, SliceDeletion { due_at: Some(now), retry: RETRY })].into_iter().collect())
    }

    /// Updates the deletions from the drivers that are unreachable now.
    pub(crate) fn follow(&mut self, missing: &Set<String>, now: Instant) {
        self.0.retain(|driver, _| driver.as_ref().is_none_or(|driver| missing.contains(driver)));
        for driver in missing.iter() {
            let wipe = SliceDeletion { due_at: now.checked_add(ABSENCE), retry: RETRY };
            self.0.entry(Some(driver.clone())).or_insert(wipe);
        }
    }

    /// The deletions that are due.
    pub(crate) fn due(&self, now: Instant) -> Vec<Option<String>> {
        let due = self.0.iter().filter(|(_, wipe)| wipe.due_at.is_some_and(|at| at <= now));
        due.map(|(driver, _)| driver.clone()).collect()
    }

    /// The time of the next deletion.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|wipe| wipe.due_at).min()
    }

    /// Records the result of a deletion.
    pub(crate) fn ended(&mut self, driver: &Option<String>, succeeded: bool, now: Instant) {
        if let Some(wipe) = self.0.get_mut(driver) {
            wipe.due_at = if succeeded { None } else { now.checked_add(wipe.retry) };
            wipe.retry = wipe.retry.saturating_mul(2).min(RETRY_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(drivers: &[&str]) -> Set<String> {
        drivers.iter().map(|driver| (*driver).to_owned()).collect()
    }

    #[test]
    fn slices_of_all_drivers_are_deleted_first() {
        let start = Instant::now();
        let mut slice_deletions = SliceDeletions::new(start);
        assert_eq!(slice_deletions.due(start), [None]);
        let mut waits = Vec::new();
        for _ in 0..11 {
            slice_deletions.ended(&None, false, start);
            waits.extend(slice_deletions.next().map(|at| at.duration_since(start).as_secs()));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        slice_deletions.ended(&None, true, start);
        slice_deletions.follow(&missing(&[]), start);
        assert_eq!(slice_deletions.next(), None);
    }

    #[test]
    fn slices_are_deleted_once_after_driver_is_unreachable_for_30_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut slice_deletions = SliceDeletions::new(start);
        slice_deletions.ended(&None, true, start);
        slice_deletions.follow(&missing(&["a"]), at(0));
        slice_deletions.follow(&missing(&["a", "b"]), at(20));
        assert_eq!(slice_deletions.due(at(29)), []);
        assert_eq!(slice_deletions.due(at(30)), [Some("a".to_owned())]);
        slice_deletions.ended(&Some("a".to_owned()), true, at(30));
        slice_deletions.follow(&missing(&["a"]), at(40));
        assert_eq!(slice_deletions.next(), None, "b is back");
        slice_deletions.follow(&missing(&[]), at(50));
        slice_deletions.follow(&missing(&["a"]), at(60));
        assert_eq!(slice_deletions.next(), Some(at(90)));
    }
}
