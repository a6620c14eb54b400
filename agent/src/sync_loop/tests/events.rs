//! The events of a pod's life, compared with those that a kubelet recorded.

use super::*;

/// The events so far, without their times; an event that counts up is listed once.
fn story(events: &mut tokio::sync::mpsc::UnboundedReceiver<crate::Event>) -> Vec<String> {
    let mut story = Vec::new();
    while let Ok(event) = events.try_recv() {
        let line = format!(
            "{} {} {}: {}",
            event.kind.as_str(),
            event.reason,
            event.object.field_path,
            event.message
        );
        if !story.contains(&line) {
            story.push(line);
        }
    }
    story
}

#[tokio::test(start_paused = true)]
async fn life_of_a_pod_is_told_in_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.image("app", Behaviour::forever());
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(
        story(&mut events),
        [
            "Normal Pulled spec.containers{app}: Container image \"app\" already present on machine and can be accessed by the pod",
            "Normal Created spec.containers{app}: Container created",
            "Normal Started spec.containers{app}: Container started",
            "Normal Killing spec.containers{app}: Stopping container app",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn crash_loop_is_one_event_that_counts_up() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.image("crash", job(1, 1));
    scene.want(&[pod("u1", "crash", "Always")]);
    tokio::time::sleep(seconds(90)).await;
    let mut told: Vec<crate::Event> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    let count = told.iter().filter(|event| event.reason == "BackOff");
    // One with each sync: at each exit and its look a minute later, at most.
    let count = count.map(|event| event.count).max().unwrap();
    assert!((3..=6).contains(&count), "{count}");
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    told.drain(..).for_each(|event| sender.send(event).unwrap());
    assert_eq!(
        story(&mut events),
        [
            "Normal Pulled spec.containers{app}: Container image \"crash\" already present on machine and can be accessed by the pod",
            "Normal Created spec.containers{app}: Container created",
            "Normal Started spec.containers{app}: Container started",
            "Warning BackOff spec.containers{app}: Back-off restarting failed container app in pod pod-u1_default(u1)",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_in_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let bad = Behaviour {
        create_fails: Some("no such device".to_owned()),
        ..Behaviour::forever()
    };
    scene.fake.image("bad", bad);
    scene
        .fake
        .fail("RunPodSandbox", 1, crate::cri::Code::Unknown, "no address");
    scene.want(&[pod("u1", "bad", "Always")]);
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(
        story(&mut events),
        [
            "Warning FailedCreatePodSandBox : Failed to create pod sandbox: rpc error: code = Unknown desc = no address",
            "Normal Pulled spec.containers{app}: Container image \"bad\" already present on machine and can be accessed by the pod",
            "Warning Failed spec.containers{app}: Error: no such device",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn deadline_and_replacement_are_told_in_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.image("one", Behaviour::forever());
    scene.fake.image("two", Behaviour::forever());
    let pod = |image: &str| {
        let spec = json!({"activeDeadlineSeconds": 10, "containers": [container("app", image)]});
        pod_with("u1", spec)
    };
    scene.want(&[pod("one")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    scene.want(&[pod("two")]);
    scene
        .until("u1", "finished", |report| report.finished)
        .await;
    let story = story(&mut events);
    assert_eq!(
        story[3..],
        [
            "Normal Killing spec.containers{app}: Container app definition changed, will be restarted",
            "Normal Pulled spec.containers{app}: Container image \"two\" already present on machine and can be accessed by the pod",
            "Normal DeadlineExceeded : Pod was active on the node longer than the specified deadline",
            "Normal Killing spec.containers{app}: Stopping container app",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn failed_probes_are_told_in_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.exec("app", seconds(0), 1, "");
    let mut app = container("app", "app");
    app["livenessProbe"] = json!({
        "exec": {"command": ["check"]}, "periodSeconds": 2, "failureThreshold": 2,
        "successThreshold": 1, "timeoutSeconds": 1,
    });
    scene.want(&[pod_with("u1", json!({"containers": [app]}))]);
    scene
        .until("u1", "restarted", |report| {
            report.containers[0].restarts == 1
        })
        .await;
    let story = story(&mut events);
    assert_eq!(
        story[3..5],
        [
            "Warning Unhealthy spec.containers{app}: Liveness probe failed: ",
            "Normal Killing spec.containers{app}: Container app failed liveness probe, will be restarted",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_fails_after_the_pod_was_removed_is_not_told() {
    let scene = Scene::as_kubelet();
    let mut events = scene.agent().events();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.delay("RunPodSandbox", seconds(5));
    scene
        .fake
        .fail("RunPodSandbox", 1, crate::cri::Code::Unknown, "cut short");
    scene.want(&[pod("u1", "app", "Always")]);
    tokio::time::sleep(seconds(1)).await;
    scene.want(&[]);
    scene.until("u1", "removed", |report| report.removed).await;
    assert_eq!(story(&mut events), Vec::<String>::new());
    assert_eq!(scene.fake.count("RunPodSandbox"), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_that_cannot_be_inspected_is_told() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.image("app", Behaviour::forever());
    scene.fake.fail(
        "ContainerStatus",
        3,
        crate::cri::Code::Internal,
        "out of order",
    );
    scene.want(&[pod("u1", "app", "Always")]);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    let told = story(&mut events);
    let failed: Vec<_> = told
        .iter()
        .filter(|line| line.contains("FailedSync"))
        .collect();
    assert_eq!(failed.len(), 1, "{told:?}");
    assert!(
        failed[0].starts_with("Warning FailedSync : error determining status: "),
        "{failed:?}"
    );
    assert!(failed[0].contains("out of order"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn runtime_that_does_not_answer_is_no_failure_of_pods() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.image("app", Behaviour::forever());
    tokio::time::sleep(seconds(1)).await;
    scene.fake.set_down(true);
    // The pod cannot be inspected for the first time.
    scene.want(&[pod("u1", "app", "Always")]);
    tokio::time::sleep(seconds(30)).await;
    scene.fake.set_down(false);
    scene
        .until("u1", "running", |report| phase(report) == "Running")
        .await;
    let told = story(&mut events);
    let failed = told.iter().any(|line| line.contains("FailedSync"));
    assert!(!failed, "{told:?}");
}
