//! A scripted driver on a unix socket, which records its calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use compact::Map;
use cri::dra as wire;
use cri::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use cri::drahealth::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use cri::drahealth::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use plugins::PluginInfo;
use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::codegen::http;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::{ServiceExt as _, service_fn};

/// The driver's name.
pub(crate) const DRIVER: &str = "gpu.example.com";

/// The script of the driver, and the calls that it received. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    released: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    /// Devices by claim uid, as requests and CDI names. Other claims have one device, for all requests.
    pub(crate) devices: Map<String, Vec<(Vec<String>, String)>>,
    /// Devices have no CDI names.
    pub(crate) nameless: bool,
    /// The error of the whole call.
    pub(crate) fails: Option<String>,
    /// The errors of claims, by uid.
    pub(crate) claim_fails: Map<String, String>,
    /// The uids of claims without an answer.
    pub(crate) skips: Vec<String>,
    /// Calls block while this is set.
    pub(crate) holds: bool,
    /// The driver has no health service.
    pub(crate) has_no_health: bool,
    /// The number of connections accepted.
    pub(crate) accepted: u32,
    /// The number of health streams opened, and the sender of the last one.
    pub(crate) watched: u32,
    pub(crate) health: Option<mpsc::UnboundedSender<HealthReport>>,
    /// The calls, as `prepare uid,uid`.
    pub(crate) calls: Vec<String>,
}

/// A health report.
type HealthReport = Result<NodeWatchResourcesResponse, Status>;

/// A running driver. It stops when it is dropped.
pub(crate) struct Running {
    serving: JoinHandle<()>,
    endpoint: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Script {
    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.released.notify_waiters();
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// The number of connections accepted.
    pub(crate) fn accepted(&self) -> u32 {
        self.state().accepted
    }

    /// The number of health streams opened.
    pub(crate) fn watched(&self) -> u32 {
        self.state().watched
    }

    /// Serves a version of the API on a socket in this directory.
    pub(crate) fn serve(&self, directory: &Path, version: &'static str) -> Running {
        let endpoint = directory.join("dra.sock");
        let _ = std::fs::remove_file(&endpoint);
        let listener = UnixListener::bind(&endpoint).unwrap();
        let plugin = DraPluginServer::new(self.clone());
        // The calls of v1beta1 have v1's messages.
        let service = plugin.map_request(move |mut request: http::Request<_>| {
            let path = request.uri().path().to_owned();
            let served = format!(".{version}.");
            let path =
                if path.contains(&served) { path.replace(&served, ".v1.") } else { "/".to_owned() };
            *request.uri_mut() = path.parse().unwrap();
            request
        });
        let health = DraResourceHealthServer::new(self.clone());
        let script = self.clone();
        let service = service_fn(move |request: http::Request<_>| {
            let is_health = request.uri().path().starts_with("/v1alpha1.DRAResourceHealth/");
            let (plugin, health) = (service.clone(), health.clone());
            let serves = is_health && !script.state().has_no_health;
            async move {
                if serves { health.oneshot(request).await } else { plugin.oneshot(request).await }
            }
        });
        let script = self.clone();
        let serving = tasks::spawn(async move {
            let incoming = UnixListenerStream::new(listener).map(move |connection| {
                script.set(|state| state.accepted += 1);
                connection
            });
            let _ = Server::builder().serve_with_incoming(service, incoming).await;
        });
        Running { serving, endpoint }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    async fn called(&self, call: &str, claims: &[wire::Claim]) -> Result<(), Status> {
        let uids: Vec<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        self.state().calls.push(format!("{call} {}", uids.join(",")));
        loop {
            let released = self.0.released.notified();
            if !self.state().holds {
                break;
            }
            released.await;
        }
        self.state().fails.clone().map_or(Ok(()), |why| Err(Status::internal(why)))
    }

    /// The error of each claim, for those with an answer.
    fn answered(&self, claims: Vec<wire::Claim>) -> Vec<(String, String)> {
        let state = self.state();
        let answered = claims.into_iter().filter(|claim| !state.skips.contains(&claim.uid));
        answered
            .map(|claim| {
                let error = state.claim_fails.get(&claim.uid).cloned().unwrap_or_default();
                (claim.uid, error)
            })
            .collect()
    }
}

impl Running {
    /// The plugin's information, as from the plugin watcher.
    pub(crate) fn info(&self, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            kind: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
            socket: self.endpoint.with_extension("reg.sock"),
        }
    }
}

#[tonic::async_trait]
impl DraPlugin for Script {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.called("prepare", &claims).await?;
        let nameless = self.state().nameless;
        let answers = self.answered(claims).into_iter().map(|(uid, error)| {
            let devices = self.state().devices.get(&uid).cloned();
            let devices =
                devices.unwrap_or_else(|| vec![(Vec::new(), format!("{DRIVER}/gpu={uid}"))]);
            let devices = devices.into_iter().map(|(request_names, name)| wire::Device {
                request_names,
                pool_name: "node".to_owned(),
                device_name: "gpu-0".to_owned(),
                cdi_device_ids: if nameless { Vec::new() } else { vec![name] },
                share_id: None,
            });
            (uid, wire::NodePrepareResourceResponse { devices: devices.collect(), error })
        });
        Ok(Response::new(wire::NodePrepareResourcesResponse { claims: answers.collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.called("unprepare", &claims).await?;
        let answers = self.answered(claims).into_iter();
        let answers =
            answers.map(|(uid, error)| (uid, wire::NodeUnprepareResourceResponse { error }));
        Ok(Response::new(wire::NodeUnprepareResourcesResponse { claims: answers.collect() }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Script {
    type NodeWatchResourcesStream = UnboundedReceiverStream<HealthReport>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let (reports, stream) = mpsc::unbounded_channel();
        self.set(|state| {
            state.watched += 1;
            state.health = Some(reports);
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}
