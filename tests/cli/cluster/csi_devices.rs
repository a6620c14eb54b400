//! Volumes of a CSI driver that pods use as block devices.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use api::manifest::{Strictness, parse, to_json};

use super::csi_scene::{Scene, not_attached};
use super::joined::{NODE, pod};
use super::volumes::wait_for_event;
use crate::command::*;

/// Creates a pod that runs this script; `field` of its container refers to the claim's volume. Returns its uid.
fn create(scene: &Scene, script: &str, field: &str, value: Value) -> String {
    let parsed = parse("pod.yaml", &pod("web", script), Strictness::Strict);
    let mut object = to_json(parsed.pods[0].api());
    object["spec"]["volumes"] =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    object["spec"]["containers"][0][field] = json!([value]);
    scene.joined.create_object(NODE, object)
}

/// Like [`create`], with the claim's device at `/dev/xvda`.
fn create_with_device(scene: &Scene) -> String {
    let device = json!({"name": "v", "devicePath": "/dev/xvda"});
    create(scene, READS, "volumeDevices", device)
}

/// Reads from the device, and keeps running.
const READS: &str = "test $(head -c 7 /dev/xvda | wc -c) = 7 && exec sleep 3600";

/// The directory of block devices.
fn devices(scene: &Scene) -> PathBuf {
    scene.root.join("plugins/kubernetes.io/csi/volumeDevices")
}

/// Waits until nothing of the device is left.
async fn wait_until_clean(scene: &Scene) {
    harness::eventually(WAIT_LIMIT, "no directories of the device", async || {
        let places = ["data", "publish/data", "staging/data"].map(|name| devices(scene).join(name));
        let left: Vec<_> = places.iter().filter(|path| path.exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert_eq!(scene.driver.mounted(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn block_device_is_added_to_container_and_removed() {
    harness::needs!(Root);
    let scene = Scene::new(not_attached()).await;
    scene.driver.measures(true);
    scene.bound_in_mode("Block", "data", json!({"fsType": "ext4", "volumeAttributes": {"a": "1"}}));
    let uid = create_with_device(&scene);
    scene.joined.wait_for_phase("web", "Running").await;
    let stage = &scene.driver.calls("NodeStageVolume")[0];
    let capability = json!({"mode": "SINGLE_NODE_MULTI_WRITER", "block": true});
    let staging = devices(&scene).join("staging/data");
    assert_eq!(stage["capability"], capability);
    assert_eq!((&stage["staging"], &stage["has_staging"]), (&json!(staging), &json!(true)));
    let publish = &scene.driver.calls("NodePublishVolume")[0];
    let target = devices(&scene).join("publish/data").join(&uid);
    assert_eq!((&publish["target"], &publish["has_parent"]), (&json!(target), &json!(true)));
    assert_eq!((&publish["capability"], &publish["staging"]), (&capability, &json!(staging)));
    assert_eq!(publish["context"]["csi.storage.k8s.io/pod.uid"], uid);
    assert!(std::fs::metadata(&target).unwrap().file_type().is_char_device());
    let link = scene.root.join("pods").join(&uid).join("volumeDevices/kubernetes.io~csi/data");
    assert_eq!(std::fs::read_link(link).unwrap(), target);
    let record = std::fs::read_to_string(devices(&scene).join("data/data/vol_data.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let named = ["volumeHandle", "specVolID", "nodeName"].map(|key| &record[key]);
    assert_eq!(named, ["handle-data", "data", NODE]);
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    assert_eq!(scene.driver.calls("NodeUnpublishVolume")[0]["target"], json!(target));
    assert_eq!(scene.driver.calls("NodeUnstageVolume")[0]["staging"], json!(staging));
    wait_until_clean(&scene).await;
    scene.end().await;
}

#[tokio::test]
async fn device_of_a_driver_that_stages_nothing_leaves_nothing() {
    harness::needs!(Root);
    let scene = Scene::new(not_attached()).await;
    scene.driver.stages(false);
    scene.bound_in_mode("Block", "data", json!({}));
    create_with_device(&scene);
    scene.joined.wait_for_phase("web", "Running").await;
    assert_eq!(scene.driver.calls("NodePublishVolume")[0]["staging"], "");
    scene.delete("web").await;
    assert_eq!(scene.driver.changes(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    wait_until_clean(&scene).await;
    scene.end().await;
}

#[rstest]
#[case::staged("NodeStageVolume")]
#[case::published("NodePublishVolume")]
#[tokio::test]
async fn device_of_a_killed_agent_is_taken_back_by_the_next(#[case] call: &'static str) {
    harness::needs!(Root);
    let mut scene = Scene::new(not_attached()).await;
    scene.bound_in_mode("Block", "data", json!({}));
    scene.driver.leave_unanswered(call, true);
    create_with_device(&scene);
    scene.driver.wait_for(call, 1).await;
    scene.kill_agent().await;
    scene.driver.leave_unanswered(call, false);
    scene.joined.delete_pod("web", Some(1));
    scene.start_agent();
    scene.joined.wait_until_gone("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    wait_until_clean(&scene).await;
    scene.end().await;
}

#[tokio::test]
async fn refused_device_is_an_event() {
    harness::needs!(Root);
    let scene = Scene::new(not_attached()).await;
    scene.bound_in_mode("Block", "data", json!({}));
    scene.driver.refuse("NodePublishVolume");
    create_with_device(&scene);
    let text = "MapVolume.MapPodDevice failed for volume \"data\" : rpc error: code = Internal desc = refused by the test";
    wait_for_event(&scene.joined, text).await;
    scene.driver.refuse_nothing();
    scene.joined.wait_for_phase("web", "Running").await;
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    wait_until_clean(&scene).await;
    scene.end().await;
}

#[rstest]
#[case::mounted("Block", "volumeMounts", "mountPath")]
#[case::given("Filesystem", "volumeDevices", "devicePath")]
#[tokio::test]
async fn volume_of_the_other_mode_is_refused(
    #[case] mode: &str,
    #[case] list: &str,
    #[case] path: &str,
) {
    let scene = Scene::new(not_attached()).await;
    scene.bound_in_mode(mode, "data", json!({}));
    create(&scene, "sleep 3600", list, json!({"name": "v", path: "/v"}));
    let text = format!("volume v has volumeMode {mode}, but is specified in {list}");
    wait_for_event(&scene.joined, &text).await;
    assert_eq!(scene.driver.changes(), [""; 0]);
    scene.delete("web").await;
    scene.end().await;
}
