//! Expansion of a CSI driver's volumes: the driver expands them, and the agent updates the claim.

use cluster::{Key, Kind, Part};
use tonic::Code;

use super::csi_scene::{READS, Scene, not_attached, with_claim};
use super::joined::{NODE, wait};
use super::volumes::wait_for_event;
use crate::command::*;

fn claim_kind() -> Kind {
    Kind::of("v1", "PersistentVolumeClaim")
}

fn claim(scene: &Scene) -> Value {
    scene.joined.object(claim_kind(), "default", "data")
}

fn change(scene: &Scene, kind: Kind, part: Part, change: impl Fn(&mut Value)) {
    let namespace = if kind == claim_kind() { "default" } else { "" };
    let changed =
        scene.joined.server.store().change(&Key::new(kind, namespace, "data"), part, |it| {
            change(it);
            Ok(())
        });
    changed.unwrap();
}

/// Makes the volume of a 1Gi claim 2Gi large, as a controller does.
fn grow(scene: &Scene) {
    change(scene, Kind::of("v1", "PersistentVolume"), Part::Main, |volume| {
        volume["spec"]["capacity"]["storage"] = json!("2Gi");
    });
    change(scene, claim_kind(), Part::Main, |claim| {
        claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    });
    change(scene, claim_kind(), Part::Status, |claim| {
        claim["status"] = json!({
            "phase": "Bound", "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
        });
    });
}

/// The status of the claim after the expansion of its volume.
fn expanded() -> Value {
    json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}})
}

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn volume_is_expanded_when_it_is_mounted() {
    let scene = Scene::new(not_attached()).await;
    scene.driver.expands(true);
    let secret = json!({"namespace": "default", "name": "expand"});
    scene.create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": {"key": "c2VjcmV0"}}));
    scene.bound("data", json!({"fsType": "ext4", "nodeExpandSecretRef": secret}));
    grow(&scene);
    scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    let calls = ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"];
    assert_eq!(scene.driver.changes(), calls);
    let publish = &scene.driver.calls("NodePublishVolume")[0];
    let expand = &scene.driver.calls("NodeExpandVolume")[0];
    assert_eq!((&expand["volume"], &expand["bytes"]), (&json!("handle-data"), &json!(2 * GIB)));
    assert_eq!((&expand["path"], &expand["staging"]), (&publish["target"], &publish["staging"]));
    assert_eq!(expand["capability"], publish["capability"]);
    assert_eq!(expand["secrets"], json!({"key": "secret"}));
    assert_eq!(claim(&scene)["status"], expanded());
    let text = format!("MountVolume.NodeExpandVolume succeeded for volume \"data\" {NODE}");
    wait_for_event(&scene.joined, &text).await;
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[tokio::test]
async fn volume_of_a_running_pod_is_expanded() {
    let mut scene = Scene::new(not_attached()).await;
    scene.driver.expands(true);
    scene.bound("data", json!({}));
    change(&scene, claim_kind(), Part::Status, |claim| {
        claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    });
    scene.joined.create_pod(&with_claim("web", "data", READS));
    let before = scene.joined.wait_for_phase("web", "Running").await;
    assert_eq!(scene.driver.calls("NodeExpandVolume"), [Value::Null; 0]);
    // The agent gets claims when it starts, and then once a minute.
    scene.kill_agent().await;
    grow(&scene);
    scene.start_agent();
    let is_expanded = |status: &Value| *status == expanded();
    wait("the claim's status", || claim(&scene)["status"].clone(), is_expanded).await;
    assert_eq!(scene.driver.calls("NodeExpandVolume").len(), 1);
    assert_eq!(scene.driver.calls("NodePublishVolume").len(), 1);
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&scene.joined.pod("web")), id(&before));
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[tokio::test]
async fn volume_that_cannot_be_expanded_keeps_its_pod_from_starting_until_it_is() {
    let scene = Scene::new(not_attached()).await;
    scene.driver.expands(true);
    scene.bound("data", json!({}));
    grow(&scene);
    scene.driver.refuse("NodeExpandVolume");
    scene.joined.create_pod(&with_claim("web", "data", READS));
    let error = "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = refused by the test";
    let text =
        format!("MountVolume.Setup failed while expanding volume for volume \"data\" : {error}");
    wait_for_event(&scene.joined, &text).await;
    let status = claim(&scene)["status"].clone();
    let conditions = status["conditions"].as_array().unwrap();
    let failed = conditions.iter().find(|condition| condition["type"] == "NodeResizeError");
    assert_eq!(failed.unwrap()["message"], format!("failed to expand pvc with {error}"));
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
    assert_eq!(status["capacity"]["storage"], "1Gi");
    scene.driver.refuse_nothing();
    scene.joined.wait_for_phase("web", "Running").await;
    assert_eq!(claim(&scene)["status"], expanded());
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[rstest]
#[case::in_use(Code::FailedPrecondition, "NodeResizeInProgress")]
#[case::infeasible(Code::OutOfRange, "NodeResizeInfeasible")]
#[tokio::test]
async fn volume_that_is_left_as_it_is_does_not_keep_its_pod_from_starting(
    #[case] code: Code,
    #[case] state: &str,
) {
    let scene = Scene::new(not_attached()).await;
    scene.driver.expands(true);
    scene.bound("data", json!({}));
    grow(&scene);
    scene.driver.refuse_with("NodeExpandVolume", code);
    scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    let status = claim(&scene)["status"].clone();
    assert_eq!(status["allocatedResourceStatuses"]["storage"], state);
    assert_eq!(scene.driver.calls("NodeExpandVolume").len(), 1);
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.end().await;
}

#[tokio::test]
async fn claim_of_an_older_controller_gets_the_size_from_a_driver_that_expands_nothing_on_nodes() {
    let scene = Scene::new(not_attached()).await;
    scene.bound("data", json!({}));
    change(&scene, claim_kind(), Part::Status, |claim| {
        claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "500Mi"}});
    });
    scene.joined.create_pod(&with_claim("web", "data", READS));
    scene.joined.wait_for_phase("web", "Running").await;
    assert_eq!(scene.driver.calls("NodeExpandVolume"), [Value::Null; 0]);
    // The agent does not change the capacity, because it has expanded nothing.
    assert_eq!(claim(&scene)["status"]["capacity"]["storage"], "500Mi");
    scene.driver.expands(true);
    scene.delete("web").await;
    scene.driver.wait_for("NodeUnstageVolume", 1).await;
    scene.joined.create_pod(&with_claim("again", "data", READS));
    scene.joined.wait_for_phase("again", "Running").await;
    assert_eq!(scene.driver.calls("NodeExpandVolume")[0]["bytes"], json!(GIB));
    assert_eq!(claim(&scene)["status"]["capacity"]["storage"], "1Gi");
    scene.delete("again").await;
    scene.driver.wait_for("NodeUnstageVolume", 2).await;
    scene.end().await;
}
