//! Directories, volumes and files of a pod on disk.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fixtures;
use crate::machine::fake::FakeMachine;
use crate::node::Node;
use crate::objects::ObjectMap;

/// A pod with a container that mounts all of these volumes.
fn pod(volumes: serde_json::Value) -> Pod {
    pod_of(json!({"volumes": volumes}))
}

/// A pod of a specification without containers: one mounts all of its volumes.
fn pod_of(mut spec: serde_json::Value) -> Pod {
    let volumes = spec["volumes"].as_array().unwrap().iter();
    let mounts = volumes.map(|volume| json!({"name": volume["name"], "mountPath": "/v"}));
    let mounts: Vec<_> = mounts.collect();
    spec["containers"] = json!([{"name": "c", "volumeMounts": mounts}]);
    fixtures::pod_of("u1", "p", spec)
}

/// Prepares a pod's volumes with these objects, on the disk.
fn prepare_with(dirs: &PodDirs, pod: &Pod, objects: &ObjectMap) -> Prepared {
    let config = Config::new(PathBuf::new(), PathBuf::new());
    prepare_in(dirs, pod, objects, &InMemory::new(&config))
}

/// Prepares a pod's volumes with these objects.
fn prepare_in(dirs: &PodDirs, pod: &Pod, objects: &ObjectMap, in_memory: &InMemory) -> Prepared {
    let node = Node::new("node", "/r", "/l");
    let content = ContentInputs { node: &node, objects, token: &|_| Ok("token".to_owned()) };
    let inputs = VolumeInputs {
        content,
        claims: &claim::Claims::new(dirs.pod.join("../../claims"), None),
        in_memory,
        has_memory_volumes: false,
        measures: &Measures::default(),
    };
    dirs.prepare(pod, inputs, Timestamp::UNIX_EPOCH).unwrap()
}

fn prepare(dirs: &PodDirs, pod: &Pod) -> Prepared {
    prepare_with(dirs, pod, &ObjectMap::default())
}

fn dirs(root: &Path) -> PodDirs {
    PodDirs::new(
        &Config::new(root.join("root"), root.join("logs")),
        &PodUid::new("u1"),
        "default",
        "p",
    )
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn empty_dir_is_world_writable_and_keeps_content() {
    let root = tempfile::tempdir().unwrap();
    let (dirs, pod) = (dirs(root.path()), pod(json!([{"name": "shared", "emptyDir": {}}])));
    let path = prepare(&dirs, &pod).volumes["shared"].host_path.clone();
    assert_eq!(path, root.path().join("root/pods/u1/volumes/kubernetes.io~empty-dir/shared"));
    assert_eq!(mode(&path), 0o777);
    fs::write(path.join("f"), "x").unwrap();
    prepare(&dirs, &pod);
    assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "x");
    let trash = Trash::new(root.path().join("root/trash"));
    dirs.remove(&FakeMachine::default(), &trash, true).unwrap();
    assert!(!root.path().join("root/pods/u1").exists());
    assert!(!root.path().join("logs/default_p_u1").exists());
    dirs.remove(&FakeMachine::default(), &trash, true).unwrap();
}

#[test]
fn secrets_are_in_memory_until_the_pod_ends() {
    let root = tempfile::tempdir().unwrap();
    let (memory, elsewhere) = (root.path().join("root/memory"), root.path().join("elsewhere"));
    fs::create_dir_all(&elsewhere).unwrap();
    fs::create_dir_all(root.path().join("root")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &memory).unwrap();
    let mut config = Config::new(root.path().join("root"), root.path().join("logs"));
    config.volumes_in_memory = Some(|at| Ok(at.canonicalize().unwrap()));
    let (in_memory, dirs) = (InMemory::new(&config), dirs(root.path()));
    let items = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let pod = pod(json!([
        {"name": "shown", "downwardAPI": {"items": items}},
        {"name": "several", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
        {"name": "secret", "secret": {"secretName": "s", "optional": true}},
        {"name": "settings", "configMap": {"name": "c", "optional": true}},
        {"name": "own", "emptyDir": {}},
    ]));
    let objects = ObjectMap::default();
    let prepared = prepare_in(&dirs, &pod, &objects, &in_memory).volumes;
    let is_in_memory = |name: &str| prepared[name].host_path.starts_with(&elsewhere);
    let names = ["shown", "several", "secret", "settings", "own"];
    assert_eq!(names.map(is_in_memory), [true, true, true, false, false]);
    assert_eq!(
        prepared["shown"].host_path,
        elsewhere.join("u1/volumes/kubernetes.io~downward-api/shown")
    );
    let shown = fs::read_to_string(prepared["several"].host_path.join("name")).unwrap();
    assert_eq!(shown, "p");
    // Files that an earlier agent wrote stay where containers have them mounted.
    in_memory.remove(&dirs.pod).unwrap();
    let on_disk = prepare(&dirs, &pod).volumes["secret"].host_path.clone();
    let again = prepare_in(&dirs, &pod, &objects, &in_memory).volumes;
    assert_eq!(again["secret"].host_path, on_disk);
    // The next agent has not created the directory yet.
    let trash = Trash::new(root.path().join("root/trash"));
    dirs.remove_volumes(&FakeMachine::default(), &trash, &InMemory::new(&config)).unwrap();
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert!(!dirs.pod.join("volumes").exists());
    dirs.remove_volumes(&FakeMachine::default(), &trash, &in_memory).unwrap();
}

#[test]
fn empty_dir_in_memory_is_in_the_directory_of_the_agent_with_other_runtimes() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("root/memory")).unwrap();
    let mut config = Config::new(root.path().join("root"), root.path().join("logs"));
    config.volumes_in_memory = Some(|at| Ok(at.to_owned()));
    let (in_memory, dirs) = (InMemory::new(&config), dirs(root.path()));
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let prepared = prepare_in(&dirs, &pod, &ObjectMap::default(), &in_memory).volumes;
    let path = root.path().join("root/memory/u1/volumes/kubernetes.io~empty-dir/v");
    assert_eq!(prepared["v"].host_path, path);
    assert!(!prepared["v"].in_memory, "the runtime keeps it");
    assert_eq!(mode(&path), 0o777);
    fs::write(path.join("f"), vec![1; 1 << 20]).unwrap();
    prepare_in(&dirs, &pod, &ObjectMap::default(), &in_memory);
    let used = dirs.usage(&pod, &in_memory).volumes["v"];
    assert!(used >= 1 << 20, "{used}");
    let trash = Trash::new(root.path().join("root/trash"));
    dirs.remove_volumes(&FakeMachine::default(), &trash, &in_memory).unwrap();
    assert!(!path.exists());
}

#[test]
fn secrets_are_on_disk_without_tmpfs() {
    let root = tempfile::tempdir().unwrap();
    let mut config = Config::new(root.path().join("root"), root.path().join("logs"));
    config.volumes_in_memory = Some(|_| Err("no file system is in memory".to_owned()));
    let (in_memory, dirs) = (InMemory::new(&config), dirs(root.path()));
    let pod = pod(json!([{"name": "s", "secret": {"secretName": "s", "optional": true}}]));
    let prepared = prepare_in(&dirs, &pod, &ObjectMap::default(), &in_memory);
    assert!(prepared.volumes["s"].host_path.starts_with(&dirs.pod));
    assert!(prepared.failed.is_empty());
}

#[rstest]
#[case("", "missing", true)]
#[case("Directory", "dir", true)]
#[case("Directory", "file", false)]
#[case("Directory", "missing", false)]
#[case("DirectoryOrCreate", "missing", true)]
#[case("DirectoryOrCreate", "file", false)]
#[case("File", "file", true)]
#[case("File", "dir", false)]
#[case("FileOrCreate", "missing", true)]
#[case("Socket", "socket", true)]
#[case("Socket", "file", false)]
#[case("CharDevice", "file", false)]
#[case("BlockDevice", "dir", false)]
#[case("Nonsense", "dir", false)]
fn host_path_type_is_checked(#[case] kind: &str, #[case] name: &str, #[case] fits: bool) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("dir")).unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    let path = root.path().join(name);
    let pod = pod(json!([{"name": "v", "hostPath": {"path": path, "type": kind}}]));
    assert_eq!(prepare(&dirs(root.path()), &pod).failed.is_empty(), fits);
    assert_eq!(path.exists(), name != "missing" || kind.ends_with("OrCreate"));
    if kind == "DirectoryOrCreate" && fits {
        assert_eq!(mode(&path), 0o755);
    }
}

#[rstest]
#[case("..", "_..")]
#[case("", "_")]
#[case("../../etc", ".._.._etc")]
#[case("u1", "u1")]
fn uid_cannot_escape_root_directory(#[case] uid: &str, #[case] name: &str) {
    let config = Config::new("/r".into(), "/l".into());
    assert_eq!(
        PodDirs::new(&config, &PodUid::new(uid), "n", "p").pod,
        Path::new("/r/pods").join(name)
    );
}

#[test]
fn unsupported_volume_fails_by_name() {
    let root = tempfile::tempdir().unwrap();
    let pod = pod(json!([{"name": "s", "nfs": {"server": "x", "path": "/"}}]));
    let prepared = prepare(&dirs(root.path()), &pod);
    assert_eq!(prepared.failed[0].volume, "s");
    assert!(prepared.failed[0].source.is_of_manifest());
    assert!(prepared.volumes.is_empty());
}

fn config_map(text: &str) -> ObjectMap {
    let mut objects = ObjectMap::default();
    let map = json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"k": text}});
    objects.insert_config_map(serde_json::from_value(map).unwrap());
    objects
}

#[test]
fn files_stay_when_their_object_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    let pod = pod(json!([{"name": "v", "configMap": {"name": "m", "defaultMode": 0o400}}]));
    let missing = prepare(&dirs, &pod);
    assert!(missing.volumes.is_empty());
    assert!(!missing.failed[0].source.is_of_manifest());

    let prepared = prepare_with(&dirs, &pod, &config_map("1"));
    assert!(prepared.failed.is_empty(), "{:?}", prepared.failed);
    let volume = &prepared.volumes["v"];
    assert!(volume.readonly);
    assert!(volume.host_path.ends_with("pods/u1/volumes/kubernetes.io~configmap/v"));
    assert_eq!(mode(&volume.host_path), 0o777);
    let file = volume.host_path.join("k");
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("1", 0o400));

    let removed = prepare(&dirs, &pod);
    assert_eq!((removed.volumes.len(), removed.failed.len()), (1, 1));
    assert_eq!(fs::read_to_string(&file).unwrap(), "1");
}

#[test]
fn files_of_a_pods_volumes_have_a_limit_together() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    let frozen = ["a", "b", "c", "d"];
    let mut volumes = vec![json!({"name": "v", "configMap": {"name": "m"}})];
    for name in frozen {
        // The outdated files, which are sparse, of a volume whose object was removed.
        volumes.push(json!({"name": name, "configMap": {"name": "missing"}}));
        let volume = dirs.pod.join("volumes/kubernetes.io~configmap").join(name);
        fs::create_dir_all(volume.join("..1")).unwrap();
        std::os::unix::fs::symlink("..1", volume.join("..data")).unwrap();
        let file = fs::File::create(volume.join("..1/k")).unwrap();
        file.set_len(content::POD_BYTES / 4).unwrap();
    }
    let prepared = prepare_with(&dirs, &pod(json!(volumes)), &config_map("1"));
    assert_eq!(prepared.volumes.keys().collect::<Vec<_>>(), frozen);
    let failed = prepared.failed.iter().find(|error| error.volume == "v").unwrap();
    assert_eq!(
        failed.source.to_string(),
        "the files of the pod's volumes have more than 256 MiB together"
    );
}

#[test]
fn mount_points_survive_content_updates() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    // A mount point where a key is added later, and one in the directory of a key, which changes with the content.
    let items = json!([{"key": "k", "path": "d/k"}]);
    let paths = ["/v", "/v/k", "/v/d/m", "/v/x/y"];
    let mounts =
        paths.map(|path| json!({"name": if path == "/v" { "m" } else { "e" }, "mountPath": path}));
    let volumes = json!([{"name": "m", "configMap": {"name": "m", "items": items}}, {"name": "e", "emptyDir": {}}]);
    let containers = json!([{"name": "c", "volumeMounts": mounts}]);
    let pod = fixtures::pod_of("u1", "p", json!({"containers": containers, "volumes": volumes}));
    for text in ["1", "1", "2", "3"] {
        let prepared = prepare_with(&dirs, &pod, &config_map(text));
        assert!(prepared.failed.is_empty(), "{:?}", prepared.failed);
        let volume = &prepared.volumes["m"].host_path;
        for path in ["k", "d/m", "x/y"] {
            assert!(volume.join(path).is_dir(), "{path}");
        }
    }
}

/// The part stays a link to the files, which the whole volume shows too.
#[rstest]
#[case::of_a_part("d", "in", true)]
#[case::of_a_deeper_part("d/e", "in", true)]
#[case::of_a_part_without_files("x", "in", true)]
#[case::of_the_whole("", "d/in", false)]
fn mount_points_in_a_part_leave_its_files(
    #[case] part: &str,
    #[case] below: &str,
    #[case] has_files: bool,
) {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    let items = json!([{"key": "k", "path": "d/e/k"}]);
    let volumes = json!([{"name": "m", "configMap": {"name": "m", "items": items}}, {"name": "e", "emptyDir": {}}]);
    let mounts = json!([
        {"name": "m", "mountPath": "/c", "subPath": part},
        {"name": "e", "mountPath": format!("/c/{below}")},
    ]);
    let containers = json!([{"name": "c", "volumeMounts": mounts}]);
    let pod = fixtures::pod_of("u1", "p", json!({"containers": containers, "volumes": volumes}));
    for text in ["1", "1", "2"] {
        let prepared = prepare_with(&dirs, &pod, &config_map(text));
        assert!(prepared.failed.is_empty(), "{:?}", prepared.failed);
        let volume = &prepared.volumes["m"].host_path;
        assert!(volume.join(part).join(below).is_dir());
        assert_eq!(volume.join("d").is_symlink(), has_files);
        let found = fs::read_to_string(volume.join("d/e/k")).ok();
        assert_eq!(found.as_deref(), has_files.then_some(text));
    }
}

#[test]
fn volume_that_no_container_mounts_is_not_prepared() {
    let root = tempfile::tempdir().unwrap();
    let volumes = json!([
        {"name": "missing", "configMap": {"name": "missing"}},
        {"name": "unused", "emptyDir": {}},
        {"name": "device", "emptyDir": {}},
        {"name": "mounted", "emptyDir": {}},
    ]);
    let init =
        json!([{"name": "i", "volumeDevices": [{"name": "device", "devicePath": "/dev/x"}]}]);
    let app = json!([{"name": "c", "volumeMounts": [{"name": "mounted", "mountPath": "/v"}]}]);
    let pod = fixtures::pod(
        json!({"metadata": {"name": "p"}, "spec": {"initContainers": init, "containers": app, "volumes": volumes}}),
    );
    let prepared = prepare(&dirs(root.path()), &pod);
    assert!(prepared.failed.is_empty(), "{:?}", prepared.failed);
    let names: Vec<&String> = prepared.volumes.keys().collect();
    assert_eq!(names, ["device", "mounted"]);
}

#[test]
fn volumes_are_owned_by_the_pods_fs_group() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    // A group to which every user may give its own files.
    let group = root.path().metadata().unwrap().gid();
    let pod = pod_of(json!({"securityContext": {"fsGroup": group}, "volumes": [
        {"name": "e", "emptyDir": {}}, {"name": "m", "configMap": {"name": "m", "defaultMode": 0o400}}]}));
    let prepared = prepare_with(&dirs, &pod, &config_map("1"));
    let empty = &prepared.volumes["e"].host_path;
    let map = &prepared.volumes["m"].host_path;
    assert_eq!((mode(empty), mode(map)), (0o2777, 0o2777));
    assert_eq!(mode(&map.join("k")), 0o440);
    // Later changes by containers are kept.
    fs::set_permissions(empty, fs::Permissions::from_mode(0o700)).unwrap();
    let prepared = prepare_with(&dirs, &pod, &config_map("1"));
    assert_eq!(mode(&prepared.volumes["e"].host_path), 0o700);
}

#[test]
fn directories_of_logs_are_open_to_every_user() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    prepare(&dirs, &pod(json!([])));
    dirs.make_pod_log_directory().unwrap();
    dirs.make_log_directory("app").unwrap();
    let modes = [&dirs.pod, &dirs.logs, &dirs.logs.join("app")].map(|path| mode(path));
    assert_eq!(modes, [0o750, 0o755, 0o755]);
}

#[test]
fn restart_count_is_taken_from_logs() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    assert_eq!(dirs.restart_count_by_logs("app"), 0);
    fs::create_dir_all(dirs.logs.join("app")).unwrap();
    for name in ["0.log", "4.log", "3.log.20260101-000000.gz", "x.log"] {
        fs::write(dirs.logs.join("app").join(name), "").unwrap();
    }
    assert_eq!(dirs.restart_count_by_logs("app"), 5);
}

#[test]
fn termination_message_file_is_empty_and_world_writable() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    let path = dirs.make_termination_message("app", 3).unwrap();
    assert!(path.ends_with("pods/u1/containers/app/00000003"));
    assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().len()), (0o666, 0));
    dirs.make_termination_message("app", 4).unwrap();
    assert!(path.exists());
    dirs.make_termination_message("app", 5).unwrap();
    assert!(!path.exists(), "two attempts later it is forgotten");
}

#[test]
fn volume_in_memory_needs_runtime_support() {
    let root = tempfile::tempdir().unwrap();
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let prepared = prepare(&dirs(root.path()), &pod);
    let error = &prepared.failed[0].source;
    assert!(error.is_of_manifest());
    assert!(error.to_string().ends_with("leave medium out, or use crib runtime"));
}

/// Kubernetes 1.36, pkg/volume/emptydir/empty_dir.go SetUpAt.
#[rstest]
#[case("HugePages", "volumes of huge pages are not supported")]
#[case("HugePages-2Mi", "volumes of huge pages are not supported")]
#[case("memory", "unknown storage medium \"memory\"")]
fn other_medium_is_not_the_disk(#[case] medium: &str, #[case] expected: &str) {
    let root = tempfile::tempdir().unwrap();
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": medium}}]));
    let prepared = prepare(&dirs(root.path()), &pod);
    let error = prepared.failed[0].source.to_string();
    assert!(error.starts_with(expected), "{error}");
    assert!(prepared.volumes.is_empty());
}
