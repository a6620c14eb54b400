//! The scenarios in which the agent is killed.

use super::*;
use crate::cri::ExecOutput;

/// The number of calls with this text.
fn times(calls: &[String], call: &str) -> usize {
    calls.iter().filter(|made| *made == call).count()
}

#[tokio::test(start_paused = true)]
async fn init_and_app_containers_run_on() {
    let spec = json!({
        "initContainers": [container("init", "setup:1")],
        "containers": [container("a", "app"), container("b", "app")],
    });
    let scenario = Scenario {
        images: |fake| {
            fake.image(
                "setup:1",
                Behaviour { present: false, pull: (seconds(3), None), ..job(2, 0) },
            );
        },
        steps: vec![(0, pod_with("u1", spec))],
        done: 12,
        ..Scenario::default()
    };
    scenario.assert_survived(|_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn job_with_sidecar_completes_once() {
    let spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "initContainers": [sidecar("side", "app")],
        "containers": [container("job", "job")],
    });
    let scenario = Scenario {
        images: |fake| fake.image("job", job(6, 0)),
        steps: vec![(0, pod_with("u1", spec))],
        done: 15,
        ..Scenario::default()
    };
    scenario.assert_survived(|_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn crash_loop_counts_on() {
    let scenario = Scenario {
        images: |fake| fake.image("flaky", Behaviour { heals_after: Some(3), ..job(1, 1) }),
        steps: vec![(0, pod("u1", "flaky", "Always"))],
        done: 40,
        ..Scenario::default()
    };
    scenario.assert_survived(|_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn termination_is_finished_within_its_grace_period() {
    let app = container_with("app", "slow", "lifecycle", json!({"preStop": exec("drain")}));
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [app]});
    let runs = pod_with("u1", spec);
    let ends = changed(&runs, |api| {
        api.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:05Z".parse().unwrap()));
        api.metadata.deletion_grace_period_seconds = Some(10);
    });
    let scenario = Scenario {
        images: |fake| {
            fake.image("slow", slow(4));
            fake.command(&["drain"], seconds(3), ExecOutput::default());
        },
        steps: vec![(0, runs), (5, ends)],
        done: 30,
        ..Scenario::default()
    };
    let check = |calls: &[String]| {
        // Like a kubelet, the next agent runs an interrupted hook again.
        let hooks = times(calls, "ExecSync app/0 drain") + times(calls, "ExecSync app/1 drain");
        assert!((1..=2).contains(&hooks), "{hooks} preStop hooks: {calls:#?}");
        let grace = |call: &String| -> Option<u64> {
            let (_, grace) = call.strip_prefix("StopContainer ")?.split_once(' ')?;
            grace.strip_suffix('s')?.parse().ok()
        };
        let graces: Vec<u64> = calls.iter().filter_map(grace).collect();
        assert!(graces.iter().all(|grace| *grace <= 10), "{graces:?}");
        assert!(graces.len() <= 2, "{graces:?}");
    };
    scenario.assert_survived(check).await;
}

#[tokio::test(start_paused = true)]
async fn update_to_another_image_is_made_once() {
    let of = |image: &str| {
        let containers = [container("app", image), container("other", "v1")];
        pod_with("u1", json!({"terminationGracePeriodSeconds": 4, "containers": containers}))
    };
    let scenario = Scenario {
        images: |fake| {
            fake.image("v1", slow(2));
            fake.image("v2", slow(2));
        },
        steps: vec![(0, of("v1")), (5, of("v2"))],
        done: 15,
        ..Scenario::default()
    };
    scenario.assert_survived(|_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn restart_of_all_containers_is_completed() {
    let main = ruled("main", "flaky", "RestartAllContainers");
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [container("init", "setup"), sidecar("side", "app")],
        "containers": [main, container("app", "app")],
    });
    let scenario = Scenario {
        images: |fake| {
            fake.image("flaky", Behaviour { heals_after: Some(1), ..job(4, 42) });
            fake.image("setup", job(1, 0));
        },
        steps: vec![(0, pod_with("u1", spec))],
        done: 25,
        ..Scenario::default()
    };
    scenario.assert_survived(|_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn post_start_hook_and_ephemeral_container_are_not_repeated() {
    let app = container_with("app", "app", "lifecycle", json!({"postStart": exec("warm")}));
    let pods = |ephemeral: Value| {
        let containers = json!([app.clone(), container("next", "app")]);
        pod_with("u1", json!({"containers": containers, "ephemeralContainers": ephemeral}))
    };
    let scenario = Scenario {
        images: |fake| {
            fake.image("debug", job(2, 3));
            fake.command(&["warm"], seconds(4), ExecOutput::default());
        },
        steps: vec![(0, pods(json!([]))), (6, pods(json!([container("dbg", "debug")])))],
        done: 15,
        ephemeral: Some("dbg"),
    };
    let check = |calls: &[String]| {
        // Like a kubelet, the next agent leaves a container whose hook was interrupted running, and does not run the hook again.
        let warm = |call: &&String| call.starts_with("ExecSync app/") && call.ends_with(" warm");
        assert!(calls.iter().filter(warm).count() <= 1, "{calls:#?}");
    };
    scenario.assert_survived(check).await;
}

/// A pod that is resized after five seconds, with this policy.
fn resized(policy: &str) -> Scenario {
    let of = |cpu: &str, memory: &str| {
        let mut app = container("app", "app");
        let amounts = json!({"cpu": cpu, "memory": memory});
        app["resources"] = json!({"requests": amounts, "limits": amounts});
        app["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": policy}]);
        pod_with("u1", json!({"containers": [app]}))
    };
    Scenario {
        steps: vec![(0, of("500m", "64Mi")), (5, of("1", "128Mi"))],
        done: 40,
        ..Scenario::default()
    }
}

#[tokio::test(start_paused = true)]
async fn resize_is_completed_without_a_restart() {
    let check = |calls: &[String]| {
        let mut updates = calls.iter().rev();
        let last = updates.find(|call| call.starts_with("UpdateContainerResources"));
        // A container that was created and not started when the agent was killed is replaced.
        let limits = "shares=1024 quota=100000 memory=134217728";
        assert!(last.is_some_and(|last| last.ends_with(limits)), "{last:?}");
    };
    resized("NotRequired").assert_survived(check).await;
}

#[tokio::test(start_paused = true)]
async fn resize_by_restart_is_made_once() {
    resized("RestartContainer").assert_survived(|_| {}).await;
}
