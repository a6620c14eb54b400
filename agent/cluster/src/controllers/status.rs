//! ◆ The statuses of objects that have controllers. Pure.
//!
//! Source: Kubernetes 1.36, calculateStatus of pkg/controller/deployment/sync.go and pkg/controller/replicaset/replica_set_utils.go,
//! updateStatus of pkg/controller/statefulset/stateful_set_control.go and pkg/controller/daemon/daemon_controller.go,
//! trackJobStatusAndRemoveFinalizers of pkg/controller/job/job_controller.go.

use api::manifest::{Workload, WorkloadObject};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DeploymentSpec;
use serde_json::{Map, Value, json};

use super::job;
use super::owned::{Outcome, OwnedPod, Reason};
use super::rollout;

/// The subject of a status.
#[derive(Clone, Debug)]
pub(super) struct Subject<'c> {
    pub(super) workload: &'c Workload,
    /// The hash of its template.
    pub(super) revision: &'c str,
    pub(super) pods: &'c [OwnedPod],
    pub(super) started: Timestamp,
    pub(super) outcome: &'c Outcome,
    /// When it ended.
    pub(super) ended: Option<Timestamp>,
    /// The condition of a Deployment with the progress of its rollout.
    pub(super) progress: Option<Value>,
}

/// The pod counts of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) replicas: usize,
    pub(super) updated: usize,
    pub(super) ready: usize,
    pub(super) available: usize,
}

impl Counts {
    fn of(subject: &Subject<'_>, min_ready_seconds: Option<i32>, now: Timestamp) -> Self {
        Self::of_pods(subject.pods.iter(), subject.revision, min_ready_seconds, now)
    }

    /// Counts the pods; those from the template with this hash are updated.
    pub(super) fn of_pods<'p>(
        pods: impl Iterator<Item = &'p OwnedPod> + Clone,
        revision: &str,
        min_ready_seconds: Option<i32>,
        now: Timestamp,
    ) -> Self {
        let active = || pods.clone().filter(|pod| pod.is_active());
        let is_available =
            |pod: &&OwnedPod| pod.available_at(min_ready_seconds).is_some_and(|since| since <= now);
        Self {
            replicas: active().count(),
            updated: active().filter(|pod| pod.revision == revision).count(),
            ready: active().filter(|pod| pod.ready_since.is_some()).count(),
            available: active().filter(is_available).count(),
        }
    }
}

/// The status without fields that are zero, as an API server omits these. `None` for a CronJob, whose Jobs have their own statuses.
pub(super) fn of(subject: &Subject<'_>, now: Timestamp) -> Option<Value> {
    let mut status = match &subject.workload.object {
        WorkloadObject::Job(_) => of_job(subject),
        WorkloadObject::Deployment(set) => {
            let spec = set.spec.clone().unwrap_or_default();
            let counts = Counts::of(subject, spec.min_ready_seconds, now);
            let wanted = count(spec.replicas.unwrap_or(1));
            json!({
                "replicas": counts.replicas,
                "updatedReplicas": counts.updated,
                "readyReplicas": counts.ready,
                "availableReplicas": counts.available,
                "unavailableReplicas": wanted.max(counts.replicas).saturating_sub(counts.available),
                "conditions": deployment_conditions(subject, &spec, &counts),
            })
        }
        WorkloadObject::ReplicaSet(set) => {
            let settle = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
            of_replica_set(&Counts::of(subject, settle, now))
        }
        WorkloadObject::ReplicationController(set) => {
            let settle = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
            of_replica_set(&Counts::of(subject, settle, now))
        }
        WorkloadObject::StatefulSet(set) => {
            let spec = set.spec.clone().unwrap_or_default();
            let counts = Counts::of(subject, spec.min_ready_seconds, now);
            let revision = format!("{}-{}", subject.workload.name(), subject.revision);
            with_replicas(
                counts.replicas,
                json!({
                    "readyReplicas": counts.ready,
                    "availableReplicas": counts.available,
                    "updatedReplicas": counts.updated,
                    "updateRevision": revision,
                }),
            )
        }
        WorkloadObject::DaemonSet(set) => {
            let spec = set.spec.clone().unwrap_or_default();
            let counts = Counts::of(subject, spec.min_ready_seconds, now);
            // These fields are present even if they are zero. There is one node, which admits every pod.
            return Some(with_generation(
                subject,
                json!({
                    "currentNumberScheduled": counts.replicas.min(1),
                    "desiredNumberScheduled": 1,
                    "numberMisscheduled": 0,
                    "numberReady": counts.ready,
                    "numberAvailable": counts.available,
                    "updatedNumberScheduled": counts.updated,
                }),
            ));
        }
        WorkloadObject::CronJob(_) => return None,
    };
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|field, value| field == "replicas" && has_replicas(subject) || *value != 0);
    }
    Some(match &subject.workload.object {
        WorkloadObject::Job(_) => status,
        WorkloadObject::CronJob(_)
        | WorkloadObject::DaemonSet(_)
        | WorkloadObject::Deployment(_)
        | WorkloadObject::ReplicaSet(_)
        | WorkloadObject::ReplicationController(_)
        | WorkloadObject::StatefulSet(_) => with_generation(subject, status),
    })
}

/// The conditions of a Deployment, without their times: [`since`] adds them.
fn deployment_conditions(subject: &Subject<'_>, spec: &DeploymentSpec, counts: &Counts) -> Value {
    let wanted = count(spec.replicas.unwrap_or(1));
    let least = wanted.saturating_sub(rollout::max_unavailable(spec, wanted));
    let (available, reason, message) = match counts.available >= least {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => {
            let message = "Deployment does not have minimum availability.";
            ("False", "MinimumReplicasUnavailable", message)
        }
    };
    let available =
        json!({"type": "Available", "status": available, "reason": reason, "message": message});
    Value::Array(std::iter::once(available).chain(subject.progress.clone()).collect())
}

/// Adds missing transition times to the conditions of a status: the previous ones of unchanged conditions, else now.
pub fn since(mut status: Value, before: &Value, now: Timestamp) -> Value {
    let old = before.get("conditions").and_then(Value::as_array);
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    let fields = conditions.into_iter().flatten().filter_map(Value::as_object_mut);
    for condition in fields.filter(|condition| !condition.contains_key("lastTransitionTime")) {
        let mut others = old.into_iter().flatten();
        let last = others.find(|other| other.get("type") == condition.get("type"));
        for (time_field, of) in [("lastTransitionTime", "status"), ("lastUpdateTime", "reason")] {
            let same = last.filter(|last| last.get(of) == condition.get(of));
            let known = same.and_then(|last| last.get(time_field)).cloned();
            let field = condition.entry(time_field);
            field.or_insert_with(|| known.unwrap_or_else(|| Value::String(time(now))));
        }
    }
    status
}

/// Whether `replicas` is present even if it is zero: in ReplicaSets, ReplicationControllers and StatefulSets.
fn has_replicas(subject: &Subject<'_>) -> bool {
    let object = &subject.workload.object;
    matches!(
        object,
        WorkloadObject::ReplicaSet(_)
            | WorkloadObject::ReplicationController(_)
            | WorkloadObject::StatefulSet(_)
    )
}

/// The status of a ReplicaSet, or of a ReplicationController, which has the same fields.
pub(super) fn of_replica_set(counts: &Counts) -> Value {
    let fields = json!({
        "fullyLabeledReplicas": counts.replicas,
        "readyReplicas": counts.ready,
        "availableReplicas": counts.available,
    });
    with_replicas(counts.replicas, fields)
}

fn with_replicas(replicas: usize, mut status: Value) -> Value {
    status["replicas"] = json!(replicas);
    status
}

fn with_generation(subject: &Subject<'_>, mut status: Value) -> Value {
    let generation = subject.workload.metadata().generation.unwrap_or(1);
    status["observedGeneration"] = json!(generation);
    status
}

fn of_job(subject: &Subject<'_>) -> Value {
    let WorkloadObject::Job(object) = &subject.workload.object else {
        return Value::Null;
    };
    let spec = object.spec.clone().unwrap_or_default();
    let counts = job::counts(&spec, subject.pods);
    let active = || subject.pods.iter().filter(|pod| pod.is_active());
    let ready = active().filter(|pod| pod.ready_since.is_some());
    let mut status = Map::new();
    let mut set = |field: &str, value: Value| status.insert(field.to_owned(), value);
    set("active", json!(active().count()));
    set("ready", json!(ready.count()));
    set("succeeded", json!(counts.succeeded));
    set("failed", json!(counts.failed));
    if !job::is_suspended(&spec) {
        set("startTime", json!(time(subject.started)));
    }
    let at = subject.ended.map(time);
    let condition = |kind: &str, reason: &Reason| {
        json!({
            "type": kind, "status": "True", "reason": reason.reason, "message": reason.message,
            "lastProbeTime": at, "lastTransitionTime": at,
        })
    };
    match subject.outcome {
        Outcome::Open => {}
        Outcome::Complete(reason) => {
            set("completionTime", json!(at));
            let met = condition("SuccessCriteriaMet", reason);
            set("conditions", json!([met, condition("Complete", reason)]));
        }
        Outcome::Failed(reason) => {
            let target = condition("FailureTarget", reason);
            set("conditions", json!([target, condition("Failed", reason)]));
        }
    }
    Value::Object(status)
}

/// A time in an API server's format: whole seconds.
pub(super) fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Converts a validated number, which is not negative.
fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}
