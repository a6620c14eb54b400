//! Objects whose manifests change while their pods run.

use serde_json::Value;

use super::*;

/// The objects of a manifest, as after a change of its file.
fn apply(world: &mut World, manifest: &str) -> Vec<String> {
    let (before, used) = &world.manifests;
    let applied = world.controllers.applied(before, fixtures::parsed(manifest).workloads, used);
    world.manifests.1.extend(applied.all.iter().filter_map(|it| it.metadata().uid.clone()));
    world.manifests.0.clone_from(&applied.all);
    let mut messages = applied.messages.clone();
    messages.extend(world.controllers.change(applied, world.now).messages);
    messages.extend(world.sync().messages);
    messages
}

#[test]
fn changed_deployment_replaces_its_pod_when_the_new_one_is_ready() {
    let mut world = World::new(&set("Deployment", ""));
    let _ = world.ready(0);
    let changed = set("Deployment", "").replace("image: i", "image: j");
    let messages = apply(&mut world, &changed);
    assert_eq!(messages, ["deployment default/web is updated"]);
    assert_eq!(world.pods.len(), 2);
    let first = world.pods[0].uid().clone();
    let changes = world.ready(1);
    let why = "replaced by a pod of the changed template";
    assert_eq!(changes.deleted, [(first, why)]);
    assert_eq!(apply(&mut world, &changed), [""; 0]);
    let _ = world.remove_pod(0);
    assert_eq!(world.pods.len(), 2);
}

#[test]
fn replica_set_keeps_the_annotations_of_its_deployment_at_its_time() {
    let manifest = |cause: &str, image: &str| {
        let metadata = format!(
            "metadata: {{name: web, annotations: {{kubernetes.io/change-cause: {cause}}}}}"
        );
        let manifest = set("Deployment", "").replace("metadata: {name: web}", &metadata);
        manifest.replace("image: i", &format!("image: {image}"))
    };
    let mut world = World::new(&manifest("first", "i"));
    apply(&mut world, &manifest("second", "j"));
    let sets = world.controllers.between(world.now).map(|set| {
        let annotation = |name: &str| set["metadata"]["annotations"][name].clone();
        (annotation("deployment.kubernetes.io/revision"), annotation("kubernetes.io/change-cause"))
    });
    let expected = [(json!("1"), json!("first")), (json!("2"), json!("second"))];
    assert_eq!(sets.collect::<Vec<_>>(), expected);
}

#[test]
fn changed_job_is_recreated_and_a_removed_one_ends() {
    let mut world = World::new(&job(""));
    let more = job("  parallelism: 1\n  backoffLimit: 9\n  completions: 1\n");
    assert_eq!(apply(&mut world, &more), ["job default/work is updated"]);
    assert_eq!(world.pods.len(), 1);
    let messages = apply(&mut world, &job("").replace("image: i", "image: j"));
    assert_eq!(messages, ["job default/work is replaced, because its manifest changed"]);
    assert_eq!(world.pods.len(), 2);
    let messages = apply(&mut world, &cron_job(""));
    assert_eq!(
        messages[..2],
        ["job default/work ends: its manifest was removed", "cronjob default/tick is new"]
    );
    for pod in 0..2 {
        let _ = world.remove_pod(pod);
    }
    assert_eq!(world.controllers.tally(), Tally { open: 1, failed: 0 });
}

#[test]
fn changed_cron_job_keeps_its_jobs_and_a_removed_one_ends_them() {
    let mut world = World::new(&cron_job(""));
    let _ = world.wait(60);
    let changed = cron_job("  concurrencyPolicy: Forbid\n");
    assert_eq!(apply(&mut world, &changed)[0], "cronjob default/tick is updated");
    assert_eq!(world.pods.len(), 1);
    let messages = apply(&mut world, &job(""));
    assert!(
        messages.contains(&"cronjob default/tick ends: its manifest was removed".to_owned()),
        "{messages:?}"
    );
    let _ = world.remove_pod(0);
    assert_eq!(world.controllers.jobs().len(), 1);
}

#[test]
fn suspended_job_is_reported_once_and_awaited_after_resume() {
    let suspended = job("  suspend: true\n");
    let mut world = World::new(&suspended);
    assert_eq!(world.sync().messages, [""; 0]);
    assert_eq!(world.controllers.tally(), Tally::default());

    let _ = apply(&mut world, &job(""));
    assert_eq!(world.pods.len(), 1);
    assert_eq!(world.controllers.tally().open, 1);

    // If it is suspended again, it stays open until its pod has ended.
    let expected = "job default/work is suspended and starts no pod";
    let messages = apply(&mut world, &suspended);
    assert_eq!(messages, ["job default/work is updated", expected]);
    assert_eq!(world.controllers.tally().open, 1);
    let _ = world.remove_pod(0);
    assert_eq!(world.controllers.tally(), Tally::default());
}

#[test]
fn deployment_status_has_availability_and_transition_time() {
    let manifest = set("Deployment", "  replicas: 4\n");
    let mut world = World::new(&manifest);
    let conditions = |world: &World, before: &Value| {
        let (_, status) = world.controllers.statuses(world.now).next().unwrap();
        let status = since(status, before, world.now);
        let shown = |it: &Value| {
            let text = |field: &str| it[field].as_str().unwrap().to_owned();
            format!("{} {} {}", text("type"), text("status"), text("reason"))
        };
        let all: Vec<String> = status["conditions"].as_array().unwrap().iter().map(shown).collect();
        (all.join(", "), status)
    };
    let (shown, first) = conditions(&world, &Value::Null);
    let missing = "Available False MinimumReplicasUnavailable, Progressing True ReplicaSetUpdated";
    assert_eq!(shown, missing);
    for pod in 0..2 {
        let _ = world.ready(pod);
    }
    let _ = world.wait(60);
    let (shown, second) = conditions(&world, &first);
    assert_eq!(shown, missing);
    assert_eq!(second["conditions"], first["conditions"], "the times stay");
    // A quarter may be unavailable.
    let _ = world.ready(2);
    let (shown, third) = conditions(&world, &second);
    let available = "Available True MinimumReplicasAvailable, Progressing True ReplicaSetUpdated";
    assert_eq!(shown, available);
    let time =
        |status: &Value, index: usize| status["conditions"][index]["lastTransitionTime"].clone();
    assert_ne!(time(&third, 0), time(&first, 0));
    assert_eq!(time(&third, 1), time(&first, 1));
    let _ = world.ready(3);
    let (shown, _) = conditions(&world, &third);
    assert!(shown.ends_with("Progressing True NewReplicaSetAvailable"), "{shown}");
}

#[test]
fn deployment_without_progress_times_out_by_itself() {
    let mut world = World::new(&set("Deployment", "  progressDeadlineSeconds: 30\n"));
    let due = world.sync().again;
    assert_eq!(due, Some(world.now + SignedDuration::from_secs(30)));
    assert_eq!(world.wait(30).again, None);
    let (_, status) = world.controllers.statuses(world.now).next().unwrap();
    let progressing = &status["conditions"][1];
    assert_eq!(progressing["status"], "False");
    assert_eq!(progressing["reason"], "ProgressDeadlineExceeded");
}

#[test]
fn pods_become_available_without_further_reports() {
    let mut world = World::new(&set("Deployment", "  minReadySeconds: 20\n"));
    let due = world.ready(0).again;
    assert_eq!(due, Some(world.now + SignedDuration::from_secs(20)));
    let _ = world.wait(20);
    let (_, status) = world.controllers.statuses(world.now).next().unwrap();
    assert_eq!(status["availableReplicas"], 1);
}
