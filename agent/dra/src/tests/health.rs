//! The health of devices that a driver reports, in the statuses of containers.

use cri::drahealth::{DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesResponse};
use k8s_openapi::api::core::v1::ResourceStatus;

use super::*;
use crate::grpc::Plugin;
use crate::monitor::follow;
use crate::services::Service;

/// The only device of the test's claims.
fn gpu(health: HealthStatus, seconds: i64, message: &str) -> DeviceHealth {
    let device = DeviceIdentifier { pool_name: "node".to_owned(), device_name: "gpu-0".to_owned() };
    DeviceHealth {
        device: Some(device),
        health: health.into(),
        last_updated_time: 0,
        health_check_timeout_seconds: seconds,
        message: message.to_owned(),
    }
}

impl TestNode {
    /// Waits until the agent has opened the health stream this many times.
    async fn until_watched(&self, times: u32) {
        while self.script.watched() < times {
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn report(&self, devices: Vec<DeviceHealth>) {
        self.script.set(|state| {
            let report = Ok(NodeWatchResourcesResponse { devices });
            state.health.as_ref().unwrap().send(report).unwrap();
        });
    }

    /// The health of a container with these `resources.claims`, with names and devices.
    fn health(&self, pod: &Pod, claims: Value) -> Value {
        let container = json!({"name": "c", "resources": {"claims": claims}});
        let health: Vec<ResourceStatus> =
            self.claims.health(pod, &serde_json::from_value(container).unwrap());
        serde_json::to_value(health).unwrap()
    }

    /// Waits until the health is the expected one.
    async fn until_health(&self, pod: &Pod, claims: Value, expected: Value) {
        let mut changes = self.claims.health_changes().unwrap();
        let wait = async {
            while self.health(pod, claims.clone()) != expected {
                changes.changed().await.unwrap();
            }
        };
        let waited = timeout(Duration::from_secs(30), wait).await;
        assert!(waited.is_ok(), "{} is not {expected}", self.health(pod, claims));
    }
}

fn whole() -> Value {
    json!([{"name": "a"}])
}

/// The status of the whole claim.
fn of_whole(health: &str) -> Value {
    let id = "gpu.example.com/gpu=1";
    json!([{"name": "claim:a", "resources": [{"resourceID": id, "health": health}]}])
}

#[tokio::test]
async fn health_equals_the_drivers_report() {
    let mut scene = TestNode::new().await;
    let p = pod("p", &["r", "s"]);
    assert_eq!(scene.health(&p, whole()), json!([]), "nothing is prepared");
    scene.prepare(&p).await.unwrap();
    assert_eq!(scene.health(&p, whole()), of_whole("Unknown"));
    scene.until_watched(1).await;
    scene.report(vec![gpu(HealthStatus::Healthy, 0, "")]);
    scene.until_health(&p, whole(), of_whole("Healthy")).await;
    scene.report(vec![gpu(HealthStatus::Unhealthy, 0, "too hot")]);
    let hot = |id: &str| json!([{"resourceID": id, "health": "Unhealthy", "message": "too hot"}]);
    let claims = json!([{"name": "b", "request": "x/first"}, {"name": "a", "request": "y"}]);
    let expected = json!([
        {"name": "claim:b/x/first", "resources": hot("gpu.example.com/gpu=2")},
        {"name": "claim:a/y", "resources": hot("gpu.example.com/gpu=1")},
    ]);
    scene.until_health(&p, claims.clone(), expected.clone()).await;
    // A restarted agent knows it before the driver reports.
    scene.script.set(|state| state.has_no_health = true);
    scene.restart().await;
    assert_eq!(scene.health(&p, claims), expected);
    assert_eq!(scene.health(&p, json!([])), json!([]));
    scene.unprepare("p").await.unwrap();
    assert_eq!(scene.health(&p, whole()), json!([]));
}

#[tokio::test]
async fn device_without_a_cdi_name_is_named_by_driver_pool_and_device() {
    let scene = TestNode::new().await;
    scene.script.set(|state| state.nameless = true);
    let p = pod("p", &["r"]);
    scene.prepare(&p).await.unwrap();
    let id = format!("{DRIVER}/node/gpu-0");
    let resources = json!([{"resourceID": id, "health": "Unknown"}]);
    let expected = json!([{"name": "claim:a", "resources": resources}]);
    assert_eq!(scene.health(&p, whole()), expected);
}

#[tokio::test]
async fn health_is_unknown_when_no_report_comes_in_time() {
    let scene = TestNode::new().await;
    let p = pod("p", &["r"]);
    scene.prepare(&p).await.unwrap();
    let health = Arc::clone(&scene.claims.health);
    let expiring = tasks::spawn(async move { health.expire().await });
    scene.until_watched(1).await;
    scene.report(vec![gpu(HealthStatus::Healthy, 1, "")]);
    scene.until_health(&p, whole(), of_whole("Healthy")).await;
    scene.until_health(&p, whole(), of_whole("Unknown")).await;
    expiring.abort();
}

#[tokio::test]
async fn health_is_unknown_while_its_driver_is_unreachable() {
    let scene = TestNode::new().await;
    let p = pod("p", &["r"]);
    scene.prepare(&p).await.unwrap();
    scene.until_watched(1).await;
    scene.report(vec![gpu(HealthStatus::Healthy, 0, "")]);
    scene.until_health(&p, whole(), of_whole("Healthy")).await;
    // The driver ends the stream, and the agent opens another one.
    scene.script.set(|state| state.health = None);
    scene.until_health(&p, whole(), of_whole("Unknown")).await;
    scene.until_watched(2).await;
    scene.report(vec![gpu(HealthStatus::Healthy, 0, "")]);
    scene.until_health(&p, whole(), of_whole("Healthy")).await;
}

#[tokio::test]
async fn health_is_removed_when_driver_deregisters() {
    let mut scene = TestNode::without_driver();
    let driver = scene.script.serve(scene.root.path(), "v1");
    let info = driver.info(&["v1.DRAPlugin"]);
    let handler = scene.claims.plugin_handler();
    handler.register(&info).await.unwrap();
    scene.driver = Some(driver);
    let p = pod("p", &["r"]);
    scene.prepare(&p).await.unwrap();
    scene.until_watched(1).await;
    scene.report(vec![gpu(HealthStatus::Healthy, 0, "")]);
    scene.until_health(&p, whole(), of_whole("Healthy")).await;
    handler.deregister(&info).await;
    assert_eq!(scene.health(&p, whole()), of_whole("Unknown"));
}

#[tokio::test]
async fn driver_without_health_service_is_called_once() {
    let mut scene = TestNode::without_driver();
    scene.script.set(|state| state.has_no_health = true);
    scene.start_driver("v1").await;
    let info = scene.driver.as_ref().unwrap().info(&[]);
    let plugin = Plugin::new(info.endpoint, Service::V1);
    let health = Arc::downgrade(&scene.claims.health);
    let followed = timeout(Duration::from_secs(30), follow(health, DRIVER.to_owned(), plugin));
    followed.await.unwrap();
    assert_eq!(scene.script.watched(), 0);
}

#[tokio::test]
async fn calls_health_and_probes_share_one_connection() {
    let scene = TestNode::new().await;
    let p = pod("p", &["r"]);
    scene.until_watched(1).await;
    scene.prepare(&p).await.unwrap();
    assert!(slices::probe(&scene.claims.operations.registry).await);
    scene.unprepare("p").await.unwrap();
    assert_eq!(scene.script.calls(), ["prepare 1", "unprepare 1"]);
    assert_eq!(scene.script.accepted(), 1);
}

#[tokio::test]
async fn operations_and_calls_are_measured() {
    let scene = TestNode::new().await;
    let p = pod("p", &["r", "s"]);
    scene.script.set(|state| state.fails = Some("no disk".to_owned()));
    scene.prepare(&p).await.unwrap_err();
    scene.script.set(|state| state.fails = None);
    scene.prepare(&p).await.unwrap();
    let measures = scene.claims.measures();
    let operations: Vec<(&str, bool, u64)> = measures
        .operations
        .iter()
        .map(|(key, durations)| (key.name, key.failed, durations.count()))
        .collect();
    assert_eq!(operations, [("PrepareResources", false, 1), ("PrepareResources", true, 1)]);
    let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    let calls: Vec<(&str, &str, &str)> =
        measures.calls.keys().map(|key| (key.driver.as_str(), key.path, key.code)).collect();
    assert_eq!(calls, [(DRIVER, path, "Internal"), (DRIVER, path, "OK")]);
    let in_use = |scene: &TestNode| -> Vec<(String, u64)> {
        scene.claims.measures().in_use.into_iter().collect()
    };
    assert_eq!(in_use(&scene), [("<any>".to_owned(), 2), (DRIVER.to_owned(), 2)]);
    scene.unprepare("p").await.unwrap();
    assert_eq!(in_use(&scene), [("<any>".to_owned(), 0)]);
    let undone = scene.claims.measures();
    assert!(undone.operations.keys().any(|key| key.name == "UnprepareResources"));
}
