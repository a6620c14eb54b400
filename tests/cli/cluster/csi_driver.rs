//! A scripted CSI driver in the test, which records its calls. As root it makes real bind mounts of a directory for each volume;
//! otherwise the target itself is a directory with the volume's name in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use cri::csi::node_server::{Node, NodeServer};
use cri::csi::node_service_capability::{Rpc, Type, rpc};
use cri::csi::volume_capability::AccessType;
use cri::csi::volume_usage::Unit;
use cri::csi::{
    self, NodeServiceCapability, Topology, VolumeCapability, VolumeCondition, VolumeUsage,
};
use cri::pluginregistration::registration_server::{Registration, RegistrationServer};
use cri::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use nix::mount::{MntFlags, MsFlags};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};
use tower::{Service, ServiceExt as _};

use crate::command::*;

/// The driver's name.
pub(crate) const DRIVER: &str = "scripted.example";

/// The driver, while it serves.
pub(crate) struct CsiDriver {
    shared: Arc<Shared>,
    root: PathBuf,
    serving: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The directory with a directory for each volume.
    disk: PathBuf,
    endpoint: PathBuf,
    mounts: bool,
}

#[derive(Default)]
struct State {
    /// The calls so far: names with their fields.
    calls: Vec<Value>,
    /// The number of volumes that it can attach.
    limit: i64,
    stages: bool,
    measures: bool,
    expands: bool,
    /// Calls that are refused with this code.
    refused: BTreeMap<&'static str, Code>,
    /// Calls that are executed without a response.
    unanswered: BTreeSet<&'static str>,
    /// The mounted volumes by target.
    mounted: BTreeMap<PathBuf, String>,
}

/// Serves connections until the task is aborted, which closes them.
async fn serve<S>(listener: UnixListener, service: S)
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let mut clients = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let with_body = |request: http::Request<Incoming>| request.map(Body::new);
        let service = TowerToHyperService::new(service.clone().map_request(with_body));
        let builder = http2::Builder::new(TokioExecutor::new());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        clients.spawn(async move {
            // This fails if a client is killed.
            let _ = connection.await;
        });
    }
}

impl CsiDriver {
    /// A driver for an agent with this directory, which does not serve yet.
    pub(crate) fn new(place: &Place, root: &Path) -> Self {
        let shared = Shared {
            state: Mutex::new(State { limit: 9, stages: true, ..State::default() }),
            disk: place.path("disk"),
            endpoint: place.path("csi.sock"),
            mounts: nix::unistd::geteuid().is_root(),
        };
        std::fs::create_dir_all(&shared.disk).unwrap();
        Self { shared: Arc::new(shared), root: root.to_owned(), serving: Vec::new() }
    }

    /// Starts serving, and registers the driver.
    pub(crate) fn come(&mut self) {
        let shared = &self.shared;
        let registry = self.root.join("plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        let node = UnixListener::bind(&shared.endpoint).unwrap();
        let service = NodeServer::from_arc(Arc::clone(shared));
        self.serving.push(tokio::spawn(serve(node, service)));
        let socket = UnixListener::bind(self.socket()).unwrap();
        let service = RegistrationServer::from_arc(Arc::clone(shared));
        self.serving.push(tokio::spawn(serve(socket, service)));
    }

    /// Stops serving. Mounts remain.
    pub(crate) async fn go(&mut self) {
        for serving in self.serving.drain(..) {
            serving.abort();
            let _ = serving.await;
        }
        for socket in [self.socket(), self.shared.endpoint.clone()] {
            std::fs::remove_file(socket).unwrap();
        }
    }

    fn socket(&self) -> PathBuf {
        self.root.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
    }

    /// Sets the number of volumes that it can attach.
    pub(crate) fn limit(&self, limit: i64) {
        self.shared.state().limit = limit;
    }

    /// Sets whether it supports staging (NodeStageVolume).
    pub(crate) fn stages(&self, stages: bool) {
        self.shared.state().stages = stages;
    }

    /// Sets whether it supports volume statistics, which report an abnormal condition.
    pub(crate) fn measures(&self, measures: bool) {
        self.shared.state().measures = measures;
    }

    /// Sets whether it supports expansion.
    pub(crate) fn expands(&self, expands: bool) {
        self.shared.state().expands = expands;
    }

    pub(crate) fn refuse(&self, call: &'static str) {
        self.refuse_with(call, Code::Internal);
    }

    pub(crate) fn refuse_with(&self, call: &'static str, code: Code) {
        self.shared.state().refused.insert(call, code);
    }

    pub(crate) fn refuse_nothing(&self) {
        self.shared.state().refused.clear();
    }

    /// Sets whether this call is executed without a response.
    pub(crate) fn leave_unanswered(&self, call: &'static str, is_so: bool) {
        let mut state = self.shared.state();
        match is_so {
            true => state.unanswered.insert(call),
            false => state.unanswered.remove(call),
        };
    }

    /// The calls of this method.
    pub(crate) fn calls(&self, name: &str) -> Vec<Value> {
        let state = self.shared.state();
        state.calls.iter().filter(|call| call["call"] == name).cloned().collect()
    }

    /// The names of the calls that change state, in order.
    pub(crate) fn changes(&self) -> Vec<String> {
        let state = self.shared.state();
        let names = state.calls.iter().map(|call| call["call"].as_str().unwrap().to_owned());
        names.filter(|name| name.ends_with("Volume")).collect()
    }

    /// The mounted targets.
    pub(crate) fn mounted(&self) -> Vec<PathBuf> {
        self.shared.state().mounted.keys().cloned().collect()
    }

    /// The file in which a volume contains its name.
    pub(crate) fn file(&self, target: &Path) -> PathBuf {
        target.join("name")
    }

    /// Waits until this many calls of this method were made.
    pub(crate) async fn wait_for(&self, name: &str, count: usize) -> Vec<Value> {
        harness::eventually(WAIT_LIMIT, &format!("{count} × {name}"), async || {
            let calls = self.calls(name);
            if calls.len() >= count { Ok(calls) } else { Err(self.changes()) }
        })
        .await
    }
}

impl Drop for CsiDriver {
    /// Unmounts everything, even if the test has failed.
    fn drop(&mut self) {
        let mounted: Vec<PathBuf> = self.shared.state().mounted.keys().rev().cloned().collect();
        for target in mounted.iter().filter(|_| self.shared.mounts) {
            let _ = nix::mount::umount2(target, MntFlags::MNT_DETACH);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Records a call; fails if calls of this method are refused.
    fn note(&self, name: &'static str, mut call: Value) -> Result<(), Status> {
        call["call"] = json!(name);
        let mut state = self.state();
        state.calls.push(call);
        match state.refused.get(name) {
            Some(code) => Err(Status::new(*code, "refused by the test")),
            None => Ok(()),
        }
    }

    /// Returns the response, or never returns if calls of this method are unanswered.
    async fn answer<T>(&self, name: &'static str, answer: T) -> Result<Response<T>, Status> {
        let is_unanswered = self.state().unanswered.contains(name);
        if is_unanswered {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(answer))
    }

    /// Mounts a volume at a directory, unless it is mounted.
    fn mount(&self, volume: &str, target: &Path) {
        let mut state = self.state();
        if state.mounted.insert(target.to_owned(), volume.to_owned()).is_some() {
            return;
        }
        std::fs::create_dir_all(target).unwrap();
        let source = match self.mounts {
            true => self.disk.join(volume),
            false => target.to_owned(),
        };
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("name"), volume).unwrap();
        if self.mounts {
            let none = None::<&str>;
            nix::mount::mount(Some(&source), target, none, MsFlags::MS_BIND, none).unwrap();
        }
    }

    /// Creates a device at a path, unless it exists. It is /dev/zero, which every machine has.
    fn give_device(&self, volume: &str, target: &Path) {
        let mut state = self.state();
        if state.mounted.insert(target.to_owned(), volume.to_owned()).is_none() {
            let mode = Mode::from_bits_truncate(0o600);
            mknod(target, SFlag::S_IFCHR, mode, makedev(1, 5)).unwrap();
        }
    }

    /// Unmounts a directory, and removes it if `removes` is set. A device is removed.
    fn unmount(&self, target: &Path, removes: bool) {
        let mut state = self.state();
        if state.mounted.remove(target).is_none() {
            return;
        }
        if !target.is_dir() {
            std::fs::remove_file(target).unwrap();
            return;
        }
        if self.mounts {
            nix::mount::umount(target).unwrap();
        } else {
            std::fs::remove_file(target.join("name")).unwrap();
        }
        if removes {
            std::fs::remove_dir(target).unwrap();
        }
    }
}

fn shown(capability: Option<VolumeCapability>) -> Value {
    let capability = capability.unwrap();
    let mode = capability.access_mode.unwrap().mode().as_str_name();
    match capability.access_type {
        Some(AccessType::Mount(mount)) => json!({
            "mode": mode, "fs_type": mount.fs_type, "flags": mount.mount_flags, "group": mount.volume_mount_group,
        }),
        Some(AccessType::Block(_)) => json!({"mode": mode, "block": true}),
        None => panic!("there is no access type"),
    }
}

fn is_block(capability: &Option<VolumeCapability>) -> bool {
    let kind = capability.as_ref().and_then(|capability| capability.access_type.as_ref());
    matches!(kind, Some(AccessType::Block(_)))
}

#[tonic::async_trait]
impl Node for Shared {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let requested = request.into_inner();
        let is_block = is_block(&requested.volume_capability);
        let call = json!({
            "volume": requested.volume_id, "publish_context": requested.publish_context, "staging": requested.staging_target_path,
            "has_staging": Path::new(&requested.staging_target_path).is_dir(), "secrets": requested.secrets, "context": requested.volume_context, "capability": shown(requested.volume_capability),
        });
        self.note("NodeStageVolume", call)?;
        if !is_block {
            self.mount(&requested.volume_id, Path::new(&requested.staging_target_path));
        }
        self.answer("NodeStageVolume", csi::NodeStageVolumeResponse {}).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let requested = request.into_inner();
        let call = json!({"volume": requested.volume_id, "staging": requested.staging_target_path});
        self.note("NodeUnstageVolume", call)?;
        self.unmount(Path::new(&requested.staging_target_path), false);
        self.answer("NodeUnstageVolume", csi::NodeUnstageVolumeResponse {}).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let requested = request.into_inner();
        let is_block = is_block(&requested.volume_capability);
        let call = json!({
            "volume": requested.volume_id, "publish_context": requested.publish_context, "staging": requested.staging_target_path,
            "target": requested.target_path, "readonly": requested.readonly, "secrets": requested.secrets,
            "context": requested.volume_context, "capability": shown(requested.volume_capability),
            "has_parent": Path::new(&requested.target_path).parent().unwrap().is_dir(),
        });
        self.note("NodePublishVolume", call)?;
        let target = Path::new(&requested.target_path);
        match is_block {
            true => self.give_device(&requested.volume_id, target),
            false => self.mount(&requested.volume_id, target),
        }
        self.answer("NodePublishVolume", csi::NodePublishVolumeResponse {}).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let requested = request.into_inner();
        let call = json!({"volume": requested.volume_id, "target": requested.target_path});
        self.note("NodeUnpublishVolume", call)?;
        self.unmount(Path::new(&requested.target_path), true);
        self.answer("NodeUnpublishVolume", csi::NodeUnpublishVolumeResponse {}).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let requested = request.into_inner();
        let call = json!({"volume": requested.volume_id, "path": requested.volume_path});
        self.note("NodeGetVolumeStats", call)?;
        let usage = |unit: Unit, [available, total, used]: [i64; 3]| VolumeUsage {
            available,
            total,
            used,
            unit: unit.into(),
        };
        let message = "the disk is torn".to_owned();
        let answer = csi::NodeGetVolumeStatsResponse {
            usage: vec![usage(Unit::Bytes, [600, 1000, 400]), usage(Unit::Inodes, [8, 9, 1])],
            volume_condition: Some(VolumeCondition { abnormal: true, message }),
        };
        self.answer("NodeGetVolumeStats", answer).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let requested = request.into_inner();
        let bytes = requested.capacity_range.unwrap().required_bytes;
        let call = json!({
            "volume": requested.volume_id, "path": requested.volume_path, "bytes": bytes, "staging": requested.staging_target_path,
            "secrets": requested.secrets, "capability": shown(requested.volume_capability),
        });
        self.note("NodeExpandVolume", call)?;
        let answer = csi::NodeExpandVolumeResponse { capacity_bytes: bytes };
        self.answer("NodeExpandVolume", answer).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let mut kinds = vec![rpc::Type::SingleNodeMultiWriter];
        if self.state().stages {
            kinds.push(rpc::Type::StageUnstageVolume);
        }
        if self.state().expands {
            kinds.push(rpc::Type::ExpandVolume);
        }
        if self.state().measures {
            kinds.extend([rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition]);
        }
        let capability = |kind: rpc::Type| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        self.note("NodeGetInfo", json!({}))?;
        let segments = [("topology.example/node".to_owned(), "one".to_owned())].into();
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "the-node".to_owned(),
            max_volumes_per_node: self.state().limit,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}

#[tonic::async_trait]
impl Registration for Shared {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_str().unwrap().to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let call = json!({"registered": status.plugin_registered, "error": status.error});
        self.note("NotifyRegistrationStatus", call)?;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
