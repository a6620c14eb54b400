//! ◆ The controller of one object: stores its pods as reported, and carries out the plan of its kind. Pure.

use std::time::Duration;

use api::manifest::{Workload, WorkloadObject};
use api::pod::{Pod, PodUid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use super::create::Creator;
use super::owned::{Action, Outcome, OwnedPod, Plan, Reason, earlier};
use super::pod_capacity::PodCapacity;
use super::progress::Progress;
use super::replica_set::Failures;
use super::revisions::Revisions;
use super::status::{self, Counts, Subject};
use super::{
    Changes, JobResult, PodState, Pods, Refused, daemon_set, job, replica_set, rollout,
    stateful_set,
};
use api::generated_names::GeneratedNames;

/// The reason of the failure of an object whose pods cannot run.
const POD_REFUSED: &str = "PodRefused";

/// One object and its pods.
#[derive(Debug)]
pub(super) struct Controller {
    workload: Workload,
    creator: Creator,
    started: Timestamp,
    pods: Vec<OwnedPod>,
    failures: Failures,
    /// The name of a pod that can never run.
    refused: Option<String>,
    outcome: Outcome,
    /// When it ended.
    ended: Option<Timestamp>,
    /// The progress of a Deployment's rollout.
    progress: Option<Progress>,
    /// Its ReplicaSets.
    revisions: Revisions,
    /// Whether the message that it starts no pods was reported.
    told_idle: bool,
    /// Whether the message that the node has no capacity for all of its pods was reported.
    reported_unplaced: bool,
    is_ending: bool,
    /// Whether the object no longer exists: its pods are deleted, and then the controller is removed.
    is_deleted: bool,
}

impl Controller {
    pub(super) fn new(workload: Workload, now: Timestamp) -> Self {
        Self {
            creator: Creator::new(&workload),
            workload,
            started: now,
            pods: Vec::new(),
            failures: Failures::default(),
            refused: None,
            outcome: Outcome::Open,
            ended: None,
            progress: None,
            revisions: Revisions::default(),
            told_idle: false,
            reported_unplaced: false,
            is_ending: false,
            is_deleted: false,
        }
    }

    /// Decides, and carries out the decision.
    pub(super) fn sync(
        &mut self,
        refused: Refused,
        names: &mut GeneratedNames,
        capacity: &mut PodCapacity,
        now: Timestamp,
        changes: &mut Changes,
    ) {
        if self.outcome != Outcome::Open || self.is_deleted {
            return;
        }
        let plan = match &self.refused {
            Some(pod) => self.refuse(pod, refused),
            None => self.plan(capacity.for_object(self.living()), now),
        };
        if plan.unplaced > 0 && !self.reported_unplaced {
            self.reported_unplaced = true;
            let (name, pods) = (self.workload.full_name(), plan.unplaced);
            changes
                .problems
                .push(format!("{name}: {}", super::pod_capacity::unplaced_message(pods)));
        }
        changes.again = earlier(changes.again, plan.again);
        self.apply(plan, names, capacity, changes);
        changes.again = earlier(changes.again, self.follow_rollout(now));
        if self.outcome != Outcome::Open {
            self.ended.get_or_insert(now);
        }
        let idle = self.idle();
        if let Some(why) = idle.filter(|_| !self.told_idle) {
            let name = self.workload.full_name();
            changes.messages.push(format!("{name} {why}"));
        }
        self.told_idle = idle.is_some();
    }

    /// Updates the rollout of a Deployment. Returns when its status changes by time alone.
    fn follow_rollout(&mut self, now: Timestamp) -> Option<Timestamp> {
        let WorkloadObject::Deployment(deployment) = &self.workload.object else {
            return None;
        };
        let spec = deployment.spec.as_ref()?;
        let revision = self.creator.revision();
        let counts = Counts::of_pods(self.pods.iter(), revision, spec.min_ready_seconds, now);
        let begun = || Progress::new(revision, counts, now);
        let progress = self.progress.get_or_insert_with(begun);
        progress.observe(spec, revision, counts, now);
        self.revisions.observe(deployment, revision, &self.pods);
        let available = self.pods.iter().filter_map(|pod| pod.available_at(spec.min_ready_seconds));
        available.filter(|at| *at > now).chain(progress.due(spec)).min()
    }

    /// Why it starts no pods until its manifest changes.
    fn idle(&self) -> Option<&'static str> {
        let replicas = match &self.workload.object {
            WorkloadObject::Job(job) => {
                let is_suspended = job.spec.as_ref().is_some_and(job::is_suspended);
                return is_suspended.then_some("is suspended and starts no pod");
            }
            WorkloadObject::CronJob(_) | WorkloadObject::DaemonSet(_) => return None,
            WorkloadObject::Deployment(set) => set.spec.as_ref()?.replicas,
            WorkloadObject::ReplicaSet(set) => set.spec.as_ref()?.replicas,
            WorkloadObject::ReplicationController(set) => set.spec.as_ref()?.replicas,
            WorkloadObject::StatefulSet(set) => set.spec.as_ref()?.replicas,
        };
        (replicas == Some(0)).then_some("has 0 replicas and starts no pod")
    }

    /// Applies a new version of the object.
    pub(super) fn update(&mut self, workload: Workload) {
        self.creator = Creator::new(&workload);
        self.workload = workload;
        self.reported_unplaced = false;
    }

    /// Stops the creation of pods.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Deletes the object with all its pods, including ended ones.
    pub(super) fn delete(&mut self, why: &'static str, changes: &mut Changes) {
        self.is_deleted = true;
        for owned in self.pods.iter_mut().filter(|owned| !owned.is_deleted) {
            owned.is_deleted = true;
            changes.deleted.push((owned.pod.uid().clone(), why));
        }
    }

    /// Whether the object was deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// Whether the object and its pods were deleted.
    pub(super) fn is_gone(&self) -> bool {
        self.is_deleted && self.pods.is_empty()
    }

    pub(super) fn workload(&self) -> &Workload {
        &self.workload
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    pub(super) fn owns(&self, uid: &PodUid) -> bool {
        self.pods.iter().any(|owned| owned.pod.uid() == uid)
    }

    /// The number of its pods on the node.
    pub(super) fn living(&self) -> usize {
        let living = self.pods.iter().filter(|pod| pod.ended.is_none());
        living.count()
    }

    /// Whether it has more to do, or its pods are still ending.
    pub(super) fn is_open(&self) -> bool {
        // Rejected pods that are kept never end.
        let ends = || {
            let mut pods = self.pods.iter();
            pods.any(|pod| pod.is_deleted && pod.ended.is_none())
        };
        match self.outcome {
            Outcome::Open if !self.is_deleted && self.idle().is_none() => true,
            Outcome::Open | Outcome::Complete(_) | Outcome::Failed(_) => ends(),
        }
    }

    /// The maximum time until its pods have ended, by this grace period.
    pub(super) fn max_termination_time(&self, grace: impl Fn(&Pod) -> i64) -> Duration {
        let graces = self.pods.iter().filter(|pod| pod.ended.is_none());
        let graces = graces.map(|pod| grace(&pod.pod));
        let longest = if self.ends_in_order() {
            graces.fold(0, i64::saturating_add)
        } else {
            graces.max().unwrap_or_default()
        };
        Duration::from_secs(u64::try_from(longest).unwrap_or_default())
    }

    /// Reads the states of its pods.
    pub(super) fn observe(&mut self, pods: &dyn Pods, now: Timestamp) {
        let mut refused = None;
        self.pods.retain_mut(|owned| {
            let Some(state) = pods.get(owned.pod.uid()) else {
                // A pod that was deleted before the node saw it never runs.
                return !owned.is_deleted;
            };
            if owned.ended.is_none() {
                observe(owned, &state, now);
                if owned.has_failed() {
                    self.failures = self.failures.and(now);
                }
            }
            if owned.is_active() && state.is_refused {
                refused.get_or_insert_with(|| owned.pod.full_name());
            }
            let is_gone = state.is_removed && owned.is_deleted;
            let is_counted = matches!(self.workload.object, WorkloadObject::Job(_));
            !is_gone || is_counted && !self.is_deleted
        });
        self.refused = refused;
    }

    /// Plans the next actions, with at most `capacity` new pods.
    fn plan(&self, capacity: usize, now: Timestamp) -> Plan {
        let wanted = |number: Option<i32>| {
            let number = if self.is_ending { 0 } else { number.unwrap_or(1) };
            u32::try_from(number).unwrap_or_default()
        };
        let replicas = |number| usize::try_from(wanted(number)).unwrap_or_default();
        match &self.workload.object {
            WorkloadObject::Job(_) if self.is_ending => {
                Plan::over(&self.pods, "its run is over", Outcome::Open)
            }
            WorkloadObject::Job(job) => {
                let spec = job.spec.clone().unwrap_or_default();
                job::plan(&spec, self.started, &self.pods, capacity, now)
            }
            WorkloadObject::Deployment(deployment) => {
                let spec = deployment.spec.clone().unwrap_or_default();
                let (wanted, revision) = (replicas(spec.replicas), self.creator.revision());
                let (pods, failures) = (&self.pods, self.failures);
                rollout::deployment(&spec, wanted, revision, pods, failures, capacity, now)
                    .filter(|_| !self.is_ending)
                    .unwrap_or_else(|| replica_set::plan(wanted, pods, failures, capacity, now))
            }
            WorkloadObject::ReplicaSet(set) => {
                let wanted = replicas(set.spec.as_ref().and_then(|spec| spec.replicas));
                replica_set::plan(wanted, &self.pods, self.failures, capacity, now)
            }
            WorkloadObject::ReplicationController(set) => {
                let wanted = replicas(set.spec.as_ref().and_then(|spec| spec.replicas));
                replica_set::plan(wanted, &self.pods, self.failures, capacity, now)
            }
            WorkloadObject::DaemonSet(_) if self.is_ending => {
                replica_set::plan(0, &self.pods, self.failures, capacity, now)
            }
            WorkloadObject::DaemonSet(set) => {
                let spec = set.spec.clone().unwrap_or_default();
                rollout::daemon_set(&spec, self.creator.revision(), &self.pods)
                    .unwrap_or_else(|| daemon_set::plan(&self.pods, self.failures, capacity, now))
            }
            // It has no pods: its Jobs have their own controllers.
            WorkloadObject::CronJob(_) => Plan::open(Vec::new(), None),
            WorkloadObject::StatefulSet(set) => {
                let spec = set.spec.clone().unwrap_or_default();
                let (wanted, failures) = (wanted(spec.replicas), self.failures);
                let plan = stateful_set::plan(&spec, wanted, &self.pods, failures, capacity, now);
                // A pod that waits for its back-off counts as missing.
                let is_settled =
                    plan.actions.is_empty() && !self.is_ending && failures.until(now).is_none();
                let next = is_settled
                    .then(|| rollout::stateful_set(&spec, self.creator.revision(), &self.pods));
                next.flatten().unwrap_or(plan)
            }
        }
    }

    /// The failure of an object whose pods cannot run.
    fn refuse(&self, pod: &str, refused: Refused) -> Plan {
        let message = format!("pod {pod} cannot run, and neither could another one");
        let outcome = Outcome::Failed(Reason::new(POD_REFUSED, message));
        match refused {
            Refused::Deleted => Plan::over(&self.pods, "it cannot run", outcome),
            Refused::Kept => Plan { outcome, ..Plan::open(Vec::new(), None) },
        }
    }

    fn apply(
        &mut self,
        plan: Plan,
        names: &mut GeneratedNames,
        capacity: &mut PodCapacity,
        changes: &mut Changes,
    ) {
        let is_job = matches!(self.workload.object, WorkloadObject::Job(_));
        let job_failed = match &plan.outcome {
            Outcome::Failed(reason) => is_job && reason.reason != POD_REFUSED,
            Outcome::Open | Outcome::Complete(_) => false,
        };
        for action in plan.actions {
            match action {
                Action::Create(index) => {
                    let pod = self.creator.pod(&self.workload, index, names);
                    capacity.take();
                    changes.created.push(pod.clone());
                    let revision = self.creator.revision();
                    self.pods.push(OwnedPod::new(pod, index, revision));
                }
                Action::Delete(uid, why) => {
                    let owned = self.pods.iter_mut().find(|owned| *owned.pod.uid() == uid);
                    if let Some(owned) = owned {
                        owned.is_deleted = true;
                        owned.failed_with_job = job_failed;
                        changes.deleted.push((uid, why));
                    }
                }
            }
        }
        let name = self.workload.full_name();
        match &plan.outcome {
            Outcome::Open => {}
            Outcome::Complete(reason) => {
                changes.messages.push(format!("{name} is complete: {}", reason.message));
            }
            Outcome::Failed(reason) => {
                let Reason { reason, message } = reason;
                changes.problems.push(format!("{name} failed: {reason}: {message}"));
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

    /// The status of its object; `None` for a kind without a status here.
    pub(super) fn status(&self, now: Timestamp) -> Option<Value> {
        let subject = Subject {
            workload: &self.workload,
            revision: self.creator.revision(),
            pods: &self.pods,
            started: self.started,
            outcome: &self.outcome,
            ended: self.ended,
            progress: self.progress.as_ref().map(|it| it.condition(self.workload.name())),
        };
        status::of(&subject, now)
    }

    /// The ReplicaSets of a Deployment, with their statuses.
    pub(super) fn replica_sets(&self, now: Timestamp) -> Vec<Value> {
        self.revisions.objects(&self.workload, &self.pods, now)
    }

    /// The state of a Job; `None` for other kinds.
    pub(super) fn job(&self) -> Option<JobResult> {
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

/// Records the state of a pod that has not ended.
fn observe(owned: &mut OwnedPod, state: &PodState, now: Timestamp) {
    owned.status.clone_from(&*state.status);
    if state.is_finished {
        owned.ended = Some(now);
    }
    if is_ready(&state.status) {
        owned.ready_since.get_or_insert(now);
    } else {
        owned.ready_since = None;
    }
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
