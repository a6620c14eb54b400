//! Which actions are repeated, and when: updates end back-offs, and calls without effect are not repeated immediately.

use super::*;
use crate::cri::Code;

/// Asserts that a call was made this many times, with the delays of a kubelet's worker.
fn assert_retried(scene: &Scene, call: &str, count: usize) {
    let times = scene.times(call);
    assert_eq!(times.len(), count, "{times:?}");
    assert!(gaps(&times).iter().all(|gap| (10..=15).contains(gap)), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn update_to_working_image_ends_crash_backoff() {
    let scene = Scene::new();
    scene.want(&[pod("u1", "crash", "Always")]);
    scene.sleep(400).await;
    assert_eq!(reason(&scene.report("u1"), "app"), "CrashLoopBackOff");
    let updated = scene.now();
    scene.want(&[pod("u1", "app", "Always")]);
    scene.until_all_run("u1").await;
    assert_eq!(scene.now(), updated);
}

#[tokio::test(start_paused = true)]
async fn pod_update_ends_backoff_after_failures() {
    let scene = Scene::new();
    for (uid, image) in [("u1", "gone:1"), ("u2", "bad")] {
        scene.want(&[pod(uid, image, "Always")]);
        scene.sleep(200).await;
        let updated = scene.now();
        assert_eq!(scene.run(&pod(uid, "app", "Always")).await, updated, "{image}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_start_that_exited_is_restarted_like_a_crash() {
    let scene = Scene::new();
    scene.fake.exec("app", seconds(0), 1, "");
    let app = container_with("app", "app", "lifecycle", json!({"postStart": exec("false")}));
    scene.want(&[pod_with("u1", json!({"containers": [app]}))]);
    scene.sleep(60).await;
    assert_eq!(scene.times("StartContainer app/"), [0, 0, 10, 30]);
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_is_not_ready_is_not_replaced_at_once() {
    let scene = Scene::new();
    scene.fake.idle("RunPodSandbox", 3);
    let running = scene.run(&pod("u1", "app", "Always")).await;
    assert!((30..=46).contains(&running), "{running}");
    assert_eq!(scene.times("RunPodSandbox").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn start_without_effect_is_not_repeated_at_once() {
    let scene = Scene::new();
    scene.fake.idle("StartContainer", 2);
    scene.want(&[pod("u1", "app", "Always")]);
    scene.until_reason("u1", "app", "RunContainerError").await;
    scene.until_running("u1").await;
    assert_retried(&scene, "StartContainer", 3);
    scene.sleep(60).await;
    assert_eq!(scene.fake.object_counts().1, 1, "what was never started is removed");
}

#[tokio::test(start_paused = true)]
async fn stop_without_effect_is_not_repeated_at_once() {
    let scene = Scene::running("one").await;
    scene.fake.idle("StopContainer", 3);
    scene.want(&[pod("u1", "two", "Always")]);
    scene.sleep(20).await;
    assert_eq!(scene.times("CreateContainer").len(), 1, "never two of one container");
    scene.until_restarted("u1").await;
    scene.until_running("u1").await;
    assert_retried(&scene, "StopContainer", 4);
}

#[tokio::test(start_paused = true)]
async fn pod_stop_without_effect_is_not_repeated_at_once() {
    // Whether a source still has the pod, and the number of stops that a kubelet makes in 100 s.
    for (has_source, expected) in [(true, 7..=11), (false, 49..=51)] {
        let scene = Scene::running("deaf").await;
        scene.fake.idle("StopContainer", 100);
        scene.fake.idle("StopPodSandbox", 100);
        let deleted = scene.deleted(&pod("u1", "deaf", "Always"), None);
        scene.want(if has_source { std::slice::from_ref(&deleted) } else { &[] });
        scene.sleep(100).await;
        let stops = scene.times("StopContainer").len();
        assert!(expected.contains(&stops), "{stops} stops");
    }
}

#[tokio::test(start_paused = true)]
async fn removal_without_effect_is_not_repeated_at_once() {
    let scene = Scene::new();
    scene.fake.idle("RemoveContainer", 1_000_000);
    scene.want(&[pod("u1", "crash", "Always")]);
    scene.sleep(100).await;
    let removals = scene.times("RemoveContainer").len();
    assert!((2..60).contains(&removals), "{removals} removals");
    scene.want(&[]);
    scene.sleep(100).await;
    let more = scene.times("RemoveContainer").len() - removals;
    assert!((2..=60).contains(&more), "{more} removals");
    scene.fake.idle("RemoveContainer", 0);
    scene.until_removed("u1").await;
}

#[tokio::test(start_paused = true)]
async fn failed_stop_starts_nothing_else() {
    let scene = Scene::running("one").await;
    scene.fake.fail("StopContainer", 2, Code::Unknown, "device is busy");
    scene.want(&[pod("u1", "two", "Always")]);
    scene.until_restarted("u1").await;
    assert_retried(&scene, "StopContainer", 3);
    assert_eq!(scene.times("CreateContainer").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn container_left_created_by_an_earlier_agent_is_removed() {
    let mut scene = Scene::new();
    scene.fake.delay("StartContainer", seconds(5));
    scene.want(&[pod("u1", "app", "Always")]);
    scene.sleep(1).await;
    scene.stop_agent().await;
    assert_eq!(scene.calls().last().unwrap(), "StartContainer app/0");
    scene.fake.delay("StartContainer", seconds(0));
    scene.start_agent();
    scene.run(&pod("u1", "app", "Always")).await;
    scene.sleep(1).await;
    assert_eq!(scene.fake.running(), ["app"]);
    assert_eq!(scene.fake.object_counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn restart_of_all_containers_stops_with_two_seconds() {
    let scene = Scene::new();
    scene.fake.image("init", job(1, 0));
    scene.fake.image("fires", job(7, 42));
    let fires = ruled("a", "fires", "RestartAllContainers");
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [container("i", "init")],
        "containers": [fires, container("b", "deaf")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene.sleep(15).await;
    assert_eq!(
        scene.calls()[7..],
        [
            "StopContainer b/0 2s",
            "RemoveContainer b/0",
            "RemoveContainer i/0",
            "RemoveContainer a/0",
            "CreateContainer i/0",
            "StartContainer i/0",
            "CreateContainer a/0",
            "StartContainer a/0",
            "CreateContainer b/0",
            "StartContainer b/0",
        ]
    );
    assert_eq!(scene.seconds("RemoveContainer b/0"), [10]);
}

#[tokio::test(start_paused = true)]
async fn new_status_of_a_pod_is_no_update() {
    let scene = Scene::new();
    for number in 0..30 {
        let status = json!({"phase": "Pending", "message": format!("{number}")});
        let status = serde_json::from_value(status).unwrap();
        scene.want(&[changed(&pod("u1", "bad", "Always"), |api| api.status = status)]);
        scene.sleep(1).await;
    }
    let attempts = scene.times("CreateContainer").len();
    // Another attempt follows the event of the sandbox's start.
    assert!((3..=4).contains(&attempts), "{attempts}");
}
