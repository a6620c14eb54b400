//! Makes the cgroups of containers before the keeper forks them, and removes them after their exit. A cgroup may become empty
//! only after a delay; no call waits for that.

use std::time::Duration;

use crate::kernel::cgroup::{CgroupError, CgroupPath, CgroupPlan, cleanup, directory};
use crate::kernel::failure::{Failure, FailureKind, plain};

/// How long the report of a container's exit waits until its remaining processes, which were killed, have exited.
const ORPHANS: Duration = Duration::from_millis(50);
/// How long a pod's shutdown waits for the remaining processes of each cgroup.
const LAST: Duration = Duration::from_secs(2);
/// The delay before the removal of a non-empty cgroup is retried.
pub(crate) const AGAIN: Duration = Duration::from_millis(20);

impl From<CgroupError> for Failure {
    fn from(failed: CgroupError) -> Self {
        let kind = if failed.is_the_clients() { FailureKind::Invalid } else { FailureKind::System };
        Self::new(kind, format!("failed to {}: {}", failed.what, plain(&failed.source)))
    }
}

/// The pod's own cgroup, and the remaining ones of exited containers.
#[derive(Default)]
pub(crate) struct Cgroups {
    pod: Option<CgroupPlan>,
    /// The pod's cgroup has not been made yet.
    owed: bool,
    left: Vec<CgroupPath>,
    /// The cgroup of the pod's pause process.
    pause: Option<CgroupPath>,
}

impl Cgroups {
    pub(crate) fn new(pod: Option<CgroupPlan>, pause: Option<CgroupPath>) -> Self {
        Self { owed: pod.is_some(), pod, left: Vec::new(), pause }
    }

    /// Does the work that can wait until every call is answered.
    pub(crate) fn catch_up(&mut self) {
        if std::mem::take(&mut self.owed)
            && let Some(plan) = &self.pod
        {
            // If this fails, the first container's cgroup fails too, and that call returns the error.
            let made = directory::make(&plan.path)
                .and_then(|()| directory::change(&plan.path, &plan.writes));
            if let Err(failed) = made {
                let text = format!("keeper: {}\n", crate::kernel::failure::chain(&failed));
                let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            }
        }
        self.left.retain(|cgroup| !cleanup::remove(cgroup));
    }

    /// Whether [`Self::catch_up`] has to run again without an event.
    pub(crate) fn waits(&self) -> bool {
        !self.left.is_empty()
    }

    /// Removes the cgroup of an exited container, or queues it for later. With `orphans`, other processes may outlive the first
    /// one: wait until they have exited before its exit is reported.
    pub(crate) fn ended(&mut self, cgroup: CgroupPath, orphans: bool) {
        if !(orphans && cleanup::remove_in_time(&cgroup, ORPHANS)) {
            self.left.push(cgroup);
        }
    }

    /// Kills the remaining processes after the pod's shutdown, and removes its cgroups.
    pub(crate) fn end(&mut self, alone: bool) {
        for cgroup in self.left.drain(..).chain(self.pause.take()) {
            cleanup::kill(&cgroup);
            cleanup::remove_in_time(&cgroup, LAST);
        }
        if let Some(plan) = &self.pod {
            cleanup::remove_own(&plan.path);
            // The last keeper of a killed daemon may be the last process to clean up.
            if alone {
                cleanup::remove_parent(&plan.path);
            }
        }
    }
}
