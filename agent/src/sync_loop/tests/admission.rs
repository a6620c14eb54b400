//! Pods that the node rejects, and pods that wait for the runtime.

use super::*;

fn cpu_pod(uid: &str, cpu: &str) -> Pod {
    let app = container_with("app", "app", "resources", json!({"requests": {"cpu": cpu}}));
    pod_with(uid, json!({"containers": [app]}))
}

#[tokio::test(start_paused = true)]
async fn rejected_pod_fails_without_a_call_and_stays_so() {
    let mut scene = Scene::new();
    let mut events = scene.agent().events();
    scene.want(&[cpu_pod("u1", "99999"), pod("u2", "app", "Always")]);
    scene.until_finished("u1").await;
    scene.until_running("u2").await;
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), "OutOfcpu".to_owned()));
    let message = scene.report("u1").status.message.clone().unwrap();
    assert!(message.starts_with("Pod was rejected: Node didn't have enough resource: cpu, requested: 99999000, used: 0, capacity: "), "{message}");
    let event = drain(&mut events).find(|event| event.object.name == "pod-u1").unwrap();
    assert_eq!((event.reason.as_str(), event.kind.as_str()), ("OutOfcpu", "Warning"));
    assert!(!scene.calls().iter().any(|call| call.contains("u1")), "{:?}", scene.calls());

    // With fewer requests it would fit; but a rejection is final.
    scene.restart_agent().await;
    scene.want(&[cpu_pod("u1", "1m"), pod("u2", "app", "Always")]);
    scene.until_finished("u1").await;
    assert_eq!(scene.status("u1").1, "OutOfcpu");

    scene.want(&[pod("u2", "app", "Always")]);
    scene.until_removed("u1").await;
    scene.want(&[cpu_pod("u1", "1m"), pod("u2", "app", "Always")]);
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn ended_pod_of_api_server_is_not_admitted_again() {
    let scene = Scene::new();
    let cpus = crate::shared::online_cpus();
    let status = serde_json::from_value(json!({"phase": "Succeeded", "reason": "Done"})).unwrap();
    let ended = changed(&cpu_pod("u1", "99999"), |api| api.status = status);
    scene.want(&[ended, cpu_pod("u2", &cpus.to_string())]);
    scene.until_finished("u1").await;
    assert_eq!(scene.status("u1"), ("Succeeded".to_owned(), "Done".to_owned()));
    scene.until_running("u2").await;
    assert!(!scene.calls().iter().any(|call| call.contains("u1")), "{:?}", scene.calls());
}

#[tokio::test(start_paused = true)]
async fn rejection_of_pod_removed_while_agent_was_down_is_deleted() {
    let mut scene = Scene::new();
    scene.want(&[cpu_pod("u1", "99999")]);
    scene.until_finished("u1").await;
    let record = scene.root.join("root/rejected/u1");
    scene.sleep(1).await;
    assert!(record.exists());
    scene.restart_agent().await;
    scene.want(&[]);
    // Housekeeping is done once a minute.
    scene.sleep(61).await;
    assert!(!record.exists());
}

#[tokio::test(start_paused = true)]
async fn storage_capacity_is_read_before_the_root_directory_exists() {
    let scene = Scene::new();
    let app = container_with(
        "app",
        "app",
        "resources",
        json!({"requests": {"ephemeral-storage": "1Mi"}}),
    );
    scene.run(&pod_with("u1", json!({"containers": [app]}))).await;
}

#[tokio::test(start_paused = true)]
async fn terminated_pod_frees_its_resources_for_others() {
    let scene = Scene::new();
    scene.fake.image("job", job(5, 0));
    let port = |uid: &str| {
        let app =
            container_with("app", "job", "ports", json!([{"containerPort": 80, "hostPort": 80}]));
        pod_with(uid, json!({"containers": [app], "restartPolicy": "Never"}))
    };
    scene.want(&[port("u1"), port("u2")]);
    scene.until_finished("u2").await;
    assert_eq!(scene.status("u2").1, "NodePorts", "a rejected pod takes no port");
    scene.until_finished("u1").await;
    scene.want(&[port("u1"), port("u2"), port("u3")]);
    scene.until("u3", "succeeded", |report| phase(report) == "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn pods_wait_until_the_network_is_ready() {
    let scene = Scene::new();
    scene.sleep(1).await;
    scene.fake.set_network_ready(false);
    scene.sleep(5).await;
    let mut events = scene.agent().events();
    let host = container_with("app", "app", "name", json!("host"));
    scene.want(&[
        pod("u1", "app", "Always"),
        pod_with("u2", json!({"containers": [host], "hostNetwork": true})),
    ]);
    scene.until_running("u2").await;
    scene.sleep(30).await;
    assert_eq!(scene.fake.running(), ["host"], "a pod in the node's network needs no other");
    let recorded = drain(&mut events).find(|event| event.reason == "NetworkNotReady").unwrap();
    let text = "network is not ready: container runtime network not ready";
    assert!(recorded.message.starts_with(text), "{}", recorded.message);
    scene.fake.set_network_ready(true);
    let at = scene.until_running("u1").await;
    assert!(at <= 42, "within the 5 s after which the runtime is asked again: {at}");
}

#[tokio::test(start_paused = true)]
async fn deadline_of_pod_that_waits_for_the_network_ends_it() {
    let scene = Scene::new();
    scene.fake.set_network_ready(false);
    scene.sleep(5).await;
    let mut events = scene.agent().events();
    let spec = json!({"activeDeadlineSeconds": 5, "containers": [container("app", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    let finished = scene.until_finished("u1").await;
    assert!((10..=11).contains(&finished), "{finished}");
    assert_eq!(scene.status("u1").1, "DeadlineExceeded");
    let recorded = drain(&mut events).filter(|event| event.reason == "NetworkNotReady");
    let count = recorded.map(|event| event.count).max();
    assert!((3..=6).contains(&count.unwrap_or_default()), "{count:?}");
}
