//! Cgroups of pods that the agent creates.

use std::io::ErrorKind;

use super::*;
use crate::{MemoryReservation, ProtectedMemory};

const ALL: &str = "/own/kubepods";

/// A scene whose agent creates the cgroups of pods.
pub(super) fn scene() -> (Scene, FakeCgroups) {
    let mut scene = Scene::without_agent(seconds(10));
    let cgroups = FakeCgroups::default();
    scene.cgroups = Some(cgroups.clone());
    scene.start_agent();
    (scene, cgroups)
}

/// A pod with one container that requests this CPU.
fn requesting(uid: &str, cpu: &str) -> Pod {
    let mut app = container("app", "app");
    app["resources"] = json!({"requests": {"cpu": cpu}});
    pod_with(uid, json!({"containers": [app]}))
}

/// The shares of a cgroup.
fn shares(cgroups: &FakeCgroups, path: &str) -> Option<i64> {
    cgroups.values(path)?.cpu_shares
}

pub(super) fn class(name: &str) -> String {
    format!("{ALL}/{name}")
}

#[tokio::test(start_paused = true)]
async fn pod_has_a_cgroup_from_before_its_sandbox_to_its_end() {
    let (scene, cgroups) = scene();
    scene.run(&requesting("u1", "100m")).await;
    let path = class("burstable/podu1");
    let values = cgroups.values(&path).unwrap();
    assert_eq!((values.cpu_shares, values.pids, values.memory), (Some(102), Some(100), None));
    let made = cgroups.calls();
    assert_eq!(
        made,
        [ALL, &class("burstable"), &class("besteffort"), &path].map(|path| format!("make {path}"))
    );
    // Killed processes still exist for a while.
    cgroups.set_busy(3);
    scene.remove_all().await;
    assert_eq!(cgroups.calls().last(), Some(&format!("destroy {path}")));
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn sandbox_waits_for_the_cgroup() {
    let (scene, cgroups) = scene();
    let mut events = scene.agent().events();
    cgroups.fail_creation(Some(ErrorKind::StorageFull));
    scene.want(&[pod("u1", "app", "Always")]);
    scene.sleep(60).await;
    assert!(scene.times("RunPodSandbox").is_empty());
    let event = drain(&mut events).find(|event| event.reason == "FailedCreatePodContainer");
    let message = event.unwrap().message;
    assert!(message.starts_with("unable to ensure pod container exists: "), "{message}");
    cgroups.fail_creation(None);
    scene.until_running("u1").await;
    assert!(cgroups.values(&class("besteffort/podu1")).is_some());
}

#[tokio::test(start_paused = true)]
async fn qos_class_weights_follow_requests_of_active_pods() {
    let (scene, cgroups) = scene();
    let pods = [requesting("u1", "100m"), requesting("u2", "250m"), pod("u3", "app", "Always")];
    scene.want(&pods);
    for pod in &pods {
        scene.until_running(pod.uid().as_str()).await;
    }
    assert_eq!(shares(&cgroups, &class("burstable")), Some(358));
    assert_eq!(shares(&cgroups, &class("besteffort")), Some(2));
    scene.want(&pods[1..]);
    scene.until_removed("u1").await;
    assert_eq!(shares(&cgroups, &class("burstable")), Some(256));
    // Values that another process wrote are corrected within a minute.
    cgroups.add_existing(&class("burstable"));
    scene.sleep(61).await;
    assert_eq!(shares(&cgroups, &class("burstable")), Some(256));
}

#[tokio::test(start_paused = true)]
async fn protected_memory_follows_the_pods() {
    let mut scene = Scene::without_agent(seconds(10));
    scene.cgroups = Some(FakeCgroups::default());
    let reservation = MemoryReservation::TieredReservation;
    scene.memory_qos = Some(MemoryQos { throttling_factor: 0.9, reservation });
    scene.start_agent();
    let kept = || scene.agent().view().measured().protected_memory;
    let both = json!({"cpu": "500m", "memory": "4096"});
    let guaranteed = json!({"requests": both, "limits": both});
    let burstable = json!({"requests": {"memory": "8192"}});
    let pod = |uid: &str, resources: Value| {
        let app = container_with("app", "app", "resources", resources);
        pod_with(uid, json!({"containers": [app]}))
    };
    let pods = [pod("u1", guaranteed), pod("u2", burstable)];
    scene.want(&pods);
    for pod in &pods {
        scene.until_running(pod.uid().as_str()).await;
    }
    assert_eq!(kept(), Some(ProtectedMemory { guaranteed: 4096, burstable: 8192 }));
    scene.want(&pods[1..]);
    scene.until_removed("u1").await;
    assert_eq!(kept(), Some(ProtectedMemory { guaranteed: 0, burstable: 8192 }));
}

#[tokio::test(start_paused = true)]
async fn terminated_pod_has_no_weight_and_no_cgroup() {
    let (scene, cgroups) = scene();
    scene.fake.image("job", job(1, 0));
    let mut ends = requesting("u1", "1");
    ends = changed(&ends, |api| {
        let spec = api.spec.as_mut().unwrap();
        spec.restart_policy = Some("Never".to_owned());
        spec.containers[0].image = Some("job".to_owned());
    });
    scene.want(&[ends, requesting("u2", "500m")]);
    scene.until_finished("u1").await;
    assert_eq!(cgroups.values(&class("burstable/podu1")), None);
    scene.sleep(61).await;
    assert_eq!(shares(&cgroups, &class("burstable")), Some(512));
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_keeps_cgroups_of_running_pods() {
    let (mut scene, cgroups) = scene();
    scene.run(&requesting("u1", "100m")).await;
    let before = cgroups.paths();
    scene.stop_agent().await;
    assert_eq!(cgroups.paths(), before, "pods keep running");
    // A cgroup that an earlier agent left of a removed pod, and one that is not a pod's.
    cgroups.add_existing(&class("besteffort/podold"));
    cgroups.add_existing(&class("podolder"));
    cgroups.add_existing(&class("else"));
    scene.start_agent();
    scene.want(&[requesting("u1", "100m")]);
    scene.sleep(120).await;
    let expected: Vec<String> = [&before[..], &[class("else")]].concat();
    assert_eq!(cgroups.paths().len(), expected.len(), "{:?}", cgroups.paths());
    assert!(expected.iter().all(|path| cgroups.paths().contains(path)));
    assert_eq!(scene.times("RunPodSandbox").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn orphan_cgroup_is_removed_with_its_pod() {
    let (mut scene, cgroups) = scene();
    scene.run(&requesting("u1", "100m")).await;
    scene.restart_agent().await;
    scene.want(&[]);
    scene.sleep(120).await;
    assert_eq!(cgroups.values(&class("burstable/podu1")), None);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn pods_have_slices_with_the_systemd_driver() {
    let mut scene = Scene::without_agent(seconds(10));
    let cgroups = FakeCgroups::default();
    (scene.cgroups, scene.cgroup_driver) = (Some(cgroups.clone()), CgroupDriver::Systemd);
    scene.start_agent();
    scene.run(&requesting("u-1", "100m")).await;
    let all = "/own.slice/own-kubepods.slice";
    let burstable = format!("{all}/own-kubepods-burstable.slice");
    let slice = |uid: &str| format!("{burstable}/own-kubepods-burstable-pod{uid}.slice");
    assert_eq!(shares(&cgroups, &slice("u_1")), Some(102));
    assert_eq!(shares(&cgroups, &burstable), Some(102));
    // The cgroup of an unknown pod.
    cgroups.add_existing(&slice("u_2"));
    scene.sleep(120).await;
    assert!(cgroups.values(&slice("u_1")).is_some() && cgroups.values(&slice("u_2")).is_none());
    scene.want(&[]);
    scene.until_removed("u-1").await;
    assert_eq!(cgroups.values(&slice("u_1")), None);
    scene.stop_agent().await;
    assert!(cgroups.paths().is_empty(), "{:?}", cgroups.paths());
}

#[tokio::test(start_paused = true)]
async fn last_pod_removes_the_pods_cgroups() {
    let (mut scene, cgroups) = scene();
    scene.run(&requesting("u1", "100m")).await;
    scene.remove_all().await;
    scene.stop_agent().await;
    assert!(cgroups.paths().is_empty(), "{:?}", cgroups.paths());
}

#[tokio::test(start_paused = true)]
async fn resize_changes_the_cgroup() {
    let (scene, cgroups) = scene();
    let sized = |generation: i64, cpu: &str, memory: &str| {
        let both = json!({"cpu": cpu, "memory": memory});
        let mut app = container("app", "app");
        app["resources"] = json!({"requests": both, "limits": both});
        let pod = pod_with("u1", json!({"containers": [app]}));
        changed(&pod, |api| api.metadata.generation = Some(generation))
    };
    scene.run(&sized(1, "500m", "64Mi")).await;
    let path = class("podu1");
    let limits = || {
        let values = cgroups.values(&path).unwrap();
        (values.cpu_shares.unwrap(), values.cpu_quota.unwrap(), values.memory.unwrap() >> 20)
    };
    assert_eq!(limits(), (512, (50_000, 100_000), 64));
    scene.want(&[sized(2, "1", "128Mi")]);
    let has_cpu = |report: &PodReport| {
        let statuses = report.status.container_statuses.iter().flatten();
        let mut all = statuses.filter_map(|status| status.resources.as_ref()?.limits.as_ref());
        all.any(|limits| limits["cpu"].0 == "1")
    };
    scene.until("u1", "resized", has_cpu).await;
    assert_eq!(limits(), (1024, (100_000, 100_000), 128));
    assert_eq!(cgroups.values(&path).unwrap().pids, Some(100), "no other value changes");
}

#[tokio::test(start_paused = true)]
async fn runtime_gets_the_old_limits_if_the_cgroup_cannot_be_resized() {
    let (scene, cgroups) = scene();
    let sized = |generation: i64, cpu: &str| {
        let both = json!({"cpu": cpu, "memory": "64Mi"});
        let mut app = container("app", "app");
        app["resources"] = json!({"requests": both, "limits": both});
        let pod = pod_with("u1", json!({"containers": [app]}));
        changed(&pod, |api| api.metadata.generation = Some(generation))
    };
    scene.run(&sized(1, "500m")).await;
    cgroups.fail_changes(true);
    scene.want(&[sized(2, "1")]);
    let failed = |report: &PodReport| {
        let mut all = report.status.conditions.iter().flatten();
        all.any(|of| of.type_ == "PodResizeInProgress" && of.reason.as_deref() == Some("Error"))
    };
    scene.until("u1", "failed", failed).await;
    let calls = scene.calls().into_iter();
    let calls: Vec<String> = calls.filter(|call| call.starts_with("Update")).collect();
    let [new, old] = calls.as_slice() else { panic!("{calls:?}") };
    assert_ne!(new, old);
    assert!(old.starts_with("UpdatePodSandboxResources"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn runtime_makes_cgroups_where_the_agent_cannot() {
    let mut scene = Scene::without_agent(seconds(10));
    let cgroups = FakeCgroups::default();
    cgroups.fail_creation(Some(ErrorKind::PermissionDenied));
    scene.cgroups = Some(cgroups.clone());
    scene.start_agent();
    scene.run(&pod("u1", "app", "Always")).await;
    scene.remove_all().await;
    assert!(cgroups.calls().is_empty());
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn limits_of_all_pods_are_set_when_they_can_be() {
    let mut scene = Scene::without_agent(seconds(10));
    let cgroups = FakeCgroups::default();
    cgroups.fail_changes(true);
    scene.cgroups = Some(cgroups.clone());
    scene.start_agent();
    let mut events = scene.agent().events();
    scene.want(&[]);
    scene.sleep(59).await;
    let seen: Vec<_> =
        drain(&mut events).map(|it| (it.object.name, it.reason, it.message)).collect();
    let [(name, reason, message)] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((name.as_str(), reason.as_str()), ("localhost", "FailedNodeAllocatableEnforcement"));
    let begin = "Failed to update Node Allocatable Limits \"/own/kubepods\": ";
    assert!(message.starts_with(begin), "{message}");
    cgroups.fail_changes(false);
    cgroups.set_missing_controllers(&["no cpu"]);
    scene.sleep(60).await;
    let seen: Vec<_> = drain(&mut events).map(|it| (it.reason, it.message)).collect();
    let failed = format!("{begin}no cpu");
    assert_eq!(seen, [("FailedNodeAllocatableEnforcement".to_owned(), failed)]);
    cgroups.set_missing_controllers(&[]);
    scene.sleep(60).await;
    let seen: Vec<_> = drain(&mut events).map(|it| (it.reason, it.message)).collect();
    let done = ("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
    assert_eq!(seen, [(done.0.to_owned(), done.1.to_owned())]);
    let values = cgroups.values(ALL).unwrap();
    assert_eq!(values.pids, Some(32_768), "the machine's process ids");
    assert!(values.cpu_shares.is_some_and(|shares| shares >= 1024));
    scene.sleep(200).await;
    assert_eq!(drain(&mut events).count(), 0, "once");
}

#[tokio::test(start_paused = true)]
async fn removed_cgroup_is_recreated_before_a_container_starts() {
    let (scene, cgroups) = scene();
    scene.fake.image("app", Behaviour::ends(seconds(5), 1));
    scene.want(&[requesting("u1", "100m")]);
    scene.until_running("u1").await;
    ControlGroups::destroy(&cgroups, &class("burstable/podu1")).unwrap();
    scene.until_restarted("u1").await;
    assert_eq!(shares(&cgroups, &class("burstable/podu1")), Some(102));
    assert_eq!(scene.times("RunPodSandbox").len(), 1);
}

/// The cgroups of a machine on which two pods run and a third one was removed. The agent was killed after this many changes in each
/// phase, and another agent continued.
async fn continued_after(start: usize, end: usize) -> [Vec<(String, Option<i64>)>; 2] {
    let (mut scene, cgroups) = scene();
    let pods = [requesting("u1", "100m"), requesting("u2", "250m")];
    let seen = |cgroups: &FakeCgroups| -> Vec<(String, Option<i64>)> {
        let paths = cgroups.paths().into_iter();
        paths.map(|path| (path.clone(), shares(cgroups, &path))).collect()
    };
    cgroups.fail_after(Some(start));
    scene.want(&pods);
    scene.sleep(1).await;
    scene.stop_agent().await;
    cgroups.fail_after(None);
    scene.start_agent();
    scene.want(&pods);
    for pod in &pods {
        scene.until_running(pod.uid().as_str()).await;
    }
    scene.sleep(61).await;
    let running = seen(&cgroups);
    cgroups.fail_after(Some(end));
    scene.want(&pods[1..]);
    scene.sleep(1).await;
    scene.stop_agent().await;
    cgroups.fail_after(None);
    scene.start_agent();
    scene.want(&pods[1..]);
    scene.until_running("u2").await;
    scene.sleep(121).await;
    [running, seen(&cgroups)]
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_continues_after_any_call() {
    let expected = continued_after(1000, 1000).await;
    let [running, left] = &expected;
    assert!(running.contains(&(class("burstable"), Some(358))), "{running:?}");
    assert!(left.contains(&(class("burstable"), Some(256))) && left.len() < running.len());
    // More than the number of changes.
    for after in 0..16 {
        assert_eq!(continued_after(after, after).await, expected, "after {after} changes");
    }
}
