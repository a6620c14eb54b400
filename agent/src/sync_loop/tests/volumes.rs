//! The content of volumes in containers: subPaths, variables in files, and objects that appear and change.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::Event;
use crate::objects::ObjectMap;

#[tokio::test(start_paused = true)]
async fn parts_of_volumes_are_made_before_create() {
    let scene = Scene::new();
    let fields = json!({
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [
            {"name": "v", "mountPath": "/a", "subPath": "logs/app"},
            {"name": "v", "mountPath": "/b", "subPathExpr": "by/$(POD)"},
        ],
    });
    scene.run(&mounting_with(json!({"emptyDir": {}}), fields)).await;
    let dir = scene.pod_dir("u1");
    let volume = dir.join("volumes/kubernetes.io~empty-dir/v");
    for (index, part) in [(0, "logs/app"), (1, "by/pod-u1")] {
        let link = dir.join(format!("volume-subpaths/v/app/{index}"));
        let target = std::fs::canonicalize(volume.join(part)).unwrap();
        assert_eq!(std::fs::read_link(link).unwrap(), target);
    }
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn container_starts_with_a_directory_for_its_logs() {
    let scene = Scene::running("app").await;
    let logs = scene.root.join("logs/default_pod-u1_u1/app");
    let mode = std::fs::metadata(logs).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[tokio::test(start_paused = true)]
async fn volumes_are_removed_before_the_last_status() {
    let scene = Scene::new();
    scene.fake.image("done", job(1, 0));
    let mounts = json!([{"name": "v", "mountPath": "/a", "subPath": "part"}]);
    let app = container_with("app", "done", "volumeMounts", mounts);
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let spec = json!({"restartPolicy": "Never", "containers": [app], "volumes": volumes});
    scene.want(&[pod_with("u1", spec)]);
    scene.until_finished("u1").await;
    let dir = scene.pod_dir("u1");
    let left = ["etc-hosts", "containers", "volumes", "volume-subpaths"];
    assert_eq!(left.map(|name| dir.join(name).exists()), [true, true, false, false]);
    assert!(!scene.report("u1").removed);
    scene.remove_all().await;
    scene.assert_clean();
}

/// A pod that mounts this volume, with these fields of its container.
fn mounting_with(volume: Value, fields: Value) -> Pod {
    let mut volume = volume;
    volume["name"] = json!("v");
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let app = fixtures::with(container_with("app", "app", "volumeMounts", mounts), &fields);
    pod_with("u1", json!({"containers": [app], "volumes": [volume]}))
}

/// A pod that mounts this volume.
fn mounting(volume: Value) -> Pod {
    mounting_with(volume, json!({}))
}

/// A pod with a volume in memory, for the runtime of a scene.
fn pod_in_memory() -> Pod {
    mounting(json!({"emptyDir": {"medium": "Memory"}}))
}

#[tokio::test(start_paused = true)]
async fn volume_in_memory_waits_until_the_runtime_is_connected() {
    let scene = Scene::new();
    scene.fake.set_name("crib");
    scene.fake.set_down(true);
    scene.want(&[pod_in_memory()]);
    scene.sleep(5).await;
    scene.fake.set_down(false);
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn volume_in_memory_is_refused_by_other_runtimes() {
    let scene = Scene::new();
    scene.fake.set_name("containerd");
    scene.want(&[pod_in_memory()]);
    let text = "cannot keep an emptyDir in memory";
    scene.until("u1", "refused", |report| message(report, "app").contains(text)).await;
}

#[tokio::test(start_paused = true)]
async fn symlink_out_of_volume_is_rejected_until_removed() {
    let scene = Scene::new();
    let volume = scene.root.join("volume");
    std::fs::create_dir(&volume).unwrap();
    symlink("/", volume.join("part")).unwrap();
    let mounts = json!([{"name": "v", "mountPath": "/a", "subPath": "part"}]);
    let host_path = json!({"hostPath": {"path": volume}});
    scene.want(&[mounting_with(host_path, json!({"volumeMounts": mounts}))]);
    scene.until_reason("u1", "app", "CreateContainerConfigError").await;
    assert_eq!(
        message(&scene.report("u1"), "app"),
        "failed to prepare subPath for volumeMount \"v\" of container \"app\""
    );
    std::fs::remove_file(volume.join("part")).unwrap();
    scene.until_running("u1").await;
    assert!(volume.join("part").is_dir());
}

/// The mount point replaces the link to the files, which a kubelet then fails to read.
#[tokio::test(start_paused = true)]
async fn mount_point_below_link_to_files_keeps_pod_from_starting() {
    let scene = Scene::new();
    let mounts = json!([
        {"name": "v", "mountPath": "/v"},
        {"name": "e", "mountPath": "/v/..data/y"},
    ]);
    let volumes = json!([
        {"name": "v", "configMap": {"name": "m", "optional": true}},
        {"name": "e", "emptyDir": {}},
    ]);
    let app = container_with("app", "app", "volumeMounts", mounts);
    scene.want(&[pod_with("u1", json!({"containers": [app], "volumes": volumes}))]);
    scene.until_reason("u1", "app", "FailedMount").await;
    scene.sleep(300).await;
    assert_eq!(scene.times("CreateContainer"), [0; 0]);
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn variables_come_from_files_of_volumes() {
    let scene = Scene::new();
    let volume = scene.root.join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("app.env"), "LEVEL=''\n").unwrap();
    let file = json!({"volumeName": "v", "path": "app.env", "key": "LEVEL"});
    let env = json!([{"name": "LEVEL", "valueFrom": {"fileKeyRef": file}}]);
    scene.want(&[mounting_with(json!({"hostPath": {"path": volume}}), json!({"env": env}))]);
    scene.until_reason("u1", "app", "CreateContainerConfigError").await;
    let path = volume.join("app.env");
    assert_eq!(
        message(&scene.report("u1"), "app"),
        format!("environment variable key \"LEVEL\" not found in file {path:?}")
    );
    std::fs::write(&path, "LEVEL='info'\n").unwrap();
    scene.until_running("u1").await;
}

/// A ConfigMap `m` with one entry.
fn config_map(text: &str) -> ObjectMap {
    let mut objects = ObjectMap::default();
    let map = json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"key": text}});
    objects.insert_config_map(serde_json::from_value(map).unwrap());
    objects
}

/// The messages of the events with this reason.
fn messages(events: &mut UnboundedReceiver<Event>, reason: &str) -> Vec<String> {
    let chosen = drain(events).filter(|event| event.reason == reason);
    chosen.map(|event| event.message).collect()
}

/// Waits until a file has this text.
async fn until_text(scene: &Scene, path: &std::path::Path, text: &str) -> u64 {
    let wait = async {
        while std::fs::read_to_string(path).is_ok_and(|found| found != text) {
            scene.sleep(1).await;
        }
    };
    tokio::time::timeout(seconds(7200), wait).await.unwrap();
    scene.now()
}

#[tokio::test(start_paused = true)]
async fn missing_object_is_waited_for_with_doubled_delays() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.want(&[mounting(json!({"configMap": {"name": "m"}}))]);
    scene.until_reason("u1", "app", "FailedMount").await;
    let status = scene.report("u1").status.container_statuses.clone().unwrap();
    let state = status[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(state.reason.as_deref(), Some("ContainerCreating"));
    scene.sleep(8).await;
    // After 0, 0.5, 1.5, 3.5 and 7.5 s.
    let text = "MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found";
    assert_eq!(messages(&mut events, "FailedMount"), [text; 5]);
    assert_eq!(scene.calls(), [""; 0], "volumes come before the sandbox");
    scene.objects.set(config_map("1"));
    let started = scene.until_running("u1").await;
    assert_eq!(started, 8, "the object is noticed before the next attempt");
}

#[tokio::test(start_paused = true)]
async fn pod_without_its_volumes_is_reported_every_two_minutes() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.want(&[mounting(json!({"secret": {"secretName": "s"}}))]);
    scene.sleep(140).await;
    let messages = messages(&mut events, "FailedMount");
    let late = messages.iter().filter(|text| text.starts_with("Unable"));
    let expected = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[]: \
                    context deadline exceeded";
    assert_eq!(late.collect::<Vec<_>>(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn files_follow_their_objects_without_restart() {
    let scene = Scene::new();
    scene.objects.set(config_map("1"));
    scene.run(&mounting(json!({"configMap": {"name": "m"}}))).await;
    let volume = scene.pod_dir("u1").join("volumes/kubernetes.io~configmap/v");
    assert_eq!(std::fs::read_to_string(volume.join("key")).unwrap(), "1");
    let before = scene.now();
    scene.objects.set(config_map("2"));
    let after = until_text(&scene, &volume.join("key"), "2").await;
    assert!(after <= before + 1, "{before} {after}");
    // The last content stays when the object is removed.
    let mut events = scene.agent().events();
    scene.objects.set(ObjectMap::default());
    scene.sleep(10).await;
    assert!(!messages(&mut events, "FailedMount").is_empty());
    assert_eq!(std::fs::read_to_string(volume.join("key")).unwrap(), "2");
    assert_eq!(scene.report("u1").containers[0].restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn files_follow_labels_of_their_pod() {
    let scene = Scene::new();
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let pod = mounting(json!({"downwardAPI": {"items": items}}));
    let labelled = |value: &str| {
        let labels = [("v".to_owned(), value.to_owned())];
        changed(&pod, |api| api.metadata.labels = Some(labels.into()))
    };
    scene.run(&labelled("1")).await;
    let file = scene.pod_dir("u1").join("volumes/kubernetes.io~downward-api/v/labels");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "v=\"1\"");
    scene.want(&[labelled("2")]);
    until_text(&scene, &file, "v=\"2\"").await;
}

#[tokio::test(start_paused = true)]
async fn token_is_replaced_before_it_expires() {
    let scene = Scene::new();
    let source = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}});
    scene.run(&mounting(json!({"projected": {"sources": [source]}}))).await;
    let file = scene.pod_dir("u1").join("volumes/kubernetes.io~projected/v/token");
    let first = std::fs::read_to_string(&file).unwrap();
    scene.sleep(795).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), first);
    scene.sleep(10).await;
    assert_ne!(std::fs::read_to_string(&file).unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn image_of_a_volume_is_pulled_before_containers_start() {
    let scene = Scene::new();
    scene.run(&mounting(json!({"image": {"reference": "one", "pullPolicy": "Always"}}))).await;
    let calls = scene.calls();
    let position = |text: &str| calls.iter().position(|call| call.starts_with(text));
    assert!(position("RunPodSandbox") < position("PullImage"), "{calls:?}");
    assert!(position("PullImage") < position("CreateContainer"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn image_of_a_volume_is_pulled_with_each_sync() {
    let scene = Scene::new();
    scene.want(&[mounting(json!({"image": {"reference": "one", "pullPolicy": "Always"}}))]);
    let pulls = || scene.times("PullImage").len();
    scene.sleep(30).await;
    let first = pulls();
    // The pod is synced once a minute.
    scene.sleep(120).await;
    assert!((1..=2).contains(&(pulls() - first)), "{} after {first}", pulls());
}

#[tokio::test(start_paused = true)]
async fn missing_image_of_a_volume_keeps_its_container_waiting() {
    let scene = Scene::new();
    scene.want(&[mounting(json!({"image": {"reference": "gone", "pullPolicy": "Never"}}))]);
    scene.until_reason("u1", "app", "ErrImageNeverPull").await;
    scene.fake.image("gone", Behaviour::forever());
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn each_missing_image_of_a_volume_is_an_event_and_the_last_one_is_shown() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let image = |name: &str, reference: &str, policy: &str| json!({"name": name, "image": {"reference": reference, "pullPolicy": policy}});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let mounts = json!([mount("v"), mount("w")]);
    scene.want(&[pod_with(
        "u1",
        json!({
            "containers": [container_with("app", "app", "volumeMounts", mounts)],
            "volumes": [image("v", "gone:1", "Always"), image("w", "gone:2", "Never")],
        }),
    )]);
    scene.until_reason("u1", "app", "ErrImageNeverPull").await;
    let failed = messages(&mut events, "Failed");
    let of_container: Vec<&str> =
        failed.iter().map(String::as_str).filter(|text| text.starts_with("Error: ")).collect();
    assert_eq!(
        of_container[..2],
        ["Error: ErrImagePull", "Error: ErrImageNeverPull"],
        "{failed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn pod_with_too_large_empty_dir_is_evicted() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.run(&mounting(json!({"emptyDir": {"sizeLimit": "1Mi"}}))).await;
    let volume = scene.pod_dir("u1").join("volumes/kubernetes.io~empty-dir/v");
    std::fs::write(volume.join("f"), vec![1; 512 << 10]).unwrap();
    scene.sleep(30).await;
    assert_eq!(phase(&scene.report("u1")), "Running");
    let mut transitions = scene.agent().transitions();
    std::fs::write(volume.join("f"), vec![1; 2 << 20]).unwrap();
    let written = scene.now();
    let ended = scene.until_finished("u1").await;
    assert!(ended <= written + 12, "{written} {ended}");
    let text = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ";
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), "Evicted".to_owned()));
    assert_eq!(scene.report("u1").status.message.as_deref(), Some(text));
    assert_eq!(messages(&mut events, "Evicted"), [text]);
    let of_pod = transitions.try_recv().unwrap();
    assert_eq!((of_pod.container, of_pod.to.as_str()), (None, "Failed"));
    assert_eq!(of_pod.cause, "Evicted: Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\"");
}

#[tokio::test(start_paused = true)]
async fn other_group_of_a_shared_local_volume_is_an_event() {
    use std::os::unix::fs::MetadataExt as _;
    let scene = Scene::new();
    let mut events = scene.agent().events();
    let path = scene.root.join("disk");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut objects = ObjectMap::default();
    objects.insert_persistent_volume(*fixtures::volume("disk", &json!({"local": {"path": path}})));
    objects.insert_persistent_volume_claim(fixtures::claim("data", &json!({})));
    scene.objects.set(objects);
    let group = std::fs::metadata(&path).unwrap().gid();
    let pod = |uid: &str, group: u32| {
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        let spec = json!({
            "securityContext": {"fsGroup": group},
            "containers": [container_with("app", "app", "volumeMounts", mounts)],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        });
        pod_with(uid, spec)
    };
    let (first, second) = (pod("u1", group), pod("u2", group + 1));
    scene.run(&first).await;
    let mode = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o2770);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    scene.want(&[first, second]);
    scene.until_running("u2").await;
    assert_eq!(mode(), 0o750);
    let expected = format!(
        "The requested fsGroup is {}, but the volume disk has GID {group}. The volume may not be shareable.",
        group + 1
    );
    assert_eq!(messages(&mut events, "AlreadyMountedVolume"), [expected]);
}
