//! Failures: crash loops, failed image pulls, restarts of the runtime and of the agent.

use rstest::rstest;

use super::*;
use crate::cri::Code;

/// An image whose pull takes this many seconds.
fn pulled_in(time: u64) -> Behaviour {
    Behaviour { present: false, pull: (seconds(time), None), ..Behaviour::forever() }
}

#[tokio::test(start_paused = true)]
async fn crash_loop_has_delays_of_kubernetes_for_an_hour() {
    let scene = Scene::new();
    scene.want(&[pod("u1", "crash", "Always")]);
    scene.sleep(3600).await;
    let starts = scene.times("StartContainer app/");
    // The first restart is immediate; the next ones come 10, 20, 40, 80, 160, 300, 300 s after the previous exit.
    let mut expected = vec![0, 1];
    for wait in [10, 20, 40, 80, 160] {
        expected.push(expected.last().unwrap() + 1 + wait);
    }
    while expected.last().unwrap() + 301 < 3600 {
        expected.push(expected.last().unwrap() + 301);
    }
    assert_eq!(starts, expected);
    let report = scene.report("u1");
    assert_eq!(reason(&report, "app"), "CrashLoopBackOff");
    assert!(
        report.containers[0].message.starts_with("back-off 5m0s restarting failed container=app"),
        "{report:?}"
    );
    assert_eq!((report.containers[0].exit_code, phase(&report)), (Some(1), "Running"));
    assert_eq!(scene.fake.object_counts().1, 1, "one ended container is kept");
}

#[tokio::test(start_paused = true)]
async fn crash_loop_for_a_week_leaks_nothing() {
    // Like a kubelet with evented PLEG, so that relisting does not distort the restart times.
    let scene = Scene::listing_every(seconds(300));
    let begun = std::time::Instant::now();
    scene.want(&[pod("u1", "crash", "Always")]);
    let week = 7 * 24 * 3600;
    scene.sleep(week).await;
    let starts = scene.times("StartContainer app/");
    let restarts = scene.report("u1").containers[0].restarts;
    // From each exit, a second after the start, to the next start.
    let waits: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    eprintln!(
        "a week of crash loops: {:.1} s of wall time, {restarts} restarts, back-off {:?} s and so on",
        begun.elapsed().as_secs_f64(),
        &waits[..9],
    );
    assert_eq!(waits[..6], [0, 10, 20, 40, 80, 160]);
    assert_eq!(waits[6..].iter().find(|wait| **wait != 300), None);
    assert_eq!(restarts as usize, waits.len());
    // The first seven starts take 317 s, each further one 301 s.
    assert_eq!(waits.len() as u64, 6 + (week - 317) / 301);
    let messages = std::fs::read_dir(scene.pod_dir("u1").join("containers/app")).unwrap().count();
    assert!(messages <= 2, "{messages} files for termination messages");
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn run_of_ten_minutes_resets_crash_backoff() {
    let scene = Scene::new();
    scene.want(&[pod("u1", "crash", "Always")]);
    scene.sleep(70).await;
    scene.fake.image("crash", job(700, 1));
    scene.sleep(3000).await;
    let gaps = gaps(&scene.times("StartContainer app/"));
    assert!(gaps.contains(&700), "a restart at once after a long run: {gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn failing_pull_is_retried_with_backoff() {
    let scene = Scene::new();
    scene.want(&[pod("u1", "gone:1", "Always")]);
    scene.until_reason("u1", "app", "ErrImagePull").await;
    assert_eq!(scene.report("u1").containers[0].message, "no such image");
    scene.until_reason("u1", "app", "ImagePullBackOff").await;
    scene.sleep(3600).await;
    let pulls = scene.seconds("PullImage gone:1");
    let gaps = gaps(&pulls);
    assert!(gaps.iter().all(|gap| (10..=301).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().filter(|gap| (300..=301).contains(*gap)).count() >= 7, "{gaps:?}");
    assert!(pulls.len() < 20, "{pulls:?}");
    assert_eq!(scene.times("CreateContainer"), [0; 0]);
    scene.fake.image("gone:1", pulled_in(0));
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn slow_pull_blocks_later_containers_and_is_cancelled_by_termination() {
    let scene = Scene::new();
    scene.fake.image("slow:1", pulled_in(900));
    let spec = json!({"containers": [container("first", "app"), container("slow", "slow:1"), container("last", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    let runs = |report: &PodReport| states(report).get("first") == Some(&ContainerPhase::Running);
    assert_eq!(scene.until("u1", "runs", runs).await, 0, "before the other image is pulled");
    assert_eq!(scene.fake.running(), ["first"], "the last one waits");
    assert_eq!(scene.remove_all().await, 0);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn kubelet_finishes_start_of_removed_pod() {
    let scene = Scene::as_kubelet();
    scene.fake.image("slow:1", pulled_in(15));
    let spec = json!({"containers": [container("slow", "slow:1"), container("last", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    scene.sleep(4).await;
    scene.remove_all().await;
    assert_eq!(scene.times("StartContainer").len(), 2);
    assert!(scene.fake.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_create_and_start_are_retried_and_reported() {
    let scene = Scene::new();
    let start_fails = Some("no such file".to_owned());
    scene.fake.image("worse", Behaviour { start_fails, ..Behaviour::forever() });
    let spec = json!({"containers": [container("bad", "bad"), container("worse", "worse")]});
    scene.want(&[pod_with("u1", spec)]);
    scene.until_reason("u1", "bad", "CreateContainerError").await;
    scene.until_reason("u1", "worse", "RunContainerError").await;
    assert!(scene.report("u1").containers[0].message.contains("no such device"));
    scene.sleep(300).await;
    let gaps = gaps(&scene.seconds("CreateContainer bad/0"));
    // The start of the sandbox is an event, after which the start is retried.
    assert_eq!(gaps[0], 0, "{gaps:?}");
    assert!(gaps[1..].iter().all(|gap| (10..=16).contains(gap)), "{gaps:?}");
    scene.fake.image("bad", Behaviour::forever());
    scene.fake.image("worse", Behaviour::forever());
    scene.until_all_run("u1").await;
}

/// The runtime may change, and a kubelet never stops retrying.
#[tokio::test(start_paused = true)]
async fn refused_create_is_reported_and_retried() {
    let scene = Scene::new();
    scene.fake.fail("CreateContainer", 2, Code::InvalidArgument, "nothing can be mounted");
    scene.want(&[pod("u1", "app", "Never")]);
    scene.until("u1", "refused", |report| report.containers[0].refused).await;
    scene.until_all_run("u1").await;
    assert!(!scene.report("u1").containers[0].refused);
}

const MISSING: &str = "the mount point /e/x does not exist: it is below a read-only mount";
const WRONG: &str = "failed to mount /f at /e/x: the one is a directory, the other a file";

/// A mount point that is missing below a read-only mount, or is of the wrong type: another container of the pod may create it, if
/// it can write to the volume.
#[rstest]
#[case::writer(MISSING, false)]
#[case::reader(MISSING, true)]
#[case::writer_of_another_kind(WRONG, false)]
#[case::reader_of_another_kind(WRONG, true)]
#[tokio::test(start_paused = true)]
async fn create_is_retried_if_another_container_can_make_it_possible(
    #[case] message: &str,
    #[case] refused: bool,
) {
    let scene = Scene::new();
    let mount = |volume: &str, path: &str, read_only: bool| json!({"name": volume, "mountPath": path, "readOnly": read_only});
    let below = json!([mount("e", "/e", true), mount("f", "/e/x", false)]);
    let spec = json!({
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "f", "emptyDir": {}}],
        "containers": [
            container_with("b", "app", "volumeMounts", below),
            container_with("a", "app", "volumeMounts", json!([mount("e", "/e", refused)])),
        ],
    });
    scene.fake.fail("CreateContainer", 100, Code::InvalidArgument, message);
    scene.want(&[pod_with("u1", spec)]);
    scene.until_reason("u1", "b", "CreateContainerError").await;
    let report = scene.report("u1");
    let container = report.containers.iter().find(|container| container.name == "b").unwrap();
    assert_eq!(container.refused, refused);
}

#[tokio::test(start_paused = true)]
async fn failed_sandbox_is_retried_and_reported() {
    let scene = Scene::new();
    scene.fake.fail("RunPodSandbox", 2, Code::Unknown, "no address left");
    scene.want(&[pod("u1", "app", "Always")]);
    scene.until_reason("u1", "app", "CreatePodSandboxError").await;
    assert!(scene.report("u1").containers[0].message.contains("no address left"));
    let statuses = scene.report("u1").status.container_statuses.clone().unwrap();
    let waiting = statuses[0].state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"), "as in a kubelet's status");
    let running = scene.until_running("u1").await;
    assert!((20..=32).contains(&running), "{running}");
}

/// The logs of init containers are removed with them, so that only the first one, which starts in the same sync, counts on.
#[tokio::test(start_paused = true)]
async fn init_containers_in_new_sandbox_do_not_count_removed_attempts() {
    let scene = Scene::new();
    scene.fake.write_logs();
    scene.fake.image("init", job(1, 0));
    let spec = json!({
        "initContainers": [container("i1", "init"), container("i2", "init")],
        "containers": [container("app", "app")],
    });
    scene.run(&pod_with("u1", spec)).await;
    let begun = scene.calls().len();
    scene.fake.end_sandboxes();
    let restarted = |report: &PodReport| {
        let mut containers = report.containers.iter();
        containers.any(|container| container.name == "app" && container.restarts == 1)
    };
    scene.until("u1", "restarted", restarted).await;
    let calls = scene.calls().split_off(begun);
    let starts: Vec<&String> =
        calls.iter().filter(|call| call.starts_with("StartContainer")).collect();
    assert_eq!(starts, ["StartContainer i1/1", "StartContainer i2/0", "StartContainer app/1"]);
    assert!(scene.root.join("logs/default_pod-u1_u1/i2/0.log").exists());
}

#[tokio::test(start_paused = true)]
async fn killed_container_is_restarted_without_event() {
    let scene = Scene::running("app").await;
    scene.fake.drop_events();
    scene.fake.kill("app", 137);
    let back = scene.until_restarted("u1").await;
    assert!(back <= 11, "by the listing, for the event was lost: {back}");
    scene.until_all_run("u1").await;
}

#[tokio::test(start_paused = true)]
async fn runtime_outage_leaves_running_pods_alone() {
    let scene = Scene::running("app").await;
    scene.fake.set_down(true);
    scene.want(&[pod("u1", "app", "Always"), pod("u2", "app", "Always")]);
    scene.sleep(600).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u2/0"), [0; 0]);
    scene.fake.set_down(false);
    let running = scene.until_running("u2").await;
    assert!((600..=606).contains(&running), "{running}");
    assert_eq!(scene.seconds("StartContainer app/0").len(), 2, "u1 was left alone");
}

#[tokio::test(start_paused = true)]
async fn new_agent_adopts_running_pods() {
    let mut scene = Scene::new();
    let pods = [pod("u1", "app", "Always"), pod("u2", "crash", "Always")];
    scene.want(&pods);
    scene.until_running("u1").await;
    scene.sleep(100).await;
    let before = scene.calls().len();
    scene.stop_agent().await;
    assert_eq!(scene.fake.running(), ["app"]);
    scene.sleep(50).await;
    assert_eq!(scene.calls().len(), before, "a stopped agent calls nobody");
    scene.start_agent();
    scene.want(&pods);
    scene.until_running("u1").await;
    scene.until("u2", "counted on", |report| report.containers[0].restarts >= 5).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u1/0").len(), 1, "no second sandbox");
    scene.remove_all().await;
    scene.until_removed("u2").await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn orphans_are_removed_once_all_sources_have_reported() {
    let mut scene = Scene::running("deaf").await;
    scene.stop_agent().await;
    std::fs::create_dir_all(scene.pod_dir("stranger/volumes")).unwrap();
    scene.start_agent();
    scene.sleep(300).await;
    assert_eq!(scene.fake.running(), ["app"], "no source has spoken");
    scene.want(&[]);
    scene.sleep(100).await;
    assert_eq!(scene.seconds("StopContainer app/0 2s").len(), 1);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn restart_rule_of_container_overrules_policy_of_pod() {
    let scene = Scene::new();
    scene.fake.image("rule", job(2, 42));
    let app = ruled("app", "rule", "Restart");
    scene.want(&[pod_with("u1", json!({"restartPolicy": "Never", "containers": [app]}))]);
    scene.sleep(15).await;
    assert_eq!(scene.times("StartContainer app/"), [0, 2, 14]);
    scene.fake.image("rule", job(2, 1));
    let finished = scene.until_finished("u1").await;
    assert_eq!(phase(&scene.report("u1")), "Failed", "at {finished}");
}

#[tokio::test(start_paused = true)]
async fn old_container_in_unknown_state_is_stopped_by_its_pods_grace_period() {
    let scene = Scene::new();
    let spec = json!({"containers": [container("a", "app")], "terminationGracePeriodSeconds": 7});
    scene.run(&pod_with("u1", spec)).await;
    let mut events = scene.agent().events();
    scene.fake.lose("a");
    // A kubelet counts the lost attempt too.
    scene.until("u1", "restarted", |report| report.containers[0].restarts == 2).await;
    scene.fake.kill("a", 1);
    scene.sleep(60).await;
    let calls = scene.calls().into_iter();
    let calls: Vec<String> = calls
        .filter(|call| call.starts_with("StopContainer a/0") || call == "RemoveContainer a/0")
        .collect();
    assert_eq!(calls, ["StopContainer a/0 7s", "StopContainer a/0 7s", "RemoveContainer a/0"]);
    let killing = drain(&mut events).filter(|event| event.reason == "Killing");
    let messages: Vec<String> = killing.map(|event| event.message).collect();
    assert_eq!(
        messages,
        [
            "Container is in \"unknown\" state, try killing it before restart",
            "Container is in unknown state, try killing it before removal",
        ]
    );
}
