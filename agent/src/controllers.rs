//! ◆ The controllers of Jobs, Deployments and their kind: reports of the agent in, pods to run and pods to end out.
//!
//! Pure: its owner passes the time, and hands the pods to a source. Each kind has a file with its plan, which is a function of
//! the object and its pods; this file carries plans out.
//!
//! Source: Kubernetes 1.36, pkg/controller.

pub mod backoff;
mod create;
pub mod daemon_set;
pub mod job;
mod names;
pub mod owned;
pub mod replica_set;
pub mod stateful_set;
mod template;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

use crate::manifest::{Workload, WorkloadObject};
use crate::pod::{Pod, PodUid};
use crate::report::{PodReport, Reports};
use create::Creator;
use job::JobCounts;
use names::Names;
use owned::{Action, Outcome, OwnedPod, Plan, Reason, earlier};
use replica_set::Failures;

/// What changed.
#[must_use]
#[derive(Debug, Default)]
pub struct Changes {
    /// Pods to run.
    pub created: Vec<Pod>,
    /// Pods to end, and why.
    pub deleted: Vec<(PodUid, &'static str)>,
    /// Objects that are over now, each in a sentence.
    pub news: Vec<String>,
    /// When to look again if nothing happens.
    pub again: Option<Timestamp>,
}

/// How far all objects are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Objects that have more to do, or whose pods still end.
    pub open: usize,
    /// Objects that failed.
    pub failed: usize,
}

/// How a Job is, or was when it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// Its namespace and name.
    pub job: String,
    /// `Running`, `Complete` or `Failed`.
    pub state: &'static str,
    /// Why it is over.
    pub reason: Option<Reason>,
    /// How its pods ended.
    pub counts: JobCounts,
}

/// What becomes of pods that the runtime refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// They are deleted.
    Deleted,
    /// They stay, to be looked at.
    Kept,
}

/// All objects with controllers.
#[derive(Debug)]
pub struct Controllers {
    all: Vec<Controller>,
    names: Names,
    refused: Refused,
}

/// One object and its pods.
#[derive(Debug)]
struct Controller {
    workload: Workload,
    creator: Creator,
    started: Timestamp,
    pods: Vec<OwnedPod>,
    failures: Failures,
    outcome: Outcome,
    is_ending: bool,
}

impl Controllers {
    /// Controllers for `workloads`. Names of pods depend on `seed`.
    #[must_use]
    pub fn new(workloads: Vec<Workload>, refused: Refused, seed: u64, now: Timestamp) -> Self {
        let all = workloads.into_iter().map(|workload| Controller {
            creator: Creator::new(&workload),
            workload,
            started: now,
            pods: Vec::new(),
            failures: Failures::default(),
            outcome: Outcome::Open,
            is_ending: false,
        });
        Self {
            all: all.collect(),
            names: Names::new(seed),
            refused,
        }
    }

    /// Takes the latest reports and decides.
    pub fn sync(&mut self, reports: &Reports, now: Timestamp) -> Changes {
        let mut changes = Changes::default();
        for controller in &mut self.all {
            let is_refused = controller.observe(reports, now);
            if controller.outcome != Outcome::Open {
                continue;
            }
            let plan = match is_refused {
                Some(pod) => controller.refuse(&pod, self.refused),
                None => controller.plan(now),
            };
            changes.again = earlier(changes.again, plan.again);
            controller.apply(plan, &mut self.names, &mut changes);
        }
        changes
    }

    /// Ends all objects: no pod is created any more. Pods of a StatefulSet that end one after the other end in later calls of
    /// [`Controllers::sync`], all others now.
    pub fn end(&mut self, reports: &Reports, now: Timestamp) -> Changes {
        for controller in &mut self.all {
            controller.is_ending = true;
        }
        self.sync(reports, now)
    }

    /// Whether a controller created the pod.
    #[must_use]
    pub fn owns(&self, uid: &PodUid) -> bool {
        let mut pods = self.all.iter().flat_map(|controller| &controller.pods);
        pods.any(|owned| owned.pod.uid() == uid)
    }

    /// Counts the objects that are not over, and those that failed.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for controller in &self.all {
            let mut pods = controller.pods.iter();
            let is_open = match controller.outcome {
                Outcome::Open => true,
                // Those that are refused and kept never end.
                Outcome::Complete(_) | Outcome::Failed(_) => {
                    pods.any(|pod| pod.is_deleted && pod.ended.is_none())
                }
            };
            tally.open += usize::from(is_open);
            tally.failed += usize::from(matches!(controller.outcome, Outcome::Failed(_)));
        }
        tally
    }

    /// How the Jobs are.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobResult> {
        self.all.iter().filter_map(Controller::job).collect()
    }

    /// How long the pods may take to end.
    #[must_use]
    pub fn longest_end(&self) -> Duration {
        let of = |controller: &Controller| {
            let graces = controller.pods.iter().filter(|pod| pod.ended.is_none());
            let graces = graces.map(|pod| pod.pod.grace_seconds());
            let longest = if controller.ends_in_order() {
                graces.fold(0, i64::saturating_add)
            } else {
                graces.max().unwrap_or_default()
            };
            Duration::from_secs(u64::try_from(longest).unwrap_or_default())
        };
        self.all.iter().map(of).max().unwrap_or_default()
    }
}

impl Controller {
    /// Takes what is reported of its pods. Returns the name of one that can never run.
    fn observe(&mut self, reports: &Reports, now: Timestamp) -> Option<String> {
        let mut refused = None;
        self.pods.retain_mut(|owned| {
            let Some(report) = reports.get(owned.pod.uid()) else {
                // One that was deleted before the agent saw it never runs.
                return !owned.is_deleted;
            };
            if owned.ended.is_none() {
                observe(owned, report, now);
                if owned.has_failed() {
                    self.failures = self.failures.and(now);
                }
            }
            if owned.is_active() && report.containers.iter().any(|container| container.refused) {
                refused.get_or_insert_with(|| owned.pod.full_name());
            }
            let is_gone = report.removed && owned.is_deleted;
            !is_gone || matches!(self.workload.object, WorkloadObject::Job(_))
        });
        refused
    }

    fn plan(&self, now: Timestamp) -> Plan {
        let wanted = |number: Option<i32>| {
            let number = if self.is_ending {
                0
            } else {
                number.unwrap_or(1)
            };
            u32::try_from(number).unwrap_or_default()
        };
        let replicas = |number| usize::try_from(wanted(number)).unwrap_or_default();
        match &self.workload.object {
            WorkloadObject::Job(_) if self.is_ending => {
                let actions = self.deletion("its run is over");
                Plan::open(actions, None)
            }
            WorkloadObject::Job(job) => {
                let spec = job.spec.clone().unwrap_or_default();
                job::plan(&spec, self.started, &self.pods, now)
            }
            WorkloadObject::Deployment(deployment) => {
                let wanted = replicas(deployment.spec.as_ref().and_then(|spec| spec.replicas));
                replica_set::plan(wanted, &self.pods, self.failures, now)
            }
            WorkloadObject::ReplicaSet(set) => {
                let wanted = replicas(set.spec.as_ref().and_then(|spec| spec.replicas));
                replica_set::plan(wanted, &self.pods, self.failures, now)
            }
            WorkloadObject::DaemonSet(_) if self.is_ending => {
                replica_set::plan(0, &self.pods, self.failures, now)
            }
            WorkloadObject::DaemonSet(_) => daemon_set::plan(&self.pods, self.failures, now),
            WorkloadObject::StatefulSet(set) => {
                let spec = set.spec.clone().unwrap_or_default();
                stateful_set::plan(&spec, wanted(spec.replicas), &self.pods, now)
            }
        }
    }

    /// The end of an object whose pods cannot run.
    fn refuse(&self, pod: &str, refused: Refused) -> Plan {
        let message = format!("pod {pod} cannot run, and neither could another one");
        Plan {
            actions: match refused {
                Refused::Deleted => self.deletion("it cannot run"),
                Refused::Kept => Vec::new(),
            },
            again: None,
            outcome: Outcome::Failed(Reason::new("PodRefused", message)),
        }
    }

    fn deletion(&self, why: &'static str) -> Vec<Action> {
        let active = self.pods.iter().filter(|pod| pod.is_active());
        active
            .map(|pod| Action::Delete(pod.pod.uid().clone(), why))
            .collect()
    }

    fn apply(&mut self, plan: Plan, names: &mut Names, changes: &mut Changes) {
        for action in plan.actions {
            match action {
                Action::Create(index) => {
                    let pod = self.creator.pod(&self.workload, index, names);
                    changes.created.push(pod.clone());
                    self.pods.push(OwnedPod::new(pod, index));
                }
                Action::Delete(uid, why) => {
                    let owned = self.pods.iter_mut().find(|owned| *owned.pod.uid() == uid);
                    if let Some(owned) = owned {
                        owned.is_deleted = true;
                        changes.deleted.push((uid, why));
                    }
                }
            }
        }
        let name = self.workload.full_name();
        match &plan.outcome {
            Outcome::Open => {}
            Outcome::Complete(reason) => {
                changes
                    .news
                    .push(format!("{name} is complete: {}", reason.message));
            }
            Outcome::Failed(reason) => {
                let Reason { reason, message } = reason;
                changes
                    .news
                    .push(format!("{name} failed: {reason}: {message}"));
            }
        }
        self.outcome = plan.outcome;
    }

    /// Whether its pods end one after the other.
    fn ends_in_order(&self) -> bool {
        let WorkloadObject::StatefulSet(set) = &self.workload.object else {
            return false;
        };
        let policy = set.spec.as_ref().map(|spec| &spec.pod_management_policy);
        policy.is_some_and(|policy| policy.as_deref() != Some("Parallel"))
    }

    fn job(&self) -> Option<JobResult> {
        let WorkloadObject::Job(job) = &self.workload.object else {
            return None;
        };
        let spec = job.spec.clone().unwrap_or_default();
        let (state, reason) = match &self.outcome {
            Outcome::Open => ("Running", None),
            Outcome::Complete(reason) => ("Complete", Some(reason.clone())),
            Outcome::Failed(reason) => ("Failed", Some(reason.clone())),
        };
        Some(JobResult {
            job: format!("{}/{}", self.workload.namespace(), self.workload.name()),
            state,
            reason,
            counts: job::counts(&spec, &self.pods),
        })
    }
}

/// Takes what is reported of a pod that has not ended.
fn observe(owned: &mut OwnedPod, report: &PodReport, now: Timestamp) {
    owned.status.clone_from(&report.status);
    if report.finished {
        owned.ended = Some(now);
    }
    if is_ready(&report.status) {
        owned.ready_since.get_or_insert(now);
    } else {
        owned.ready_since = None;
    }
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
