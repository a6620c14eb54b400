//! ◆ The controllers of Jobs, Deployments and the like: input are states of pods, output are pods to create and pods to delete.
//!
//! Pure: the caller passes the time, and runs the pods. Each kind has a file with its plan, which is a function of the object and
//! its pods; this file carries plans out.
//!
//! Source: Kubernetes 1.36, pkg/controller.

pub mod backoff;
mod controller;
mod create;
pub mod cron_job;
mod crons;
pub mod daemon_set;
pub mod endpoints;
pub mod job;
pub mod owned;
pub mod pod_capacity;
mod progress;
pub mod replica_set;
mod revisions;
pub mod rollout;
pub mod stateful_set;
mod status;
mod template;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::generated_names::GeneratedNames;
use api::manifest::storage::claims_of_pod;
use api::manifest::{Workload, WorkloadObject};
use api::pod::{Pod, PodUid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodStatus};
use serde_json::Value;

use controller::Controller;
use crons::Cron;
use job::JobCounts;

use owned::{Outcome, Reason};
use pod_capacity::PodCapacity;

pub use status::since;

use crate::apply::{self, Applied};

/// The state of a pod on the node.
#[derive(Clone, Debug, Default)]
pub struct PodState {
    /// Its current status.
    pub status: Arc<PodStatus>,
    /// Whether nothing of it runs or will run.
    pub is_finished: bool,
    /// Whether its containers, sandboxes and directories are removed.
    pub is_removed: bool,
    /// Whether the runtime rejects it at every attempt.
    pub is_refused: bool,
}

/// The pods on the node.
pub trait Pods {
    /// The state of a pod; `None` if the node has not seen it yet.
    fn get(&self, uid: &PodUid) -> Option<PodState>;
}

impl Pods for BTreeMap<PodUid, PodState> {
    fn get(&self, uid: &PodUid) -> Option<PodState> {
        self.get(uid).cloned()
    }
}

/// The changes of a sync.
#[must_use]
#[derive(Debug, Default)]
pub struct Changes {
    /// Pods to create.
    pub created: Vec<Pod>,
    /// Pods to delete, and why.
    pub deleted: Vec<(PodUid, &'static str)>,
    /// Messages about objects that completed or changed.
    pub messages: Vec<String>,
    /// Messages about objects that failed or are stuck.
    pub problems: Vec<String>,
    /// When to sync again if nothing happens.
    pub again: Option<Timestamp>,
}

/// The progress of all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of objects that have more to do, or whose pods are still ending.
    pub open: usize,
    /// The number of failed objects.
    pub failed: usize,
}

/// The state of a Job, or its last state if it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// Its namespace and name.
    pub job: String,
    /// `Running`, `Complete` or `Failed`.
    pub state: &'static str,
    /// Why it has ended.
    pub reason: Option<Reason>,
    /// The numbers of its ended pods.
    pub counts: JobCounts,
}

/// What happens to pods that the runtime rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// They are deleted.
    Deleted,
    /// They are kept for inspection.
    Kept,
}

/// When CronJobs start their Jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CronStarts {
    /// At the times of their schedules, endlessly.
    Scheduled,
    /// Once, now.
    Now,
}

/// All objects with controllers.
#[derive(Debug)]
pub struct Controllers {
    all: Vec<Controller>,
    /// The CronJobs, whose Jobs are in `all`.
    crons: Vec<Cron>,
    names: GeneratedNames,
    refused: Refused,
    starts: CronStarts,
}

impl Controllers {
    /// Creates controllers for `workloads`. Names of pods depend on `seed`.
    #[must_use]
    pub fn new(
        workloads: Vec<Workload>,
        refused: Refused,
        starts: CronStarts,
        seed: u64,
        now: Timestamp,
    ) -> Self {
        let mut controllers = Self {
            all: Vec::new(),
            crons: Vec::new(),
            names: GeneratedNames::new(seed),
            refused,
            starts,
        };
        for workload in workloads {
            controllers.add(workload, now);
        }
        controllers
    }

    fn add(&mut self, workload: Workload, now: Timestamp) {
        match &workload.object {
            WorkloadObject::CronJob(_) => self.crons.extend(Cron::new(workload, self.starts, now)),
            WorkloadObject::Job(_)
            | WorkloadObject::Deployment(_)
            | WorkloadObject::ReplicaSet(_)
            | WorkloadObject::ReplicationController(_)
            | WorkloadObject::DaemonSet(_)
            | WorkloadObject::StatefulSet(_) => self.all.push(Controller::new(workload, now)),
        }
    }

    /// The effects of changed manifests on objects with controllers. `before` are the previous objects; `used` are the uids of all
    /// objects so far. The Jobs of a removed CronJob are removed with it.
    pub fn applied(
        &self,
        before: &[Workload],
        after: Vec<Workload>,
        used: &BTreeSet<String>,
    ) -> Applied<Workload> {
        let names: BTreeSet<String> = after.iter().map(Workload::full_name).collect();
        let removed: BTreeSet<&str> = before
            .iter()
            .filter(|old| !names.contains(&old.full_name()))
            .filter_map(|old| old.metadata().uid.as_deref())
            .collect();
        let is_started = |job: &&Controller| {
            let mut owners = job.workload().metadata().owner_references.iter().flatten();
            !job.is_deleted() && owners.any(|owner| removed.contains(&*owner.uid))
        };
        let jobs = self.all.iter().filter(is_started).map(Controller::workload);
        let before: Vec<Workload> = before.iter().chain(jobs).cloned().collect();
        let is_over = |old: &Workload| {
            let mut same = self.all.iter().filter(|it| has_uid(it.workload(), old));
            same.any(|it| *it.outcome() != Outcome::Open)
        };
        apply::apply(&before, after, used, is_over)
    }

    /// Applies changes of the objects: removed ones end with their pods, updated ones continue with their new version.
    pub fn change(&mut self, applied: Applied<Workload>, now: Timestamp) -> Changes {
        let mut changes = Changes::default();
        for (old, why) in applied.ended {
            self.crons.retain(|cron| !has_uid(cron.workload(), &old));
            let same = self.all.iter_mut().filter(|it| has_uid(it.workload(), &old));
            same.for_each(|controller| controller.delete(why, &mut changes));
        }
        for new in applied.updated {
            if let Some(cron) = self.crons.iter_mut().find(|it| has_uid(it.workload(), &new)) {
                cron.update(new, now);
            } else if let Some(it) = self.all.iter_mut().find(|it| has_uid(it.workload(), &new)) {
                it.update(new);
            }
        }
        for new in applied.started {
            self.add(new, now);
        }
        changes
    }

    /// Whether the object with this uid has a controller.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        let crons = self.crons.iter().map(Cron::workload);
        let mut all = crons.chain(self.all.iter().map(Controller::workload));
        all.any(|workload| workload.metadata().uid.as_deref() == Some(uid))
    }

    /// Reads the latest states of pods and decides.
    pub fn sync(&mut self, pods: &dyn Pods, now: Timestamp) -> Changes {
        let mut changes = Changes::default();
        for controller in &mut self.all {
            controller.observe(pods, now);
        }
        let living = self.all.iter().map(Controller::living).sum();
        let (mut capacity, refused) = (PodCapacity::beside(living), self.refused);
        for controller in &mut self.all {
            controller.sync(refused, &mut self.names, &mut capacity, now, &mut changes);
        }
        for cron in &mut self.crons {
            let started = cron.sync(&mut self.all, &mut self.names, now, &mut changes);
            if let Some(mut job) = started {
                job.sync(refused, &mut self.names, &mut capacity, now, &mut changes);
                self.all.push(job);
            }
        }
        self.all.retain(|controller| !controller.is_gone());
        changes
    }

    /// Ends all objects: no further pods are created. Pods of a StatefulSet that end one after the other end in later calls of
    /// [`Controllers::sync`], all others now.
    pub fn end(&mut self, pods: &dyn Pods, now: Timestamp) -> Changes {
        self.crons.clear();
        for controller in &mut self.all {
            controller.end();
        }
        self.sync(pods, now)
    }

    /// The object of a manifest that created the pod, directly or through a Job, as in [`Workload::full_name`].
    #[must_use]
    pub fn manifest_of(&self, uid: &PodUid) -> Option<String> {
        let workload = self.all.iter().find(|controller| controller.owns(uid))?.workload();
        let mut owners = workload.metadata().owner_references.iter().flatten();
        let cron = owners.find(|owner| owner.kind == "CronJob");
        Some(match cron {
            Some(cron) => format!("cronjob {}/{}", workload.namespace(), cron.name),
            None => workload.full_name(),
        })
    }

    /// The CronJob with the next start of a Job, and its time.
    #[must_use]
    pub fn next_job(&self) -> Option<(String, Timestamp)> {
        let all = self.crons.iter().filter_map(|cron| Some((cron.next()?, cron)));
        let (at, cron) = all.min_by_key(|(at, _)| *at)?;
        Some((cron.workload().full_name(), at))
    }

    /// Whether a controller created the pod.
    #[must_use]
    pub fn owns(&self, uid: &PodUid) -> bool {
        self.all.iter().any(|controller| controller.owns(uid))
    }

    /// Counts the open and the failed objects.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let waiting = self.crons.iter().filter(|cron| cron.is_open());
        let mut tally = Tally { open: waiting.count(), failed: 0 };
        for controller in &self.all {
            tally.open += usize::from(controller.is_open());
            let has_failed = matches!(controller.outcome(), Outcome::Failed(_));
            tally.failed += usize::from(has_failed);
        }
        tally
    }

    /// The objects that are not deleted, each with its status, including Jobs of CronJobs. CronJobs have no status.
    pub fn statuses(&self, now: Timestamp) -> impl Iterator<Item = (&Workload, Value)> {
        let all = self.all.iter().filter(|controller| !controller.is_deleted());
        all.filter_map(move |controller| Some((controller.workload(), controller.status(now)?)))
    }

    /// The objects between those of manifests and the pods, each with its status: ReplicaSets of Deployments.
    pub fn between(&self, now: Timestamp) -> impl Iterator<Item = Value> {
        let all = self.all.iter().filter(|controller| !controller.is_deleted());
        all.flat_map(move |controller| controller.replica_sets(now))
    }

    /// The claims that a StatefulSet creates for its pod.
    pub(crate) fn claims_of(&self, pod: &Pod) -> Vec<PersistentVolumeClaim> {
        let owner = self.all.iter().find(|controller| controller.owns(pod.uid()));
        if let Some(WorkloadObject::StatefulSet(set)) = owner.map(|it| &it.workload().object) {
            return claims_of_pod(set, pod.name());
        }
        Vec::new()
    }

    /// The states of the Jobs.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobResult> {
        self.all.iter().filter_map(Controller::job).collect()
    }

    /// The maximum time until the pods have ended, by this grace period in seconds.
    #[must_use]
    pub fn max_termination_time(&self, grace: impl Fn(&Pod) -> i64) -> Duration {
        let longest =
            self.all.iter().map(|controller| controller.max_termination_time(&grace)).max();
        longest.unwrap_or_default()
    }
}

/// Whether both are versions of one object.
fn has_uid(one: &Workload, other: &Workload) -> bool {
    one.metadata().uid == other.metadata().uid
}
