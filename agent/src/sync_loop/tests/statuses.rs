//! The statuses of a pod that are published, and when: like a kubelet, the agent publishes a sync's effects at the next sync.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, PodStatus};

use super::*;
use crate::PublishedStatus;
use crate::objects::ObjectMap;

/// The state of a pod's container, its restarts, and whether the sandbox is ready: `Running 1 +`.
fn outline(status: &PodStatus) -> String {
    let containers = status.container_statuses.iter().flatten();
    let state = |state: &ContainerState| match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), _, _) => Some("Running".to_owned()),
        (_, Some(exit), _) => exit.reason.clone(),
        (_, _, waiting) => waiting.as_ref()?.reason.clone(),
    };
    let shown: Vec<String> = containers
        .map(|container| {
            let state = container.state.as_ref().and_then(state).unwrap_or_default();
            format!("{state} {}", container.restart_count)
        })
        .collect();
    let conditions = status.conditions.iter().flatten();
    let mut ready = conditions.filter(|condition| condition.type_ == "PodReadyToStartContainers");
    let is_ready = ready.any(|condition| condition.status == "True");
    format!("{} {}", shown.join(", "), if is_ready { "+" } else { "-" })
}

/// The statuses published so far, without consecutive equal outlines.
fn published(statuses: &mut UnboundedReceiver<PublishedStatus>) -> Vec<String> {
    let mut outlines: Vec<String> = drain(statuses).map(|seen| outline(&seen.status)).collect();
    outlines.dedup();
    outlines
}

/// Waits until the pod is published as running, and discards the statuses before.
async fn until_published_running(scene: &Scene, statuses: &mut UnboundedReceiver<PublishedStatus>) {
    let runs = |report: &PodReport| report.published.phase.as_deref() == Some("Running");
    scene.until("u1", "published as running", runs).await;
    published(statuses);
}

#[tokio::test(start_paused = true)]
async fn crash_back_off_is_published_by_the_next_sync() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.want(&[pod("u1", "crash", "Always")]);
    scene.until_reason("u1", "app", "CrashLoopBackOff").await;
    assert_eq!(
        published(&mut statuses),
        [
            "ContainerCreating 0 -",
            "ContainerCreating 0 +",
            "Running 0 +",
            "Error 0 +",
            "Running 1 +",
            "Error 1 +",
        ]
    );
    scene.until("u1", "it runs again", |report| report.containers[0].restarts == 2).await;
    assert_eq!(published(&mut statuses), ["CrashLoopBackOff 1 +", "Running 2 +"]);
}

/// A clock that advances a little at each reading, like a real one.
struct Ticking(Arc<dyn Clock>, AtomicU64);

#[async_trait::async_trait]
impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        let looks = self.1.fetch_add(1, Ordering::Relaxed);
        self.0.now() + Duration::from_micros(looks)
    }

    async fn sleep_until(&self, deadline: Timestamp) {
        self.0.sleep_until(deadline).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pod_at_rest_has_one_status() {
    let mut scene = Scene::without_agent(seconds(10));
    scene.clock = Arc::new(Ticking(scene.clock, AtomicU64::new(0)));
    scene.start_agent();
    scene.want(&[pod("u1", "app", "Always")]);
    scene.until("u1", "it is ready", |report| report.containers[0].ready).await;
    scene.sleep(5).await;
    let report = scene.report("u1");
    assert!(Arc::ptr_eq(&report.status, &report.published), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_pull_status_matches_the_kubelet() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.want(&[pod("u1", "gone:1", "Always")]);
    scene.sleep(35).await;
    // The repeated failure of the pull is shown at the next sync, 10 to 15 s later.
    assert_eq!(
        published(&mut statuses),
        [
            "ContainerCreating 0 -",
            "ContainerCreating 0 +",
            "ErrImagePull 0 +",
            "ImagePullBackOff 0 +",
            "ErrImagePull 0 +",
            "ImagePullBackOff 0 +",
        ]
    );
    assert_eq!(scene.seconds("PullImage gone:1")[..2], [0, 10]);
}

#[tokio::test(start_paused = true)]
async fn failed_create_is_retried_after_an_event_and_published_by_the_next_sync() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.want(&[pod("u1", "bad", "Always")]);
    scene.sleep(40).await;
    // The start of the sandbox is an event.
    let attempts = scene.seconds("CreateContainer app/0");
    let gaps = gaps(&attempts);
    assert_eq!(gaps[0], 0, "{attempts:?}");
    assert!(gaps[1..].iter().all(|gap| (10..=16).contains(gap)), "{attempts:?}");
    assert_eq!(
        published(&mut statuses),
        ["ContainerCreating 0 -", "ContainerCreating 0 +", "CreateContainerError 0 +"]
    );
}

#[tokio::test(start_paused = true)]
async fn container_in_its_post_start_hook_is_not_published() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.fake.exec("app", seconds(12), 0, "");
    let app = container_with("app", "app", "lifecycle", json!({"postStart": exec("wait")}));
    scene.want(&[pod_with("u1", json!({"containers": [app]}))]);
    scene.sleep(5).await;
    let begins = ["ContainerCreating 0 -", "ContainerCreating 0 +"];
    assert_eq!(published(&mut statuses), begins);
    scene.sleep(10).await;
    assert_eq!(published(&mut statuses), ["Running 0 +"]);
}

#[tokio::test(start_paused = true)]
async fn termination_is_published_before_the_kill_and_after_it() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.fake.image("slow", slow(5));
    let one = pod("u1", "slow", "Always");
    scene.want(std::slice::from_ref(&one));
    until_published_running(&scene, &mut statuses).await;
    scene.want(&[scene.deleted(&one, Some(30))]);
    scene.sleep(3).await;
    let before: Vec<String> = published(&mut statuses);
    assert!(before.iter().all(|shown| shown == "Running 0 +"), "{before:?}");
    scene.until_finished("u1").await;
    assert_eq!(published(&mut statuses), ["Error 0 -"]);
}

#[tokio::test(start_paused = true)]
async fn container_that_never_ran_has_unknown_status_and_reported_state() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.want(&[pod("u1", "bad", "Always")]);
    scene.until_reason("u1", "app", "CreateContainerError").await;
    published(&mut statuses);
    scene.want(&[]);
    scene.until_finished("u1").await;
    let last = published(&mut statuses).pop();
    assert_eq!(last.as_deref(), Some("ContainerStatusUnknown 0 -"));
    assert_eq!(reason(&scene.report("u1"), "app"), "CreateContainerError");
}

/// A scene with a running pod; the statuses published so far are discarded.
async fn running_scene() -> (Scene, UnboundedReceiver<PublishedStatus>) {
    let scene = Scene::listing_every(Duration::from_millis(100));
    scene.fake.write_logs();
    let mut statuses = scene.agent().statuses();
    scene.want(&[pod("u1", "app", "Always")]);
    until_published_running(&scene, &mut statuses).await;
    (scene, statuses)
}

async fn until_restarted(scene: &Scene) {
    let runs_again = |report: &PodReport| {
        let mut containers = report.published.container_statuses.iter().flatten();
        containers.any(|seen| seen.restart_count == 1 && seen.started == Some(true))
    };
    scene.until("u1", "it runs again", runs_again).await;
}

#[tokio::test(start_paused = true)]
async fn sandbox_removed_in_steps_is_published_once() {
    let (scene, mut statuses) = running_scene().await;
    let (sandbox, _) = scene.fake.ready_sandboxes().remove(0);
    let step = Duration::from_millis(150);
    scene.fake.stop_sandbox(&sandbox).await.unwrap();
    tokio::time::sleep(step).await;
    scene.fake.remove_containers_of("app");
    tokio::time::sleep(step).await;
    scene.fake.remove_sandbox(&sandbox).await.unwrap();
    until_restarted(&scene).await;
    assert_eq!(
        published(&mut statuses),
        ["ContainerCreating 1 -", "ContainerCreating 1 +", "Running 1 +"]
    );
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/0").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn containers_that_outlive_their_sandbox_are_stopped_before_it() {
    let (scene, mut statuses) = running_scene().await;
    let before = scene.calls().len();
    scene.fake.end_sandboxes();
    until_restarted(&scene).await;
    assert_eq!(published(&mut statuses), ["Running 0 -", "Running 0 +", "Running 1 +"]);
    assert_eq!(
        scene.calls()[before..],
        [
            "StopContainer app/0 30s",
            "StopPodSandbox pod-u1",
            "RunPodSandbox pod-u1/1",
            "CreateContainer app/1",
            "StartContainer app/1",
        ]
    );
}

/// Objects whose node has this address.
fn node_at(address: &str) -> ObjectMap {
    let addresses = json!([{"type": "InternalIP", "address": address}]);
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": addresses}});
    let mut objects = ObjectMap::default();
    objects.set_node(serde_json::from_value(node).unwrap());
    objects
}

#[tokio::test(start_paused = true)]
async fn host_ip_follows_the_address_of_the_node() {
    let scene = Scene::new();
    let field = json!({"fieldRef": {"fieldPath": "status.hostIP"}});
    let app = container_with("app", "app", "env", json!([{"name": "HOST", "valueFrom": field}]));
    scene.run(&pod_with("u1", json!({"containers": [app], "hostNetwork": true}))).await;
    let variable = || {
        let variables = scene.fake.spec("app").unwrap().envs;
        let (_, value) = variables.into_iter().find(|(name, _)| name == "HOST").unwrap();
        String::from_utf8(value).unwrap()
    };
    let has = |address: &'static str| {
        move |report: &PodReport| {
            let status = &report.published;
            let ips = [status.host_ip.as_deref(), status.pod_ip.as_deref()];
            ips == [Some(address), Some(address)]
        }
    };
    scene.until("u1", "the configured address", has("127.0.0.1")).await;
    assert_eq!(variable(), "127.0.0.1");
    scene.objects.set(node_at("192.0.2.9"));
    scene.until("u1", "the address of the node", has("192.0.2.9")).await;
    scene.fake.kill("app", 0);
    scene.until_restarted("u1").await;
    assert_eq!(variable(), "192.0.2.9");
    scene.objects.set(node_at("192.0.2.10"));
    scene.until("u1", "the next address", has("192.0.2.10")).await;
}
