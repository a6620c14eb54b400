//! Pods whose CPU and memory change while they run.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::*;
use crate::cri::Code;
use crate::histogram::Histogram;
use crate::observed::MemoryUsage;
use crate::reporting::measures::Counted;

/// CPU and memory, as requests and limits.
fn both(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

/// A pod of this generation, with one container.
fn sized(uid: &str, generation: i64, resources: Value, policy: Value) -> Pod {
    let mut app = container("app", "app");
    app["resources"] = resources;
    app["resizePolicy"] = policy;
    let pod = pod_with(uid, json!({"containers": [app]}));
    changed(&pod, |api| api.metadata.generation = Some(generation))
}

/// The condition of a resize, if it is true.
fn condition(report: &PodReport, kind: &str) -> Option<PodCondition> {
    let mut all = report.status.conditions.iter().flatten();
    all.find(|condition| condition.type_ == kind).cloned()
}

fn resizes(report: &PodReport) -> bool {
    condition(report, "PodResizeInProgress").is_some()
}

fn is_pending(report: &PodReport) -> bool {
    condition(report, "PodResizePending").is_some()
}

/// Whether an init or app container has this CPU limit according to the status.
fn has_cpu(report: &PodReport, cpu: &str) -> bool {
    let status = &report.status;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let statuses = lists.into_iter().flatten().flatten();
    let mut limits = statuses.filter_map(|status| status.resources.as_ref()?.limits.as_ref());
    limits.any(|limits| limits["cpu"].0 == cpu)
}

/// Waits until the resize of `u1` to this CPU limit is complete.
async fn until_resized(scene: &Scene, cpu: &str) -> u64 {
    scene.until("u1", "resized", |report| has_cpu(report, cpu) && !resizes(report)).await
}

/// The calls that change resources.
fn updates(scene: &Scene) -> Vec<String> {
    scene.calls().into_iter().filter(|call| call.starts_with("Update")).collect()
}

#[tokio::test(start_paused = true)]
async fn resources_change_without_a_restart() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let first = changed(&sized("u1", 1, both("500m", "64Mi"), json!([])), |api| {
        let annotations = api.metadata.annotations.get_or_insert_default();
        annotations
            .insert("kubernetes.io/config.seen".to_owned(), "1970-01-01T00:00:00Z".to_owned());
    });
    scene.run(&first).await;
    scene.want(&[sized("u1", 2, both("1", "128Mi"), json!([]))]);
    until_resized(&scene, "1").await;
    assert_eq!(
        updates(&scene),
        [
            "UpdatePodSandboxResources pod-u1 shares=512 quota=50000 memory=134217728",
            "UpdateContainerResources app/0 shares=512 quota=50000 memory=134217728",
            "UpdatePodSandboxResources pod-u1 shares=512 quota=100000 memory=134217728",
            "UpdatePodSandboxResources pod-u1 shares=1024 quota=100000 memory=134217728",
            "UpdateContainerResources app/0 shares=1024 quota=100000 memory=134217728",
        ]
    );
    assert!(scene.seconds("StartContainer app/1").is_empty());
    let report = scene.report("u1");
    let status = &report.status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(status.allocated_resources.as_ref().unwrap()["cpu"].0, "1");
    assert_eq!(report.status.observed_generation, Some(2));
    let seen = drain(&mut events).filter(|event| event.reason.starts_with("Resize"));
    let seen: Vec<_> = seen.map(|event| (event.reason, event.message)).collect();
    let summary = "{\"containers\":[{\"name\":\"app\",\"resources\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"128Mi\"},\
                   \"requests\":{\"cpu\":\"1\",\"memory\":\"128Mi\"}}}],\"generation\":2}";
    assert_eq!(
        seen,
        [
            ("ResizeStarted".to_owned(), format!("Pod resize started: {summary}")),
            ("ResizeCompleted".to_owned(), format!("Pod resize completed: {summary}")),
        ]
    );
    let measured = scene.agent().view().measured();
    let requested = measured.counts.iter().filter_map(|(happened, count)| {
        let Counted::ResizeRequested(of) = happened else { return None };
        Some((of.resource, of.requirement, of.operation, *count))
    });
    let expected =
        [("cpu", "limits"), ("cpu", "requests"), ("memory", "limits"), ("memory", "requests")];
    let expected = expected.map(|(resource, of)| (resource, of, "increase", 1));
    assert_eq!(requested.collect::<Vec<_>>(), expected);
    assert_eq!(measured.resizes.get(&true).map(Histogram::count), Some(1));
    assert_eq!(measured.worker_starts.count(), 1);
}

/// A pod of this generation with pod-level resources. Its container `app` has none of its own.
fn sized_as_a_whole(generation: i64, resources: Value) -> Pod {
    let own = container_with("own", "app", "resources", both("100m", "32Mi"));
    let spec = json!({"containers": [container("app", "app"), own], "resources": resources});
    changed(&pod_with("u1", spec), |api| api.metadata.generation = Some(generation))
}

#[tokio::test(start_paused = true)]
async fn resources_of_a_pod_as_a_whole_change_without_a_restart() {
    let scene = Scene::new();
    let used = MemoryUsage {
        pod: Some(1 << 20),
        containers: Map::from([("app".to_owned(), Some(1 << 20))]),
    };
    scene.fake.set_memory(used);
    let resized_to = async |generation: i64, cpu: &str, memory: &str| {
        let before = updates(&scene).len();
        scene.want(&[sized_as_a_whole(generation, both(cpu, memory))]);
        let resized = |report: &PodReport| {
            report.status.observed_generation == Some(generation) && !resizes(report)
        };
        scene.until("u1", "resized", resized).await;
        let status = scene.report("u1").status;
        assert_eq!(status.allocated_resources.as_ref().unwrap()["cpu"].0, cpu);
        let resources = status.resources.as_ref().unwrap();
        assert_eq!(resources.limits.as_ref().unwrap()["memory"].0, memory);
        updates(&scene).split_off(before)
    };
    scene.run(&sized_as_a_whole(1, both("500m", "64Mi"))).await;
    // A container without a limit has the pod's, and its request stays zero.
    assert_eq!(
        resized_to(2, "1", "128Mi").await,
        [
            "UpdatePodSandboxResources pod-u1 shares=512 quota=50000 memory=134217728",
            "UpdateContainerResources app/0 shares=2 quota=50000 memory=134217728",
            "UpdatePodSandboxResources pod-u1 shares=512 quota=100000 memory=134217728",
            "UpdatePodSandboxResources pod-u1 shares=1024 quota=100000 memory=134217728",
            "UpdateContainerResources app/0 shares=2 quota=100000 memory=134217728",
        ]
    );
    assert_eq!(
        resized_to(3, "500m", "64Mi").await,
        [
            "UpdateContainerResources app/0 shares=2 quota=100000 memory=67108864",
            "UpdatePodSandboxResources pod-u1 shares=1024 quota=100000 memory=67108864",
            "UpdateContainerResources app/0 shares=2 quota=50000 memory=67108864",
            "UpdatePodSandboxResources pod-u1 shares=512 quota=100000 memory=67108864",
            "UpdatePodSandboxResources pod-u1 shares=512 quota=50000 memory=67108864",
        ]
    );
    assert!(scene.seconds("StartContainer app/1").is_empty());
}

/// The pod-level resources in its status: requests of CPU and memory, then their limits.
fn whole(report: &PodReport) -> [String; 4] {
    let resources = report.status.resources.as_ref().unwrap();
    let (requests, limits) = (&resources.requests, &resources.limits);
    let (requests, limits) = (requests.as_ref().unwrap(), limits.as_ref().unwrap());
    [&requests["cpu"], &requests["memory"], &limits["cpu"], &limits["memory"]]
        .map(|amount| amount.0.clone())
}

#[tokio::test(start_paused = true)]
async fn status_of_pod_has_new_resources_when_they_are_actuated() {
    let scene = Scene::new();
    scene.run(&sized_as_a_whole(1, both("500m", "64Mi"))).await;
    scene.fake.fail("UpdatePodSandboxResources", 1, Code::Unknown, "no");
    // By now, the pod runs according to the API server.
    let resized = changed(&sized_as_a_whole(2, both("1", "128Mi")), |api| {
        api.status = Some(PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() });
    });
    scene.want(&[resized]);
    let failed = |report: &PodReport| {
        condition(report, "PodResizeInProgress").is_some_and(|of| of.reason.is_some())
    };
    scene.until("u1", "failed", failed).await;
    let report = scene.report("u1");
    assert_eq!(whole(&report), ["500m", "64Mi", "500m", "64Mi"]);
    assert_eq!(report.status.allocated_resources.as_ref().unwrap()["cpu"].0, "1");
    let done =
        |report: &PodReport| report.status.observed_generation == Some(2) && !resizes(report);
    scene.until("u1", "resized", done).await;
    assert_eq!(whole(&scene.report("u1")), ["1", "128Mi", "1", "128Mi"]);
}

#[tokio::test(start_paused = true)]
async fn policy_restarts_the_container() {
    let scene = Scene::new();
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    scene.run(&sized("u1", 1, both("1", "64Mi"), policy.clone())).await;
    scene.want(&[sized("u1", 2, both("1", "128Mi"), policy)]);
    let restarted = |report: &PodReport| {
        report.containers[0].restarts == 1 && phase(report) == "Running" && !resizes(report)
    };
    scene.until("u1", "restarted", restarted).await;
    assert_eq!(
        scene.calls()[3..],
        [
            "StopContainer app/0 30s",
            "UpdatePodSandboxResources pod-u1 shares=1024 quota=100000 memory=134217728",
            "CreateContainer app/1",
            "StartContainer app/1",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn resize_waits_for_another_pod_to_go() {
    let cpus = crate::shared::online_cpus() * 1000;
    let most = format!("{}m", cpus - 300);
    let scene = Scene::new();
    let small = |generation, cpu: &str| sized("u1", generation, both(cpu, "64Mi"), json!([]));
    let large = sized("u2", 1, both(&most, "64Mi"), json!([]));
    scene.want(&[small(1, "200m"), large.clone()]);
    scene.until_running("u1").await;
    scene.until_running("u2").await;
    scene.want(&[small(2, "400m"), large]);
    scene.until("u1", "deferred", is_pending).await;
    let pending = condition(&scene.report("u1"), "PodResizePending").unwrap();
    assert_eq!(pending.reason.as_deref(), Some("Deferred"));
    let amounts = format!("requested: 400, used: {}, capacity: {cpus}", cpus - 300);
    let expected = format!("Node didn't have enough resource: cpu, {amounts}");
    assert_eq!(pending.message.unwrap(), expected);
    assert_eq!(pending.observed_generation, Some(2));
    assert_eq!(updates(&scene), Vec::<String>::new());
    scene.want(&[small(2, "400m")]);
    let report = |report: &PodReport| has_cpu(report, "400m") && !is_pending(report);
    scene.until("u1", "resized", report).await;
    assert_eq!(granted_by(&scene), ["pods_removed"]);
}

/// Why deferred resizes were granted.
fn granted_by(scene: &Scene) -> Vec<&'static str> {
    let counts = scene.agent().view().measured().counts;
    let triggers = counts.into_keys().filter_map(|happened| {
        let Counted::DeferredResizeGranted(trigger) = happened else { return None };
        Some(trigger)
    });
    triggers.collect()
}

#[tokio::test(start_paused = true)]
async fn resize_waits_for_another_pod_to_shrink_or_end() {
    let cpus = crate::shared::online_cpus() * 1000;
    let most = format!("{}m", cpus - 300);
    for ends in [false, true] {
        let scene = Scene::new();
        let of =
            |uid: &str, generation, cpu: &str| sized(uid, generation, both(cpu, "64Mi"), json!([]));
        scene.fake.image("job", job(100, 0));
        let large = changed(&of("u2", 1, &most), |api| {
            let spec = api.spec.as_mut().unwrap();
            spec.restart_policy = Some("Never".to_owned());
            spec.containers[0].image = Some(if ends { "job" } else { "app" }.to_owned());
        });
        scene.want(&[of("u1", 1, "200m"), large.clone()]);
        scene.until_running("u1").await;
        scene.until_running("u2").await;
        scene.want(&[of("u1", 2, "400m"), large]);
        scene.until("u1", "deferred", is_pending).await;
        if !ends {
            let small = sized("u2", 2, both("100m", "64Mi"), json!([]));
            let small = changed(&small, |api| {
                api.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
            });
            scene.want(&[of("u1", 2, "400m"), small]);
        }
        let at = scene.until("u1", "resized", |report| has_cpu(report, "400m")).await;
        assert!(at <= 110, "not only after three minutes: {at}");
        assert_eq!(granted_by(&scene), [if ends { "pod_terminated" } else { "pod_resized" }]);
    }
}

#[tokio::test(start_paused = true)]
async fn pending_resize_can_be_taken_back() {
    let scene = Scene::new();
    let small = |generation, resources| sized("u1", generation, resources, json!([]));
    scene.run(&small(1, both("200m", "64Mi"))).await;
    // A change of the QoS class.
    scene.want(&[small(2, json!({"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}))]);
    scene.until("u1", "infeasible", is_pending).await;
    let condition = condition(&scene.report("u1"), "PodResizePending").unwrap();
    assert_eq!(condition.reason.as_deref(), Some("Infeasible"));
    assert_eq!(
        condition.message.as_deref(),
        Some("Pod QOS Class may not change as a result of resizing")
    );
    scene.want(&[small(3, both("200m", "64Mi"))]);
    scene.until("u1", "taken back", |report| !is_pending(report)).await;
    assert_eq!(updates(&scene), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn failed_resize_is_tried_again() {
    let scene = Scene::new();
    scene.run(&sized("u1", 1, both("500m", "64Mi"), json!([]))).await;
    scene.fake.fail("UpdateContainerResources", 1, Code::Unknown, "no");
    scene.want(&[sized("u1", 2, both("1", "64Mi"), json!([]))]);
    let failed = |report: &PodReport| {
        condition(report, "PodResizeInProgress").is_some_and(|of| {
            of.reason.as_deref() == Some("Error")
                && of.message.as_deref() == Some("rpc error: code = Unknown desc = no")
                && of.observed_generation == Some(2)
        })
    };
    let at = scene.until("u1", "failed", failed).await;
    let then = until_resized(&scene, "1").await;
    assert!((10..=15).contains(&(then - at)), "{}", then - at);
}

#[tokio::test(start_paused = true)]
async fn memory_in_use_is_not_taken() {
    let scene = Scene::new();
    scene.run(&sized("u1", 1, both("1", "128Mi"), json!([]))).await;
    let used = |bytes: u64| MemoryUsage {
        pod: Some(bytes),
        containers: Map::from([("app".to_owned(), Some(0))]),
    };
    scene.fake.set_memory(used(100 << 20));
    scene.want(&[sized("u1", 2, both("1", "64Mi"), json!([]))]);
    let failed = |report: &PodReport| {
        condition(report, "PodResizeInProgress").is_some_and(|of| of.reason.is_some())
    };
    scene.until("u1", "failed", failed).await;
    let condition = condition(&scene.report("u1"), "PodResizeInProgress").unwrap();
    let expected = "cannot decrease memory limits: attempting to set pod memory limit (67108864) below current usage (104857600)";
    assert_eq!(condition.message.as_deref(), Some(expected));
    assert_eq!(updates(&scene), Vec::<String>::new());
    scene.fake.set_memory(used(1 << 20));
    scene.until("u1", "resized", |report| !resizes(report)).await;
    assert_eq!(updates(&scene).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn granted_and_actuated_resources_survive_agent_restart() {
    let mut scene = Scene::new();
    scene.run(&sized("u1", 1, both("500m", "64Mi"), json!([]))).await;
    // Granted, but not complete.
    scene.fake.fail("UpdateContainerResources", 1, Code::Unavailable, "gone");
    scene.want(&[sized("u1", 2, both("1", "64Mi"), json!([]))]);
    scene.until("u1", "in progress", resizes).await;
    scene.restart_agent().await;
    scene.want(&[sized("u1", 2, both("1", "64Mi"), json!([]))]);
    until_resized(&scene, "1").await;
    // Not granted.
    let infeasible = || sized("u1", 3, both("1", "0"), json!([]));
    scene.want(&[infeasible()]);
    scene.until("u1", "pending", is_pending).await;
    let before = updates(&scene).len();
    scene.restart_agent().await;
    scene.want(&[infeasible()]);
    let again = |report: &PodReport| is_pending(report) && phase(report) == "Running";
    scene.until("u1", "pending again", again).await;
    scene.sleep(300).await;
    assert_eq!(updates(&scene).len(), before);
    assert!(has_cpu(&scene.report("u1"), "1"));
    assert!(scene.seconds("StartContainer app/1").is_empty());
}

/// The pod with the status that the agent wrote to the API server.
fn as_written(pod: &Pod, report: &PodReport) -> Pod {
    changed(pod, |api| api.status = Some(PodStatus::clone(&report.status)))
}

#[tokio::test(start_paused = true)]
async fn deferred_resize_survives_agent_restart() {
    let cpus = crate::shared::online_cpus() * 1000;
    let most = format!("{}m", cpus - 300);
    let mut scene = Scene::new();
    let small = |generation, cpu: &str| sized("u1", generation, both(cpu, "64Mi"), json!([]));
    let large = sized("u2", 1, both(&most, "64Mi"), json!([]));
    scene.want(&[small(1, "200m"), large.clone()]);
    scene.until_running("u1").await;
    scene.until_running("u2").await;
    scene.want(&[small(2, "400m"), large.clone()]);
    scene.until("u1", "deferred", is_pending).await;
    let before = condition(&scene.report("u1"), "PodResizePending").unwrap();
    let pods = [
        as_written(&small(2, "400m"), &scene.report("u1")),
        as_written(&large, &scene.report("u2")),
    ];
    scene.restart_agent().await;
    let mut events = scene.agent().events();
    scene.want(&pods);
    scene.until("u1", "still deferred", is_pending).await;
    // The resize is decided again meanwhile.
    scene.sleep(300).await;
    let after = condition(&scene.report("u1"), "PodResizePending").unwrap();
    assert_eq!((after.reason, after.message), (before.reason, before.message));
    assert_eq!(after.observed_generation, Some(2));
    assert!(drain(&mut events).all(|event| event.reason != "ResizeDeferred"), "told again");
    scene.want(&pods[..1]);
    let resized = |report: &PodReport| has_cpu(report, "400m") && !is_pending(report);
    scene.until("u1", "resized", resized).await;
    assert_eq!(granted_by(&scene), ["pods_removed"]);
}

#[tokio::test(start_paused = true)]
async fn failed_resize_survives_agent_restart() {
    let mut scene = Scene::new();
    scene.run(&sized("u1", 1, both("500m", "64Mi"), json!([]))).await;
    scene.fake.fail("UpdateContainerResources", 2, Code::Unknown, "no");
    scene.want(&[sized("u1", 2, both("1", "64Mi"), json!([]))]);
    let failed = |report: &PodReport| {
        condition(report, "PodResizeInProgress").is_some_and(|of| {
            of.reason.as_deref() == Some("Error") && of.observed_generation == Some(2)
        })
    };
    scene.until("u1", "failed", failed).await;
    // Another field of the spec changes while no agent runs.
    let pod = as_written(&sized("u1", 3, both("1", "64Mi"), json!([])), &scene.report("u1"));
    scene.restart_agent().await;
    let mut events = scene.agent().events();
    scene.want(&[pod]);
    scene.until("u1", "still failed", failed).await;
    until_resized(&scene, "1").await;
    let seen = drain(&mut events).filter(|event| event.reason.starts_with("Resize"));
    let seen: Vec<_> = seen.map(|event| (event.reason, event.message)).collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].0, "ResizeCompleted");
    assert!(seen[0].1.ends_with("\"generation\":2}"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn granted_resize_is_not_pending_after_agent_restart() {
    let mut scene = Scene::new();
    let pod = sized("u1", 1, both("500m", "64Mi"), json!([]));
    scene.run(&pod).await;
    // The agent ended before it reported that it had granted the resize.
    let late = changed(&as_written(&pod, &scene.report("u1")), |api| {
        let pending = PodCondition {
            type_: "PodResizePending".to_owned(),
            status: "True".to_owned(),
            reason: Some("Deferred".to_owned()),
            ..PodCondition::default()
        };
        api.status.as_mut().unwrap().conditions.as_mut().unwrap().push(pending);
    });
    scene.restart_agent().await;
    scene.run(&late).await;
    assert!(!is_pending(&scene.report("u1")));
}

#[tokio::test(start_paused = true)]
async fn sidecar_is_resized_too() {
    let scene = Scene::new();
    let pod = |generation: i64, cpu: &str| {
        let mut side = sidecar("side", "app");
        side["resources"] = both(cpu, "64Mi");
        let app = container_with("app", "app", "resources", both("100m", "64Mi"));
        let pod = pod_with("u1", json!({"initContainers": [side], "containers": [app]}));
        changed(&pod, |api| api.metadata.generation = Some(generation))
    };
    scene.run(&pod(1, "200m")).await;
    scene.want(&[pod(2, "100m")]);
    let report = |report: &PodReport| {
        report.status.observed_generation == Some(2)
            && !resizes(report)
            && !updates(&scene).is_empty()
    };
    scene.until("u1", "resized", report).await;
    assert_eq!(
        updates(&scene),
        [
            "UpdateContainerResources side/0 shares=102 quota=10000 memory=67108864",
            "UpdatePodSandboxResources pod-u1 shares=204 quota=30000 memory=134217728",
            "UpdatePodSandboxResources pod-u1 shares=204 quota=20000 memory=134217728",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn running_init_container_is_resized_too() {
    let scene = Scene::new();
    let pod = |generation: i64, cpu: &str| {
        let init = container_with("init", "app", "resources", both(cpu, "64Mi"));
        let app = container_with("app", "app", "resources", both("100m", "64Mi"));
        let pod = pod_with("u1", json!({"initContainers": [init], "containers": [app]}));
        changed(&pod, |api| api.metadata.generation = Some(generation))
    };
    scene.want(&[pod(1, "200m")]);
    let runs = |report: &PodReport| {
        let mut containers = report.containers.iter();
        containers.any(|it| it.name == "init" && it.state == ContainerPhase::Running)
    };
    scene.until("u1", "initializing", runs).await;
    scene.want(&[pod(2, "100m")]);
    scene.until("u1", "resized", |report| has_cpu(report, "100m")).await;
    assert_eq!(
        updates(&scene),
        [
            "UpdateContainerResources init/0 shares=102 quota=10000 memory=67108864",
            "UpdatePodSandboxResources pod-u1 shares=102 quota=20000 memory=67108864",
            "UpdatePodSandboxResources pod-u1 shares=102 quota=10000 memory=67108864",
        ]
    );
    assert!(scene.seconds("StartContainer init/1").is_empty());
    let counts = scene.agent().view().measured().counts;
    let requested = counts.into_keys().filter(|it| matches!(it, Counted::ResizeRequested(_)));
    assert_eq!(requested.count(), 2, "CPU request and limit");
}
