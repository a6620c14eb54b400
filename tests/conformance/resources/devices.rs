//! Host devices in containers, by path and by the Container Device Interface (CDI).

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

use cri::v1::{CdiDevice, Device};
use nix::sys::stat::{major, minor};

use crate::support::*;

fn device(host_path: &str, container_path: &str) -> Device {
    Device {
        host_path: host_path.to_owned(),
        container_path: container_path.to_owned(),
        permissions: "rwm".to_owned(),
    }
}

/// Major and minor number, as `stat -c %t:%T` prints them.
fn numbers(path: &str) -> String {
    let meta = fs::metadata(path).unwrap();
    assert!(meta.file_type().is_char_device());
    let (major, minor) = (major(meta.rdev()), minor(meta.rdev()));
    format!("{major:x}:{minor:x}")
}

#[tokio::test]
async fn device_appears_under_container_path() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let script = "stat -c %t:%T /dev/deep/er/zeroes /etc/zeroes /dev/null
        head -c 3 /dev/deep/er/zeroes | wc -c; head -c 3 /dev/null | wc -c";
    let mut config = pod.script("c", script);
    config.devices = vec![
        device("/dev/zero", "/dev/deep/er/zeroes"),
        device("/dev/zero", "/etc/zeroes"),
        // A requested device may replace a standard one.
        device("/dev/zero", "/dev/null"),
    ];
    let zero = numbers("/dev/zero");
    assert_eq!(pod.output(config).await.unwrap(), format!("{zero}\n{zero}\n{zero}\n3\n3\n"));
    assert_eq!(numbers("/dev/null"), "1:3");
}

#[tokio::test]
async fn directory_of_devices_is_mapped() {
    harness::needs!(Namespaces, Tun);
    let (_runtime, pod) = with_pod().await;
    let mut config = pod.script("c", "stat -c %t:%T /dev/other/tun");
    config.devices = vec![device("/dev/net", "/dev/other")];
    let seen = pod.output(config).await.unwrap();
    assert_eq!(trimmed(&seen), numbers("/dev/net/tun"));
}

#[rstest]
#[case::missing(device("/dev/no-such-device", "/dev/x"), "/dev/no-such-device")]
#[case::not_a_device(device("/etc/passwd", "/dev/x"), "neither a device nor a directory")]
#[case::relative(device("dev/null", "/dev/x"), "not an absolute path")]
#[case::permissions(Device { permissions: "rwx".to_owned(), ..device("/dev/null", "/dev/x") }, "some of r, w and m")]
#[tokio::test]
async fn create_rejects_invalid_device(#[case] device: Device, #[case] reason: &str) {
    let (_runtime, pod) = with_pod().await;
    let mut config = fixture::forever("c");
    config.devices = vec![device];
    rejected(pod.create(config).await, Code::InvalidArgument, reason);
}

const SPEC: &str = r#"{
  "cdiVersion": "0.7.0",
  "kind": "vendor.example/widget",
  "devices": [
    {"name": "one", "containerEdits": {
      "env": ["WIDGET=one"],
      "deviceNodes": [{"path": "/dev/widget", "hostPath": "/dev/zero", "permissions": "r"}],
      "additionalGids": [4242]
    }},
    {"name": "hooked", "containerEdits": {"hooks": [{"hookName": "createRuntime", "path": "/bin/true"}]}}
  ],
  "containerEdits": {
    "env": ["WIDGETS=yes"],
    "mounts": [{"hostPath": "DIR/lib", "containerPath": "/widgets", "options": ["ro", "bind"]}]
  }
}"#;

/// A runtime with its own directory of CDI specifications.
async fn runtime_with_cdi_specs() -> (Runtime, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().display().to_string();
    fs::create_dir(place.path().join("lib")).unwrap();
    fs::write(place.path().join("lib/file"), "a widget\n").unwrap();
    let text = SPEC.replace("DIR", &directory);
    fs::write(place.path().join("widget.json"), text).unwrap();
    // An ordinary user's runtime must be able to read the directory.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.path().join("broken.yaml"), "cdiVersion: [").unwrap();
    let config = format!("cdi:\n  spec_dirs: [/nonexistent, {directory}]\n");
    let runtime = Runtime::with().config(&config).start().await.unwrap();
    (runtime, place)
}

#[rstest]
#[case::by_field(true)]
#[case::by_annotation(false)]
#[tokio::test]
async fn cdi_device_is_injected_by_name(#[case] field: bool) {
    harness::needs!(UserIds);
    let (runtime, _place) = runtime_with_cdi_specs().await;
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    let name = "vendor.example/widget=one".to_owned();
    if field {
        config.cdi_devices = vec![CdiDevice { name }];
    } else {
        let key = "cdi.k8s.io/plugin_widget".to_owned();
        config.annotations.insert(key, name);
    }
    let id = pod.start(config).await.unwrap();
    // Execs get the same edits.
    let script = "echo $WIDGET $WIDGETS; cat /widgets/file; stat -c %t:%T /dev/widget; id -G
        (echo x > /widgets/x) 2>&1 | grep -o 'Read-only file system'";
    let zero = numbers("/dev/zero");
    let seen = runtime.client.sh(&id, script).await.unwrap();
    assert_eq!(seen, format!("one yes\na widget\n{zero}\n0 4242\nRead-only file system\n"));
}

const YAML: &str = "
cdiVersion: 0.6.0
kind: vendor.example/gadget
devices:
- name: 010
  containerEdits:
    env: [GADGET=one]
    deviceNodes: [{path: /dev/gadget, hostPath: /dev/zero, fileMode: 0640, gid: 010}]
    additionalGids: [0o17]
    mounts:
containerEdits: ~
";

/// Other CDI implementations parse YAML 1.1: `0640` is octal, and so is the name `010`.
#[tokio::test]
async fn cdi_spec_in_yaml_is_read_as_version_1_1() {
    harness::needs!(HostMounts);
    let (runtime, place) = runtime_with_cdi_specs().await;
    fs::write(place.path().join("gadget.yaml"), YAML).unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "echo $GADGET; stat -c '%a %g' /dev/gadget; id -G";
    let mut config = pod.script("c", script);
    config.cdi_devices = vec![CdiDevice { name: "vendor.example/gadget=8".to_owned() }];
    assert_eq!(pod.output(config).await.unwrap(), "one\n640 8\n0 15\n");
}

#[rstest]
#[case::unknown(
    "vendor.example/widget=two",
    "no specification describes the device vendor.example/widget=two; "
)]
#[case::no_name("widget", "does not name a device")]
#[case::hooks("vendor.example/widget=hooked", "needs the hook createRuntime")]
#[tokio::test]
async fn create_rejects_unusable_cdi_device(#[case] name: &str, #[case] reason: &str) {
    let (runtime, place) = runtime_with_cdi_specs().await;
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.cdi_devices = vec![CdiDevice { name: name.to_owned() }];
    let error = rejected(pod.create(config).await, Code::InvalidArgument, reason);
    if name.ends_with("two") {
        let file = place.path().join("broken.yaml").display().to_string();
        assert!(error.message().contains(&file), "{error}");
    }
}
