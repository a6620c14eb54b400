//! What is published as a pod's status, and when: as a kubelet does, what a sync did shows in the next one.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, PodStatus};
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::PublishedStatus;

/// The state of a pod's container, its restarts, and whether the sandbox is ready: `Running 1 +`.
fn outline(status: &PodStatus) -> String {
    let containers = status.container_statuses.iter().flatten();
    let state = |state: &ContainerState| match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), _, _) => "Running".to_owned(),
        (_, Some(exit), _) => exit.reason.clone().unwrap_or_default(),
        (_, _, waiting) => {
            let waiting = waiting.as_ref().and_then(|waiting| waiting.reason.clone());
            waiting.unwrap_or_default()
        }
    };
    let shown: Vec<String> = containers
        .map(|container| {
            let state = container.state.as_ref().map(state).unwrap_or_default();
            format!("{state} {}", container.restart_count)
        })
        .collect();
    let conditions = status.conditions.iter().flatten();
    let mut ready = conditions.filter(|condition| condition.type_ == "PodReadyToStartContainers");
    let is_ready = ready.any(|condition| condition.status == "True");
    format!("{} {}", shown.join(", "), if is_ready { "+" } else { "-" })
}

/// What was published so far, each different outline once.
fn published(statuses: &mut UnboundedReceiver<PublishedStatus>) -> Vec<String> {
    let mut outlines = Vec::new();
    while let Ok(published) = statuses.try_recv() {
        outlines.push(outline(&published.status));
    }
    outlines.dedup();
    outlines
}

#[tokio::test(start_paused = true)]
async fn crash_back_off_is_published_by_the_next_sync() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.fake.image("crash", job(1, 1));
    scene.want(&[pod("u1", "crash", "Always")]);
    scene
        .until("u1", "it waits", |report| {
            reason(report, "app") == "CrashLoopBackOff"
        })
        .await;
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
    scene
        .until("u1", "it runs again", |report| {
            report.containers[0].restarts == 2
        })
        .await;
    assert_eq!(
        published(&mut statuses),
        ["CrashLoopBackOff 1 +", "Running 2 +"]
    );
}

/// A clock that is a little later whenever it is looked at, like a real one.
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
    scene.fake.image("stays", Behaviour::forever());
    scene.want(&[pod("u1", "stays", "Always")]);
    let is_ready = |report: &PodReport| report.containers[0].ready;
    scene.until("u1", "it is ready", is_ready).await;
    tokio::time::sleep(seconds(5)).await;
    let report = scene.report("u1");
    assert!(Arc::ptr_eq(&report.status, &report.published), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_pull_is_published_as_a_kubelet_does() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    let gone = Behaviour {
        present: false,
        pull: (seconds(0), Some("no such image".to_owned())),
        ..Behaviour::forever()
    };
    scene.fake.image("gone:1", gone);
    scene.want(&[pod("u1", "gone:1", "Always")]);
    tokio::time::sleep(seconds(35)).await;
    // The pull that fails again shows when the pod is synchronized again, 10 to 15 s later.
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
    let pulls = scene.seconds("PullImage gone:1");
    assert_eq!(pulls[..2], [0, 10]);
}

#[tokio::test(start_paused = true)]
async fn failed_create_is_retried_after_an_event_and_published_by_the_next_sync() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    let bad = Behaviour {
        create_fails: Some("no such device".to_owned()),
        ..Behaviour::forever()
    };
    scene.fake.image("bad", bad);
    scene.want(&[pod("u1", "bad", "Always")]);
    tokio::time::sleep(seconds(40)).await;
    // The start of the sandbox is an event.
    let attempts = scene.seconds("CreateContainer app/0");
    let gaps: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[0], 0, "{attempts:?}");
    assert!(
        gaps[1..].iter().all(|gap| (10..=16).contains(gap)),
        "{attempts:?}"
    );
    assert_eq!(
        published(&mut statuses),
        [
            "ContainerCreating 0 -",
            "ContainerCreating 0 +",
            "CreateContainerError 0 +"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn container_in_its_post_start_hook_is_not_published() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.exec("app", seconds(12), 0, "");
    let mut app = container("app", "app");
    app["lifecycle"] = json!({"postStart": {"exec": {"command": ["wait"]}}});
    let one = pod_with("u1", json!({"containers": [app]}));
    scene.want(std::slice::from_ref(&one));
    tokio::time::sleep(seconds(5)).await;
    let begins = ["ContainerCreating 0 -", "ContainerCreating 0 +"];
    assert_eq!(published(&mut statuses), begins);
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(published(&mut statuses), ["Running 0 +"]);
}

#[tokio::test(start_paused = true)]
async fn termination_is_published_before_the_kill_and_after_it() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    let slow = Behaviour {
        yields_after: Some(seconds(5)),
        ..Behaviour::forever()
    };
    scene.fake.image("slow", slow);
    let one = pod("u1", "slow", "Always");
    scene.want(std::slice::from_ref(&one));
    scene
        .until("u1", "it runs", |report| {
            report.published.phase.as_deref() == Some("Running")
        })
        .await;
    published(&mut statuses);
    let mut api = one.api().clone();
    api.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        scene.clock.now(),
    ));
    api.metadata.deletion_grace_period_seconds = Some(30);
    scene.want(&[Pod::new(api)]);
    tokio::time::sleep(seconds(3)).await;
    let before: Vec<String> = published(&mut statuses);
    assert!(
        before.iter().all(|shown| shown == "Running 0 +"),
        "{before:?}"
    );
    scene
        .until("u1", "it has ended", |report| report.finished)
        .await;
    assert_eq!(published(&mut statuses), ["Error 0 -"]);
}

#[tokio::test(start_paused = true)]
async fn container_that_never_ran_is_published_as_unknown_and_reported_as_it_was_seen() {
    let scene = Scene::new();
    let mut statuses = scene.agent().statuses();
    let bad = Behaviour {
        create_fails: Some("no such device".to_owned()),
        ..Behaviour::forever()
    };
    scene.fake.image("bad", bad);
    scene.want(&[pod("u1", "bad", "Always")]);
    scene
        .until("u1", "it waits", |report| {
            reason(report, "app") == "CreateContainerError"
        })
        .await;
    published(&mut statuses);
    scene.want(&[]);
    scene
        .until("u1", "it has ended", |report| report.finished)
        .await;
    let last = published(&mut statuses).pop();
    assert_eq!(last.as_deref(), Some("ContainerStatusUnknown 0 -"));
    assert_eq!(reason(&scene.report("u1"), "app"), "CreateContainerError");
}

/// A scene with a pod that runs; what it published until then is forgotten.
async fn running_scene() -> (Scene, UnboundedReceiver<PublishedStatus>) {
    let scene = Scene::listing_every(Duration::from_millis(100));
    scene.fake.write_logs();
    let mut statuses = scene.agent().statuses();
    scene.fake.image("app", Behaviour::forever());
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "it runs", |report| {
            report.published.phase.as_deref() == Some("Running")
        })
        .await;
    published(&mut statuses);
    (scene, statuses)
}

async fn until_restarted(scene: &Scene) {
    scene
        .until("u1", "it runs again", |report| {
            let containers = report.published.container_statuses.iter().flatten();
            let mut again = containers.filter(|seen| seen.restart_count == 1);
            again.any(|seen| seen.started == Some(true))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_is_removed_step_by_step_is_published_as_gone() {
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
        [
            "ContainerCreating 1 -",
            "ContainerCreating 1 +",
            "Running 1 +"
        ]
    );
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/0").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn containers_that_outlive_their_sandbox_are_stopped_before_it() {
    let (scene, mut statuses) = running_scene().await;
    let before = scene.calls().len();
    scene.fake.end_sandboxes();
    until_restarted(&scene).await;
    assert_eq!(
        published(&mut statuses),
        ["Running 0 -", "Running 0 +", "Running 1 +"]
    );
    let calls = scene.calls();
    let names: Vec<&str> = calls[before..]
        .iter()
        .filter_map(|call| call.split(' ').next())
        .collect();
    assert_eq!(
        names,
        [
            "StopContainer",
            "StopPodSandbox",
            "RunPodSandbox",
            "CreateContainer",
            "StartContainer"
        ]
    );
}
