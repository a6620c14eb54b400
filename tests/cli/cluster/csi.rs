//! Volumes of a CSI driver: the order of its calls, the objects in the cluster, and that no mounted volume is lost or removed.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use api::manifest::{Strictness, parse, to_json};
use jiff::Timestamp;

use super::csi_driver::DRIVER;
use super::csi_scene::{READS, Scene, not_attached, with_claim};
use super::joined::{NODE, pod, wait};
use super::volumes::wait_for_event;
use crate::command::*;

#[tokio::test]
async fn claimed_volume_is_staged_published_and_undone_in_order() {
    let scene = Scene::new(not_attached()).await;
    let is_installed =
        |node: &Value| node["spec"]["drivers"].as_array().is_some_and(|all| !all.is_empty());
    let csi_node = wait("CSINode", || scene.storage("CSINode", NODE), is_installed).await;
    let expected = json!({"name": DRIVER, "nodeID": "the-node", "topologyKeys": ["topology.example/node"], "allocatable": {"count": 9}});
    assert_eq!(csi_node["spec"]["drivers"], json!([expected]));
    let node = scene.joined.node();
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    assert_eq!(node["metadata"]["labels"]["topology.example/node"], "one");
    let annotations = &node["metadata"]["annotations"];
    let ids = json!({DRIVER: "the-node"}).to_string();
    assert_eq!(annotations["csi.volume.kubernetes.io/nodeid"], ids);

    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "data": {"key": "c2VjcmV0"}});
    scene.create(secret("stage"));
    scene.create(secret("publish"));
    let reference = |name: &str| json!({"namespace": "default", "name": name});
    scene.bound(
        "data",
        json!({
            "fsType": "ext4", "volumeAttributes": {"color": "blue"},
            "nodeStageSecretRef": reference("stage"), "nodePublishSecretRef": reference("publish"),
        }),
    );
    let uid = scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    let stage = &scene.driver.calls("NodeStageVolume")[0];
    let capability = json!({"mode": "SINGLE_NODE_MULTI_WRITER", "fs_type": "ext4", "flags": ["noatime"], "group": ""});
    let secrets = json!({"key": "secret"});
    assert_eq!((&stage["volume"], &stage["capability"]), (&json!("handle-data"), &capability));
    assert_eq!((&stage["secrets"], &stage["context"]), (&secrets, &json!({"color": "blue"})));
    let publish = &scene.driver.calls("NodePublishVolume")[0];
    let target = scene.root.join("pods").join(&uid).join("volumes/kubernetes.io~csi/data/mount");
    assert_eq!(publish["target"], target.to_str().unwrap());
    assert_eq!((&publish["staging"], &publish["has_parent"]), (&stage["staging"], &json!(true)));
    assert_eq!((&publish["secrets"], &publish["readonly"]), (&secrets, &json!(false)));
    let context = json!({
        "color": "blue",
        "csi.storage.k8s.io/ephemeral": "false",
        "csi.storage.k8s.io/pod.name": "web",
        "csi.storage.k8s.io/pod.namespace": "default",
        "csi.storage.k8s.io/pod.uid": uid,
        "csi.storage.k8s.io/serviceAccount.name": publish["context"]["csi.storage.k8s.io/serviceAccount.name"],
    });
    assert_eq!(publish["context"], context);
    let record = std::fs::read_to_string(target.parent().unwrap().join("vol_data.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let named = ["driverName", "volumeHandle", "specVolID", "volumeLifecycleMode", "nodeName"]
        .map(|key| &record[key]);
    assert_eq!(named, [DRIVER, "handle-data", "data", "Persistent", NODE]);
    assert_eq!(scene.volumes_in_use(), Value::Null, "it is not attached");

    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    let calls =
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(scene.driver.changes(), calls);
    harness::eventually(WAIT_LIMIT, "its directories are gone", async || {
        match scene.root.join("plugins/kubernetes.io/csi").join(DRIVER).read_dir().unwrap().next() {
            None => Ok(()),
            Some(left) => Err(format!("{left:?}")),
        }
    })
    .await;
    scene.assert_clean();
    scene.end().await;
}

#[tokio::test]
async fn limit_is_published_again_periodically_if_the_driver_requests_it() {
    let spec = json!({"attachRequired": false, "nodeAllocatableUpdatePeriodSeconds": 1});
    let scene = Scene::new(spec).await;
    let limit = || scene.storage("CSINode", NODE)["spec"]["drivers"][0]["allocatable"].clone();
    wait("the first limit", limit, |seen| *seen == json!({"count": 9})).await;
    scene.driver.limit(4);
    wait("the new limit", limit, |seen| *seen == json!({"count": 4})).await;
    scene.end().await;
}

#[tokio::test]
async fn inline_volume_is_published_alone_for_its_pod() {
    let modes = json!({"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true});
    let scene = Scene::new(modes).await;
    let manifest = with_claim("web", "data", "test -e /v/name && exec sleep 3600");
    let mut object = to_json(parse("pod.yaml", &manifest, Strictness::Strict).pods[0].api());
    let source = json!({"driver": DRIVER, "volumeAttributes": {"size": "1"}});
    object["spec"]["volumes"] = json!([{"name": "v", "csi": source}]);
    let uid = scene.joined.create_object(NODE, object);
    scene.joined.wait_for_phase("web", "Running").await;
    let publish = &scene.driver.calls("NodePublishVolume")[0];
    let of_pod = (&publish["context"]["csi.storage.k8s.io/ephemeral"], &publish["context"]["size"]);
    assert_eq!(of_pod, (&json!("true"), &json!("1")));
    assert_eq!(publish["staging"], "");
    let target = scene.root.join("pods").join(uid).join("volumes/kubernetes.io~csi/v/mount");
    assert_eq!(publish["target"], target.to_str().unwrap());
    scene.delete("web").await;
    assert_eq!(scene.driver.changes(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    scene.assert_clean();
    scene.end().await;
}

#[tokio::test]
async fn volume_is_mounted_once_it_is_attached_and_in_use_until_it_is_unstaged() {
    let scene = Scene::new(json!({})).await;
    scene.bound("data", json!({}));
    scene.joined.create_pod(&with_claim("web", "data", READS));
    let in_use = json!([format!("kubernetes.io/csi/{DRIVER}^handle-data")]);
    wait("volumesInUse", || scene.volumes_in_use(), |seen| *seen == in_use).await;
    assert_eq!(scene.driver.changes(), [""; 0]);
    let name = attachment();
    scene.create(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": "data"}},
        "status": {"attached": true, "attachmentMetadata": {"device": "/dev/sdx"}},
    }));
    scene.joined.wait_for_phase("web", "Running").await;
    for call in ["NodeStageVolume", "NodePublishVolume"] {
        assert_eq!(scene.driver.calls(call)[0]["publish_context"], json!({"device": "/dev/sdx"}));
    }
    scene.delete("web").await;
    wait("volumesInUse", || scene.volumes_in_use(), Value::is_null).await;
    scene.assert_clean();
    scene.end().await;
}

/// The name of the VolumeAttachment of `handle-data` to the node: `csi-` and the digest of `handle-data`, the driver's name and the
/// node's.
fn attachment() -> String {
    "csi-84fa9e117fef4c0ba5cc3b4f09c90406f3cdd91b4b1ee8948927c20e137d87a2".to_owned()
}

#[tokio::test]
async fn volume_of_two_pods_is_unstaged_after_the_last() {
    let scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    for name in ["one", "two"] {
        scene.joined.create_pod(&with_claim(name, "data", READS));
    }
    for name in ["one", "two"] {
        scene.joined.wait_for_phase(name, "Running").await;
    }
    scene.delete("one").await;
    assert_eq!(scene.driver.calls("NodeStageVolume").len(), 1);
    assert_eq!(scene.driver.calls("NodePublishVolume").len(), 2);
    assert_eq!(scene.driver.calls("NodeUnstageVolume").len(), 0);
    assert_eq!(scene.driver.mounted().len(), 2);
    assert!(!scene.mounts_of_processes().is_empty());
    // The mount namespaces of this pod are created while the volume is mounted.
    scene.joined.create_pod(&pod("other", "sleep 3600"));
    scene.joined.wait_for_phase("other", "Running").await;
    scene.delete("two").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    harness::eventually(WAIT_LIMIT, "no process keeps the volume", async || {
        let mounts = scene.mounts_of_processes();
        if mounts.is_empty() { Ok(()) } else { Err(mounts) }
    })
    .await;
    scene.end().await;
}

#[rstest]
#[case::staged("NodeStageVolume")]
#[case::published("NodePublishVolume")]
#[tokio::test]
async fn agent_killed_after_a_mount_is_followed_by_one_that_unmounts(#[case] call: &'static str) {
    let mut scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    scene.driver.leave_unanswered(call, true);
    scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.driver.wait_for(call, 1).await;
    scene.kill_agent().await;
    assert!(!scene.driver.mounted().is_empty());
    scene.driver.leave_unanswered(call, false);
    scene.joined.delete_pod("web", Some(1));
    scene.start_agent();
    scene.joined.wait_until_gone("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    harness::eventually(WAIT_LIMIT, "nothing is mounted", async || {
        let mounted = scene.driver.mounted();
        if mounted.is_empty() { Ok(()) } else { Err(mounted) }
    })
    .await;
    scene.end().await;
}

#[tokio::test]
async fn pod_of_a_killed_agent_keeps_its_volume() {
    let mut scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    let uid = scene.joined.create_pod(&with_claim("web", "data", READS));
    let before = scene.joined.wait_for_phase("web", "Running").await;
    scene.kill_agent().await;
    scene.start_agent();
    scene.driver.wait_for("NotifyRegistrationStatus", 2).await;
    scene.joined.wait_for_ready_node().await;
    let after = scene.joined.pod("web");
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&after), id(&before));
    assert_eq!(scene.driver.calls("NodeUnpublishVolume").len(), 0);
    assert_eq!(scene.driver.mounted().len(), 2);
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    assert!(!scene.root.join("pods").join(uid).join("volumes").exists());
    scene.end().await;
}

#[tokio::test]
async fn volume_that_is_not_unpublished_stays_with_its_pod() {
    let scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    let target = scene.driver.calls("NodePublishVolume")[0]["target"].as_str().unwrap().to_owned();
    let file = scene.driver.file(Path::new(&target));
    scene.driver.refuse("NodeUnpublishVolume");
    scene.joined.delete_pod("web", Some(1));
    scene.driver.wait_for("NodeUnpublishVolume", 4).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "handle-data");
    assert!(!scene.joined.pod("web").is_null());
    let trash = scene.root.join("trash").read_dir().into_iter().flatten().flatten();
    let trash: Vec<_> = trash.map(|entry| entry.path()).collect();
    assert!(trash.is_empty(), "{trash:?}");
    scene.driver.refuse_nothing();
    scene.joined.wait_until_gone("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[tokio::test]
async fn orphan_of_a_killed_agent_is_unpublished_before_it_is_removed() {
    let mut scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    let uid = scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    scene.kill_agent().await;
    scene.joined.delete_pod("web", Some(0));
    scene.driver.refuse("NodeUnpublishVolume");
    scene.start_agent();
    scene.driver.wait_for("NodeUnpublishVolume", 3).await;
    let target = scene.driver.calls("NodePublishVolume")[0]["target"].as_str().unwrap().to_owned();
    let file = scene.driver.file(Path::new(&target));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "handle-data");
    scene.driver.refuse_nothing();
    let directory = scene.root.join("pods").join(uid);
    harness::eventually(WAIT_LIMIT, "the pod's directory is gone", async || {
        if directory.exists() { Err(scene.driver.changes()) } else { Ok(()) }
    })
    .await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[tokio::test]
async fn pod_waits_for_a_driver_that_is_away() {
    let mut scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    scene.driver.go().await;
    let drivers = || scene.storage("CSINode", NODE)["spec"]["drivers"].clone();
    wait("no driver", drivers, |drivers| *drivers == json!([])).await;
    scene.joined.create_pod(&with_claim("web", "data", READS));
    let missing = format!("driver name {DRIVER} not found in the list of registered CSI drivers");
    wait_for_event(&scene.joined, &missing).await;
    scene.driver.stages(false);
    scene.driver.come();
    scene.joined.wait_for_phase("web", "Running").await;
    scene.delete("web").await;
    assert_eq!(scene.driver.changes(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    scene.end().await;
}

#[tokio::test]
async fn driver_with_requires_republish_gets_new_tokens() {
    let tokens = json!([{"audience": "vault", "expirationSeconds": 600}]);
    let spec = json!({"attachRequired": false, "requiresRepublish": true, "tokenRequests": tokens});
    let mut scene = Scene::new(spec).await;
    scene.bound("data", json!({}));
    scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    // The agent checks a running pod when it starts, and then once a minute.
    scene.kill_agent().await;
    let before = scene.driver.calls("NodePublishVolume").len();
    scene.start_agent();
    scene.driver.wait_for("NodePublishVolume", before + 1).await;
    for call in scene.driver.calls("NodePublishVolume") {
        let tokens = call["context"]["csi.storage.k8s.io/serviceAccount.tokens"].as_str().unwrap();
        let tokens: Value = serde_json::from_str(tokens).unwrap();
        assert_eq!(tokens["vault"]["token"], "default \"web\" [\"vault\"]");
        let expires: Timestamp =
            tokens["vault"]["expirationTimestamp"].as_str().unwrap().parse().unwrap();
        assert!(expires > Timestamp::now());
    }
    assert_eq!(scene.driver.calls("NodeStageVolume").len(), 1);
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[tokio::test]
async fn volume_is_given_to_the_group_of_its_pod() {
    let scene = Scene::new(json!({"attachRequired": false, "fsGroupPolicy": "File"})).await;
    scene.bound("data", json!({}));
    // An ordinary user can give files only to its own group, which is 0 in its user namespace.
    let (group, expected) = match nix::unistd::geteuid().is_root() {
        true => (7654, 7654),
        false => (0, nix::unistd::getegid().as_raw()),
    };
    let manifest = with_claim("web", "data", READS)
        .replace("spec:\n", &format!("spec:\n  securityContext: {{fsGroup: {group}}}\n"));
    scene.joined.create_pod(&manifest);
    scene.joined.wait_for_phase("web", "Running").await;
    let target = scene.driver.calls("NodePublishVolume")[0]["target"].as_str().unwrap().to_owned();
    let found = std::fs::metadata(scene.driver.file(Path::new(&target))).unwrap();
    assert_eq!(found.gid(), expected);
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}
