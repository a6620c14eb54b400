//! The edits that device names resolve to, as tables.

use rstest::rstest;

use super::*;
use crate::cdi::spec::{Format, parse};

const GPU: &str = "
cdiVersion: 0.7.0
kind: vendor.com/gpu
devices:
- name: a
  containerEdits:
    env: [GPU=a]
    deviceNodes: [{path: /dev/gpu-a, hostPath: /dev/null}]
- name: b
  containerEdits:
    env: [GPU=b]
    deviceNodes: [{path: /dev/gpu-b, type: b, major: 7, permissions: r, fileMode: 432, uid: 5}]
    additionalGids: [0, 44]
- name: hooked
  containerEdits:
    hooks: [{hookName: createContainer, path: /usr/bin/vendor-hook}]
- name: resctrl
  containerEdits:
    intelRdt: {closID: c}
- name: fifo
  containerEdits:
    deviceNodes: [{path: /dev/fifo, type: p}]
- name: tmpfs
  containerEdits:
    mounts: [{hostPath: tmpfs, containerPath: /t, type: tmpfs}]
containerEdits:
  env: [ALL=1]
  mounts:
  - {hostPath: /lib/gpu.so, containerPath: /usr/lib/gpu.so, options: [ro, nosuid, rbind, rslave]}
";

fn registry(specs: &[(usize, &str)]) -> Registry {
    let mut registry = Registry::default();
    for (index, (strength, text)) in specs.iter().enumerate() {
        let path = PathBuf::from(format!("/etc/cdi/{index}.yaml"));
        registry.add(*strength, &path, parse(text, Format::Yaml));
    }
    registry
}

fn edits(specs: &[(usize, &str)], names: &[&str]) -> Result<Edits, Invalid> {
    let names: Vec<_> = names.iter().map(|n| Name::parse(n).unwrap()).collect();
    edits_of(&registry(specs), &names)
}

fn env(edits: &Edits) -> String {
    edits.process.env.join(" ")
}

#[test]
fn edits_for_all_devices_apply_once() {
    let edits = edits(&[(0, GPU)], &["vendor.com/gpu=a", "vendor.com/gpu=b"]).unwrap();
    assert_eq!(env(&edits), "ALL=1 GPU=a GPU=b");
    assert_eq!(edits.process.additional_gids, [44]);
    assert_eq!(edits.mounts.len(), 1);
    let mount = &edits.mounts[0];
    assert!(mount.readonly);
    assert_eq!(mount.mount_options, ["nosuid"]);
    assert_eq!(mount.propagation(), MountPropagation::PropagationHostToContainer);
    let (a, b) = (&edits.nodes[0], &edits.nodes[1]);
    assert_eq!((a.kind, a.numbers, a.access.as_str()), (None, None, "rwm"));
    assert_eq!(a.host, Path::new("/dev/null"));
    assert_eq!((b.kind, b.numbers), (Some(DeviceKind::Block), Some((7, 0))));
    assert_eq!((b.mode, b.uid, b.access.as_str()), (Some(0o660), Some(5), "r"));
    assert_eq!(b.host, Path::new("/dev/gpu-b"));
}

#[rstest]
#[case::the_stronger_directory(&[(0, GPU), (1, "{cdiVersion: 1.0.0, kind: vendor.com/gpu, devices: [{name: a, containerEdits: {env: [GPU=stronger]}}]}")], "GPU=stronger")]
#[case::another_class(&[(0, GPU), (1, "{cdiVersion: 1.0.0, kind: vendor.com/net, devices: [{name: a}]}")], "ALL=1 GPU=a")]
fn device_comes_from_directory_of_highest_priority(
    #[case] specs: &[(usize, &str)],
    #[case] expected: &str,
) {
    assert_eq!(env(&edits(specs, &["vendor.com/gpu=a"]).unwrap()), expected);
}

#[rstest]
#[case::unknown(&[(0, GPU)], "vendor.com/gpu=c", "no specification describes the device vendor.com/gpu=c")]
#[case::broken_file(&[(0, "nonsense")], "vendor.com/gpu=a", "/etc/cdi/0.yaml is broken: ")]
#[case::twice(&[(0, GPU), (0, GPU)], "vendor.com/gpu=a", "described twice, by /etc/cdi/0.yaml and /etc/cdi/1.yaml")]
#[case::hook(&[(0, GPU)], "vendor.com/gpu=hooked", "needs the hook createContainer (/usr/bin/vendor-hook)")]
#[case::intel_rdt(&[(0, GPU)], "vendor.com/gpu=resctrl", "needs intelRdt")]
#[case::fifo(&[(0, GPU)], "vendor.com/gpu=fifo", "a node of type \"p\"")]
#[case::tmpfs(&[(0, GPU)], "vendor.com/gpu=tmpfs", "a mount of type \"tmpfs\"")]
fn resolve_rejects_unknown_and_unsupported_devices(
    #[case] specs: &[(usize, &str)],
    #[case] name: &str,
    #[case] expected: &str,
) {
    let error = edits(specs, &[name]).unwrap_err();
    assert!(error.0.contains(expected), "{error}");
}
