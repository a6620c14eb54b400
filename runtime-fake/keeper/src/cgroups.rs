//! The keeper's part in control groups: it makes those of its containers before it forks them, and takes them away when
//! they have ended. The kernel may take a moment to remove the rest; no call waits for that.

use std::time::Duration;

use crate::{
    cgroup::{CgroupError, CgroupPath, CgroupPlan, cleanup, directory},
    failure::{Failure, FailureKind, plain},
};

/// How long the end of a container waits for the rest of its processes, which were killed.
const ORPHANS: Duration = Duration::from_millis(50);
/// How long the end of a pod waits for all of them.
const LAST: Duration = Duration::from_secs(2);
/// How long until cgroups that were not empty are looked at again.
pub(crate) const AGAIN: Duration = Duration::from_millis(20);

impl From<CgroupError> for Failure {
    fn from(failed: CgroupError) -> Self {
        let kind = if failed.is_the_clients() {
            FailureKind::Invalid
        } else {
            FailureKind::System
        };
        Self::new(
            kind,
            format!("failed to {}: {}", failed.what, plain(&failed.source)),
        )
    }
}

/// The pod's own cgroup, and what is left of those of containers.
#[derive(Default)]
pub(crate) struct Cgroups {
    pod: Option<CgroupPlan>,
    /// The pod's is still to be made.
    owed: bool,
    left: Vec<CgroupPath>,
    /// That of the pod's process.
    pause: Option<CgroupPath>,
}

impl Cgroups {
    pub(crate) fn new(pod: Option<CgroupPlan>, pause: Option<CgroupPath>) -> Self {
        Self {
            owed: pod.is_some(),
            pod,
            left: Vec::new(),
            pause,
        }
    }

    /// Work that can wait until every call is answered.
    pub(crate) fn catch_up(&mut self) {
        if std::mem::take(&mut self.owed)
            && let Some(plan) = &self.pod
        {
            // Should it fail, so will the first container, which says why.
            let made = directory::make(&plan.path)
                .and_then(|()| directory::change(&plan.path, &plan.writes));
            if let Err(failed) = made {
                let text = format!("keeper: {}\n", crate::failure::chain(&failed));
                let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            }
        }
        self.left.retain(|cgroup| !cleanup::remove(cgroup));
    }

    /// Whether [`Self::catch_up`] has something to do that nothing will tell of.
    pub(crate) fn waits(&self) -> bool {
        !self.left.is_empty()
    }

    /// Takes care of the cgroup of a container that has ended. With `orphans` there may be processes that do not end with
    /// the first one: they are gone before that one's end is told.
    pub(crate) fn ended(&mut self, cgroup: CgroupPath, orphans: bool) {
        if !(orphans && cleanup::remove_in_time(&cgroup, ORPHANS)) {
            self.left.push(cgroup);
        }
    }

    /// Everything has ended.
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
