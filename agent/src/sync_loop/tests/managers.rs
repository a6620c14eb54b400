//! Exclusive resources of containers, from managers with results set by a test.

use rstest::rstest;

use super::*;
use crate::decide::resize::Infeasible;
use crate::managers::DeviceResources;
use crate::pod_spec::admission::Rejection;
use crate::pod_spec::spec::{Assigned, DeviceSpec, MountSpec};
use crate::reporting::measures::Counted;
use std::collections::BTreeMap;

fn two_containers(uid: &str) -> Pod {
    let mut app = container("app", "app");
    app["env"] = json!([{"name": "OWN", "value": "own"}, {"name": "BOTH", "value": "own"}]);
    pod_with(uid, json!({"initContainers": [sidecar("side", "app")], "containers": [app]}))
}

/// A pod that requests devices.
fn with_devices(uid: &str, count: u64) -> Pod {
    let amounts = json!({"vendor.com/gpu": count.to_string()});
    let resources = json!({"requests": amounts, "limits": amounts});
    let app = container_with("app", "app", "resources", resources);
    pod_with(uid, json!({"containers": [app]}))
}

fn rejection() -> Rejection {
    Rejection {
        reason: "UnexpectedAdmissionError".to_owned(),
        message: "Allocate failed due to no luck, which is unexpected".to_owned(),
    }
}

/// The calls of managers with this prefix.
fn calls_matching(scene: &Scene, word: &str) -> Vec<String> {
    scene.managers.calls().into_iter().filter(|call| call.starts_with(word)).collect()
}

#[tokio::test(start_paused = true)]
async fn container_is_created_with_its_assigned_resources() {
    let scene = Scene::new();
    let text = str::to_owned;
    let assigned = Assigned {
        cpus: text("2-3"),
        cpus_are_exclusive: true,
        memory_nodes: text("1"),
        devices: vec![DeviceSpec {
            container_path: text("/dev/gpu"),
            host_path: text("/dev/gpu7"),
            permissions: text("rw"),
        }],
        cdi_devices: vec![text("vendor.com/gpu=7")],
        mounts: vec![MountSpec {
            container_path: text("/lib/gpu"),
            host_path: "/opt/gpu".into(),
            readonly: true,
            ..MountSpec::default()
        }],
        envs: vec![(text("GPU"), text("7")), (text("BOTH"), text("gpu"))],
        annotations: BTreeMap::from([(text("gpu"), text("7"))]),
    };
    scene.managers.set(|answers| {
        answers.assigned.insert("app".to_owned(), Ok(assigned.clone()));
    });
    scene.run(&two_containers("u1")).await;
    let spec = scene.fake.spec("app").unwrap();
    assert_eq!((spec.devices, spec.cdi_devices), (assigned.devices, assigned.cdi_devices));
    assert_eq!(
        (spec.resources.cpuset_cpus.as_str(), spec.resources.cpuset_mems.as_str()),
        ("2-3", "1")
    );
    assert_eq!(spec.resources.cpu_quota, -1, "nobody else has these processors");
    assert_eq!(spec.mounts.first(), assigned.mounts.first());
    let value = |name: &str| {
        let mut named = spec.envs.iter().filter(|(known, _)| known == name);
        let value = named.next().map(|(_, value)| std::str::from_utf8(value).unwrap());
        assert_eq!(named.next(), None, "{name} is there once");
        value
    };
    assert_eq!([value("GPU"), value("BOTH"), value("OWN")], [Some("7"), Some("own"), Some("own")]);
    assert_eq!(spec.annotations.get("gpu").map(String::as_str), Some("7"));
    let other = scene.fake.spec("side").unwrap();
    assert_eq!((other.resources.cpuset_cpus.as_str(), other.devices.len()), ("", 0));
    let calls = scene.managers.calls();
    let expected =
        ["allocate pod-u1 [unknown]", "prepare side", "created side", "prepare app", "created app"];
    assert_eq!(calls, expected, "in the order of a kubelet");
}

#[tokio::test(start_paused = true)]
async fn pod_without_exclusive_resources_is_counted_as_admitted_once() {
    let scene = Scene::new();
    scene.managers.set(|answers| answers.concerns_none = true);
    scene.run(&pod("u1", "app", "Always")).await;
    assert_eq!(calls_matching(&scene, "allocate"), [""; 0]);
    assert_eq!(calls_matching(&scene, "admitted"), ["admitted"]);
}

/// Whether the sandbox and the cgroup of a pod have a CPU quota if some of its containers have exclusive CPUs.
#[rstest]
#[case::none(&[], false, true)]
#[case::one(&["app"], false, false)]
#[case::one_of_a_pod_with_resources(&["app"], true, true)]
#[case::all_of_a_pod_with_resources(&["app", "side"], true, false)]
#[tokio::test(start_paused = true)]
async fn pod_with_own_cpus_has_no_quota(
    #[case] own: &[&str],
    #[case] has_resources: bool,
    #[case] expected: bool,
) {
    let (scene, cgroups) = cgroups::scene();
    scene.managers.set(|answers| {
        for name in own {
            let assigned = Assigned { cpus_are_exclusive: true, ..Assigned::default() };
            answers.assigned.insert((*name).to_owned(), Ok(assigned));
        }
    });
    let both = json!({"cpu": "1", "memory": "64Mi"});
    let sized = |name: &str| {
        let mut sized = container(name, "app");
        sized["resources"] = json!({"requests": both, "limits": both});
        sized
    };
    let mut spec = json!({"containers": [sized("app"), sized("side")]});
    if has_resources {
        let all = json!({"cpu": "2", "memory": "128Mi"});
        spec["resources"] = json!({"requests": all, "limits": all});
    }
    scene.run(&pod_with("u1", spec)).await;
    let quota = if expected { 200_000 } else { -1 };
    let values = cgroups.values(&cgroups::class("podu1")).unwrap();
    assert_eq!(values.cpu_quota.map(|(quota, _)| quota), Some(quota));
    let sandbox = scene.fake.sandbox_specs().pop().unwrap();
    assert_eq!(sandbox.resources.cpu_quota, quota);
}

#[tokio::test(start_paused = true)]
async fn rejected_allocation_rejects_the_pod_and_releases_its_resources() {
    let mut scene = Scene::new();
    scene.managers.set(|answers| {
        answers.rejections.insert("pod-u1".to_owned(), rejection());
    });
    scene.want(&[two_containers("u1")]);
    scene.until_finished("u1").await;
    assert_eq!(scene.status("u1").1, "UnexpectedAdmissionError");
    let message = scene.report("u1").status.message.clone().unwrap();
    assert_eq!(message, "Pod was rejected: Allocate failed due to no luck, which is unexpected");
    assert_eq!(calls_matching(&scene, "release"), ["release u1"]);
    assert_eq!(scene.calls().iter().filter(|call| call.contains("u1")).count(), 0);

    // A rejection is final, without further calls.
    scene.managers.set(|answers| answers.rejections.clear());
    scene.restart_agent().await;
    scene.want(&[two_containers("u1")]);
    scene.until_finished("u1").await;
    assert_eq!(calls_matching(&scene, "allocate").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn other_pods_start_while_an_allocation_is_under_way() {
    let scene = Scene::new();
    scene.managers.set(|answers| answers.holds = true);
    scene.want(&[two_containers("u1")]);
    scene.sleep(1).await;
    scene.managers.set(|answers| {
        answers.holds = false;
        answers.calls.push("opened".to_owned());
    });
    scene.until_running("u1").await;
    scene.managers.set(|answers| answers.holds = true);
    scene.want(&[two_containers("u1"), pod("u2", "app", "Always")]);
    scene.sleep(600).await;
    assert_eq!(scene.report("u1").status.phase.as_deref(), Some("Running"));
    assert_eq!(calls_matching(&scene, "allocate").len(), 2, "each pod is allocated once");
    scene.managers.set(|answers| answers.holds = false);
    scene.until_running("u2").await;
    let second = calls_matching(&scene, "allocate").pop();
    assert_eq!(second.as_deref(), Some("allocate pod-u2 [u1,u2]"), "pods that run are active");
}

#[tokio::test(start_paused = true)]
async fn allocation_is_released_if_its_pod_was_removed_meanwhile() {
    let scene = Scene::new();
    scene.managers.set(|answers| answers.holds = true);
    scene.want(&[two_containers("u1")]);
    scene.sleep(1).await;
    scene.want(&[]);
    scene.sleep(1).await;
    assert_eq!(calls_matching(&scene, "release"), [""; 0], "it may still get something");
    scene.managers.set(|answers| answers.holds = false);
    scene.sleep(1).await;
    assert_eq!(calls_matching(&scene, "release"), ["release u1"]);
    assert_eq!(scene.fake.running(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn terminated_pod_releases_its_resources() {
    let scene = Scene::new();
    scene.fake.image("job", job(5, 0));
    let once =
        pod_with("u1", json!({"containers": [container("app", "job")], "restartPolicy": "Never"}));
    scene.want(&[once]);
    scene.until_running("u1").await;
    assert_eq!(calls_matching(&scene, "release"), [""; 0]);
    scene.until_finished("u1").await;
    scene.sleep(1).await;
    assert_eq!(calls_matching(&scene, "release"), ["release u1"]);
}

#[tokio::test(start_paused = true)]
async fn first_pods_are_allocated_before_the_active_ones_are_known() {
    let mut scene = Scene::new();
    scene.run(&two_containers("u1")).await;
    scene.restart_agent().await;
    scene.run(&two_containers("u1")).await;
    scene.want(&[two_containers("u1"), pod("u2", "app", "Always")]);
    scene.until_running("u2").await;
    let expected =
        ["allocate pod-u1 [unknown]", "allocate pod-u1 [unknown]", "allocate pod-u2 [u1,u2]"];
    assert_eq!(calls_matching(&scene, "allocate"), expected);
}

#[tokio::test(start_paused = true)]
async fn container_that_cannot_be_prepared_is_tried_again() {
    let scene = Scene::new();
    scene.managers.set(|answers| {
        answers.assigned.insert("app".to_owned(), Err("the plugin is away".to_owned()));
    });
    scene.want(&[two_containers("u1")]);
    scene.until_reason("u1", "app", "CreateContainerConfigError").await;
    assert_eq!(message(&scene.report("u1"), "app"), "the plugin is away");
    scene.managers.set(|answers| answers.assigned.clear());
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn devices_are_counted_as_other_resources_are() {
    let scene = Scene::new();
    let count = |count: u64| Map::from([("vendor.com/gpu".to_owned(), count)]);
    let mut view = scene.agent().view();
    assert_eq!(view.capacity().get("vendor.com/gpu"), None);
    // The runtime reports its features.
    view.readiness_changed().await;
    let changed = tokio::spawn(async move { view.readiness_changed().await });
    scene.sleep(1).await;
    assert!(!changed.is_finished());
    scene.managers.set(|answers| {
        answers.devices =
            DeviceResources { capacity: count(3), allocatable: count(2), allocated: Map::new() };
    });
    changed.await.unwrap();
    let view = scene.agent().view();
    assert_eq!(view.capacity()["vendor.com/gpu"], "3");
    assert_eq!(view.allocatable()["vendor.com/gpu"], "2");
    scene.want(&[with_devices("u1", 2), with_devices("u2", 1)]);
    scene.until_running("u1").await;
    scene.until_finished("u2").await;
    assert_eq!(scene.status("u2").1, "OutOfvendor.com/gpu");
}

#[tokio::test(start_paused = true)]
async fn status_has_the_health_of_devices_as_soon_as_it_changes() {
    let scene = Scene::new();
    let set = |is_healthy: bool| {
        scene.managers.set(|answers| {
            let count = Map::from([("vendor.com/gpu".to_owned(), 1)]);
            answers.devices = DeviceResources { allocatable: count, ..DeviceResources::default() };
            let device = Map::from([("gpu0".to_owned(), is_healthy)]);
            let of_app = Map::from([("vendor.com/gpu".to_owned(), device)]);
            answers.health.insert("app".to_owned(), of_app);
        });
    };
    let health = |report: &PodReport| -> Vec<String> {
        let containers = report.published.container_statuses.iter().flatten();
        let statuses = containers.flat_map(|it| it.allocated_resources_status.iter().flatten());
        let devices = statuses.flat_map(|status| {
            let devices = status.resources.iter().flatten();
            devices.map(|it| {
                let health = it.health.as_deref().unwrap_or_default();
                format!("{} {} {health}", status.name, it.resource_id)
            })
        });
        devices.collect()
    };
    set(true);
    scene.run(&with_devices("u1", 1)).await;
    scene.sleep(3).await;
    assert_eq!(health(&scene.report("u1")), ["vendor.com/gpu gpu0 Healthy"]);
    let at = scene.now();
    set(false);
    let is_unhealthy = |report: &PodReport| health(report) == ["vendor.com/gpu gpu0 Unhealthy"];
    assert_eq!(scene.until("u1", "unhealthy", is_unhealthy).await, at, "at once");
}

#[tokio::test(start_paused = true)]
async fn resize_forbidden_by_a_manager_is_infeasible() {
    let scene = Scene::new();
    let sized = |cpu: &str, generation: i64| {
        let amounts = json!({"cpu": cpu, "memory": "64Mi"});
        let resources = json!({"requests": amounts, "limits": amounts});
        let app = container_with("app", "app", "resources", resources);
        let pod = pod_with("u1", json!({"containers": [app]}));
        changed(&pod, |api| api.metadata.generation = Some(generation))
    };
    let forbidden = Infeasible { message: "not these".to_owned(), detail: "of_managers" };
    scene.managers.set(|answers| answers.forbidden_resize = Some(forbidden));
    scene.run(&sized("1", 1)).await;
    scene.want(&[sized("500m", 2)]);
    let pending = |report: &PodReport| {
        let mut all = report.status.conditions.clone().unwrap_or_default().into_iter();
        all.find(|condition| condition.type_ == "PodResizePending")
    };
    scene.until("u1", "infeasible", |report| pending(report).is_some()).await;
    let condition = pending(&scene.report("u1")).unwrap();
    assert_eq!(condition.reason.as_deref(), Some("Infeasible"));
    assert_eq!(condition.message.as_deref(), Some("not these"));
    let counts = scene.agent().view().measured().counts;
    assert_eq!(counts.get(&Counted::ResizeInfeasible("of_managers")), Some(&1));
}
