//! Pods that are evicted under node pressure.

use rstest::rstest;
use std::collections::BTreeMap;

use super::*;
use crate::cri::fake::ContainerUsage;
use crate::local_node::kubelet_config::tests::config;
use crate::machine::fake::{Numbers, disk, memory};
use crate::machine::{FileSystem, ProcessIds};
use crate::{Event, EventObjectKind};

const MI: u64 = 1 << 20;
const CRITICAL: i32 = 2_000_000_000;

/// A scene whose agent has these fields of a KubeletConfiguration.
fn scene(fields: &str) -> Scene {
    let mut scene = scene_of(fields, false);
    scene.start_agent();
    scene
}

fn scene_of(fields: &str, limits_pods: bool) -> Scene {
    let mut scene = Scene::without_agent(seconds(10));
    scene.eviction = EvictionSettings::of(&config(fields), true, limits_pods).unwrap();
    for (image, memory) in [("app", 2048 * MI), ("one", 10 * MI)] {
        let usage = ContainerUsage { memory, layer: memory, processes: memory / MI };
        scene.fake.uses(image, usage);
    }
    scene
}

/// A pod that requests some CPU, so that it is not evicted among the first, with these fields of its spec.
fn burstable(uid: &str, image: &str, spec: Value) -> Pod {
    let requests = json!({"requests": {"cpu": "1m"}});
    let app = container_with("app", image, "resources", requests);
    pod_with(uid, fixtures::with(json!({"containers": [app]}), &spec))
}

/// A scene whose agent also limits all pods together.
fn scene_with_limited_pods(fields: &str) -> Scene {
    let mut scene = scene_of(fields, true);
    scene.cgroups = Some(FakeCgroups::default());
    scene.start_agent();
    scene
}

fn memory_left(left: u64) -> impl FnOnce(&mut Numbers) {
    let capacity = 8192 * MI;
    move |numbers| {
        numbers.memory = Some(memory(capacity, left * MI));
    }
}

impl Scene {
    async fn run_all(&self, pods: &[Pod]) {
        self.want(pods);
        for pod in pods {
            self.until_running(pod.uid().as_str()).await;
        }
    }

    fn phases(&self, uids: &[&str]) -> Vec<String> {
        uids.iter().map(|uid| self.status(uid).0).collect()
    }
}

fn of_reason<'a>(events: &'a [Event], reason: &str) -> Vec<&'a Event> {
    events.iter().filter(|event| event.reason == reason).collect()
}

#[tokio::test(start_paused = true)]
async fn pod_using_most_memory_is_evicted_with_reason() {
    let scene = scene("");
    let mut events = scene.agent().events();
    scene.run_all(&[burstable("u1", "one", json!({})), burstable("u2", "app", json!({}))]).await;
    scene.machine.set(memory_left(50));
    assert_eq!(scene.until_finished("u2").await, 10, "at the next pass");
    scene.machine.set(memory_left(2000));
    scene.sleep(100).await;
    assert_eq!(scene.phases(&["u1", "u2"]), ["Running", "Failed"]);

    let expected = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
                    Container app was using 2Gi, request is 0, has larger consumption of memory. ";
    let status = scene.report("u2").status;
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(status.message.as_deref(), Some(expected));
    let mut conditions = status.conditions.iter().flatten();
    let disruption = conditions.find(|known| known.type_ == "DisruptionTarget").unwrap();
    assert_eq!(disruption.status, "True");
    assert_eq!(disruption.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(disruption.message.as_deref(), Some(expected));
    // A grace period of one second leads to the minimum timeout of StopContainer.
    assert_eq!(scene.seconds("StopContainer app/0 2s"), [10]);

    let events: Vec<Event> = drain(&mut events).collect();
    let of_node = of_reason(&events, "EvictionThresholdMet");
    assert_eq!(of_node.len(), 1);
    assert_eq!(of_node[0].message, "Attempting to reclaim memory");
    assert_eq!(
        (of_node[0].object.kind, of_node[0].object.name.as_str()),
        (EventObjectKind::Node, "localhost")
    );
    let of_pod = of_reason(&events, "Evicted");
    assert_eq!(of_pod.len(), 1);
    assert_eq!((of_pod[0].object.name.as_str(), of_pod[0].kind.as_str()), ("pod-u2", "Warning"));
    assert_eq!(of_pod[0].message, expected);
    let annotations = [
        ("offending_containers", "app"),
        ("offending_containers_usage", "2Gi"),
        ("starved_resource", "memory"),
    ];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(of_pod[0].annotations, BTreeMap::from(annotations));
}

#[tokio::test(start_paused = true)]
async fn eviction_counts_the_age_of_the_measurements_of_each_signal_that_is_met() {
    let scene = scene("evictionHard: {memory.available: 100Mi, pid.available: '100'}");
    scene.run_all(&[burstable("u1", "app", json!({}))]).await;
    scene.fake.delay("ListPodSandboxStats", seconds(3));
    scene.machine.set(memory_left(50));
    scene.until_finished("u1").await;
    let ages = scene.agent().view().measured().stats_ages;
    let ages: Vec<(&str, f64)> = ages.iter().map(|(at, ages)| (*at, ages.sum().round())).collect();
    assert_eq!(ages, [("memory.available", 3.0)]);
}

#[tokio::test(start_paused = true)]
async fn pods_exceeding_allocatable_are_evicted() {
    let scene = scene_with_limited_pods("evictionHard: {memory.available: 200Mi}");
    scene.run_all(&[burstable("u1", "one", json!({})), burstable("u2", "app", json!({}))]).await;
    let of_pods = "/own/kubepods".to_owned();
    let set = |left: u64| {
        let of_pods = (of_pods.clone(), memory(4096 * MI, left * MI));
        scene.machine.set(|numbers| numbers.cgroups = [of_pods].into());
    };
    set(300);
    scene.sleep(15).await;
    assert_eq!(scene.phases(&["u1", "u2"]), ["Running", "Running"]);
    set(150);
    scene.until_finished("u2").await;
    set(3000);
    scene.sleep(30).await;
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
    let message = scene.report("u2").status.message.clone().unwrap_or_default();
    let begins =
        "The node was low on resource: memory. Threshold quantity: 200Mi, available: 150Mi. ";
    assert!(message.starts_with(begins), "{message}");
    assert_eq!(scene.agent().view().pressure().conditions(), ["MemoryPressure"]);
}

#[tokio::test(start_paused = true)]
async fn pods_without_allocatable_limit_have_no_allocatable_signal() {
    let scene = scene_with_limited_pods("");
    let running = burstable("u1", "app", json!({}));
    scene.run_all(std::slice::from_ref(&running)).await;
    scene.sleep(30).await;
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
}

#[tokio::test(start_paused = true)]
async fn notification_of_the_kernel_evicts_before_the_next_pass() {
    let scene = scene_with_limited_pods(
        "evictionHard: {memory.available: 100Mi}\nkernelMemcgNotification: true",
    );
    let capacity = 8192 * MI;
    scene.machine.set(|numbers| {
        numbers.thresholds = Some(Vec::new());
        numbers.cgroups = [("/own/kubepods".to_owned(), memory(capacity / 2, 1024 * MI))].into();
    });
    scene.sleep(11).await;
    let watched = || {
        let mut watched = Vec::new();
        scene.machine.set(|numbers| watched = numbers.thresholds.clone().unwrap_or_default());
        watched
    };
    // The usage at which 100 MiB are available, with 1 MiB that can be reclaimed.
    let expected = [("/", capacity - 99 * MI), ("/own/kubepods", capacity / 2 - 99 * MI)];
    let expected = expected.map(|(path, bytes)| (path.to_owned(), bytes));
    assert!(watched().ends_with(&expected), "{:?}", watched());
    scene.run_all(&[burstable("u1", "one", json!({})), burstable("u2", "app", json!({}))]).await;
    scene.machine.set(memory_left(50));
    scene.machine.set(|numbers| numbers.crossed.send_modify(|count| *count += 1));
    assert_eq!(scene.until_finished("u2").await, 11, "not at the pass after 20 s");
    scene.machine.set(memory_left(2000));
    let before = watched().len();
    scene.sleep(25).await;
    assert!(watched().len() >= before + 4, "the kernel is told anew every 10 s");
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
}

#[tokio::test(start_paused = true)]
async fn machine_that_does_not_notify_is_measured_every_10_s() {
    let scene = scene("kernelMemcgNotification: true");
    scene.run_all(&[burstable("u1", "app", json!({}))]).await;
    scene.machine.set(memory_left(50));
    assert_eq!(scene.until_finished("u1").await, 10);
}

#[tokio::test(start_paused = true)]
async fn one_pod_at_a_time_is_evicted_and_critical_ones_never() {
    let scene = scene("");
    let priority = |priority: i32| json!({"priority": priority});
    let pods = [
        burstable("u1", "app", priority(5)),
        burstable("u2", "app", priority(1)),
        burstable("u3", "app", priority(CRITICAL)),
        of_source("file", &burstable("u4", "app", priority(0))),
    ];
    scene.run_all(&pods).await;
    scene.machine.set(memory_left(50));
    assert_eq!(scene.until_finished("u2").await, 10);
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
    assert_eq!(scene.until_finished("u1").await, 11, "when the first has ended");
    scene.sleep(300).await;
    assert_eq!(scene.phases(&["u3", "u4"]), ["Running", "Running"]);
}

#[rstest]
#[case::pids("pid.available: '100'", |numbers: &mut Numbers| {
    numbers.processes = Some(ProcessIds { limit: 1000, running: 950 });
}, "pids", "PIDPressure")]
#[case::nodefs("nodefs.available: 10%", |numbers: &mut Numbers| numbers.root = disk(1, 9), "ephemeral-storage", "DiskPressure")]
#[case::node_inodes("nodefs.inodesFree: 5%", |numbers: &mut Numbers| numbers.root.inodes_free = 49_999, "inodes", "DiskPressure")]
#[case::imagefs("imagefs.available: 15%", |numbers: &mut Numbers| {
    numbers.others = [(PathBuf::from("/images"), disk(2, 14))].into();
}, "ephemeral-storage", "DiskPressure")]
#[case::image_inodes("imagefs.inodesFree: 5%", |numbers: &mut Numbers| {
    numbers.others = [(PathBuf::from("/images"), disk(2, 4))].into();
}, "inodes", "DiskPressure")]
#[tokio::test(start_paused = true)]
async fn each_signal_has_its_resource_and_condition(
    #[case] threshold: &str,
    #[case] change: fn(&mut Numbers),
    #[case] resource: &str,
    #[case] condition: &str,
) {
    let scene = scene(&format!("evictionHard: {{{threshold}}}"));
    scene.run_all(&[burstable("u1", "one", json!({})), burstable("u2", "app", json!({}))]).await;
    assert_eq!(scene.agent().view().pressure().conditions(), [""; 0]);
    scene.machine.set(change);
    scene.until_finished("u2").await;
    scene.machine.set(|numbers| *numbers = Numbers::default());
    let view = scene.agent().view();
    assert_eq!(view.pressure().conditions(), [condition]);
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
    let message = scene.report("u2").status.message.clone().unwrap_or_default();
    let begins = format!("The node was low on resource: {resource}. Threshold quantity: ");
    assert!(message.starts_with(&begins), "{message}");
    scene.sleep(320).await;
    assert_eq!(view.pressure().conditions(), [""; 0], "after the transition period");
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
}

#[rstest]
#[case::limited("evictionMaxPodGracePeriod: 7", "7s")]
#[case::shorter_of_pod("evictionMaxPodGracePeriod: 70", "30s")]
#[case::not_limited("", "30s")]
#[tokio::test(start_paused = true)]
async fn soft_threshold_waits_and_gives_a_grace_period(#[case] field: &str, #[case] grace: &str) {
    let soft = "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 25s}";
    let scene = scene(&format!("{soft}\n{field}"));
    scene.run_all(&[burstable("u1", "app", json!({}))]).await;
    scene.machine.set(memory_left(500));
    scene.sleep(11).await;
    assert_eq!(scene.agent().view().pressure().conditions(), ["MemoryPressure"]);
    assert_eq!(scene.until_finished("u1").await, 40, "seen at 10 s, over at the pass of 40 s");
    assert_eq!(scene.seconds(&format!("StopContainer app/0 {grace}")), [40]);
}

#[tokio::test(start_paused = true)]
async fn unused_images_are_removed_before_a_pod_is_evicted() {
    let scene = scene("evictionHard: {nodefs.available: 10%}");
    let fake = scene.fake.clone();
    scene.machine.set(|numbers| {
        numbers.root = disk(1, 88);
        numbers.used = Box::new(move || fake.image_bytes());
    });
    // The image is old enough to be removed when space runs out.
    scene.fake.image("unused", Behaviour::forever());
    scene.run_all(&[burstable("u1", "app", json!({}))]).await;
    scene.sleep(205).await;
    scene.fake.image("unused", Behaviour { size: 80 << 30, ..Behaviour::forever() });
    scene.sleep(60).await;
    assert_eq!(scene.times("RemoveImage unused"), [210]);
    assert_eq!(scene.phases(&["u1"]), ["Running"], "what was removed is enough");
}

#[tokio::test(start_paused = true)]
async fn dead_containers_of_pods_whose_end_is_known_are_removed() {
    let scene = scene("evictionHard: {nodefs.available: 10%}");
    let ended = pod_with(
        "u2",
        json!({"containers": [container("ended", "quick")], "restartPolicy": "Never"}),
    );
    let unknown = pod_with(
        "u3",
        json!({"containers": [container("unknown", "quick")], "restartPolicy": "Never"}),
    );
    scene.fake.image("quick", job(1, 0));
    let app = burstable("u1", "app", json!({"priority": CRITICAL}));
    scene.want(&[app.clone(), ended.clone(), unknown.clone()]);
    scene.until_finished("u2").await;
    scene.until_finished("u3").await;
    let known = changed(&ended, |api| {
        api.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
    });
    scene.want(&[app, known, unknown]);
    scene.machine.set(|numbers| numbers.root = disk(1, 5));
    scene.sleep(11).await;
    let names: Vec<String> = scene.fake.contents().0.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["app", "unknown"]);
    assert_eq!(scene.phases(&["u1", "u2"]), ["Running", "Succeeded"]);
}

/// A ReplicaSet replaces an evicted pod, but does not delete it.
#[tokio::test(start_paused = true)]
async fn rest_of_evicted_pod_is_removed_once_its_end_is_known() {
    let scene = scene("");
    scene.fake.write_logs();
    let logs = scene.root.join("logs/default_pod-u1_u1");
    let pod = of_source("api", &burstable("u1", "app", json!({})));
    scene.run_all(std::slice::from_ref(&pod)).await;
    scene.machine.set(memory_left(50));
    scene.until_finished("u1").await;
    scene.machine.set(memory_left(2000));
    scene.sleep(130).await;
    assert_eq!(scene.fake.object_counts(), (1, 1), "they are the record of its end");
    assert!(logs.join("app/0.log").exists());
    let known = changed(&pod, |api| {
        let status = api.status.get_or_insert_default();
        status.phase = Some("Failed".to_owned());
        status.reason = Some("Evicted".to_owned());
    });
    scene.want(&[known]);
    scene.sleep(130).await;
    assert_eq!(scene.fake.object_counts(), (0, 0));
    assert!(!logs.exists());
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), "Evicted".to_owned()));
    assert!(!scene.report("u1").removed);
}

#[tokio::test(start_paused = true)]
async fn node_under_memory_pressure_rejects_best_effort_pods() {
    let scene =
        scene("evictionHard: {memory.available: 100Mi}\nevictionPressureTransitionPeriod: 60s");
    let first = burstable("u1", "app", json!({"priority": CRITICAL}));
    scene.run_all(std::slice::from_ref(&first)).await;
    scene.machine.set(memory_left(50));
    scene.sleep(11).await;
    scene.machine.set(memory_left(2000));
    let (best_effort, other) = (pod("u2", "one", "Always"), burstable("u3", "one", json!({})));
    scene.want(&[first.clone(), best_effort, other.clone()]);
    scene.until_finished("u2").await;
    assert_eq!(scene.status("u2"), ("Failed".to_owned(), "Evicted".to_owned()));
    let message = scene.report("u2").status.message.clone();
    assert_eq!(
        message.as_deref(),
        Some("Pod was rejected: The node had condition: [MemoryPressure]. ")
    );
    scene.until_running("u3").await;
    scene.sleep(70).await;
    scene.want(&[first, other, pod("u4", "one", "Always")]);
    scene.until_running("u4").await;
}

#[tokio::test(start_paused = true)]
async fn resize_is_deferred_until_pressure_has_ended() {
    let scene = scene("evictionHard: {pid.available: '100'}");
    let requesting = |cpu: &str| {
        let requests = json!({"requests": {"cpu": cpu}});
        let app = container_with("app", "one", "resources", requests);
        pod_with("u1", json!({"containers": [app]}))
    };
    let other = burstable("u2", "app", json!({}));
    scene.run_all(&[requesting("1m"), other.clone()]).await;
    let processes = Some(ProcessIds { limit: 1000, running: 950 });
    scene.machine.set(|numbers| numbers.processes = processes);
    scene.until_finished("u2").await;
    // The condition stays for the transition period.
    scene.machine.set(|numbers| *numbers = Numbers::default());
    scene.want(&[requesting("2m"), other]);
    let pending = |report: &PodReport| {
        let mut conditions = report.status.conditions.iter().flatten();
        conditions.find(|condition| condition.type_ == "PodResizePending").cloned()
    };
    scene.until("u1", "deferred", |report| pending(report).is_some()).await;
    let condition = pending(&scene.report("u1")).unwrap();
    assert_eq!(condition.reason.as_deref(), Some("Deferred"));
    assert_eq!(condition.message.as_deref(), Some("The node had condition: [PIDPressure]. "));
    scene.until("u1", "granted", |report| pending(report).is_none()).await;
    assert_eq!(scene.agent().view().pressure().conditions(), [""; 0]);
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
}

#[tokio::test(start_paused = true)]
async fn unknown_memory_capacity_leaves_other_signals() {
    let scene = scene("evictionHard: {memory.available: 7Ei, pid.available: '100'}");
    scene.machine.set(|numbers| numbers.memory = None);
    let running = burstable("u1", "app", json!({}));
    scene.run_all(std::slice::from_ref(&running)).await;
    scene.sleep(100).await;
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
    scene.machine.set(|numbers| numbers.processes = Some(ProcessIds { limit: 10, running: 10 }));
    scene.until_finished("u1").await;
}

#[tokio::test(start_paused = true)]
async fn agent_without_thresholds_evicts_no_pod() {
    let scene = Scene::running("app").await;
    scene.machine.set(memory_left(0));
    scene.sleep(100).await;
    assert_eq!(scene.phases(&["u1"]), ["Running"]);
    assert_eq!(scene.fake.count("ListPodSandboxStats"), 0);
}

/// Kubernetes 1.36, pkg/kubelet/eviction/eviction_manager.go containerEphemeralStorageLimitEviction.
#[rstest]
#[case::with_the_nodes_files(None, true)]
#[case::own_file_system(Some(disk(2, 50)), false)]
#[tokio::test(start_paused = true)]
async fn writable_layer_exceeds_a_containers_limit_beside_the_nodes_files(
    #[case] images: Option<FileSystem>,
    #[case] is_evicted: bool,
) {
    let scene = scene("evictionHard: {}");
    scene.machine.set(|numbers| {
        numbers.others =
            images.map(|images| (PathBuf::from("/images"), images)).into_iter().collect();
    });
    let limited = |name: &str, limit: &str| {
        container_with(name, "one", "resources", json!({"limits": {"ephemeral-storage": limit}}))
    };
    scene
        .run_all(&[pod_with(
            "u1",
            json!({"containers": [limited("a", "5Mi"), limited("b", "90Mi")]}),
        )])
        .await;
    if is_evicted {
        scene.until_finished("u1").await;
        let message = scene.report("u1").status.message.clone().unwrap_or_default();
        assert_eq!(message, "Container a exceeded its local ephemeral storage limit \"5Mi\". ");
    } else {
        scene.sleep(60).await;
        assert_eq!(scene.phases(&["u1"]), ["Running"]);
    }
}
