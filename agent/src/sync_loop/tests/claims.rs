//! ResourceClaims: when they are prepared, which devices containers get, and when they are unprepared.

use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, ResourceHealth, ResourceStatus};
use tokio::sync::watch;

use super::*;
use crate::Event;
use crate::managers::claims::PreparedClaim;
use crate::pod_spec::spec::Assigned;

/// A claim manager with results set by a test.
#[derive(Clone)]
struct FakeClaims {
    clock: Arc<dyn Clock>,
    epoch: Timestamp,
    script: Arc<Mutex<Script>>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Script {
    calls: Vec<(u64, String)>,
    /// The error of preparations.
    refuses: Option<String>,
    /// The error of unpreparations.
    holds: Option<String>,
    /// The health of devices.
    health: Vec<ResourceStatus>,
    /// Preparation takes this many seconds.
    delay: u64,
}

impl FakeClaims {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    fn note(&self, call: String) {
        let now = until(self.epoch, self.clock.now()).as_secs();
        self.script().calls.push((now, call));
    }

    /// The seconds of the calls with this text.
    fn seconds(&self, call: &str) -> Vec<u64> {
        let script = self.script();
        script.calls.iter().filter(|(_, text)| text == call).map(|(at, _)| *at).collect()
    }
}

#[async_trait]
impl ClaimManager for FakeClaims {
    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        self.note(format!("prepare {}", pod.uid()));
        let delay = self.script().delay;
        tokio::time::sleep(seconds(delay)).await;
        self.script().refuses.clone().map_or(Ok(()), Err)
    }

    fn cdi_devices(&self, _: &Pod, container: &Container) -> Result<Vec<String>, String> {
        self.note(format!("devices {}", container.name));
        Ok(vec![format!("d.example/claim={}", container.name)])
    }

    async fn unprepare(&self, pod: &PodUid) -> Result<(), String> {
        self.note(format!("unprepare {pod}"));
        self.script().holds.clone().map_or(Ok(()), Err)
    }

    fn claims(&self, _: &Pod, _: &Container) -> Vec<PreparedClaim> {
        Vec::new()
    }

    fn health(&self, _: &Pod, _: &Container) -> Vec<ResourceStatus> {
        self.script().health.clone()
    }

    fn health_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.changes.subscribe())
    }
}

fn scene_with_claims() -> (Scene, FakeClaims) {
    let mut scene = Scene::without_agent(seconds(10));
    let claims = FakeClaims {
        clock: Arc::clone(&scene.clock),
        epoch: scene.epoch,
        script: Arc::default(),
        changes: watch::Sender::default(),
    };
    scene.claims = Some(Arc::new(claims.clone()));
    scene.start_agent();
    (scene, claims)
}

fn claiming() -> Pod {
    let claims = json!({"claims": [{"name": "gpu"}]});
    let app = container_with("app", "app", "resources", claims);
    let claims = json!([{"name": "gpu", "resourceClaimName": "c"}]);
    pod_with("u1", json!({"containers": [app], "resourceClaims": claims}))
}

fn failed(events: &mut UnboundedReceiver<Event>) -> Vec<String> {
    let failed = drain(events).filter(|event| event.reason == "FailedPrepareDynamicResources");
    failed.map(|event| event.message).collect()
}

#[tokio::test(start_paused = true)]
async fn claims_are_prepared_before_the_sandbox_and_unprepared_after_the_containers() {
    let (scene, claims) = scene_with_claims();
    claims.script().delay = 5;
    scene.managers.set(|answers| {
        let devices = vec!["vendor.com/gpu=0".to_owned()];
        let assigned = Assigned { cdi_devices: devices, ..Assigned::default() };
        answers.assigned.insert("app".to_owned(), Ok(assigned));
    });
    scene.run(&claiming()).await;
    let [prepared] = claims.seconds("prepare u1")[..] else { panic!("prepared once") };
    assert!(prepared + 5 <= scene.times("RunPodSandbox")[0]);
    assert_eq!(claims.seconds("devices app").len(), 1);
    assert_eq!(claims.seconds("unprepare u1"), [0; 0]);
    let spec = scene.fake.spec("app").unwrap();
    assert_eq!(spec.cdi_devices, ["d.example/claim=app", "vendor.com/gpu=0"]);
    let removed = scene.remove_all().await;
    let [undone] = claims.seconds("unprepare u1")[..] else { panic!("undone once") };
    assert!(scene.times("StopContainer")[0] <= undone && undone <= removed);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn pod_waits_with_the_message_of_a_kubelet_until_its_claims_are_prepared() {
    let (scene, claims) = scene_with_claims();
    let mut events = scene.agent().events();
    let missing = "prepare dynamic resources: DRA driver d.example is not registered";
    claims.script().refuses = Some(missing.to_owned());
    scene.want(&[claiming()]);
    scene.sleep(200).await;
    assert_eq!(scene.times("RunPodSandbox"), [0; 0]);
    let tries = claims.seconds("prepare u1");
    assert!(gaps(&tries).iter().all(|gap| (60..=90).contains(gap)), "{tries:?}");
    let messages = failed(&mut events);
    assert_eq!(messages[0], format!("Failed to prepare dynamic resources: {missing}"));
    assert_eq!(reason(&scene.report("u1"), "app"), "FailedPrepareDynamicResources");
    assert_eq!(phase(&scene.report("u1")), "Pending");
    claims.script().refuses = None;
    scene.until_running("u1").await;
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn pod_ends_when_its_claims_are_unprepared_and_not_before() {
    let (scene, claims) = scene_with_claims();
    let pod = claiming();
    scene.run(&pod).await;
    claims.script().holds = Some("unprepare dynamic resources: busy".to_owned());
    scene.want(&[scene.deleted(&pod, Some(1))]);
    scene.sleep(300).await;
    assert!(claims.seconds("unprepare u1").len() > 5);
    assert_eq!(scene.fake.running(), [""; 0]);
    assert!(!scene.report("u1").finished);
    claims.script().holds = None;
    scene.until_finished("u1").await;
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_deleted_meanwhile_is_unprepared() {
    let (scene, claims) = scene_with_claims();
    claims.script().delay = 1000;
    scene.want(&[claiming()]);
    scene.sleep(10).await;
    assert_eq!(claims.seconds("prepare u1").len(), 1);
    assert!(scene.remove_all().await < 100);
    assert_eq!(claims.seconds("unprepare u1").len(), 1);
    assert_eq!(scene.times("RunPodSandbox"), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn running_pods_keep_their_claims_after_agent_restart() {
    let (mut scene, claims) = scene_with_claims();
    let pod = claiming();
    scene.run(&pod).await;
    scene.restart_agent().await;
    scene.run(&pod).await;
    scene.sleep(100).await;
    assert_eq!(claims.seconds("prepare u1").len(), 1);
    assert_eq!(claims.seconds("unprepare u1"), [0; 0]);
    scene.remove_all().await;
    assert_eq!(claims.seconds("unprepare u1").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_with_claims_waits_on_a_node_without_a_cluster() {
    let scene = Scene::new();
    scene.want(&[claiming()]);
    scene.sleep(30).await;
    assert_eq!(scene.times("RunPodSandbox"), [0; 0]);
    assert_eq!(reason(&scene.report("u1"), "app"), "FailedPrepareDynamicResources");
}

#[tokio::test(start_paused = true)]
async fn status_has_the_health_of_devices_beside_those_of_plugins_as_soon_as_it_changes() {
    let (scene, claims) = scene_with_claims();
    scene.managers.set(|answers| {
        let nic = [("nic0".to_owned(), true)].into_iter().collect();
        answers
            .health
            .insert("app".to_owned(), [("a.com/nic".to_owned(), nic)].into_iter().collect());
    });
    scene.run(&claiming()).await;
    let health = |health: &str| ResourceStatus {
        name: "claim:gpu".to_owned(),
        resources: Some(vec![ResourceHealth {
            resource_id: "gpu0".to_owned(),
            health: Some(health.to_owned()),
            message: None,
        }]),
    };
    for state in ["Healthy", "Unhealthy"] {
        claims.script().health = vec![health(state)];
        claims.changes.send_modify(|count| *count += 1);
        scene.sleep(1).await;
        let status = scene.report("u1").status;
        let container = &status.container_statuses.as_ref().unwrap()[0];
        let reported = container.allocated_resources_status.clone().unwrap();
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert_eq!((reported[0].name.as_str(), &reported[1]), ("a.com/nic", &health(state)));
    }
}
