//! Critical pods, for which others are evicted.

use rstest::rstest;

use super::*;

/// A pod that requests all CPUs of the node.
fn all_cpus_pod(uid: &str, image: &str, priority: i32) -> Pod {
    requesting(uid, image, priority, &crate::shared::online_cpus().to_string())
}

/// A pod that requests this much CPU.
fn requesting(uid: &str, image: &str, priority: i32, cpu: &str) -> Pod {
    let app = container_with("app", image, "resources", json!({"requests": {"cpu": cpu}}));
    let grace = 5;
    pod_with(
        uid,
        json!({"priority": priority, "terminationGracePeriodSeconds": grace, "containers": [app]}),
    )
}

const CRITICAL: i32 = 2_000_000_000;

#[tokio::test(start_paused = true)]
async fn critical_pod_starts_when_its_victim_has_ended() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let (victim, critical) = (all_cpus_pod("u1", "deaf", 0), all_cpus_pod("u2", "app", CRITICAL));
    let bystander = pod("u3", "app", "Always");
    scene.want(&[victim.clone(), bystander.clone()]);
    scene.until_running("u1").await;
    scene.want(&[victim.clone(), bystander.clone(), critical.clone()]);
    scene.sleep(1).await;
    assert_eq!(scene.seconds("RunPodSandbox pod-u2/0"), [0; 0]);
    // A victim that its source changes is evicted nevertheless, and no other pod is evicted meanwhile.
    let labels = [("a".to_owned(), "b".to_owned())];
    let victim = changed(&victim, |api| api.metadata.labels = Some(labels.into()));
    scene.want(&[victim, bystander.clone(), critical.clone()]);
    assert_eq!(scene.until_running("u2").await, 5, "after the grace period of u1");
    assert_eq!(phase(&scene.report("u3")), "Running");
    assert_eq!(scene.seconds("StopContainer app/0 5s"), [0]);

    let report = scene.report("u1");
    assert!(report.finished && !report.removed);
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), "Preempting".to_owned()));
    let mut conditions = report.status.conditions.iter().flatten();
    let disruption = conditions.find(|known| known.type_ == "DisruptionTarget");
    assert_eq!(disruption.unwrap().status, "True");
    let event = drain(&mut events).find(|event| event.reason == "Preempting").unwrap();
    assert_eq!((event.object.name.as_str(), event.kind.as_str()), ("pod-u1", "Warning"));
    assert_eq!(event.message, "Preempted in order to admit critical pod");

    scene.want(&[bystander, critical]);
    scene.until_removed("u1").await;
}

#[tokio::test(start_paused = true)]
async fn resize_of_a_critical_pod_is_granted_when_its_victim_has_ended() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let cpus = crate::shared::online_cpus() * 1000;
    let victim = requesting("u1", "deaf", 0, &format!("{}m", cpus - 200));
    let critical = |generation, cpu: &str| {
        let pod = requesting("u2", "app", CRITICAL, cpu);
        changed(&pod, |api| api.metadata.generation = Some(generation))
    };
    scene.want(&[victim.clone(), critical(1, "100m")]);
    scene.until_running("u1").await;
    scene.until_running("u2").await;
    let begun = scene.now();
    scene.want(&[victim, critical(2, "300m")]);
    let granted = |report: &PodReport| {
        let mut containers = report.status.container_statuses.iter().flatten();
        let allocated = containers.next().and_then(|status| status.allocated_resources.as_ref());
        allocated.is_some_and(|allocated| allocated["cpu"].0 == "300m")
    };
    let waited = scene.until("u2", "granted", granted).await - begun;
    assert!((5..=6).contains(&waited), "not before the grace period of u1 is over: {waited}");
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), "Preempting".to_owned()));
    let reasons: Vec<String> = drain(&mut events).map(|event| event.reason).collect();
    let has = |reason: &str| reasons.iter().any(|seen| seen == reason);
    assert!(has("Preempting") && has("ResizeStarted"), "{reasons:?}");
    assert!(!has("ResizeDeferred"), "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_for_the_resize_of_a_pod_that_has_ended() {
    let scene = Scene::new();
    scene.fake.image("job", job(1, 0));
    let cpus = crate::shared::online_cpus() * 1000;
    let other = requesting("u1", "app", 0, &format!("{}m", cpus - 200));
    let critical = |generation, cpu: &str| {
        let pod = requesting("u2", "job", CRITICAL, cpu);
        changed(&pod, |api| {
            api.metadata.generation = Some(generation);
            api.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
        })
    };
    scene.want(&[other.clone(), critical(1, "100m")]);
    scene.until_running("u1").await;
    scene.until_finished("u2").await;
    scene.want(&[other, critical(2, "300m")]);
    scene.sleep(60).await;
    assert_eq!(scene.status("u1").0, "Running");
}

#[tokio::test(start_paused = true)]
async fn evicted_pod_that_exceeds_its_grace_period_is_reported() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let (victim, critical) = (all_cpus_pod("u1", "app", 0), all_cpus_pod("u2", "app", CRITICAL));
    scene.want(std::slice::from_ref(&victim));
    scene.until_running("u1").await;
    for call in ["StopContainer", "StopPodSandbox"] {
        scene.fake.fail(call, 1000, crate::cri::Code::Unknown, "stuck");
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
async fn critical_pod_without_preemptable_pods_is_rejected(
    #[case] running: i32,
    #[case] new: i32,
    #[case] reason: &str,
) {
    let scene = Scene::new();
    let pods = [all_cpus_pod("u1", "app", running), all_cpus_pod("u2", "app", new)];
    scene.want(&pods[..1]);
    scene.until_running("u1").await;
    scene.want(&pods);
    scene.until_finished("u2").await;
    assert_eq!(scene.status("u2").1, reason);
    assert_eq!(phase(&scene.report("u1")), "Running");
}
