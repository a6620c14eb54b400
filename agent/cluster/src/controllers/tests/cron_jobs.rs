//! CronJobs, and the Jobs that they start over time.

use super::*;

#[test]
fn cron_job_starts_a_job_each_time() {
    let mut world = World::new(&cron_job("  timeZone: Europe/Berlin\n"));
    assert_eq!(world.pods.len(), 0);
    let changes = world.wait(59);
    assert_eq!(names(&changes), [""; 0]);
    let due = Timestamp::from_second(60).unwrap();
    assert_eq!(changes.again, Some(due));
    let name = "cronjob default/tick".to_owned();
    assert_eq!(world.controllers.next_job(), Some((name.clone(), due)));
    let changes = world.wait(1);
    assert_eq!(changes.messages, ["cronjob default/tick starts job tick-1"]);
    let pod = &world.pods[0];
    assert!(pod.name().starts_with("tick-1-"), "{}", pod.name());
    let owner = &pod.api().metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Job", "tick-1"));
    assert_eq!(world.controllers.manifest_of(pod.uid()), Some(name));
    assert_eq!(names(&world.sync()), [""; 0]);
    let changes = world.wait(60);
    assert_eq!(names(&changes).len(), 1);
    let jobs: Vec<String> = world.controllers.jobs().into_iter().map(|job| job.job).collect();
    assert_eq!(jobs, ["default/tick-1", "default/tick-2"]);
    assert_eq!(world.controllers.tally().open, 3);
}

#[test]
fn forbidden_job_is_reported_once_and_started_after_the_active_one() {
    let mut world = World::new(&cron_job("  concurrencyPolicy: Forbid\n"));
    let _ = world.wait(60);
    let changes = world.wait(60);
    assert_eq!(
        changes.problems,
        [
            "cronjob default/tick starts no job for 1970-01-01T00:02:00Z yet: job tick-1 still runs (concurrencyPolicy Forbid)"
        ]
    );
    assert_eq!(world.sync().problems, [""; 0]);
    let changes = world.end(0, "Succeeded");
    assert_eq!(changes.messages.last().unwrap(), "cronjob default/tick starts job tick-2");
}

#[test]
fn replaced_job_ends_with_its_pods_and_is_forgotten() {
    let mut world = World::new(&cron_job("  concurrencyPolicy: Replace\n"));
    let _ = world.wait(60);
    let changes = world.wait(60);
    let first = world.pods[0].uid().clone();
    assert_eq!(changes.deleted, [(first, "replaced by the next job")]);
    assert_eq!(world.pods.len(), 2);
    let _ = world.remove_pod(0);
    assert_eq!(world.controllers.jobs().len(), 1);
}

#[test]
fn ended_jobs_beyond_the_history_are_removed_with_their_pods() {
    let mut world = World::new(&cron_job("  successfulJobsHistoryLimit: 1\n"));
    let _ = world.wait(60);
    let _ = world.end(0, "Succeeded");
    let _ = world.wait(60);
    let _ = world.end(1, "Succeeded");
    let changes = world.sync();
    assert_eq!(changes.deleted, []);
    let _ = world.remove_pod(0);
    let jobs: Vec<String> = world.controllers.jobs().into_iter().map(|job| job.job).collect();
    assert_eq!(jobs, ["default/tick-2"]);
}

#[test]
fn suspended_cron_job_is_not_waited_for() {
    let mut world = World::new(&cron_job("  suspend: true\n"));
    assert_eq!(world.wait(600).again, None);
    assert_eq!(world.controllers.tally(), Tally::default());
}

#[test]
fn cron_job_runs_once_now_even_if_suspended() {
    let mut world = World::with(&cron_job("  suspend: true\n"), CronStarts::Now);
    assert_eq!(world.pods.len(), 1);
    assert_eq!(world.controllers.tally().open, 1);
    let _ = world.end(0, "Succeeded");
    let changes = world.wait(3600);
    assert_eq!((names(&changes).len(), changes.again), (0, None));
    assert_eq!(world.controllers.tally(), Tally::default());
}

#[test]
fn no_job_is_started_when_the_run_ends() {
    let mut world = World::new(&cron_job(""));
    let _ = world.wait(60);
    let changes = world.controllers.end(&world.states, world.now);
    assert_eq!(changes.deleted.len(), 1);
    let _ = world.remove_pod(0);
    assert_eq!(names(&world.wait(600)), [""; 0]);
}
