//! Checkpoints that Kubernetes' own code has written, and invalid ones.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use super::super::inventory::Usage;
use super::*;

const OF_KUBELET: &str = include_str!("../../../tests/vectors/kubelet_internal_checkpoint.json");
const EMPTY: &str = include_str!("../../../tests/vectors/kubelet_internal_checkpoint.empty.json");

fn written(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    std::fs::write(&file, text).unwrap();
    (directory, file)
}

#[test]
fn checkpoint_of_a_kubelet_is_read() {
    let (_directory, file) = written(OF_KUBELET);
    let Checkpoint { pods, registered } = read(&file).unwrap().unwrap();
    assert_eq!(registered, ["nvidia.com/gpu", "vendor.com/nic"]);
    let gpu = &pods["u1"]["app"]["nvidia.com/gpu"];
    assert_eq!(gpu.ids[&1], ["gpu0", "gpu1"]);
    assert_eq!(gpu.ids().len(), 3);
    assert_eq!(gpu.usage.envs["NVIDIA_VISIBLE_DEVICES"], "gpu0");
    assert_eq!(gpu.usage.cdi_devices, ["nvidia.com/gpu=gpu0"]);
    assert!(gpu.usage.mounts[0].readonly && gpu.usage.devices[0].permissions == "rw");
    assert_eq!(gpu.usage.annotations["k"], "v");
    let nic = &pods["u2"]["app"]["vendor.com/nic"];
    assert_eq!(
        (nic.ids[&-1].as_slice(), &nic.usage),
        (&["nic0".to_owned()][..], &Usage::default())
    );
}

#[test]
fn checkpoint_is_written_as_by_a_kubelet() {
    let (directory, file) = written(OF_KUBELET);
    let checkpoint = read(&file).unwrap().unwrap();
    // The kubelet writes the devices of a resource in any order.
    let registered = |name: &str, ids: &[&str]| {
        (name.to_owned(), ids.iter().map(|id| (*id).to_owned()).collect::<Ids>())
    };
    let registered =
        [registered("nvidia.com/gpu", &["gpu0", "gpu1"]), registered("vendor.com/nic", &[])];
    write(&file, &checkpoint.pods, &registered.into()).unwrap();
    let own: File = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let other: File = serde_json::from_str(OF_KUBELET).unwrap();
    let entries = |file: &File| serde_json::to_value(&file.data.pod_device_entries).unwrap();
    assert_eq!(entries(&own), entries(&other));
    assert_eq!(own.checksum, checksum(&own.data.text()));
    write(&file, &Map::new(), &Map::new()).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), EMPTY);
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing beside it");
}

#[rstest]
#[case::changed(&OF_KUBELET.replace("nic0", "nic1"), "checkpoint is corrupted")]
#[case::half(&OF_KUBELET[..100], "malformed JSON")]
fn corrupt_checkpoint_is_rejected(#[case] text: &str, #[case] expected: &str) {
    let (_directory, file) = written(text);
    let error = read(&file).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn missing_checkpoint_is_none() {
    let (directory, _) = written("");
    assert!(read(&directory.path().join("other")).unwrap().is_none());
}
