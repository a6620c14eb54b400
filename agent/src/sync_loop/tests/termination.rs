//! The end of pods: deletion at an API server, deadlines, and ends in the middle of something.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rstest::rstest;

use super::*;

fn deaf() -> Behaviour {
    Behaviour {
        yields_after: None,
        ..Behaviour::forever()
    }
}

/// The pod as an API server has it after a deletion with this grace period.
fn deleted(scene: &Scene, pod: &Pod, grace: i64) -> Pod {
    let mut api = pod.api().clone();
    api.metadata.deletion_timestamp = Some(Time(scene.clock.now()));
    api.metadata.deletion_grace_period_seconds = Some(grace);
    Pod::new(api)
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
async fn deleted_pod_ends_within_grace_period_of_deletion() {
    let scene = Scene::new();
    scene.fake.image("deaf", deaf());
    let pod = pod("u1", "deaf", "Always");
    start_running(&scene, &pod).await;
    scene.want(&[deleted(&scene, &pod, 3)]);
    let finished = scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert_eq!(finished, 3);
    assert_eq!(scene.seconds("StopContainer app/0 3s"), [0]);
    tokio::time::sleep(seconds(60)).await;
    assert!(
        !scene.report("u1").removed,
        "it is kept until its source has removed it"
    );
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_deleted_before_its_first_start_never_starts() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.want(&[deleted(&scene, &pod("u1", "app", "Always"), 30)]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert_eq!(scene.calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn running_stop_is_not_cut_short_by_force() {
    let scene = Scene::new();
    scene.fake.image("deaf", deaf());
    let pod = pod("u1", "deaf", "Always");
    start_running(&scene, &pod).await;
    scene.want(&[deleted(&scene, &pod, 40)]);
    tokio::time::sleep(seconds(3)).await;
    scene.want(&[]);
    let removed = scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(removed, 40);
    assert_eq!(
        scene.seconds("StopContainer app/0 40s"),
        [0],
        "as a kubelet does"
    );
}

#[tokio::test(start_paused = true)]
async fn next_stop_has_the_shortest_grace_period_so_far() {
    let scene = Scene::new();
    scene.fake.image("deaf", deaf());
    let pod = pod("u1", "deaf", "Always");
    start_running(&scene, &pod).await;
    scene.fake.idle("StopContainer", 1);
    scene.fake.idle("StopPodSandbox", 1);
    scene.want(&[deleted(&scene, &pod, 40)]);
    tokio::time::sleep(seconds(3)).await;
    scene.want(&[deleted(&scene, &pod, 7)]);
    tokio::time::sleep(seconds(3)).await;
    scene.want(&[deleted(&scene, &pod, 60)]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert_eq!(scene.seconds("StopContainer app/0 7s").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_fails_at_its_deadline() {
    let scene = Scene::new();
    scene.fake.image("deaf", deaf());
    let spec = json!({
        "activeDeadlineSeconds": 8,
        "terminationGracePeriodSeconds": 2,
        "containers": [container("app", "deaf")],
    });
    start_running(&scene, &pod_with("u1", spec)).await;
    let finished = scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert_eq!(scene.seconds("StopContainer app/0 2s"), [8]);
    assert_eq!(finished, 10);
    let report = scene.report("u1");
    assert_eq!(
        (phase(&report), report.status.reason.as_deref()),
        ("Failed", Some("DeadlineExceeded"))
    );
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(scene.seconds("StartContainer app/0"), [0], "no restart");
}

#[rstest]
#[case::of_its_deadline(false, 0)]
#[case::of_its_removal(true, 1)]
#[tokio::test(start_paused = true)]
async fn pod_without_grace_runs_hooks_only_when_its_end_is_asked_for(
    #[case] removed: bool,
    #[case] hooks: usize,
) {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.exec("app", seconds(0), 0, "");
    let mut app = container("app", "app");
    app["lifecycle"] = json!({"preStop": {"exec": {"command": ["stop"]}}});
    let spec = json!({
        "activeDeadlineSeconds": 8,
        "terminationGracePeriodSeconds": 0,
        "containers": [app],
    });
    start_running(&scene, &pod_with("u1", spec)).await;
    if removed {
        scene.want(&[]);
    }
    scene
        .until("u1", "ended", |report| report.finished || report.removed)
        .await;
    assert_eq!(scene.seconds("ExecSync app/0 stop").len(), hooks);
    assert_eq!(scene.seconds("StopContainer app/0 2s").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removal_cancels_creation_of_sandbox() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.delay("RunPodSandbox", seconds(100));
    scene.want(&[pod("u1", "app", "Always")]);
    tokio::time::sleep(seconds(5)).await;
    scene.want(&[]);
    let removed = scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(removed, 5);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn ephemeral_containers_end_with_their_pod() {
    let scene = Scene::new();
    scene.fake.image("deaf", deaf());
    let spec = json!({
        "terminationGracePeriodSeconds": 4,
        "containers": [container("app", "deaf")],
        "ephemeralContainers": [container("dbg", "deaf")],
    });
    start_running(&scene, &pod_with("u1", spec)).await;
    scene
        .until("u1", "both run", |report| {
            states(report)
                .values()
                .all(|state| *state == ContainerPhase::Running)
        })
        .await;
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(scene.seconds("StopContainer app/0 4s"), [0]);
    assert_eq!(scene.seconds("StopContainer dbg/0 4s"), [0]);
}

#[tokio::test(start_paused = true)]
async fn sidecars_that_ignore_signals_get_two_seconds_after_grace_period() {
    let scene = Scene::new();
    scene.fake.image("deaf", deaf());
    let sidecar = |name| {
        let mut sidecar = container(name, "deaf");
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let spec = json!({
        "terminationGracePeriodSeconds": 3,
        "initContainers": [sidecar("s1"), sidecar("s2")],
        "containers": [container("c", "deaf")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene
        .until("u1", "all run", |report| {
            states(report)
                .values()
                .all(|state| *state == ContainerPhase::Running)
        })
        .await;
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(scene.seconds("StopContainer c/0 3s"), [0]);
    assert_eq!(scene.seconds("StopContainer s1/0 2s"), [3]);
    assert_eq!(scene.seconds("StopContainer s2/0 2s"), [3]);
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_is_gone_counts_as_stopped() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    start_running(&scene, &pod("u1", "app", "Always")).await;
    let mut events = scene.agent().events();
    scene.fake.fail(
        "StopPodSandbox",
        1,
        crate::cri::Code::NotFound,
        "no such sandbox",
    );
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    let told = std::iter::from_fn(|| events.try_recv().ok());
    let failed = told.filter(|event| event.message.contains("no such sandbox"));
    assert_eq!(failed.count(), 0);
}
