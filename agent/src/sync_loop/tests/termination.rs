//! The termination of pods: deletion at an API server, deadlines, and terminations during other actions.

use rstest::rstest;

use super::*;

#[tokio::test(start_paused = true)]
async fn deleted_pod_ends_within_grace_period_of_deletion() {
    let scene = Scene::new();
    let pod = pod("u1", "deaf", "Always");
    scene.run(&pod).await;
    scene.want(&[scene.deleted(&pod, Some(3))]);
    assert_eq!(scene.until_finished("u1").await, 3);
    assert_eq!(scene.seconds("StopContainer app/0 3s"), [0]);
    scene.sleep(60).await;
    assert!(!scene.report("u1").removed, "it is kept until its source has removed it");
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_deleted_before_its_first_start_never_starts() {
    let scene = Scene::new();
    scene.want(&[scene.deleted(&pod("u1", "app", "Always"), Some(30))]);
    scene.until_finished("u1").await;
    assert_eq!(scene.calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn running_stop_is_not_cut_short_by_force() {
    let scene = Scene::new();
    let pod = pod("u1", "deaf", "Always");
    scene.run(&pod).await;
    scene.want(&[scene.deleted(&pod, Some(40))]);
    scene.sleep(3).await;
    assert_eq!(scene.remove_all().await, 40);
    assert_eq!(scene.seconds("StopContainer app/0 40s"), [0], "as a kubelet does");
}

#[tokio::test(start_paused = true)]
async fn next_stop_has_the_shortest_grace_period_so_far() {
    let scene = Scene::new();
    let pod = pod("u1", "deaf", "Always");
    scene.run(&pod).await;
    scene.fake.idle("StopContainer", 1);
    scene.fake.idle("StopPodSandbox", 1);
    scene.want(&[scene.deleted(&pod, Some(40))]);
    scene.sleep(3).await;
    scene.want(&[scene.deleted(&pod, Some(7))]);
    scene.sleep(3).await;
    scene.want(&[scene.deleted(&pod, Some(60))]);
    scene.until_finished("u1").await;
    assert_eq!(scene.seconds("StopContainer app/0 7s").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_fails_at_its_deadline() {
    let scene = Scene::new();
    let spec = json!({
        "activeDeadlineSeconds": 8,
        "terminationGracePeriodSeconds": 2,
        "containers": [container("app", "deaf")],
    });
    scene.run(&pod_with("u1", spec)).await;
    let finished = scene.until_finished("u1").await;
    assert_eq!(scene.seconds("StopContainer app/0 2s"), [8]);
    assert_eq!(finished, 10);
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), "DeadlineExceeded".to_owned()));
    scene.sleep(60).await;
    assert_eq!(scene.seconds("StartContainer app/0"), [0], "no restart");
}

#[rstest]
#[case::of_its_deadline(false, 0)]
#[case::of_its_removal(true, 1)]
#[tokio::test(start_paused = true)]
async fn pod_without_grace_period_runs_hooks_only_on_requested_termination(
    #[case] removed: bool,
    #[case] hooks: usize,
) {
    let scene = Scene::new();
    scene.fake.exec("app", seconds(0), 0, "");
    let app = container_with("app", "app", "lifecycle", json!({"preStop": exec("stop")}));
    let spec = json!({
        "activeDeadlineSeconds": 8,
        "terminationGracePeriodSeconds": 0,
        "containers": [app],
    });
    scene.run(&pod_with("u1", spec)).await;
    if removed {
        scene.want(&[]);
    }
    scene.until("u1", "ended", |report| report.finished || report.removed).await;
    assert_eq!(scene.seconds("ExecSync app/0 stop").len(), hooks);
    assert_eq!(scene.seconds("StopContainer app/0 2s").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removal_cancels_creation_of_sandbox() {
    let scene = Scene::new();
    scene.fake.delay("RunPodSandbox", seconds(100));
    scene.want(&[pod("u1", "app", "Always")]);
    scene.sleep(5).await;
    assert_eq!(scene.remove_all().await, 5);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn ephemeral_containers_end_with_their_pod() {
    let scene = Scene::new();
    let spec = json!({
        "terminationGracePeriodSeconds": 4,
        "containers": [container("app", "deaf")],
        "ephemeralContainers": [container("dbg", "deaf")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene.until_all_run("u1").await;
    scene.remove_all().await;
    assert_eq!(scene.seconds("StopContainer app/0 4s"), [0]);
    assert_eq!(scene.seconds("StopContainer dbg/0 4s"), [0]);
}

#[tokio::test(start_paused = true)]
async fn sidecars_that_ignore_signals_get_two_seconds_after_grace_period() {
    let scene = Scene::new();
    let spec = json!({
        "terminationGracePeriodSeconds": 3,
        "initContainers": [sidecar("s1", "deaf"), sidecar("s2", "deaf")],
        "containers": [container("c", "deaf")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene.until_all_run("u1").await;
    scene.remove_all().await;
    assert_eq!(scene.seconds("StopContainer c/0 3s"), [0]);
    assert_eq!(scene.seconds("StopContainer s1/0 2s"), [3]);
    assert_eq!(scene.seconds("StopContainer s2/0 2s"), [3]);
}

#[tokio::test(start_paused = true)]
async fn missing_sandbox_counts_as_stopped() {
    let scene = Scene::running("app").await;
    let mut events = scene.agent().events();
    scene.fake.fail("StopPodSandbox", 1, crate::cri::Code::NotFound, "no such sandbox");
    scene.remove_all().await;
    assert!(!drain(&mut events).any(|event| event.message.contains("no such sandbox")));
}

const CONTAINER_STUCK: &str = "failed to \"KillContainer\" for \"app\" with KillContainerError: \"rpc error: code = Unknown desc = stuck\"";
const SANDBOX_STUCK: &str = "failed to \"KillPodSandbox\" for \"u1\" with KillPodSandboxError: \"rpc error: code = Unknown desc = stuck\"";

#[rstest]
#[case::container(&["StopContainer"], CONTAINER_STUCK.to_owned())]
#[case::sandbox(&["StopPodSandbox"], SANDBOX_STUCK.to_owned())]
#[case::both(&["StopContainer", "StopPodSandbox"], format!("[{CONTAINER_STUCK}, {SANDBOX_STUCK}]"))]
#[tokio::test(start_paused = true)]
async fn failed_stop_is_an_event_in_the_words_of_a_kubelet(
    #[case] calls: &[&'static str],
    #[case] expected: String,
) {
    let scene = Scene::running("app").await;
    let mut events = scene.agent().events();
    for call in calls.iter().copied() {
        scene.fake.fail(call, 1, crate::cri::Code::Unknown, "stuck");
    }
    scene.remove_all().await;
    let event = drain(&mut events).find(|event| event.reason == "FailedKillPod").unwrap();
    assert_eq!(event.message, format!("error killing pod: {expected}"));
}
