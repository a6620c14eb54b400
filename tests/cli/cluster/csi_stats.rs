//! Volume statistics that a CSI driver measures.

use super::csi_driver::DRIVER;
use super::csi_scene::{READS, Scene, not_attached, with_claim};
use super::joined::{KUBELET_CONFIGURATION, NODE};
use super::volumes::wait_for_event;
use crate::command::*;
use crate::nodes::agent_flags::{free_port, get};

/// A node that serves its statistics on a port.
struct Shown {
    scene: Scene,
    port: u16,
    /// Contains the agent's configuration.
    _place: Place,
}

impl Shown {
    /// Creates a node with these additional fields in the agent's configuration.
    async fn new(fields: &str) -> Self {
        let port = free_port();
        let place = Place::unchecked();
        let config = format!("{KUBELET_CONFIGURATION}evictionHard: {{}}\n{fields}");
        let config = place.file("config.yaml", &config);
        let arguments = ["--config", &config, "--read-only-port", &port.to_string()];
        let scene = Scene::with(not_attached(), arguments.map(str::to_owned).to_vec()).await;
        Self { scene, port, _place: place }
    }

    async fn get(&self, path: &str) -> String {
        let (status, body) = get(self.port, path).await.unwrap();
        assert_eq!(status, "200 OK", "{path}: {body}");
        body
    }

    /// The statistics of the only pod.
    async fn pod(&self) -> Value {
        let summary = self.get("/stats/summary").await;
        let summary: Value = serde_json::from_str(&summary).unwrap();
        summary["pods"][0].clone()
    }

    /// The statistics of the pod's volumes, once they are measured.
    async fn volumes(&self) -> Value {
        harness::eventually(WAIT_LIMIT, "measured volumes", async || {
            let pod = self.pod().await;
            if pod["volume"].is_array() { Ok(pod["volume"].clone()) } else { Err(pod) }
        })
        .await
    }

    async fn end(self) {
        self.scene.delete("web").await;
        self.scene.driver.wait_for("NodeUnstageVolume", 1).await;
        self.scene.end().await;
    }
}

/// The driver's measurements of a volume in the form of `/stats/summary`.
fn measured(volume: &Value) -> Value {
    let mut measured = volume.clone();
    measured.as_object_mut().unwrap().remove("time").unwrap();
    measured
}

#[tokio::test]
async fn driver_measures_its_volume_for_summary_and_metrics() {
    let shown = Shown::new("").await;
    shown.scene.driver.measures(true);
    shown.scene.bound("data", json!({}));
    shown.scene.joined.create_pod(&with_claim("web", "data", READS));
    shown.scene.joined.wait_for_phase("web", "Running").await;
    let volumes = shown.volumes().await;
    let expected = json!({
        "name": "v", "pvcRef": {"name": "data", "namespace": "default"},
        "availableBytes": 600, "capacityBytes": 1000, "usedBytes": 400, "inodesFree": 8, "inodes": 9, "inodesUsed": 1,
    });
    assert_eq!(volumes.as_array().unwrap().iter().map(measured).collect::<Vec<_>>(), [expected]);
    let call = &shown.scene.driver.calls("NodeGetVolumeStats")[0];
    let publish = &shown.scene.driver.calls("NodePublishVolume")[0];
    assert_eq!((&call["volume"], &call["path"]), (&json!("handle-data"), &publish["target"]));
    let metrics = shown.get("/metrics").await;
    for (name, value) in
        [("capacity_bytes", 1000), ("available_bytes", 600), ("used_bytes", 400), ("inodes", 9)]
    {
        let line = format!(
            "kubelet_volume_stats_{name}{{namespace=\"default\",persistentvolumeclaim=\"data\"}} {value}"
        );
        assert!(metrics.lines().any(|have| have == line), "no {line} in {metrics}");
    }
    for method in ["NodeGetInfo", "NodePublishVolume", "NodeGetVolumeStats"] {
        let call = format!(
            "csi_operations_seconds_count{{driver_name=\"{DRIVER}\",grpc_status_code=\"OK\",\
             method_name=\"/csi.v1.Node/{method}\",migrated=\"false\"}} "
        );
        assert!(metrics.lines().any(|have| have.starts_with(&call)), "no {call} in {metrics}");
    }
    // As in a kubelet without the feature gate.
    assert!(!metrics.contains("health_status_abnormal"), "{metrics}");
    shown.end().await;
}

#[tokio::test]
async fn abnormal_volume_is_an_event_and_a_statistic_with_the_gate() {
    let shown = Shown::new("featureGates: {CSIVolumeHealth: true}\n").await;
    shown.scene.driver.measures(true);
    shown.scene.bound("data", json!({}));
    shown.scene.joined.create_pod(&with_claim("web", "data", READS));
    shown.scene.joined.wait_for_phase("web", "Running").await;
    let volumes = shown.volumes().await;
    assert_eq!(volumes[0]["volumeHealthStats"], json!({"abnormal": true}));
    wait_for_event(&shown.scene.joined, "Volume v: the disk is torn").await;
    let metrics = shown.get("/metrics").await;
    let line = "kubelet_volume_stats_health_status_abnormal{namespace=\"default\",persistentvolumeclaim=\"data\"} 1";
    assert!(metrics.lines().any(|have| have == line), "no {line} in {metrics}");
    shown.end().await;
}

#[tokio::test]
async fn volume_is_not_measured_by_a_driver_that_cannot() {
    let shown = Shown::new("").await;
    shown.scene.bound("data", json!({}));
    let manifest = with_claim("web", "data", READS)
        .replace("volumes: [", "volumes: [{name: e, emptyDir: {}}, ")
        .replace("volumeMounts: [", "volumeMounts: [{name: e, mountPath: /e}, ");
    shown.scene.joined.create_pod(&manifest);
    shown.scene.joined.wait_for_phase("web", "Running").await;
    let volumes = shown.volumes().await;
    let names: Vec<&Value> =
        volumes.as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["e"]);
    let requested = shown.scene.driver.calls("NodeGetVolumeStats");
    assert!(requested.is_empty(), "{DRIVER} of {NODE} was asked: {requested:?}");
    shown.end().await;
}
