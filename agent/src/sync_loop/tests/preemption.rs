//! Critical pods, for which others are evicted.

use rstest::rstest;

use super::*;

/// A pod that requests all CPUs of the node.
fn greedy(uid: &str, image: &str, priority: i32) -> Pod {
    let mut app = container("app", image);
    let cpus = std::thread::available_parallelism().unwrap();
    app["resources"] = json!({"requests": {"cpu": cpus.to_string()}});
    let spec = json!({
        "priority": priority,
        "terminationGracePeriodSeconds": 5,
        "containers": [app],
    });
    pod_with(uid, spec)
}

const CRITICAL: i32 = 2_000_000_000;

async fn runs(scene: &Scene, uid: &str) -> u64 {
    scene
        .until(uid, "running", |report| phase(report) == "Running")
        .await
}

#[tokio::test(start_paused = true)]
async fn critical_pod_starts_when_its_victim_has_ended() {
    let scene = Scene::new();
    let deaf = Behaviour {
        yields_after: None,
        ..Behaviour::forever()
    };
    scene.fake.image("deaf", deaf);
    scene.fake.image("app", Behaviour::forever());
    let mut events = scene.agent().events();
    let (victim, critical) = (greedy("u1", "deaf", 0), greedy("u2", "app", CRITICAL));
    let bystander = pod("u3", "app", "Always");
    scene.want(&[victim.clone(), bystander.clone()]);
    runs(&scene, "u1").await;
    scene.want(&[victim.clone(), bystander.clone(), critical.clone()]);
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u2/0"), [0; 0]);
    // A victim that its source changes is evicted all the same, and no other pod is evicted meanwhile.
    let mut changed = victim.api().clone();
    changed.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    scene.want(&[
        Pod::new(changed.clone()),
        bystander.clone(),
        critical.clone(),
    ]);
    assert_eq!(runs(&scene, "u2").await, 5, "after the grace period of u1");
    assert_eq!(phase(&scene.report("u3")), "Running");
    assert_eq!(scene.seconds("StopContainer app/0 5s"), [0]);

    let report = scene.report("u1");
    assert!(report.finished && !report.removed);
    let status = report.status;
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Preempting"));
    let conditions = status.conditions.clone().unwrap();
    let disruption = conditions
        .iter()
        .find(|known| known.type_ == "DisruptionTarget");
    assert_eq!(disruption.unwrap().status, "True");
    let event = std::iter::from_fn(|| events.try_recv().ok())
        .find(|event| event.reason == "Preempting")
        .unwrap();
    assert_eq!(
        (event.object.name.as_str(), event.kind.as_str()),
        ("pod-u1", "Warning")
    );
    assert_eq!(event.message, "Preempted in order to admit critical pod");

    scene.want(&[bystander, critical]);
    scene.until("u1", "removed", |report| report.removed).await;
}

#[tokio::test(start_paused = true)]
async fn victim_that_does_not_end_in_time_is_told() {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    let mut events = scene.agent().events();
    let (victim, critical) = (greedy("u1", "app", 0), greedy("u2", "app", CRITICAL));
    scene.want(std::slice::from_ref(&victim));
    runs(&scene, "u1").await;
    let code = crate::cri::Code::Unknown;
    for call in ["StopContainer", "StopPodSandbox"] {
        scene.fake.fail(call, 1000, code, "stuck");
    }
    scene.want(&[victim, critical]);
    let overdue = async {
        loop {
            let event = events.recv().await.unwrap();
            if event.reason == "ExceededGracePeriod" {
                return event;
            }
        }
    };
    let event = tokio::time::timeout(seconds(50), overdue).await.unwrap();
    assert_eq!(event.object.name, "pod-u1");
    assert_eq!(scene.second(event.last_at), 10);
}

#[rstest]
#[case::none_gives_way(CRITICAL, CRITICAL, "UnexpectedAdmissionError")]
#[case::not_critical(0, CRITICAL - 1, "OutOfcpu")]
#[tokio::test(start_paused = true)]
async fn pod_that_may_evict_none_is_rejected(
    #[case] running: i32,
    #[case] new: i32,
    #[case] reason: &str,
) {
    let scene = Scene::new();
    scene.fake.image("app", Behaviour::forever());
    let pods = [greedy("u1", "app", running), greedy("u2", "app", new)];
    scene.want(&pods[..1]);
    runs(&scene, "u1").await;
    scene.want(&pods);
    scene
        .until("u2", "rejected", |report| report.finished)
        .await;
    assert_eq!(scene.report("u2").status.reason.as_deref(), Some(reason));
    assert_eq!(phase(&scene.report("u1")), "Running");
}
