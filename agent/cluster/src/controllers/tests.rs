//! Objects from manifests, and the actions of their controllers as their pods change.
#![allow(clippy::unwrap_used, reason = "tests")]

mod changes;
mod cron_jobs;

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use serde_json::json;

use super::*;
use crate::fixtures;

/// Controllers, and a node that carries out their changes.
struct World {
    controllers: Controllers,
    states: BTreeMap<PodUid, PodState>,
    now: Timestamp,
    /// The objects of manifests, and the uids of all objects so far.
    manifests: (Vec<Workload>, BTreeSet<String>),
    /// The pods that exist, in the order of their creation.
    pods: Vec<Pod>,
}

impl World {
    fn new(manifest: &str) -> Self {
        Self::with(manifest, CronStarts::Scheduled)
    }

    fn with(manifest: &str, starts: CronStarts) -> Self {
        let parsed = fixtures::parsed(manifest);
        let now = Timestamp::UNIX_EPOCH;
        let uids = parsed.workloads.iter().filter_map(|it| it.metadata().uid.clone()).collect();
        let mut world = Self {
            manifests: (parsed.workloads.clone(), uids),
            controllers: Controllers::new(parsed.workloads, Refused::Deleted, starts, 1, now),
            states: BTreeMap::new(),
            now,
            pods: Vec::new(),
        };
        let _ = world.sync();
        world
    }

    /// Syncs, and lets the agent see new pods. Returns the changes.
    fn sync(&mut self) -> Changes {
        let changes = self.controllers.sync(&self.states, self.now);
        self.apply_changes(&changes);
        changes
    }

    fn apply_changes(&mut self, changes: &Changes) {
        for pod in &changes.created {
            self.pods.push(pod.clone());
            self.report(pod, "Pending", |_| ());
        }
    }

    fn report(&mut self, pod: &Pod, phase: &str, change: impl FnOnce(&mut PodState)) {
        let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
        let mut state = PodState {
            status: Arc::new(status),
            is_finished: matches!(phase, "Succeeded" | "Failed"),
            ..PodState::default()
        };
        change(&mut state);
        self.states.insert(pod.uid().clone(), state);
    }

    fn end(&mut self, pod: usize, phase: &str) -> Changes {
        let pod = self.pods[pod].clone();
        self.report(&pod, phase, |_| ());
        self.sync()
    }

    /// Removes the pod after its deletion.
    fn remove_pod(&mut self, pod: usize) -> Changes {
        let pod = self.pods[pod].clone();
        self.report(&pod, "Failed", |state| state.is_removed = true);
        self.sync()
    }

    fn ready(&mut self, pod: usize) -> Changes {
        let pod = self.pods[pod].clone();
        self.report(&pod, "Running", |state| {
            Arc::make_mut(&mut state.status).conditions = Some(vec![PodCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..PodCondition::default()
            }]);
        });
        self.sync()
    }

    fn wait(&mut self, seconds: i64) -> Changes {
        self.now += SignedDuration::from_secs(seconds);
        self.sync()
    }
}

fn names(changes: &Changes) -> Vec<&str> {
    changes.created.iter().map(Pod::name).collect()
}

fn job(rest: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  template:\n    metadata: {{labels: {{own: label}}}}\n    \
         spec: {{restartPolicy: Never, containers: [{{name: c, image: i}}]}}\n{rest}"
    )
}

fn set(kind: &str, rest: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    \
         metadata: {{labels: {{app: web}}}}\n    spec: {{containers: [{{name: c, image: i}}]}}\n{rest}"
    )
}

#[test]
fn failed_pod_of_a_job_is_replaced_after_its_back_off() {
    let mut world = World::new(&job(""));
    let pod = &world.pods[0];
    assert!(pod.name().starts_with("work-") && pod.name().len() == 10, "{}", pod.name());
    let uid = world.controllers.all[0].workload().metadata().uid.clone().unwrap();
    let labels: Vec<(&str, &str)> = pod.labels().collect();
    assert_eq!(
        labels,
        [
            ("batch.kubernetes.io/controller-uid", uid.as_str()),
            ("batch.kubernetes.io/job-name", "work"),
            ("controller-uid", uid.as_str()),
            ("job-name", "work"),
            ("own", "label"),
        ]
    );
    let owner = &pod.api().metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Job", "work"));
    let changes = world.end(0, "Failed");
    assert_eq!(names(&changes), [""; 0]);
    assert_eq!(changes.again, Some(world.now + SignedDuration::from_secs(10)));
    assert_eq!(names(&world.wait(9)), [""; 0]);
    assert_eq!(names(&world.wait(1)).len(), 1);
    let changes = world.end(1, "Succeeded");
    assert_eq!(
        changes.messages,
        ["job default/work is complete: Reached expected number of succeeded pods"]
    );
    assert_eq!(world.controllers.tally(), Tally::default());
    let result = &world.controllers.jobs()[0];
    assert_eq!((result.state, result.counts.succeeded, result.counts.failed), ("Complete", 1, 1));
}

#[test]
fn job_fails_beyond_its_limit_and_ends_its_other_pods() {
    let mut world = World::new(&job("  backoffLimit: 0\n  parallelism: 2\n  completions: 2\n"));
    assert_eq!(world.pods.len(), 2);
    let changes = world.end(0, "Failed");
    assert_eq!(
        changes.problems,
        [
            "job default/work failed: BackoffLimitExceeded: Job has reached the specified backoff limit"
        ]
    );
    assert_eq!(changes.deleted, [(world.pods[1].uid().clone(), "its job failed")]);
    assert_eq!(world.controllers.tally(), Tally { open: 1, failed: 1 });
    let _ = world.remove_pod(1);
    assert_eq!(world.controllers.tally(), Tally { open: 0, failed: 1 });
}

#[test]
fn indexed_job_runs_each_index_once() {
    let mut world =
        World::new(&job("  completionMode: Indexed\n  completions: 3\n  parallelism: 2\n"));
    let pod = &world.pods[1];
    assert!(pod.name().starts_with("work-1-") && pod.name().len() == 12, "{}", pod.name());
    assert_eq!(pod.spec().hostname.as_deref(), Some("work-1"));
    let index = ("batch.kubernetes.io/job-completion-index", "1");
    assert!(pod.labels().any(|label| label == index));
    assert!(pod.annotations().any(|annotation| annotation == index));
    let env = serde_json::to_value(&pod.containers()[0].env).unwrap();
    assert_eq!(
        env,
        json!([{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {
            "apiVersion": "v1", "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}])
    );
    let changes = world.end(1, "Succeeded");
    assert!(names(&changes)[0].starts_with("work-2-"), "{:?}", names(&changes));
    let _ = world.end(0, "Succeeded");
    let changes = world.end(2, "Succeeded");
    assert_eq!(changes.messages.len(), 1);
}

#[test]
fn refused_pod_ends_its_object() {
    let mut world = World::new(&job(""));
    let pod = world.pods[0].clone();
    world.report(&pod, "Pending", |state| state.is_refused = true);
    let changes = world.sync();
    assert_eq!(changes.deleted.len(), 1);
    assert!(changes.problems[0].contains("failed: PodRefused"), "{:?}", changes.problems);
    assert_eq!(names(&world.remove_pod(0)), [""; 0]);
    assert_eq!(world.controllers.tally(), Tally { open: 0, failed: 1 });
}

#[test]
fn deployment_replaces_pods_that_ended() {
    let mut world = World::new(&set("Deployment", "  replicas: 2\n"));
    assert_eq!(world.pods.len(), 2);
    let pod = &world.pods[0];
    let hash = pod.labels().find(|(key, _)| *key == "pod-template-hash").unwrap().1;
    assert!(pod.name().starts_with(&format!("web-{hash}-")), "{}", pod.name());
    let owner = &pod.api().metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.clone()), ("ReplicaSet", format!("web-{hash}")));
    let changes = world.end(0, "Failed");
    assert_eq!(changes.deleted, [(world.pods[0].uid().clone(), "replaced")]);
    assert_eq!(names(&changes).len(), 1, "the first one at once");
    let changes = world.end(2, "Failed");
    assert_eq!(names(&changes).len(), 0, "another one after a second");
    assert_eq!(names(&world.wait(1)).len(), 1);
    assert_eq!(world.controllers.tally(), Tally { open: 1, failed: 0 });
    let changes = world.controllers.end(&world.states, world.now);
    assert_eq!(changes.deleted.len(), 2);
}

#[test]
fn replication_controller_replaces_pods_and_owns_them() {
    let manifest = set("ReplicationController", "  replicas: 2\n")
        .replace("apps/v1", "v1")
        .replace("matchLabels: {app: web}", "app: web");
    let mut world = World::new(&manifest);
    assert_eq!(world.pods.len(), 2);
    let owner = &world.pods[0].api().metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.api_version.as_str(), owner.kind.as_str()), ("v1", "ReplicationController"));
    assert_eq!(names(&world.end(0, "Failed")).len(), 1);
    let (_, status) = world.controllers.statuses(world.now).next().unwrap();
    assert_eq!((&status["replicas"], &status["fullyLabeledReplicas"]), (&json!(2), &json!(2)));
}

#[test]
fn daemon_set_has_one_pod_that_tolerates_the_node() {
    let world = World::new(&set("DaemonSet", ""));
    assert_eq!(world.pods.len(), 1);
    let tolerations = world.pods[0].spec().tolerations.as_ref().unwrap();
    assert_eq!(tolerations.len(), 6);
}

#[test]
fn stateful_set_starts_and_ends_pods_in_order() {
    let mut world = World::new(&set("StatefulSet", "  replicas: 3\n  serviceName: db\n"));
    assert_eq!(world.pods.len(), 1);
    let first = world.pods[0].clone();
    assert_eq!(first.name(), "web-0");
    assert_eq!(
        (first.spec().hostname.as_deref(), first.spec().subdomain.as_deref()),
        (Some("web-0"), Some("db"))
    );
    assert!(first.labels().any(|label| label == ("apps.kubernetes.io/pod-index", "0")));
    assert_eq!(names(&world.ready(0)), ["web-1"]);
    assert_eq!(names(&world.ready(1)), ["web-2"]);
    let _ = world.ready(2);
    // An ended pod gets its successor once it is removed.
    let changes = world.end(1, "Failed");
    assert_eq!((changes.deleted.len(), names(&changes).len()), (1, 0));
    assert_eq!(names(&world.remove_pod(1)), ["web-1"]);
    let _ = world.ready(3);
    let ended = |changes: &Changes| -> Vec<PodUid> {
        let deleted = changes.deleted.iter();
        deleted.map(|(uid, _)| uid.clone()).collect()
    };
    let uid = |world: &World, pod: usize| vec![world.pods[pod].uid().clone()];
    let changes = world.controllers.end(&world.states, world.now);
    assert_eq!(ended(&changes), uid(&world, 2));
    assert_eq!(ended(&world.remove_pod(2)), uid(&world, 3));
    assert_eq!(ended(&world.remove_pod(3)), uid(&world, 0));
}

#[test]
fn parallel_stateful_set_does_not_wait_for_pods() {
    let world = World::new(&set("StatefulSet", "  replicas: 3\n  podManagementPolicy: Parallel\n"));
    let names: Vec<&str> = world.pods.iter().map(Pod::name).collect();
    assert_eq!(names, ["web-0", "web-1", "web-2"]);
}

fn cron_job(rest: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: tick}}\nspec:\n  schedule: '* * * * *'\n{rest}  jobTemplate:\n    \
         metadata: {{labels: {{a: b}}}}\n    spec:\n      template:\n        spec: {{restartPolicy: Never, containers: [{{name: c, \
         image: i}}]}}\n"
    )
}

#[rstest::rstest]
#[case::deployment(set("Deployment", "  replicas: 2147483647\n"), "deployment default/web")]
#[case::stateful_set(
    set("StatefulSet", "  replicas: 2147483647\n  podManagementPolicy: Parallel\n"),
    "statefulset default/web"
)]
#[case::job(job("  parallelism: 2147483647\n"), "job default/work")]
fn objects_have_no_more_pods_than_the_node_takes(#[case] manifest: String, #[case] name: &str) {
    let text = format!("{manifest}---\n{}", set("DaemonSet", "").replace("web", "other"));
    let parsed = fixtures::parsed(&text);
    let now = Timestamp::UNIX_EPOCH;
    let starts = CronStarts::Scheduled;
    let mut controllers = Controllers::new(parsed.workloads, Refused::Deleted, starts, 1, now);
    let changes = controllers.sync(&BTreeMap::new(), now);
    let expected =
        format!("{name}: 2147483537 pods do not fit on the node, which takes 110 pods at once");
    assert_eq!(changes.problems, [expected]);
    // An object without a pod gets its first one.
    assert_eq!(changes.created.len(), 111);
    let changes = controllers.sync(&BTreeMap::new(), now);
    assert_eq!((changes.created.len(), changes.problems.len()), (0, 0));
    let changes = controllers.end(&BTreeMap::new(), now);
    assert_eq!(changes.deleted.len(), 111);
}

/// A StatefulSet whose container mounts two volumes; one is a claim's, and the template has a volume with the same name.
const SET: &str = "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: ns}
spec:
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /d}, {name: tmp, mountPath: /t}]}]
      volumes: [{name: data, emptyDir: {}}, {name: tmp, emptyDir: {}}]
  volumeClaimTemplates:
  - metadata: {name: data, labels: {a: b}}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";

#[test]
fn pods_of_a_stateful_set_mount_a_claim_each() {
    let parsed = fixtures::parsed(SET);
    let warned: Vec<&str> = parsed.warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(warned, ["spec.persistentVolumeClaimRetentionPolicy.whenDeleted"]);
    let world = World::new(SET);
    let volumes = world.pods[0].spec().volumes.clone().unwrap();
    let claim = volumes[0].persistent_volume_claim.as_ref().unwrap();
    assert_eq!((volumes.len(), claim.claim_name.as_str()), (2, "data-db-0"));
}
