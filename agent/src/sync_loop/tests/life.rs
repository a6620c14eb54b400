//! The life of single pods: start, exit, update, removal.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ContainerState;
use rstest::rstest;

use super::*;
use crate::AgentError;
use crate::cluster::{Cluster, Outputs};
use crate::source::PodSource;

#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_before_apps() {
    let scene = Scene::new();
    scene.fake.image("one", job(1, 0));
    scene.fake.image("two", job(2, 0));
    scene.fake.image("app", job(5, 0));
    let spec = json!({
        "restartPolicy": "OnFailure",
        "initContainers": [container("i1", "one"), container("i2", "two")],
        "containers": [container("a", "app"), container("b", "app")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene.until_finished("u1").await;
    assert_eq!(
        scene.calls(),
        [
            "RunPodSandbox pod-u1/0",
            "CreateContainer i1/0",
            "StartContainer i1/0",
            "CreateContainer i2/0",
            "StartContainer i2/0",
            "CreateContainer a/0",
            "StartContainer a/0",
            "CreateContainer b/0",
            "StartContainer b/0",
            "StopPodSandbox pod-u1",
        ]
    );
    assert_eq!(scene.seconds("StartContainer i2/0"), [1]);
    assert_eq!(scene.seconds("StartContainer a/0"), [3]);
    assert_eq!(scene.seconds("StartContainer b/0"), [3]);
    let report = scene.report("u1");
    assert_eq!((phase(&report), report.removed), ("Succeeded", false));
    assert!(states(&report).values().all(|state| *state == ContainerPhase::Terminated));
    assert_eq!(scene.fake.object_counts(), (1, 4), "what has ended is kept while it is wanted");
    scene.remove_all().await;
    assert_eq!(phase(&scene.report("u1")), "Succeeded", "the last status stays");
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn failing_pod_is_not_restarted_with_policy_never() {
    let scene = Scene::new();
    scene.fake.image("bad", job(1, 7));
    scene.want(&[pod("u1", "bad", "Never")]);
    scene.until_finished("u1").await;
    let report = scene.report("u1");
    assert_eq!((phase(&report), report.containers[0].exit_code), ("Failed", Some(7)));
    assert_eq!(scene.seconds("StartContainer app/0"), [0]);
    assert_eq!(scene.seconds("StartContainer app/1"), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn failed_init_container_prevents_apps() {
    let scene = Scene::new();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [container("init", "crash")],
        "containers": [container("app", "app")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene.until_finished("u1").await;
    assert!(!scene.calls().iter().any(|call| call.contains("app")), "{:?}", scene.calls());
    assert_eq!(phase(&scene.report("u1")), "Failed");
}

#[tokio::test(start_paused = true)]
async fn termination_waits_for_grace_period_only() {
    let scene = Scene::new();
    scene.fake.image("slow", slow(3));
    let spec = json!({
        "terminationGracePeriodSeconds": 7,
        "containers": [container("deaf", "deaf"), container("slow", "slow")],
    });
    scene.want(&[pod_with("u1", spec)]);
    scene.until_all_run("u1").await;
    scene.want(&[]);
    let begun = scene.now();
    let ended = scene.until_finished("u1").await;
    assert_eq!(ended - begun, 7);
    assert_eq!(scene.seconds("StopContainer deaf/0 7s"), [begun]);
    assert_eq!(scene.seconds("StopContainer slow/0 7s"), [begun]);
    let report = scene.report("u1");
    let codes: Vec<_> = report.containers.iter().map(|container| container.exit_code).collect();
    assert_eq!(codes, [Some(137), Some(143)]);
    scene.until_removed("u1").await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn kill_now_leaves_two_seconds() {
    let scene = Scene::running("deaf").await;
    scene.want(&[]);
    scene.sleep(4).await;
    assert_eq!(scene.fake.running(), ["app"]);
    let begun = scene.now();
    scene.agent().kill_now();
    assert_eq!(scene.until_removed("u1").await, begun + 2);
    assert_eq!(scene.seconds("StopContainer app/0 2s"), [begun]);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_after_apps() {
    let scene = Scene::new();
    scene.fake.image("app", slow(2));
    let containers = [container("app", "app")];
    let spec = json!({"initContainers": [sidecar("side", "one")], "containers": containers});
    scene.want(&[pod_with("u1", spec)]);
    scene.until_all_run("u1").await;
    scene.remove_all().await;
    assert_eq!(scene.seconds("StopContainer app/0 30s"), [0]);
    assert_eq!(scene.seconds("StopContainer side/0 28s"), [2]);
}

#[tokio::test(start_paused = true)]
async fn update_during_termination_starts_new_pod_afterwards() {
    let scene = Scene::running("deaf").await;
    scene.want(&[]);
    scene.sleep(5).await;
    scene.want(&[pod("u1", "one", "Always")]);
    scene.sleep(20).await;
    assert_eq!(scene.seconds("CreateContainer app/0").len(), 1, "it is still ending");
    let is_new = |report: &PodReport| report.containers[0].image == "one";
    scene.until("u1", "new", |report| phase(report) == "Running" && is_new(report)).await;
    scene.assert_replaced("pod-u1");
}

#[tokio::test(start_paused = true)]
async fn image_change_replaces_container() {
    let scene = Scene::running("one").await;
    scene.want(&[pod("u1", "two", "Always")]);
    scene.until_restarted("u1").await;
    scene.until_all_run("u1").await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/0").len(), 1, "in the same sandbox");
    assert_eq!(scene.fake.running(), ["app"]);
}

#[tokio::test(start_paused = true)]
async fn pod_of_same_name_waits_for_old_one() {
    let scene = Scene::new();
    scene.fake.image("slow", slow(6));
    let old = pod("u1", "slow", "Always");
    scene.run(&old).await;
    scene.run(&replacing(&old, "u2")).await;
    scene.assert_replaced("pod-u1");
    assert!(scene.report("u1").removed);
}

#[tokio::test(start_paused = true)]
async fn volumes_exist_before_start_and_are_removed_afterwards() {
    let scene = Scene::new();
    let app = container_with(
        "app",
        "app",
        "volumeMounts",
        json!([{"name": "shared", "mountPath": "/shared"}]),
    );
    let spec = json!({"containers": [app], "volumes": [{"name": "shared", "emptyDir": {}}]});
    scene.run(&pod_with("u1", spec)).await;
    let dir = scene.pod_dir("u1");
    assert!(dir.join("volumes/kubernetes.io~empty-dir/shared").is_dir());
    assert!(std::fs::read_to_string(dir.join("etc-hosts")).unwrap().contains("10.0.0.2\tpod-u1"));
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn twenty_pods_start_without_delay() {
    let scene = Scene::new();
    let pods: Vec<Pod> =
        (0..20).map(|number| pod(&format!("u{number}"), "app", "Always")).collect();
    scene.want(&pods);
    for pod in &pods {
        scene.until_running(pod.uid().as_str()).await;
    }
    assert_eq!(scene.now(), 0);
    scene.want(&[]);
    for pod in &pods {
        scene.until_removed(pod.uid().as_str()).await;
    }
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn transitions_are_reported_in_order() {
    let scene = Scene::new();
    let mut transitions = scene.agent().transitions();
    scene.fake.image("job", job(2, 0));
    scene.want(&[pod("u1", "job", "Never")]);
    scene.until_finished("u1").await;
    scene.remove_all().await;
    let story = drain(&mut transitions).map(|change| {
        assert!(!change.cause.is_empty(), "{change:?}");
        format!("{}: {}", change.container.as_deref().unwrap_or("pod"), change.to)
    });
    assert_eq!(
        story.collect::<Vec<_>>(),
        [
            "app: Waiting(ContainerCreating)",
            "pod: Pending",
            "app: Running",
            "pod: Running",
            "app: Terminated(Completed)",
            "pod: Succeeded",
            "pod: Removed",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn finished_pod_keeps_the_last_attempt_of_each_container() {
    let scene = Scene::as_kubelet();
    scene.fake.image("job", job(1, 1));
    scene.want(&[pod("u1", "job", "OnFailure")]);
    scene.until_restarted("u1").await;
    scene.fake.image("job", job(1, 0));
    scene.until_finished("u1").await;
    scene.sleep(1).await;
    assert_eq!(scene.fake.object_counts(), (1, 1));
    let status = scene.report("u1").published;
    let app = &status.container_statuses.as_ref().unwrap()[0];
    let code =
        |state: &Option<ContainerState>| Some(state.as_ref()?.terminated.as_ref()?.exit_code);
    assert_eq!((code(&app.last_state), code(&app.state)), (Some(1), Some(0)));
}

const PODS: usize = 500;

#[tokio::test(start_paused = true)]
async fn work_for_each_pod_is_constant() {
    let scene = Scene::new();
    let pods: Vec<Pod> =
        (0..PODS).map(|number| pod(&format!("u{number:03}"), "app", "Always")).collect();
    // A client that keeps reports, as a printing client does.
    let mut reports = scene.agent().reports();
    let begun = std::time::Instant::now();
    let wanted = scene.clock.now();
    scene.want(&pods);
    loop {
        let seen = reports.borrow_and_update().clone();
        let running = seen.values().filter(|report| phase(report) == "Running");
        if running.count() == PODS {
            break;
        }
        reports.changed().await.unwrap();
    }
    let started = (begun.elapsed(), scene.fake.total());
    // No pod waits in vain: each pod releases its slot when it is idle.
    let waited = scene.clock.now().duration_since(wanted);
    assert!(waited.as_millis() < 200, "{waited:?}");
    let begun = std::time::Instant::now();
    scene.want(&[]);
    loop {
        let seen = reports.borrow_and_update().clone();
        if seen.values().filter(|report| report.removed).count() == PODS {
            break;
        }
        reports.changed().await.unwrap();
    }
    let ended = (begun.elapsed(), scene.fake.total() - started.1);
    eprintln!("{PODS} pods: started {started:?}, ended {ended:?} (time, calls)");
    let pods = PODS as u64;
    assert!(started.1 <= 13 * pods, "{} calls", started.1);
    assert!(ended.1 <= 13 * pods, "{} calls", ended.1);
    scene.assert_clean();
}

/// A source and a cluster whose tasks panic.
struct Panicking;

#[async_trait]
impl PodSource for Panicking {
    fn name(&self) -> String {
        "panicking".to_owned()
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        panic!("on purpose")
    }
}

#[async_trait]
impl Cluster for Panicking {
    fn name(&self) -> String {
        "panicking".to_owned()
    }

    fn objects(&self) -> Arc<ObjectStore> {
        Arc::default()
    }

    async fn record(&self, _agent: Outputs) -> String {
        panic!("on purpose")
    }
}

#[rstest]
#[case::of_a_source(|parts: &mut Parts| parts.sources.push(Box::new(Panicking)))]
#[case::of_the_cluster(|parts: &mut Parts| { parts.cluster = Arc::new(Panicking); })]
#[tokio::test(start_paused = true)]
async fn panic_is_a_failure_of_the_agent(#[case] change: fn(&mut Parts)) {
    let mut scene = Scene::without_agent(seconds(10));
    let cri = Arc::new(scene.fake.clone());
    let mut parts = scene.parts(cri);
    change(&mut parts);
    let mut agent = crate::start(scene.config(), parts);
    let failed = tokio::time::timeout(seconds(7200), agent.failed()).await;
    let Ok(AgentError::Panicked(problem)) = &failed else { panic!("{failed:?}") };
    assert!(problem.contains("on purpose"), "{problem}");
    agent.stop().await;
}
