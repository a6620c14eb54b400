//! Failures: crash loops, failed image pulls, restarts of the runtime and of the agent.

use super::*;
use crate::cri::Code;

/// The seconds at which each attempt of the container started.
fn starts(scene: &Scene, name: &str) -> Vec<u64> {
    let start = format!("StartContainer {name}/");
    let calls = scene
        .fake
        .calls()
        .into_iter()
        .filter(|call| call.text.starts_with(&start));
    calls.map(|call| scene.second(call.at)).collect()
}

#[tokio::test(start_paused = true)]
async fn crash_loop_has_delays_of_kubernetes_for_an_hour() {
    let scene = Scene::new();
    scene.fake.image("crash", job(1, 1));
    scene.want(&[pod("u1", "crash", "Always")]);
    tokio::time::sleep(seconds(3600)).await;
    let starts = starts(&scene, "app");
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
        report.containers[0]
            .message
            .starts_with("back-off 5m0s restarting failed container=app"),
        "{report:?}"
    );
    assert_eq!(
        (report.containers[0].exit_code, phase(&report)),
        (Some(1), "Running")
    );
    assert_eq!(scene.fake.population().1, 1, "one ended container is kept");
}

#[tokio::test(start_paused = true)]
async fn week_of_crash_loops_leaves_nothing_behind() {
    // Like a kubelet with evented PLEG, so that relisting does not distort the restart times.
    let scene = Scene::listing_every(seconds(300));
    scene.fake.image("crash", job(1, 1));
    let begun = std::time::Instant::now();
    scene.want(&[pod("u1", "crash", "Always")]);
    let week = 7 * 24 * 3600;
    tokio::time::sleep(seconds(week)).await;
    let starts = starts(&scene, "app");
    let restarts = scene.report("u1").containers[0].restarts;
    // From each exit, a second after its start, to the next start.
    let waits: Vec<u64> = starts
        .windows(2)
        .map(|pair| pair[1] - pair[0] - 1)
        .collect();
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
    let messages = std::fs::read_dir(scene.pod_dir("u1").join("containers/app"))
        .unwrap()
        .count();
    assert!(messages <= 2, "{messages} files for termination messages");
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn run_of_ten_minutes_resets_crash_backoff() {
    let scene = Scene::new();
    scene.fake.image("crash", job(1, 1));
    scene.want(&[pod("u1", "crash", "Always")]);
    tokio::time::sleep(seconds(70)).await;
    scene.fake.image("crash", job(700, 1));
    tokio::time::sleep(seconds(3000)).await;
    let starts = starts(&scene, "app");
    let gaps: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        gaps.contains(&700),
        "a restart at once after a long run: {gaps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn failing_pull_is_retried_with_backoff() {
    let scene = Scene::new();
    let gone = Behaviour {
        present: false,
        pull: (seconds(0), Some("no such image".to_owned())),
        ..Behaviour::forever()
    };
    scene.fake.image("gone:1", gone);
    scene.want(&[pod("u1", "gone:1", "Always")]);
    scene
        .until("u1", "ErrImagePull", |report| {
            reason(report, "app") == "ErrImagePull"
        })
        .await;
    assert_eq!(scene.report("u1").containers[0].message, "no such image");
    scene
        .until("u1", "ImagePullBackOff", |report| {
            reason(report, "app") == "ImagePullBackOff"
        })
        .await;
    tokio::time::sleep(seconds(3600)).await;
    let pulls = scene.seconds("PullImage gone:1");
    let gaps: Vec<u64> = pulls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (10..=301).contains(gap)), "{gaps:?}");
    assert!(
        gaps.iter().filter(|gap| (300..=301).contains(*gap)).count() >= 7,
        "{gaps:?}"
    );
    assert!(pulls.len() < 20, "{pulls:?}");
    assert_eq!(
        scene
            .calls()
            .iter()
            .filter(|call| call.starts_with("CreateContainer"))
            .count(),
        0
    );
    scene.fake.image(
        "gone:1",
        Behaviour {
            present: false,
            ..Behaviour::forever()
        },
    );
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
}

#[tokio::test(start_paused = true)]
async fn slow_pull_blocks_later_containers_and_is_cancelled_by_termination() {
    let scene = Scene::new();
    scene.fake.image(
        "slow:1",
        Behaviour {
            present: false,
            pull: (seconds(900), None),
            ..Behaviour::forever()
        },
    );
    scene.fake.image("app", Behaviour::forever());
    let spec = json!({"containers": [container("first", "app"), container("slow", "slow:1"), container("last", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    let running = scene
        .until("u1", "first runs", |report| {
            states(report).get("first") == Some(&ContainerPhase::Running)
        })
        .await;
    assert_eq!(running, 0, "before the other image is pulled");
    assert_eq!(scene.fake.running(), ["first"], "the last one waits");
    scene.want(&[]);
    let removed = scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(removed, 0);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn kubelet_finishes_start_of_removed_pod() {
    let scene = Scene::as_kubelet();
    scene.fake.image(
        "slow:1",
        Behaviour {
            present: false,
            pull: (seconds(15), None),
            ..Behaviour::forever()
        },
    );
    scene.fake.image("app", Behaviour::forever());
    let spec = json!({"containers": [container("slow", "slow:1"), container("last", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    tokio::time::sleep(seconds(4)).await;
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    let calls = scene.calls();
    let started = calls.iter().filter(|it| it.starts_with("StartContainer"));
    assert_eq!(started.count(), 2, "{calls:?}");
    assert!(scene.fake.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_create_and_start_are_retried_and_reported() {
    let scene = Scene::new();
    scene.fake.image(
        "bad",
        Behaviour {
            create_fails: Some("no such device".to_owned()),
            ..Behaviour::forever()
        },
    );
    scene.fake.image(
        "worse",
        Behaviour {
            start_fails: Some("no such file".to_owned()),
            ..Behaviour::forever()
        },
    );
    let spec = json!({"containers": [container("bad", "bad"), container("worse", "worse")]});
    scene.want(&[pod_with("u1", spec)]);
    scene
        .until("u1", "CreateContainerError", |report| {
            reason(report, "bad") == "CreateContainerError"
        })
        .await;
    scene
        .until("u1", "RunContainerError", |report| {
            reason(report, "worse") == "RunContainerError"
        })
        .await;
    assert!(
        scene.report("u1").containers[0]
            .message
            .contains("no such device")
    );
    tokio::time::sleep(seconds(300)).await;
    let attempts = scene.seconds("CreateContainer bad/0");
    let gaps: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The start of the sandbox is an event, after which it is tried again.
    assert_eq!(gaps[0], 0, "{gaps:?}");
    assert!(
        gaps[1..].iter().all(|gap| (10..=16).contains(gap)),
        "{gaps:?}"
    );
    scene.fake.image("bad", Behaviour::forever());
    scene.fake.image("worse", Behaviour::forever());
    scene
        .until("u1", "both run", |report| {
            states(report)
                .values()
                .all(|state| *state == ContainerPhase::Running)
        })
        .await;
}

/// The runtime may change, and a kubelet does not give up.
#[tokio::test(start_paused = true)]
async fn refused_create_is_reported_and_retried() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    let refusal = "nothing can be mounted";
    scene
        .fake
        .fail("CreateContainer", 2, Code::InvalidArgument, refusal);
    scene.want(&[pod("u1", "app", "Never")]);
    scene
        .until("u1", "refused", |report| report.containers[0].refused)
        .await;
    scene
        .until("u1", "it runs", |report| {
            let container = &report.containers[0];
            container.state == ContainerPhase::Running && !container.refused
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn failed_sandbox_is_retried_and_reported() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene
        .fake
        .fail("RunPodSandbox", 2, Code::Unknown, "no address left");
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "the reason", |report| {
            reason(report, "app") == "CreatePodSandboxError"
        })
        .await;
    assert!(
        scene.report("u1").containers[0]
            .message
            .contains("no address left")
    );
    let statuses = scene
        .report("u1")
        .status
        .container_statuses
        .clone()
        .unwrap();
    let waiting = statuses[0].state.as_ref().unwrap().waiting.as_ref();
    assert_eq!(
        waiting.unwrap().reason.as_deref(),
        Some("ContainerCreating"),
        "as in a kubelet's status"
    );
    let running = scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    assert!((20..=32).contains(&running), "{running}");
}

#[tokio::test(start_paused = true)]
async fn killed_container_is_restarted_without_event() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    scene.fake.lose_events();
    scene.fake.kill("app", 137);
    let back = scene
        .until("u1", "again", |report| report.containers[0].restarts == 1)
        .await;
    assert!(back <= 11, "by the listing, for the event was lost: {back}");
    scene
        .until("u1", "running", |report| {
            states(report)["app"] == ContainerPhase::Running
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn runtime_outage_leaves_running_pods_alone() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    scene.fake.set_down(true);
    scene.want(&[pod("u1", "app", "Always"), pod("u2", "app", "Always")]);
    tokio::time::sleep(seconds(600)).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u2/0"), [0; 0]);
    scene.fake.set_down(false);
    let running = scene
        .until("u2", "running", |report| phase(report) == "Running")
        .await;
    assert!((600..=606).contains(&running), "{running}");
    assert_eq!(
        scene.seconds("StartContainer app/0").len(),
        2,
        "u1 was left alone"
    );
}

#[tokio::test(start_paused = true)]
async fn new_agent_adopts_running_pods() {
    let mut scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.image("crash", job(1, 1));
    let pods = [pod("u1", "app", "Always"), pod("u2", "crash", "Always")];
    scene.want(&pods);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    tokio::time::sleep(seconds(100)).await;
    let before = scene.calls().len();
    scene.stop_agent().await;
    assert_eq!(scene.fake.running(), ["app"]);
    tokio::time::sleep(seconds(50)).await;
    assert_eq!(scene.calls().len(), before, "a stopped agent calls nobody");
    scene.start_agent();
    scene.want(&pods);
    scene
        .until("u1", "adopted", |report| phase(report) == "Running")
        .await;
    scene
        .until("u2", "counted on", |report| {
            report.containers[0].restarts >= 5
        })
        .await;
    assert_eq!(
        scene.seconds("RunPodSandbox pod-u1/0").len(),
        1,
        "no second sandbox"
    );
    scene.want(&[]);
    for uid in ["u1", "u2"] {
        scene.until(uid, "removed", |report| report.removed).await;
    }
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn orphans_are_removed_once_all_sources_have_reported() {
    let mut scene = Scene::new();
    scene.fake.image(
        "deaf",
        Behaviour {
            yields_after: None,
            ..Behaviour::forever()
        },
    );
    scene.want(&[pod("u1", "deaf", "Always")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    scene.stop_agent().await;
    std::fs::create_dir_all(scene.pod_dir("stranger/volumes")).unwrap();
    scene.start_agent();
    tokio::time::sleep(seconds(300)).await;
    assert_eq!(scene.fake.running(), ["app"], "no source has spoken");
    scene.want(&[]);
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(
        scene
            .calls()
            .iter()
            .filter(|call| *call == "StopContainer app/0 2s")
            .count(),
        1
    );
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn restart_rule_of_container_overrules_policy_of_pod() {
    let scene = Scene::new();
    scene.fake.image("rule", job(2, 42));
    let mut app = container("app", "rule");
    app["restartPolicy"] = json!("Never");
    app["restartPolicyRules"] = json!([{
        "action": "Restart",
        "exitCodes": {"operator": "In", "values": [42]},
    }]);
    scene.want(&[pod_with(
        "u1",
        json!({"restartPolicy": "Never", "containers": [app]}),
    )]);
    tokio::time::sleep(seconds(15)).await;
    assert_eq!(starts(&scene, "app"), [0, 2, 14]);
    scene.fake.image("rule", job(2, 1));
    let finished = scene
        .until("u1", "finished", |report| report.finished)
        .await;
    assert_eq!(phase(&scene.report("u1")), "Failed", "at {finished}");
}

#[tokio::test(start_paused = true)]
async fn app_starts_once_startup_probe_of_sidecar_succeeds() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.exec("side", seconds(0), 1, "");
    let mut side = container("side", "app");
    side["restartPolicy"] = json!("Always");
    side["startupProbe"] = json!({
        "exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 30,
        "successThreshold": 1, "timeoutSeconds": 1,
    });
    let spec = json!({"initContainers": [side], "containers": [container("app", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(scene.fake.running(), ["side"]);
    scene.fake.exec("side", seconds(0), 0, "");
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    assert_eq!(starts(&scene, "app"), [4]);
}
