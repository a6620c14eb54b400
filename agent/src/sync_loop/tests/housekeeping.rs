//! How a kubelet ends and removes pods that no source has any more, and starts pods that replace them.

use rstest::rstest;

use super::*;
use crate::cri::Code;
use crate::reporting::measures::OrphanedDirs;

/// A scene in which a pod of the image `job` has ended, and another agent whose sources have no pod has started.
async fn after_job(mut scene: Scene) -> Scene {
    scene.fake.image("job", job(1, 0));
    scene.want(&[pod("u1", "job", "Never")]);
    scene.until_finished("u1").await;
    scene.restart_agent().await;
    scene.want(&[]);
    scene
}

/// The number of seconds after this one at which the second pod with the name was started.
async fn replaced_after(scene: &Scene, new: &Pod) -> u64 {
    let begun = scene.now();
    scene.run(new).await;
    scene.seconds("StartContainer app/0")[1] - begun
}

#[tokio::test(start_paused = true)]
async fn orphan_that_runs_is_stopped_by_housekeeping() {
    let mut scene = Scene::as_kubelet();
    scene.fake.image("deaf", slow(3600));
    scene.run(&pod("u1", "deaf", "Always")).await;
    scene.stop_agent().await;
    scene.sleep(10).await;
    scene.start_agent();
    let mut events = scene.agent().events();
    scene.want(&[]);
    scene.sleep(10).await;
    assert_eq!(scene.seconds("StopContainer app/0 2s"), [12]);
    assert_eq!(scene.seconds("StopPodSandbox pod-u1"), [14]);
    assert_eq!(scene.fake.object_counts(), (1, 0), "the sandbox is left");
    assert!(!scene.pod_dir("u1").exists());
    let event = events.try_recv().unwrap();
    assert_eq!(
        (event.reason, event.object.field_path),
        ("Killing".to_owned(), "spec.containers{app}".to_owned())
    );
    scene.sleep(120).await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn failed_stop_of_an_orphan_is_an_event_of_its_pod() {
    let mut scene = Scene::as_kubelet();
    scene.run(&pod("u1", "app", "Always")).await;
    scene.stop_agent().await;
    scene.start_agent();
    let mut events = scene.agent().events();
    scene.fake.fail("StopPodSandbox", 1, Code::Internal, "no such bridge");
    scene.want(&[]);
    scene.sleep(30).await;
    let failed = drain(&mut events).find(|event| event.reason == "FailedKillPod").unwrap();
    assert_eq!(
        (failed.object.namespace.as_str(), failed.object.name.as_str(), failed.object.uid.as_str()),
        ("default", "pod-u1", "u1")
    );
    assert!(failed.message.contains("no such bridge"), "{}", failed.message);
}

#[tokio::test(start_paused = true)]
async fn orphan_is_left_alone_before_every_source_is_ready() {
    let mut scene = Scene::as_kubelet();
    scene.run(&pod("u1", "app", "Always")).await;
    scene.restart_agent().await;
    scene.sleep(300).await;
    assert_eq!(scene.fake.running(), ["app"]);
}

#[tokio::test(start_paused = true)]
async fn orphan_that_has_ended_is_left_to_garbage_collection() {
    let scene = after_job(Scene::as_kubelet()).await;
    scene.sleep(30).await;
    assert_eq!(scene.fake.object_counts(), (1, 1));
    assert!(!scene.pod_dir("u1").exists(), "nothing of it runs");
    scene.sleep(120).await;
    scene.assert_clean();
}

/// Without `--adopt-node`, everything of a pod is removed when it ends, and nothing waits for the next garbage collection.
#[tokio::test(start_paused = true)]
async fn orphan_that_has_ended_is_collected_at_once_beside_others() {
    let scene = after_job(Scene::new()).await;
    scene.sleep(10).await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn readded_pod_continues_its_sandbox_attempts() {
    let scene = Scene::as_kubelet();
    let pod = pod("u1", "app", "Always");
    scene.run(&pod).await;
    scene.remove_all().await;
    assert_eq!(scene.fake.object_counts(), (1, 0));
    scene.sleep(10).await;
    scene.run(&pod).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/1").len(), 1);
    assert_eq!(scene.seconds("StartContainer app/0").len(), 2);
    scene.want(&[]);
    scene.sleep(130).await;
    scene.assert_clean();
    scene.run(&pod).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/0").len(), 2, "nothing was left");
}

#[tokio::test(start_paused = true)]
async fn pod_readded_while_terminating_starts_at_next_housekeeping() {
    let scene = Scene::as_kubelet();
    scene.fake.image("slow", slow(5));
    let pod = pod("u1", "slow", "Always");
    scene.run(&pod).await;
    scene.sleep(10).await;
    scene.want(&[]);
    scene.sleep(1).await;
    scene.want(std::slice::from_ref(&pod));
    scene.sleep(10).await;
    assert_eq!(scene.seconds("StopPodSandbox pod-u1")[0], 15);
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/1"), [16]);
}

/// The restarts, the code of the last exit, and the seconds at which the pod counts as started and as initialized, for a pod that
/// is re-created this many seconds after its removal at 10.5 s.
async fn recreate_after(source: Option<&str>, after: f64) -> (i32, Option<i32>, u64, u64) {
    let scene = Scene::as_kubelet();
    scene.fake.image("slow", slow(5));
    let pod = pod("u1", "slow", "Always");
    let pod = source.map_or(pod.clone(), |source| of_source(source, &pod));
    scene.run(&pod).await;
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    scene.want(&[]);
    tokio::time::sleep(Duration::from_secs_f64(after)).await;
    scene.want(std::slice::from_ref(&pod));
    scene.until_finished("u1").await;
    let runs_again = |report: &PodReport| !report.finished && report.containers[0].ready;
    scene.until("u1", "it runs again", runs_again).await;
    let status = scene.report("u1").published;
    let app = &status.container_statuses.as_ref().unwrap()[0];
    let last = app.last_state.as_ref();
    let code = last.and_then(|last| Some(last.terminated.as_ref()?.exit_code));
    let started = scene.second(status.start_time.as_ref().unwrap().0);
    let mut conditions = status.conditions.iter().flatten();
    let initialized = conditions.find(|it| it.type_ == "Initialized").unwrap();
    let initialized = initialized.last_transition_time.as_ref().unwrap().0;
    (app.restart_count, code, started, scene.second(initialized))
}

/// Its containers are removed when it starts again, so that only its status shows the earlier ones. Housekeeping, every 2 s,
/// removes the status of a pod that no source has; when the pod has ended, at 15.5 s, it gets another status.
#[rstest]
#[case::before_housekeeping(Some("file"), 1.0, (1, Some(143), 0, 0))]
#[case::after_housekeeping(Some("file"), 3.0, (1, Some(143), 15, 15))]
#[case::after_its_end(Some("file"), 5.2, (1, Some(143), 15, 15))]
#[case::long_after_its_end(Some("file"), 9.0, (0, None, 19, 19))]
#[case::of_a_source_that_a_kubelet_does_not_have(None, 3.0, (0, None, 16, 16))]
#[tokio::test(start_paused = true)]
async fn readded_pod_continues_from_its_status_unless_that_is_removed(
    #[case] source: Option<&str>,
    #[case] after: f64,
    #[case] expected: (i32, Option<i32>, u64, u64),
) {
    assert_eq!(recreate_after(source, after).await, expected);
}

#[tokio::test(start_paused = true)]
async fn static_pod_that_replaces_another_is_tried_again_after_10_to_15_s() {
    // How long the old pod takes to end, and when the next attempts for the new pod may follow.
    for (ends_after, earliest, latest) in [(0, 10, 15), (9, 10, 15), (16, 20, 30)] {
        let scene = Scene::as_kubelet();
        scene.fake.image("slow", slow(ends_after));
        let old = of_source("file", &pod("u1", "slow", "Always"));
        scene.run(&old).await;
        let waited = replaced_after(&scene, &replacing(&old, "u2")).await;
        assert!((earliest..=latest).contains(&waited), "{ends_after}: {waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn static_pod_does_not_wait_for_one_that_has_ended() {
    let scene = Scene::as_kubelet();
    let old = of_source("file", &pod("u1", "app", "Always"));
    scene.run(&old).await;
    scene.want(&[]);
    scene.until_finished("u1").await;
    assert_eq!(replaced_after(&scene, &replacing(&old, "u2")).await, 0);

    let scene = Scene::as_kubelet();
    scene.fake.image("job", job(1, 0));
    let old = of_source("file", &pod("u1", "job", "Never"));
    scene.want(std::slice::from_ref(&old));
    scene.until_finished("u1").await;
    assert_eq!(replaced_after(&scene, &replacing(&old, "u2")).await, 0);
}

#[tokio::test(start_paused = true)]
async fn only_the_latest_of_several_replacing_pods_starts() {
    let scene = Scene::as_kubelet();
    let old = of_source("file", &pod("u1", "app", "Always"));
    scene.run(&old).await;
    scene.want(&[replacing(&old, "u2")]);
    scene.sleep(5).await;
    let waited = replaced_after(&scene, &replacing(&old, "u3")).await;
    assert_eq!(waited, 0, "the old one has ended meanwhile");
    scene.sleep(60).await;
    assert_eq!(scene.seconds("StartContainer app/0").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pod_of_an_api_server_does_not_wait_for_one_of_its_name() {
    let scene = Scene::as_kubelet();
    scene.fake.image("slow", slow(20));
    let old = of_source("api", &pod("u1", "slow", "Always"));
    scene.run(&old).await;
    assert_eq!(replaced_after(&scene, &replacing(&old, "u2")).await, 0);
    assert_eq!(scene.fake.running().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn last_update_before_removal_sets_the_termination() {
    let scene = Scene::as_kubelet();
    scene.fake.image("deaf", slow(3600));
    let pod = of_source("api", &pod("u1", "deaf", "Always"));
    scene.run(&pod).await;
    scene.want(&[scene.deleted(&pod, Some(0))]);
    assert_eq!(scene.remove_all().await, 2);
    assert_eq!(scene.seconds("StopContainer app/0 2s"), [0]);
}

#[tokio::test(start_paused = true)]
async fn failed_stop_is_repeated_by_housekeeping_or_after_the_back_off() {
    for (has_source, earliest, latest) in [(false, 2, 2), (true, 10, 15)] {
        let scene = Scene::as_kubelet();
        let pod = of_source("api", &pod("u1", "app", "Always"));
        scene.run(&pod).await;
        scene.fake.fail("StopContainer", 1, Code::Internal, "no such cgroup");
        scene.fake.idle("StopPodSandbox", 1);
        if has_source {
            scene.want(&[scene.deleted(&pod, None)]);
        } else {
            scene.want(&[]);
        }
        let finished = scene.until_finished("u1").await;
        assert!((earliest..=latest).contains(&finished), "{has_source}: {finished}");
    }
}

#[tokio::test(start_paused = true)]
async fn logs_and_directories_of_unknown_pods_are_removed() {
    let scene = Scene::as_kubelet();
    let (pods, logs) = (scene.root.join("root/pods"), scene.root.join("logs"));
    let logs_of_others = [logs.join("default_gone_u9/app"), logs.join("lost+found")];
    for path in logs_of_others.into_iter().chain([pods.join("u9/volumes")]) {
        std::fs::create_dir_all(path).unwrap();
    }
    scene.run(&pod("u1", "app", "Always")).await;
    scene.sleep(3).await;
    assert!(!pods.join("u9").exists());
    let found = || scene.agent().view().measured().orphaned_dirs;
    assert_eq!(found(), OrphanedDirs { found: 1, left: 0 });
    assert!(logs.join("default_gone_u9").exists());
    scene.sleep(60).await;
    assert_eq!(found(), OrphanedDirs::default(), "the last look found none");
    assert!(!logs.join("default_gone_u9").exists());
    assert!(logs.join("lost+found").exists(), "it is not a pod's");
    assert!(logs.join("default_pod-u1_u1").exists() && pods.join("u1").exists());
}

#[tokio::test(start_paused = true)]
async fn logs_of_possible_other_agents_are_kept() {
    let mut scene = Scene::as_kubelet();
    let log = scene.root.join("logs/default_gone_u9");
    std::fs::create_dir_all(&log).unwrap();
    scene.restart_as(Some("own"), false).await;
    scene.want(&[]);
    scene.sleep(130).await;
    assert!(log.exists());
    scene.restart_as(Some("own"), true).await;
    scene.want(&[]);
    scene.sleep(130).await;
    assert!(!log.exists());
}

#[tokio::test(start_paused = true)]
async fn dangling_log_links_are_garbage_collected() {
    let scene = Scene::as_kubelet();
    scene.run(&pod("u1", "app", "Always")).await;
    let links = scene.root.join("root/containers");
    std::fs::create_dir_all(&links).unwrap();
    let (gone, here) = (links.join("gone.log"), links.join("here.log"));
    std::os::unix::fs::symlink(scene.root.join("no-log"), &gone).unwrap();
    std::os::unix::fs::symlink(&scene.root, &here).unwrap();
    let is_link = |path: &std::path::Path| path.symlink_metadata().is_ok();
    scene.sleep(50).await;
    assert!(is_link(&gone), "it is looked for each minute");
    scene.sleep(70).await;
    assert!(!is_link(&gone));
    assert!(is_link(&here));
}

#[tokio::test(start_paused = true)]
async fn log_link_is_removed_with_its_container() {
    let scene = Scene::as_kubelet();
    scene.fake.write_logs();
    scene.run(&pod("u1", "app", "Always")).await;
    let links = scene.root.join("root/containers");
    let count = || std::fs::read_dir(&links).unwrap().count();
    assert_eq!(count(), 1);
    scene.fake.kill("app", 1);
    scene.until_restarted("u1").await;
    assert_eq!(count(), 2);
    scene.fake.kill("app", 1);
    // Dangling links are looked for each minute.
    scene.sleep(30).await;
    assert_eq!(scene.times("StartContainer app/").len(), 3);
    assert_eq!(count(), 2, "the first container is removed");
}

#[tokio::test(start_paused = true)]
async fn ended_pod_keeps_its_address_although_its_status_was_forgotten() {
    let scene = Scene::as_kubelet();
    scene.fake.image("slow", slow(5));
    let pod = of_source("file", &pod("u1", "slow", "Always"));
    scene.run(&pod).await;
    let address = scene.report("u1").status.pod_ip.clone();
    assert!(address.is_some());
    scene.want(&[]);
    scene.until_finished("u1").await;
    let status = scene.report("u1").published;
    assert_eq!(status.pod_ip, address);
    let started = status.start_time.as_ref().unwrap().0;
    assert!(scene.second(started) >= 5, "its status was forgotten");
}

/// Runs a pod that the agent `maker` created, and returns whether another agent ended it.
async fn is_ended(maker: Option<&str>, agent: Option<&str>, adopt_node: bool) -> bool {
    let mut scene = Scene::new();
    scene.restart_as(maker, false).await;
    scene.run(&pod("u1", "app", "Always")).await;
    scene.restart_as(agent, adopt_node).await;
    scene.want(&[]);
    scene.sleep(120).await;
    scene.fake.object_counts() == (0, 0)
}

#[tokio::test(start_paused = true)]
async fn agent_terminates_only_its_own_orphans() {
    assert!(is_ended(Some("own"), Some("own"), false).await);
    assert!(!is_ended(Some("other"), Some("own"), false).await);
    assert!(!is_ended(None, Some("own"), false).await);
}

#[tokio::test(start_paused = true)]
async fn adopting_agent_terminates_every_orphan() {
    assert!(is_ended(Some("other"), Some("own"), true).await);
    assert!(is_ended(Some("other"), None, false).await);
}

#[tokio::test(start_paused = true)]
async fn health_fails_when_the_sync_loop_is_stuck() {
    let mut scene = Scene::running("app").await;
    let view = scene.agent().view();
    scene.sleep(1000).await;
    assert_eq!(view.health(), Ok(()), "housekeeping is an iteration");
    scene.stop_agent().await;
    scene.sleep(295).await;
    assert_eq!(view.health(), Ok(()));
    scene.sleep(6).await;
    assert_eq!(view.health(), Err("sync Loop took longer than expected".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn health_fails_once_the_runtime_has_not_been_ready_for_five_minutes() {
    let scene = Scene::running("app").await;
    let view = scene.agent().view();
    scene.fake.set_down(true);
    // The runtime counts as down after 30 s.
    scene.sleep(320).await;
    assert_eq!(view.health(), Ok(()));
    scene.sleep(25).await;
    assert_eq!(view.health(), Err("sync Loop took longer than expected".to_owned()));
    scene.fake.set_down(false);
    scene.sleep(120).await;
    assert_eq!(view.health(), Ok(()));
}
