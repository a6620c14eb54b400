//! The events of a pod's life, compared with those that a kubelet recorded.

use async_trait::async_trait;

use super::*;
use crate::Event;
use crate::cri::Code;
use crate::objects::ObjectMap;
use crate::source::PodSource;

/// The events so far, without their times; a repeated event is listed once.
fn event_lines(events: impl IntoIterator<Item = Event>) -> Vec<String> {
    let mut lines = Vec::new();
    for Event { kind, reason, object, message, .. } in events {
        let line = format!("{} {reason} {}: {message}", kind.as_str(), object.field_path);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn pod_lifecycle_is_reported_as_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.run(&pod("u1", "app", "Always")).await;
    scene.remove_all().await;
    assert_eq!(
        event_lines(drain(&mut events)),
        [
            "Normal Pulled spec.containers{app}: Container image \"app\" already present on machine and can be accessed by the pod",
            "Normal Created spec.containers{app}: Container created",
            "Normal Started spec.containers{app}: Container started",
            "Normal Killing spec.containers{app}: Stopping container app",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn crash_loop_is_one_event_with_a_count() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let crashing = pod("u1", "crash", "Always");
    scene.want(std::slice::from_ref(&crashing));
    for second in 0..90 {
        // Changes of other pods' objects, and of statuses that others write, cause no sync of this pod.
        let mut written = crashing.api().clone();
        written.status.get_or_insert_default().message = Some(second.to_string());
        scene.want(&[Pod::new(written)]);
        let map = json!({"metadata": {"name": "other"}, "data": {"second": second.to_string()}});
        let mut objects = ObjectMap::default();
        objects.insert_config_map(serde_json::from_value(map).unwrap());
        scene.objects.set(objects);
        scene.sleep(1).await;
    }
    let recorded: Vec<Event> = drain(&mut events).collect();
    let count = recorded.iter().filter(|event| event.reason == "BackOff");
    // One event per sync: at each exit, and at the resync a minute later at most.
    let count = count.map(|event| event.count).max().unwrap();
    assert!((3..=6).contains(&count), "{count}");
    assert_eq!(
        event_lines(recorded),
        [
            "Normal Pulled spec.containers{app}: Container image \"crash\" already present on machine and can be accessed by the pod",
            "Normal Created spec.containers{app}: Container created",
            "Normal Started spec.containers{app}: Container started",
            "Warning BackOff spec.containers{app}: Back-off restarting failed container app in pod pod-u1_default(u1)",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn back_off_of_a_pull_is_an_event_of_each_sync() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.want(&[pod("u1", "gone:1", "Always")]);
    scene.sleep(140).await;
    assert_eq!(scene.seconds("PullImage gone:1"), [0, 10, 30, 70]);
    let recorded: Vec<Event> = drain(&mut events).collect();
    let count = |message: &str| {
        let same = recorded.iter().filter(|event| event.message == message);
        same.map(|event| event.count).max().unwrap_or_default()
    };
    // Between pulls, the pod is synced every 10 to 15 s.
    let back_offs = count("Back-off pulling image \"gone:1\"");
    assert!((7..=13).contains(&back_offs), "{recorded:?}");
    assert_eq!(count("Error: ImagePullBackOff"), back_offs);
}

#[tokio::test(start_paused = true)]
async fn missing_pull_secrets_are_an_event_of_each_sync() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let secrets = json!([{"name": "none"}, {"name": ""}, {"name": "gone"}]);
    let containers = ["a", "b", "c", "d", "e", "f"].map(|name| container(name, "app"));
    scene.want(&[pod_with("u1", json!({"imagePullSecrets": secrets, "containers": containers}))]);
    scene.until_all_run("u1").await;
    let mut recorded = || -> Vec<Event> {
        let reason = "FailedToRetrieveImagePullSecret";
        drain(&mut events).filter(|event| event.reason == reason).collect()
    };
    let first = recorded();
    assert!((1..=3).contains(&first.len()), "not at each start: {first:?}");
    assert_eq!(
        event_lines(first),
        [
            "Warning FailedToRetrieveImagePullSecret : Unable to retrieve some image pull secrets (none, gone); attempting to pull the image may not succeed."
        ]
    );
    // The sync after the start, if it comes later.
    scene.sleep(1).await;
    recorded();
    scene.sleep(100).await;
    assert!(!recorded().is_empty(), "nothing starts at a resync");
}

#[tokio::test(start_paused = true)]
async fn missing_dns_of_the_cluster_is_an_event_of_node_and_pod_at_each_sync() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let spec = json!({"dnsPolicy": "ClusterFirst", "containers": [container("app", "app")]});
    scene.run(&pod_with("u1", spec)).await;
    // The sync after the start, if it comes later.
    scene.sleep(1).await;
    let mut recorded = || -> Vec<(u32, String, String)> {
        let of_dns = drain(&mut events).filter(|event| event.reason == "MissingClusterDNS");
        of_dns.map(|event| (event.count, event.object.name, event.message)).collect()
    };
    let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                   Falling back to \"Default\" policy.";
    let first = recorded();
    assert_eq!(
        first[..2],
        [
            (1, "localhost".to_owned(), message.to_owned()),
            (1, "pod-u1".to_owned(), format!("pod: \"pod-u1_default(u1)\". {message}")),
        ]
    );
    assert!(first.len() >= 4, "the sandbox's configuration is built twice: {first:?}");
    scene.sleep(100).await;
    assert!(!recorded().is_empty(), "nothing starts at a resync");
}

#[tokio::test(start_paused = true)]
async fn failures_are_reported_as_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.fail("RunPodSandbox", 1, Code::Unknown, "no address");
    scene.want(&[pod("u1", "bad", "Always")]);
    scene.sleep(20).await;
    assert_eq!(
        event_lines(drain(&mut events)),
        [
            "Warning FailedCreatePodSandBox : Failed to create pod sandbox: rpc error: code = Unknown desc = no address",
            "Normal Pulled spec.containers{app}: Container image \"bad\" already present on machine and can be accessed by the pod",
            "Warning Failed spec.containers{app}: Error: no such device",
        ]
    );
}

/// A file is in the place of the directory.
#[rstest::rstest]
#[case::of_pod("root/pods/u1", "Failed", "error making pod data directories")]
#[case::of_logs("logs/default_pod-u1_u1", "FailedCreatePodSandBox", "Failed to create pod sandbox")]
#[tokio::test(start_paused = true)]
async fn missing_directory_is_an_event(
    #[case] path: &str,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let path = scene.root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "").unwrap();
    scene.want(&[pod("u1", "app", "Always")]);
    scene.sleep(5).await;
    let seen: Vec<_> = drain(&mut events).map(|event| (event.reason, event.message)).collect();
    let [(seen_reason, seen_message)] = seen.as_slice() else { panic!("{seen:?}") };
    let begin = format!("{message}: failed to create {}", path.display());
    assert!(seen_message.starts_with(&begin), "{seen_message}");
    assert_eq!(seen_reason, reason);
    std::fs::remove_file(&path).unwrap();
    scene.until_all_run("u1").await;
}

#[tokio::test(start_paused = true)]
async fn missing_log_directory_of_a_container_is_an_event() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let logs = scene.root.join("logs/default_pod-u1_u1");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("app"), "").unwrap();
    scene.want(&[pod("u1", "app", "Always")]);
    scene.until_reason("u1", "app", "CreateContainerConfigError").await;
    let failed = drain(&mut events).find(|event| event.reason == "Failed").unwrap();
    let begin = "Error: create container log directory for container app failed: failed to create ";
    assert!(failed.message.starts_with(begin), "{}", failed.message);
}

#[tokio::test(start_paused = true)]
async fn container_without_a_termination_message_file_runs() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.pod_dir("u1")).unwrap();
    std::fs::write(scene.pod_dir("u1").join("containers"), "").unwrap();
    let path = json!("/dev/termination-log");
    let app = container_with("app", "app", "terminationMessagePath", path);
    scene.run(&pod_with("u1", json!({"containers": [app]}))).await;
    let mounts = scene.fake.spec("app").unwrap().mounts;
    assert!(mounts.iter().all(|mount| mount.container_path != "/dev/termination-log"));
}

#[tokio::test(start_paused = true)]
async fn failed_start_is_an_event_without_the_container_id() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    // The fake runtime numbers sandboxes and containers together.
    let start_fails = Some("cannot start container-2".to_owned());
    scene.fake.image("worse", Behaviour { start_fails, ..Behaviour::forever() });
    scene.want(&[pod("u1", "worse", "Always")]);
    scene.until_reason("u1", "app", "RunContainerError").await;
    assert_eq!(message(&scene.report("u1"), "app"), "cannot start container-2");
    let failed = drain(&mut events).find(|event| event.reason == "Failed").unwrap();
    assert_eq!(failed.message, "Error: cannot start app");
}

#[tokio::test(start_paused = true)]
async fn deadline_and_replacement_are_reported_as_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let pod = |image: &str| {
        let spec = json!({"activeDeadlineSeconds": 10, "containers": [container("app", image)]});
        pod_with("u1", spec)
    };
    scene.run(&pod("one")).await;
    scene.want(&[pod("two")]);
    scene.until_finished("u1").await;
    let recorded: Vec<Event> = drain(&mut events).collect();
    // When the sync finds that the deadline has passed, when the stop begins and ends, and when the pod has ended.
    let deadlines = recorded.iter().filter(|event| event.reason == "DeadlineExceeded");
    assert_eq!(deadlines.map(|event| event.count).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(
        event_lines(recorded)[3..],
        [
            "Normal Killing spec.containers{app}: Container app definition changed, will be restarted",
            "Normal Pulled spec.containers{app}: Container image \"two\" already present on machine and can be accessed by the pod",
            "Normal DeadlineExceeded : Pod was active on the node longer than the specified deadline",
            "Normal Killing spec.containers{app}: Stopping container app",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn failed_probes_are_reported_as_events() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.exec("app", seconds(0), 1, "");
    let probe = json!({
        "exec": {"command": ["check"]}, "periodSeconds": 2, "failureThreshold": 2,
        "successThreshold": 1, "timeoutSeconds": 1,
    });
    let app = container_with("app", "app", "livenessProbe", probe);
    scene.want(&[pod_with("u1", json!({"containers": [app]}))]);
    scene.until_restarted("u1").await;
    assert_eq!(
        event_lines(drain(&mut events))[3..5],
        [
            "Warning Unhealthy spec.containers{app}: Liveness probe failed: ",
            "Normal Killing spec.containers{app}: Container app failed liveness probe, will be restarted",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn sandbox_failure_after_pod_removal_is_not_reported() {
    let scene = Scene::as_kubelet();
    let mut events = scene.agent().events();
    scene.fake.delay("RunPodSandbox", seconds(5));
    scene.fake.fail("RunPodSandbox", 1, Code::Unknown, "cut short");
    scene.want(&[pod("u1", "app", "Always")]);
    scene.sleep(1).await;
    scene.remove_all().await;
    assert_eq!(event_lines(drain(&mut events)), Vec::<String>::new());
    assert_eq!(scene.fake.count("RunPodSandbox"), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_inspection_is_reported() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.fail("ContainerStatus", 3, Code::Internal, "out of order");
    scene.run(&pod("u1", "app", "Always")).await;
    let recorded = event_lines(drain(&mut events));
    let failed: Vec<_> = recorded.iter().filter(|line| line.contains("FailedSync")).collect();
    assert_eq!(failed.len(), 1, "{recorded:?}");
    assert!(failed[0].starts_with("Warning FailedSync : error determining status: "), "{failed:?}");
    assert!(failed[0].contains("out of order"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn unresponsive_runtime_does_not_fail_pods() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.sleep(1).await;
    scene.fake.set_down(true);
    // The first inspection of the pod fails.
    scene.want(&[pod("u1", "app", "Always")]);
    scene.sleep(30).await;
    scene.fake.set_down(false);
    scene.until_running("u1").await;
    assert!(!drain(&mut events).any(|event| event.reason == "FailedSync"));
}

#[tokio::test(start_paused = true)]
async fn garbage_collection_without_a_listing_is_an_event_once_a_minute() {
    let scene = Scene::as_kubelet();
    let mut events = scene.agent().events();
    scene.run(&pod("u1", "app", "Always")).await;
    scene.fake.set_down(true);
    scene.sleep(50).await;
    let mut recorded = || -> Vec<Event> {
        drain(&mut events).filter(|event| event.reason == "ContainerGCFailed").collect()
    };
    assert_eq!(recorded(), [], "nothing is collected yet");
    for count in 1..=2 {
        scene.sleep(60).await;
        let recorded = recorded();
        let [event] = recorded.as_slice() else { panic!("{recorded:?}") };
        assert_eq!((event.kind, event.count), (crate::EventType::Warning, count));
        assert_eq!(event.message, "rpc error: code = Unavailable desc = connection refused");
        let object = (event.object.kind, event.object.name.as_str());
        assert_eq!(object, (crate::EventObjectKind::Node, "localhost"));
    }
    scene.fake.set_down(false);
    scene.sleep(160).await;
    // Between two collections, a listing may fail without an event.
    scene.fake.fail("ListContainers", 1, Code::Internal, "busy");
    scene.sleep(25).await;
    assert_eq!(recorded(), []);
}

#[tokio::test(start_paused = true)]
async fn system_oom_kills_are_node_events() {
    let mut scene = Scene::without_agent(seconds(10));
    let (kills, receiver) = tokio::sync::mpsc::unbounded_channel();
    scene.oom_kills = Some(receiver);
    scene.start_agent();
    let mut events = scene.agent().events();
    let view = scene.agent().view();
    assert_eq!(view.system_oom_kills(), Some(0));
    let kill = |cgroup: &str, process: Option<(i32, &str)>| OomKill {
        cgroup: cgroup.to_owned(),
        process: process.map(|(id, name)| (id, name.to_owned())),
    };
    for kill in [kill("/", Some((71, "big"))), kill("/kubepods/podu", None), kill("/", None)] {
        kills.send(kill).unwrap();
    }
    scene.sleep(1).await;
    let seen: Vec<_> = drain(&mut events).collect();
    let of_node = |event: &crate::Event| {
        (event.object.kind, event.object.name.as_str())
            == (crate::EventObjectKind::Node, "localhost")
    };
    assert!(seen.iter().all(of_node), "{seen:?}");
    let texts: Vec<_> = seen.iter().map(|it| (it.reason.as_str(), it.message.as_str())).collect();
    assert_eq!(
        texts,
        [
            ("SystemOOM", "System OOM encountered, victim process: big, pid: 71"),
            ("SystemOOM", "System OOM encountered"),
        ]
    );
    assert_eq!(view.system_oom_kills(), Some(2));
    assert_eq!(Scene::new().agent().view().system_oom_kills(), None, "nobody watches");
}

#[tokio::test(start_paused = true)]
async fn events_that_the_cluster_records_about_the_node_are_counted_and_limited() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let view = scene.agent().view();
    for _ in 0..30 {
        let message = "Node localhost status is now: NodeReady".to_owned();
        view.record_node_event("localhost", crate::EventType::Normal, "NodeReady", message);
    }
    let seen: Vec<_> = drain(&mut events).collect();
    assert!(seen.iter().all(|event| event.object.kind == crate::EventObjectKind::Node), "{seen:?}");
    let counts: Vec<u32> = seen.iter().map(|event| event.count).collect();
    assert_eq!(counts, (1..=25).collect::<Vec<u32>>());
}

/// A source that ignores a pod of its only set.
#[derive(Default)]
struct WithIgnored {
    has_set: bool,
}

#[async_trait]
impl PodSource for WithIgnored {
    fn name(&self) -> String {
        "ignoring".to_owned()
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        if std::mem::replace(&mut self.has_set, true) {
            std::future::pending::<()>().await;
        }
        Some(Arc::default())
    }

    fn take_ignored(&mut self) -> Vec<Pod> {
        vec![pod("u1", "app", "Always")]
    }
}

#[tokio::test(start_paused = true)]
async fn ignored_pod_of_a_source_is_an_event() {
    let mut scene = Scene::without_agent(seconds(10));
    let cri = Arc::new(scene.fake.clone());
    let sources: Vec<Box<dyn PodSource>> = vec![Box::new(WithIgnored::default())];
    let parts = Parts { sources, ..scene.parts(cri) };
    scene.agent = Some(crate::start(scene.config(), parts));
    let mut events = scene.agent().events();
    scene.sleep(1).await;
    assert_eq!(
        event_lines(drain(&mut events)),
        [
            "Warning FailedValidation : Error validating pod pod-u1_default(u1) from http due to duplicate pod name \"pod-u1\", ignoring"
        ]
    );
}
