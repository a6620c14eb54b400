//! Cgroups whose changes are timed, whether they succeed or not.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use compact::Set;

use super::{CgroupValues, ControlGroups};
use crate::reporting::measures::Measures;

/// Records a kubelet's metrics of its cgroup manager.
pub(crate) struct TimedCgroups {
    groups: Arc<dyn ControlGroups>,
    measures: Measures,
}

impl TimedCgroups {
    /// Times changes of these cgroups.
    pub(crate) fn new(groups: Arc<dyn ControlGroups>, measures: Measures) -> Self {
        Self { groups, measures }
    }

    fn timed<T>(&self, operation: &'static str, change: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let changed = change();
        self.measures.record_cgroup_operation(operation, since.elapsed());
        changed
    }
}

impl ControlGroups for TimedCgroups {
    fn missing_controllers(&self) -> Vec<String> {
        self.groups.missing_controllers()
    }

    fn make(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        self.timed("create", || self.groups.make(path, values))
    }

    fn set(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        self.timed("update", || self.groups.set(path, values))
    }

    fn exists(&self, path: &str) -> bool {
        self.groups.exists(path)
    }

    fn children(&self, path: &str) -> io::Result<Set<String>> {
        self.groups.children(path)
    }

    fn memory_usage(&self, path: &str) -> Option<i64> {
        self.groups.memory_usage(path)
    }

    fn destroy(&self, path: &str) -> io::Result<()> {
        self.timed("destroy", || self.groups.destroy(path))
    }

    fn remove_empty(&self, path: &str) {
        self.groups.remove_empty(path);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::histogram::Histogram;
    use crate::machine::cgroups::fake::FakeCgroups;

    #[test]
    fn changes_are_measured_by_their_kind_and_failures_too() {
        let measures = Measures::default();
        let groups = TimedCgroups::new(Arc::new(FakeCgroups::default()), measures.clone());
        groups.make("/pods", &CgroupValues::default()).unwrap();
        groups.set("/none", &CgroupValues::default()).unwrap_err();
        groups.set("/pods", &CgroupValues::default()).unwrap();
        groups.destroy("/pods").unwrap();
        let counts: Vec<(&str, u64)> = measures
            .now()
            .cgroups
            .iter()
            .map(|(operation, durations)| (*operation, Histogram::count(durations)))
            .collect();
        assert_eq!(counts, [("create", 1), ("destroy", 1), ("update", 2)]);
    }
}
