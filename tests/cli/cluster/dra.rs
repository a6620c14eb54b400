//! ResourceClaims of pods: when the agent calls the driver to prepare them, and that nothing stays prepared.

#[path = "../../../agent/dra/src/tests/plugin.rs"]
#[allow(dead_code, reason = "shared with the tests of the claims")]
mod plugin;

use std::path::Path;

use api::manifest::{Strictness, parse, to_json};
use cluster::{Key, Kind};
use cri::pluginregistration::registration_server::{Registration, RegistrationServer};
use cri::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use cri::podresources::ListPodResourcesRequest;
use cri::podresources::pod_resources_lister_client::PodResourcesListerClient;
use jiff::Timestamp;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::api_server::ApiServer;
use super::joined::{Joined, NODE, pod, wait};
use crate::command::*;
use plugin::{DRIVER, Script};

/// Registers a driver with the agent.
struct Found {
    endpoint: String,
    registered: watch::Sender<usize>,
}

#[tonic::async_trait]
impl Registration for Found {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        assert!(status.plugin_registered, "{}", status.error);
        self.registered.send_modify(|count| *count += 1);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Serves the registration of a driver. Returns the number of registrations.
fn come(root: &Path, endpoint: &Path) -> watch::Receiver<usize> {
    let registry = root.join("plugins_registry");
    std::fs::create_dir_all(&registry).unwrap();
    let listener = UnixListener::bind(registry.join("dra-reg.sock")).unwrap();
    let (registered, registrations) = watch::channel(0);
    let endpoint = endpoint.to_str().unwrap().to_owned();
    let service = RegistrationServer::new(Found { endpoint, registered });
    tokio::spawn(async move {
        let incoming = UnixListenerStream::new(listener);
        let _ = Server::builder().serve_with_incoming(service, incoming).await;
    });
    registrations
}

async fn registered(registrations: &mut watch::Receiver<usize>, times: usize) {
    let seen = registrations.wait_for(|count| *count >= times);
    tokio::time::timeout(WAIT_LIMIT, seen).await.expect("the driver is registered").unwrap();
}

/// Creates a pod on the node with a claim that is reserved for it. Returns the claim's uid.
fn create_pod(joined: &Joined) -> String {
    let (store, now) = (joined.server.store(), Timestamp::now());
    let manifest = pod("web", "exec sleep 3600");
    let mut object = to_json(parse("pod.yaml", &manifest, Strictness::Strict).pods[0].api());
    object["metadata"].as_object_mut().unwrap().remove("uid");
    object["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "claim"}]);
    object["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    let created = store.create(object, now).unwrap();
    let result = json!({"driver": DRIVER, "pool": NODE, "device": "gpu-0", "request": "x"});
    let claim = store.create(
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "web", "uid": created.uid()}],
                "allocation": {"devices": {"results": [result]}},
            },
        }),
        now,
    );
    store.bind(&created.key, NODE, now).unwrap();
    claim.unwrap().uid().to_owned()
}

#[tokio::test]
async fn claim_is_prepared_and_undone_although_the_agent_is_killed_between() {
    let joined = Joined::new(ApiServer::start()).await;
    let slice = |name: &str, node: &str| {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": DRIVER, "nodeName": node},
        });
        joined.server.store().create(slice, Timestamp::now()).unwrap();
    };
    slice("own", NODE);
    slice("other", "n2");
    let (root, script) = (joined.place.path("root"), Script::default());
    let _serving = script.serve(&joined.place.path(""), "v1");
    let mut registrations = come(&root, &joined.place.path("dra.sock"));
    let agent = joined.agent(&[]);
    joined.wait_for_ready_node().await;
    registered(&mut registrations, 1).await;
    let kind = || Kind::of("resource.k8s.io/v1", "ResourceSlice");
    wait("the node's slices are gone", || joined.object(kind(), "", "own"), Value::is_null).await;
    assert_eq!(joined.object(kind(), "", "other")["spec"]["nodeName"], "n2");

    // The driver returns no CDI devices: the runtime knows no devices of these names.
    script.set(|state| state.nameless = true);
    let uid = create_pod(&joined);
    joined.wait_for_phase("web", "Running").await;
    assert_eq!(script.calls(), [format!("prepare {uid}")]);
    let file = root.join("dra_manager_state");
    assert!(std::fs::read_to_string(&file).unwrap().contains(&uid));

    let socket = root.join("pod-resources/kubelet.sock");
    let mut lister = PodResourcesListerClient::new(plugins::connect(&socket).await.unwrap());
    let listed = lister.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
    let claims = &listed.pod_resources[0].containers[0].dynamic_resources;
    assert_eq!((claims.len(), claims[0].claim_name.as_str()), (1, "claim"));
    let device = &claims[0].claim_resources[0];
    assert_eq!((device.driver_name.as_str(), device.device_name.as_str()), (DRIVER, "gpu-0"));

    agent.signal(Signal::SIGKILL);
    agent.end().await;
    let agent = joined.agent(&[]);
    registered(&mut registrations, 2).await;
    let key = Key::pod("default", "web");
    assert!(joined.server.store().get(&key).is_ok());
    joined.delete_pod("web", Some(1));
    joined.wait_until_gone("web").await;
    assert_eq!(script.calls(), [format!("prepare {uid}"), format!("unprepare {uid}")]);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&uid));
    joined.end(agent).await;
}
