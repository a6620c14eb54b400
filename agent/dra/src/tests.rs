//! Tests of claims with a driver on a unix socket.
#![allow(clippy::unwrap_used)]

mod health;
mod plugin;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use compact::Map;
use k8s_openapi::api::resource::v1::ResourceClaim;
use plugins::PluginInfo;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::*;
use plugin::{DRIVER, Running, Script};

/// A cluster with these claims.
#[derive(Default)]
struct FakeCluster {
    claims: Mutex<Map<String, ResourceClaim>>,
    deleted: Mutex<Vec<Option<String>>>,
    is_unavailable: Mutex<bool>,
}

#[async_trait]
impl ClaimCluster for FakeCluster {
    async fn claim(&self, _: &str, name: &str) -> Result<ResourceClaim, String> {
        let found = self.claims.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| format!("resourceclaims.resource.k8s.io {name:?} not found"))
    }

    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), String> {
        self.deleted.lock().unwrap().push(driver.map(str::to_owned));
        if *self.is_unavailable.lock().unwrap() { Err("away".to_owned()) } else { Ok(()) }
    }
}

/// A node, a cluster and a driver.
struct TestNode {
    claims: NodeClaims,
    cluster: Arc<FakeCluster>,
    script: Script,
    driver: Option<Running>,
    root: TempDir,
}

impl TestNode {
    /// A node with a registered driver.
    async fn new() -> Self {
        let mut scene = Self::without_driver();
        scene.start_driver("v1").await;
        scene
    }

    fn without_driver() -> Self {
        let root = tempfile::tempdir().unwrap();
        let cluster = Arc::new(FakeCluster::default());
        let claims = NodeClaims::open(root.path(), Arc::clone(&cluster) as _).unwrap();
        let scene = Self { claims, cluster, script: Script::default(), driver: None, root };
        scene.claim("r", "1");
        scene.claim("s", "2");
        scene
    }

    async fn start_driver(&mut self, version: &'static str) {
        let driver = self.script.serve(self.root.path(), version);
        let service = format!("{version}.DRAPlugin");
        self.claims.plugin_handler().register(&driver.info(&[&service])).await.unwrap();
        self.driver = Some(driver);
    }

    /// Starts another agent, as after a crash. It finds the driver again.
    async fn restart(&mut self) {
        self.claims = NodeClaims::open(self.root.path(), Arc::clone(&self.cluster) as _).unwrap();
        let info = self.driver.as_ref().unwrap().info(&["v1.DRAPlugin"]);
        self.claims.plugin_handler().register(&info).await.unwrap();
    }

    /// Adds a claim to the cluster, reserved for the pods `p` and `q`.
    fn claim(&self, name: &str, uid: &str) {
        let consumer = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
        let result = json!({"driver": DRIVER, "pool": "node", "device": "gpu-0", "request": "x"});
        let claim = json!({
            "metadata": {"name": name, "namespace": "n", "uid": uid},
            "spec": {},
            "status": {
                "reservedFor": [consumer("p"), consumer("q")],
                "allocation": {"devices": {"results": [result]}},
            },
        });
        let claim = serde_json::from_value(claim).unwrap();
        self.cluster.claims.lock().unwrap().insert(name.to_owned(), claim);
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        ClaimManager::prepare(&self.claims, pod).await
    }

    async fn unprepare(&self, pod: &str) -> Result<(), String> {
        ClaimManager::unprepare(&self.claims, &PodUid::new(pod)).await
    }

    /// The devices of a container with these `resources.claims`.
    fn devices(&self, pod: &Pod, claims: Value) -> Result<Vec<String>, String> {
        let container = json!({"name": "c", "resources": {"claims": claims}});
        self.claims.cdi_devices(pod, &serde_json::from_value(container).unwrap())
    }

    fn file(&self) -> PathBuf {
        self.root.path().join("dra_manager_state")
    }

    /// Waits until the driver has received this many calls.
    async fn until_called(&self, count: usize) {
        while self.script.calls().len() < count {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A pod with these claims, named `a`, `b` and so on.
fn pod(uid: &str, claims: &[&str]) -> Pod {
    let named = "abc".chars().zip(claims);
    let claims: Vec<Value> = named
        .map(|(name, claim)| json!({"name": name.to_string(), "resourceClaimName": claim}))
        .collect();
    let pod = json!({
        "metadata": {"name": uid, "namespace": "n", "uid": uid},
        "spec": {"containers": [], "resourceClaims": claims},
    });
    Pod::new(serde_json::from_value(pod).unwrap())
}

#[tokio::test]
async fn claim_is_prepared_once_and_unprepared_after_its_last_pod() {
    let scene = TestNode::new().await;
    let (p, q) = (pod("p", &["r", "s"]), pod("q", &["r"]));
    for pod in [&p, &p, &q] {
        scene.prepare(pod).await.unwrap();
    }
    assert_eq!(scene.script.calls(), ["prepare 1,2"]);
    scene.unprepare("p").await.unwrap();
    assert_eq!(scene.script.calls()[1..], ["unprepare 2"]);
    scene.unprepare("p").await.unwrap();
    scene.unprepare("q").await.unwrap();
    assert_eq!(scene.script.calls()[2..], ["unprepare 1"]);
    let empty = tempfile::tempdir().unwrap();
    NodeClaims::open(empty.path(), Arc::clone(&scene.cluster) as _).unwrap();
    let unused = fs::read(empty.path().join("dra_manager_state")).unwrap();
    assert_eq!(fs::read(scene.file()).unwrap(), unused);
}

#[tokio::test]
async fn concurrent_pods_share_one_preparation() {
    let scene = TestNode::new().await;
    let (p, q) = (pod("p", &["r", "s"]), pod("q", &["s", "r"]));
    scene.script.set(|state| state.holds = true);
    let release = async {
        scene.until_called(1).await;
        sleep(Duration::from_millis(50)).await;
        scene.script.set(|state| state.holds = false);
    };
    let (one, other, ()) = tokio::join!(scene.prepare(&p), scene.prepare(&q), release);
    assert_eq!((one, other), (Ok(()), Ok(())));
    assert_eq!(scene.script.calls(), ["prepare 1,2"]);
}

#[tokio::test]
async fn container_gets_the_devices_of_its_requests() {
    let scene = TestNode::new().await;
    let device = |request: &str, name: &str| (vec![request.to_owned()], name.to_owned());
    let devices = vec![device("x", "e.com/gpu=0"), device("y", "e.com/gpu=1")];
    scene.script.set(|state| drop(state.devices.insert("1".to_owned(), devices)));
    let p = pod("p", &["r", "s"]);
    scene.prepare(&p).await.unwrap();
    let of = |claims: Value| scene.devices(&p, claims).unwrap();
    assert_eq!(of(json!([{"name": "a"}])), ["e.com/gpu=0", "e.com/gpu=1"]);
    assert_eq!(of(json!([{"name": "a", "request": "y"}])), ["e.com/gpu=1"]);
    let own = "gpu.example.com/gpu=2";
    assert_eq!(of(json!([{"name": "b"}, {"name": "a", "request": "x"}])), ["e.com/gpu=0", own]);
    assert_eq!(of(json!([])), [""; 0]);
    let error = scene.devices(&pod("q", &["other"]), json!([{"name": "a"}])).unwrap_err();
    let expected =
        "internal error: unable to get claim info for ResourceClaim other in namespace n";
    assert_eq!(error, expected);
    let container = json!({"name": "c", "resources": {"claims": [{"name": "a", "request": "y"}]}});
    let shown = scene.claims.claims(&p, &serde_json::from_value(container).unwrap());
    let [shown] = &shown[..] else { panic!("{shown:?}") };
    let first = &shown.devices[0];
    assert_eq!((shown.name.as_str(), shown.devices.len()), ("r", 2));
    assert_eq!((first.driver.as_str(), first.pool.as_str()), (DRIVER, "node"));
}

#[rstest]
#[case::call(
    |state: &mut plugin::State| state.fails = Some("no disk".to_owned()),
    "NodePrepareResources: rpc error: code = Internal desc = no disk"
)]
#[case::claim(
    |state: &mut plugin::State| drop(state.claim_fails.insert("1".to_owned(), "no gpu".to_owned())),
    "NodePrepareResources failed for ResourceClaim r: no gpu"
)]
#[case::skipped(
    |state: &mut plugin::State| state.skips = vec!["1".to_owned()],
    "NodePrepareResources skipped 1 ResourceClaims"
)]
#[tokio::test]
async fn failed_preparation_is_retried(
    #[case] fail: fn(&mut plugin::State),
    #[case] expected: &str,
) {
    let scene = TestNode::new().await;
    let p = pod("p", &["r"]);
    scene.script.set(fail);
    let error = scene.prepare(&p).await.unwrap_err();
    assert_eq!(error, format!("prepare dynamic resources: {expected}"));
    scene.script.set(|state| *state = plugin::State::default());
    scene.prepare(&p).await.unwrap();
    assert_eq!(scene.devices(&p, json!([{"name": "a"}])).unwrap(), ["gpu.example.com/gpu=1"]);
}

#[rstest]
#[case::no_driver("p", &["r"], "DRA driver gpu.example.com is not registered")]
#[case::no_claim("p", &["x"], "fetch ResourceClaim x: resourceclaims.resource.k8s.io \"x\" not found")]
#[case::not_reserved("z", &["r"], "pod z (z) is not allowed to use ResourceClaim r (1)")]
#[tokio::test]
async fn rejected_pod_leaves_nothing_to_unprepare(
    #[case] uid: &str,
    #[case] claims: &[&str],
    #[case] expected: &str,
) {
    let scene = TestNode::without_driver();
    let before = fs::read(scene.file()).unwrap();
    let error = scene.prepare(&pod(uid, claims)).await.unwrap_err();
    assert_eq!(error, format!("prepare dynamic resources: {expected}"));
    assert_eq!(fs::read(scene.file()).unwrap(), before);
    scene.unprepare(uid).await.unwrap();
}

#[tokio::test]
async fn restarted_agent_knows_prepared_claims() {
    let mut scene = TestNode::new().await;
    let p = pod("p", &["r"]);
    scene.prepare(&p).await.unwrap();
    let whole = json!([{"name": "a"}]);
    scene.restart().await;
    assert_eq!(scene.devices(&p, whole.clone()).unwrap(), ["gpu.example.com/gpu=1"]);
    assert_eq!(scene.script.calls().len(), 1);
    // As for a new sandbox: the driver may have been restarted.
    scene.prepare(&p).await.unwrap();
    assert_eq!(scene.devices(&p, whole).unwrap(), ["gpu.example.com/gpu=1"]);
    scene.unprepare("p").await.unwrap();
    assert_eq!(scene.script.calls(), ["prepare 1", "prepare 1", "unprepare 1"]);
}

#[tokio::test]
async fn restarted_agent_unprepares_interrupted_preparation_of_deleted_pod() {
    let mut scene = TestNode::new().await;
    scene.script.set(|state| state.holds = true);
    let p = pod("p", &["r"]);
    let call = timeout(Duration::from_millis(300), scene.prepare(&p));
    assert!(call.await.is_err(), "the driver does not answer");
    let text = fs::read_to_string(scene.file()).unwrap();
    assert!(text.contains("\\\"PodUIDs\\\":{\\\"p\\\":{}}"), "{text}");
    scene.script.set(|state| state.holds = false);
    scene.restart().await;
    scene.claims.unprepare_removed(["p".to_owned()].iter()).await;
    assert_eq!(scene.script.calls(), ["prepare 1", "unprepare 1"]);
}

#[tokio::test]
async fn cancelled_preparation_completes_before_it_is_unprepared() {
    let scene = TestNode::new().await;
    scene.script.set(|state| state.holds = true);
    let p = pod("p", &["r"]);
    let call = timeout(Duration::from_millis(100), scene.prepare(&p));
    assert!(call.await.is_err(), "the driver does not answer");
    let release = async {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(scene.script.calls(), ["prepare 1"]);
        scene.script.set(|state| state.holds = false);
    };
    let (undone, ()) = tokio::join!(scene.unprepare("p"), release);
    undone.unwrap();
    assert_eq!(scene.script.calls(), ["prepare 1", "unprepare 1"]);
}

#[tokio::test]
async fn claim_stays_in_checkpoint_until_driver_unprepares_it() {
    let mut scene = TestNode::new().await;
    scene.prepare(&pod("p", &["r"])).await.unwrap();
    scene.script.set(|state| drop(state.claim_fails.insert("1".to_owned(), "busy".to_owned())));
    let busy =
        "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim r: busy";
    assert_eq!(scene.unprepare("p").await, Err(busy.to_owned()));
    scene.script.set(|state| state.claim_fails.clear());
    let info = scene.driver.as_ref().unwrap().info(&["v1.DRAPlugin"]);
    scene.claims.plugin_handler().deregister(&info).await;
    let gone = "unprepare dynamic resources: DRA driver gpu.example.com is not registered";
    assert_eq!(scene.unprepare("p").await, Err(gone.to_owned()));
    scene.restart().await;
    scene.unprepare("p").await.unwrap();
    assert_eq!(scene.script.calls().len(), 3);
}

#[tokio::test]
async fn recreated_claim_waits_for_unprepare_of_its_predecessor() {
    let scene = TestNode::new().await;
    scene.prepare(&pod("p", &["r"])).await.unwrap();
    scene.claim("r", "3");
    let q = pod("q", &["r"]);
    let error = scene.prepare(&q).await.unwrap_err();
    let expected = "prepare dynamic resources: old ResourceClaim with same name r and different UID 1 still exists (previous pod force-deleted?!)";
    assert_eq!(error, expected);
    scene.unprepare("p").await.unwrap();
    scene.prepare(&q).await.unwrap();
    assert_eq!(scene.script.calls(), ["prepare 1", "unprepare 1", "prepare 3"]);
}

#[tokio::test]
async fn v1beta1_driver_is_called_by_its_service() {
    let mut scene = TestNode::without_driver();
    scene.start_driver("v1beta1").await;
    scene.prepare(&pod("p", &["r"])).await.unwrap();
    scene.unprepare("p").await.unwrap();
    assert_eq!(scene.script.calls(), ["prepare 1", "unprepare 1"]);
}

#[test]
fn corrupt_checkpoint_is_rejected_and_kept() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("dra_manager_state");
    fs::write(&file, r#"{"Data":"{}","Checksum":1}"#).unwrap();
    let error = NodeClaims::open(root.path(), Arc::new(FakeCluster::default())).err().unwrap();
    let begin = "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint dra_manager_state: \
                 checkpoint is corrupted (";
    assert!(error.starts_with(begin), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), r#"{"Data":"{}","Checksum":1}"#);
}

#[tokio::test(start_paused = true)]
async fn slices_are_deleted_at_start_and_after_driver_is_unreachable_for_30_seconds() {
    let scene = TestNode::without_driver();
    let keeping = tasks::spawn(slices::run(
        Arc::clone(&scene.claims.operations.registry),
        Arc::clone(&scene.cluster) as _,
    ));
    let deleted = || scene.cluster.deleted.lock().unwrap().clone();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(deleted(), [None]);
    let socket = scene.root.path().join("away.sock");
    let info = PluginInfo {
        kind: "DRAPlugin".to_owned(),
        name: "d".to_owned(),
        endpoint: socket.clone(),
        versions: vec!["v1.DRAPlugin".to_owned()],
        socket,
    };
    let handler = scene.claims.plugin_handler();
    handler.register(&info).await.unwrap();
    handler.deregister(&info).await;
    sleep(Duration::from_secs(29)).await;
    assert_eq!(deleted(), [None]);
    *scene.cluster.is_unavailable.lock().unwrap() = true;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(deleted(), [None, Some("d".to_owned())]);
    *scene.cluster.is_unavailable.lock().unwrap() = false;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(deleted(), [None, Some("d".to_owned()), Some("d".to_owned())]);
    keeping.abort();
}
