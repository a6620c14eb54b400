//! Ephemeral containers: added to a running pod, never restarted, and no obstacle to its end.

use super::*;

fn with_ephemeral(app: &str, ephemeral: Option<&str>) -> Pod {
    let mut spec = json!({"restartPolicy": "Never", "containers": [container("app", app)]});
    if let Some(image) = ephemeral {
        spec["ephemeralContainers"] = json!([container("dbg", image)]);
    }
    pod_with("u1", spec)
}

#[tokio::test(start_paused = true)]
async fn ephemeral_container_joins_running_pod_and_is_never_restarted() {
    let scene = Scene::new();
    scene.fake.image("debug", job(2, 1));
    scene.run(&with_ephemeral("app", None)).await;
    scene.want(&[with_ephemeral("app", Some("debug"))]);
    scene.sleep(60).await;
    assert_eq!(
        scene.calls()[1..],
        [
            "CreateContainer app/0",
            "StartContainer app/0",
            "CreateContainer dbg/0",
            "StartContainer dbg/0",
        ]
    );
    assert_eq!(phase(&scene.report("u1")), "Running");
    assert_eq!(states(&scene.report("u1"))["dbg"], ContainerPhase::Terminated);
}

#[tokio::test(start_paused = true)]
async fn missing_image_of_ephemeral_container_does_not_keep_pod() {
    let scene = Scene::new();
    scene.fake.image("app", job(10, 0));
    scene.run(&with_ephemeral("app", None)).await;
    scene.sleep(2).await;
    scene.want(&[with_ephemeral("app", Some("gone:1"))]);
    assert_eq!(scene.until_finished("u1").await, 10);
    assert_eq!(phase(&scene.report("u1")), "Succeeded");
    assert_eq!(scene.seconds("PullImage gone:1"), [2]);
}

/// Neither the target's name nor an attempt of it is known: the container cannot join it, and is not started alone.
#[tokio::test(start_paused = true)]
async fn ephemeral_container_with_missing_target_is_not_created() {
    let scene = Scene::new();
    scene.fake.image("debug", job(2, 1));
    scene.run(&with_ephemeral("app", None)).await;
    let debug = container_with("dbg", "debug", "targetContainerName", json!("nope"));
    let spec = json!({
        "restartPolicy": "Never", "containers": [container("app", "app")], "ephemeralContainers": [debug],
    });
    scene.want(&[pod_with("u1", spec)]);
    let refused = |report: &PodReport| {
        report.containers.iter().any(|seen| seen.reason == "CreateContainerConfigError")
    };
    scene.until("u1", "refused", refused).await;
    assert_eq!(message(&scene.report("u1"), "dbg"), "unable to find target container nope");
    assert!(!scene.calls().iter().any(|call| call.contains("dbg/")));
}
