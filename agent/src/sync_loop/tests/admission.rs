//! Pods that the node does not take, and pods that wait for the runtime.

use super::*;

fn hungry(uid: &str, cpu: &str) -> Pod {
    let mut app = container("app", "app");
    app["resources"] = json!({"requests": {"cpu": cpu}});
    pod_with(uid, json!({"containers": [app]}))
}

#[tokio::test(start_paused = true)]
async fn rejected_pod_fails_without_a_call_and_stays_so() {
    let mut scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    let mut events = scene.agent().events();
    scene.want(&[hungry("u1", "99999"), pod("u2", "app", "Always")]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    scene
        .until("u2", "running", |report| phase(report) == "Running")
        .await;
    let status = scene.report("u1").status;
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    let message = status.message.clone().unwrap();
    assert!(message.starts_with("Pod was rejected: Node didn't have enough resource: cpu, requested: 99999000, used: 0, capacity: "), "{message}");
    let event =
        std::iter::from_fn(|| events.try_recv().ok()).find(|event| event.object.name == "pod-u1");
    let event = event.unwrap();
    assert_eq!(
        (event.reason.as_str(), event.kind.as_str()),
        ("OutOfcpu", "Warning")
    );
    assert!(
        !scene.calls().iter().any(|call| call.contains("u1")),
        "{:?}",
        scene.calls()
    );

    // Asked for less, it would fit: but what was rejected stays so.
    scene.stop_agent().await;
    scene.start_agent();
    scene.want(&[hungry("u1", "1m"), pod("u2", "app", "Always")]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert_eq!(
        scene.report("u1").status.reason.as_deref(),
        Some("OutOfcpu")
    );

    scene.want(&[pod("u2", "app", "Always")]);
    scene.until("u1", "removed", |report| report.removed).await;
    scene.want(&[hungry("u1", "1m"), pod("u2", "app", "Always")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
}

#[tokio::test(start_paused = true)]
async fn ended_pod_of_api_server_is_not_admitted_again() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut ended = hungry("u1", "99999").api().clone();
    let status = json!({"phase": "Succeeded", "reason": "Done"});
    ended.status = Some(serde_json::from_value(status).unwrap());
    let whole = hungry("u2", &cpus.to_string());
    scene.want(&[Pod::new(ended), whole]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    let status = scene.report("u1").status;
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert_eq!(status.reason.as_deref(), Some("Done"));
    scene
        .until("u2", "running", |report| phase(report) == "Running")
        .await;
    let calls = scene.calls();
    assert!(!calls.iter().any(|call| call.contains("u1")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn rejection_of_pod_that_went_while_no_agent_ran_is_forgotten() {
    let mut scene = Scene::new();
    scene.want(&[hungry("u1", "99999")]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    let record = scene.root.join("root/rejected/u1");
    tokio::time::sleep(seconds(1)).await;
    assert!(record.exists());
    scene.stop_agent().await;
    scene.start_agent();
    scene.want(&[]);
    // Housekeeping is done once a minute.
    tokio::time::sleep(seconds(61)).await;
    assert!(!record.exists());
}

#[tokio::test(start_paused = true)]
async fn storage_is_counted_before_the_agents_directory_exists() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    let mut app = container("app", "app");
    app["resources"] = json!({"requests": {"ephemeral-storage": "1Mi"}});
    scene.want(&[pod_with("u1", json!({"containers": [app]}))]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
}

#[tokio::test(start_paused = true)]
async fn pod_that_has_ended_leaves_room_for_others() {
    let scene = Scene::new();
    scene.fake.image("job", job(5, 0));
    let port = |uid: &str| {
        let mut app = container("app", "job");
        app["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        pod_with(uid, json!({"containers": [app], "restartPolicy": "Never"}))
    };
    scene.want(&[port("u1"), port("u2")]);
    scene
        .until("u2", "finished", |report| report.finished)
        .await;
    assert_eq!(
        scene.report("u2").status.reason.as_deref(),
        Some("NodePorts"),
        "a rejected pod takes no port"
    );
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    scene.want(&[port("u1"), port("u2"), port("u3")]);
    scene
        .until("u3", "succeeded", |report| phase(report) == "Succeeded")
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_wait_until_the_network_is_ready() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    tokio::time::sleep(seconds(1)).await;
    scene.fake.set_network_ready(false);
    tokio::time::sleep(seconds(5)).await;
    let mut events = scene.agent().events();
    let mut host = container("app", "app");
    host["name"] = json!("host");
    scene.want(&[
        pod("u1", "app", "Always"),
        pod_with("u2", json!({"containers": [host], "hostNetwork": true})),
    ]);
    scene
        .until("u2", "running", |report| phase(report) == "Running")
        .await;
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(
        scene.fake.running(),
        ["host"],
        "a pod in the node's network needs no other"
    );
    let told = std::iter::from_fn(|| events.try_recv().ok())
        .find(|event| event.reason == "NetworkNotReady");
    assert!(
        told.unwrap()
            .message
            .starts_with("network is not ready: container runtime network not ready")
    );
    scene.fake.set_network_ready(true);
    let at = scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    assert!(
        at <= 42,
        "within the 5 s after which the runtime is asked again: {at}"
    );
}

#[tokio::test(start_paused = true)]
async fn deadline_of_pod_that_waits_for_the_network_ends_it() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.set_network_ready(false);
    tokio::time::sleep(seconds(5)).await;
    let mut events = scene.agent().events();
    let spec = json!({"activeDeadlineSeconds": 5, "containers": [container("app", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    let finished = scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert!((10..=11).contains(&finished), "{finished}");
    let status = scene.report("u1").status;
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    let told = std::iter::from_fn(|| events.try_recv().ok());
    let told = told.filter(|event| event.reason == "NetworkNotReady");
    let count = told.map(|event| event.count).max();
    assert!((3..=6).contains(&count.unwrap_or_default()), "{count:?}");
}
