//! What is repeated, and when: updates end back-offs, and calls without effect are not repeated at once.

use super::*;
use crate::cri::Code;

/// The calls of one kind, as the seconds at which they were made.
fn times(scene: &Scene, call: &str) -> Vec<u64> {
    let calls = scene.fake.calls().into_iter();
    calls
        .filter(|made| made.text.starts_with(call))
        .map(|made| scene.second(made.at))
        .collect()
}

fn gaps(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

async fn start_running(scene: &Scene, pod: &Pod) {
    scene.want(std::slice::from_ref(pod));
    scene
        .until(pod.uid().as_str(), "running", |report| {
            phase(report) == "Running"
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn update_to_working_image_ends_crash_backoff() {
    let scene = Scene::new();
    scene.fake.image("crash", job(1, 1));
    scene.fake.image("works", Behaviour::forever());
    scene.want(&[pod("u1", "crash", "Always")]);
    tokio::time::sleep(seconds(400)).await;
    assert_eq!(reason(&scene.report("u1"), "app"), "CrashLoopBackOff");
    let updated = scene.second(scene.clock.now());
    scene.want(&[pod("u1", "works", "Always")]);
    let running = scene
        .until("u1", "it runs", |report| {
            states(report)["app"] == ContainerPhase::Running
        })
        .await;
    assert_eq!(running, updated);
}

#[tokio::test(start_paused = true)]
async fn update_ends_waits_after_failures() {
    let scene = Scene::new();
    let gone = Behaviour {
        present: false,
        pull: (seconds(0), Some("no such image".to_owned())),
        ..Behaviour::forever()
    };
    let bad = Behaviour {
        create_fails: Some("no such device".to_owned()),
        ..Behaviour::forever()
    };
    scene.fake.image("works", Behaviour::forever());
    for (uid, image, behaviour) in [("u1", "gone:1", gone), ("u2", "bad:1", bad)] {
        scene.fake.image(image, behaviour);
        scene.want(&[pod(uid, image, "Always")]);
        tokio::time::sleep(seconds(200)).await;
        let updated = scene.second(scene.clock.now());
        scene.want(&[pod(uid, "works", "Always")]);
        let running = scene
            .until(uid, "it runs", |report| phase(report) == "Running")
            .await;
        assert_eq!(running, updated, "{image}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_start_that_exited_is_restarted_like_a_crash() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.command(
        &["false"],
        seconds(0),
        crate::cri::ExecOutput {
            exit_code: 1,
            ..Default::default()
        },
    );
    let mut app = container("app", "app");
    app["lifecycle"] = json!({"postStart": {"exec": {"command": ["false"]}}});
    scene.want(&[pod_with("u1", json!({"containers": [app]}))]);
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(times(&scene, "StartContainer app/"), [0, 0, 10, 30]);
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_is_not_ready_is_not_replaced_at_once() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.idle("RunPodSandbox", 3);
    scene.want(&[pod("u1", "app", "Always")]);
    let running = scene
        .until("u1", "it runs", |report| phase(report) == "Running")
        .await;
    assert!((30..=46).contains(&running), "{running}");
    assert_eq!(times(&scene, "RunPodSandbox").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn container_that_stays_created_is_not_started_at_once() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.idle("StartContainer", 2);
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "the reason", |report| {
            reason(report, "app") == "RunContainerError"
        })
        .await;
    scene
        .until("u1", "it runs", |report| phase(report) == "Running")
        .await;
    let starts = times(&scene, "StartContainer");
    assert_eq!(starts.len(), 3);
    assert!(
        gaps(&starts).iter().all(|gap| (10..=15).contains(gap)),
        "{starts:?}"
    );
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(
        scene.fake.population().1,
        1,
        "what was never started is removed"
    );
}

#[tokio::test(start_paused = true)]
async fn container_that_keeps_running_is_not_stopped_at_once() {
    let scene = Scene::new();
    scene.fake.image("one", Behaviour::forever());
    scene.fake.image("two", Behaviour::forever());
    start_running(&scene, &pod("u1", "one", "Always")).await;
    scene.fake.idle("StopContainer", 3);
    scene.want(&[pod("u1", "two", "Always")]);
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(
        times(&scene, "CreateContainer").len(),
        1,
        "never two of one container"
    );
    scene
        .until("u1", "replaced", |report| {
            report.containers[0].restarts == 1 && phase(report) == "Running"
        })
        .await;
    let stops = times(&scene, "StopContainer");
    assert_eq!(stops.len(), 4);
    assert!(
        gaps(&stops).iter().all(|gap| (10..=15).contains(gap)),
        "{stops:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn pod_that_keeps_running_is_not_stopped_at_once() {
    // Whether a source still has the pod, and how many stops a kubelet makes in 100 s.
    for (has_source, expected) in [(true, 7..=11), (false, 49..=51)] {
        let scene = Scene::new();
        let deaf = Behaviour {
            yields_after: None,
            ..Behaviour::forever()
        };
        scene.fake.image("app", deaf);
        let mut app = pod("u1", "app", "Always").api().clone();
        app.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(scene.epoch),
        );
        start_running(&scene, &pod("u1", "app", "Always")).await;
        scene.fake.idle("StopContainer", 100);
        scene.fake.idle("StopPodSandbox", 100);
        let wanted: Vec<Pod> = has_source.then(|| Pod::new(app)).into_iter().collect();
        scene.want(&wanted);
        tokio::time::sleep(seconds(100)).await;
        let stops = times(&scene, "StopContainer").len();
        assert!(expected.contains(&stops), "{stops} stops");
    }
}

#[tokio::test(start_paused = true)]
async fn container_that_stays_listed_is_not_removed_at_once() {
    let scene = Scene::new();
    scene.fake.image("crash", job(1, 1));
    scene.fake.idle("RemoveContainer", 1_000_000);
    scene.want(&[pod("u1", "crash", "Always")]);
    tokio::time::sleep(seconds(100)).await;
    let removals = times(&scene, "RemoveContainer").len();
    assert!((2..60).contains(&removals), "{removals} removals");
    scene.want(&[]);
    tokio::time::sleep(seconds(100)).await;
    let more = times(&scene, "RemoveContainer").len() - removals;
    assert!((2..=60).contains(&more), "{more} removals");
    scene.fake.idle("RemoveContainer", 0);
    scene.until("u1", "removed", |report| report.removed).await;
}

#[tokio::test(start_paused = true)]
async fn failed_stop_starts_nothing_else() {
    let scene = Scene::new();
    scene.fake.image("one", Behaviour::forever());
    scene.fake.image("two", Behaviour::forever());
    start_running(&scene, &pod("u1", "one", "Always")).await;
    scene
        .fake
        .fail("StopContainer", 2, Code::Unknown, "device is busy");
    scene.want(&[pod("u1", "two", "Always")]);
    scene
        .until("u1", "replaced", |report| {
            report.containers[0].restarts == 1
        })
        .await;
    let stops = times(&scene, "StopContainer");
    assert_eq!(stops.len(), 3);
    assert!(gaps(&stops).iter().all(|gap| (10..=15).contains(gap)));
    assert_eq!(times(&scene, "CreateContainer").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn container_that_an_agent_left_created_is_removed() {
    let mut scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.delay("StartContainer", seconds(5));
    scene.want(&[pod("u1", "app", "Always")]);
    tokio::time::sleep(seconds(1)).await;
    scene.stop_agent().await;
    assert_eq!(scene.calls().last().unwrap(), "StartContainer app/0");
    scene.fake.delay("StartContainer", seconds(0));
    scene.start_agent();
    start_running(&scene, &pod("u1", "app", "Always")).await;
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(scene.fake.running(), ["app"]);
    assert_eq!(scene.fake.population(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn restart_of_all_containers_stops_with_two_seconds() {
    let scene = Scene::new();
    scene.fake.image("init", job(1, 0));
    scene.fake.image("fires", job(7, 42));
    let deaf = Behaviour {
        yields_after: None,
        ..Behaviour::forever()
    };
    scene.fake.image("deaf", deaf);
    let mut fires = container("a", "fires");
    fires["restartPolicy"] = json!("Never");
    fires["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]},
    }]);
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [container("i", "init")],
        "containers": [fires, container("b", "deaf")],
    });
    scene.want(&[pod_with("u1", spec)]);
    tokio::time::sleep(seconds(15)).await;
    let calls = scene.calls();
    assert_eq!(
        calls[7..],
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
    let bad = Behaviour {
        create_fails: Some("no such device".to_owned()),
        ..Behaviour::forever()
    };
    scene.fake.image("bad", bad);
    for number in 0..30 {
        let mut api = pod("u1", "bad", "Always").api().clone();
        let status = json!({"phase": "Pending", "message": format!("{number}")});
        api.status = Some(serde_json::from_value(status).unwrap());
        scene.want(&[Pod::new(api)]);
        tokio::time::sleep(seconds(1)).await;
    }
    let attempts = times(&scene, "CreateContainer").len();
    // One more follows the event of the sandbox's start.
    assert!((3..=4).contains(&attempts), "{attempts}");
}
