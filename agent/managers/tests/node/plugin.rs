//! A device plugin like a vendor's: it lists devices, and returns the files and variables that a container needs for them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cri::deviceplugin as wire;
use cri::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use cri::deviceplugin::registration_client::RegistrationClient;
use cri::pluginregistration as found;
use cri::pluginregistration::registration_server::{Registration, RegistrationServer};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// The resource of the plugins.
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// The script of a plugin, and the calls that it received. Clones share them.
#[derive(Clone)]
pub(crate) struct Script(Arc<Inner>);

struct Inner {
    devices: watch::Sender<Vec<wire::Device>>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The devices that it prefers.
    pub(crate) preferred: Vec<String>,
    pub(crate) has_preferences: bool,
    pub(crate) prepares: bool,
    /// The directory of its files, for containers that use them: it is mounted at a directory that exists in containers of the
    /// host's files for any user, and its devices are `/dev/null`, without CDI names.
    pub(crate) files: Option<PathBuf>,
    /// The error of Allocate.
    pub(crate) allocation_fails: Option<String>,
    /// The error of PreStartContainer.
    pub(crate) preparation_fails: Option<String>,
    /// The received calls with their devices.
    pub(crate) calls: Vec<String>,
}

impl Script {
    /// A plugin with these healthy devices.
    pub(crate) fn new(ids: &[&str]) -> Self {
        let (devices, _) = watch::channel(ids.iter().map(|id| device(id, "Healthy")).collect());
        Self(Arc::new(Inner { devices, state: Mutex::default() }))
    }

    /// Changes the script.
    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
    }

    /// Replaces its devices: IDs and health.
    pub(crate) fn list(&self, devices: &[(&str, &str)]) {
        let devices = devices.iter().map(|(id, health)| device(id, health)).collect();
        self.0.devices.send_replace(devices);
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn called(&self, call: &str, ids: &[String]) {
        self.state().calls.push(format!("{call} {}", ids.join(",")));
    }
}

fn device(id: &str, health: &str) -> wire::Device {
    wire::Device { id: id.to_owned(), health: health.to_owned(), topology: None }
}

/// A running plugin. Dropping it breaks its connections, as when its process ends.
pub(crate) struct Running(Option<Runtime>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Starts a plugin in a directory, and registers it for a resource.
pub(crate) async fn start(
    directory: &Path,
    resource: &str,
    script: &Script,
) -> Result<Running, Status> {
    let endpoint = format!("{}.sock", resource.replace('/', "-"));
    let socket = directory.join(&endpoint);
    let _ = std::fs::remove_file(&socket);
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = {
        let _entered = runtime.enter();
        UnixListener::bind(&socket).unwrap()
    };
    let service = DevicePluginServer::new(script.clone());
    runtime.spawn(async move {
        let incoming = UnixListenerStream::new(listener);
        let _ = Server::builder().serve_with_incoming(service, incoming).await;
    });
    let running = Running(Some(runtime));
    register(directory, "v1beta1", &endpoint, resource).await?;
    Ok(running)
}

/// Starts a plugin with a registration socket in the watcher's directory, and its device socket next to the directory. It
/// supports one version of the API. Also returns the notifications of its registration.
pub(crate) fn start_to_be_found(
    registry: &Path,
    version: &'static str,
    script: &Script,
) -> (Running, watch::Receiver<Option<found::RegistrationStatus>>) {
    let endpoint = registry.with_file_name("found-gpu.sock");
    let _ = std::fs::remove_file(&endpoint);
    std::fs::create_dir_all(registry).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let bind = |socket: &Path| {
        let _entered = runtime.enter();
        UnixListenerStream::new(UnixListener::bind(socket).unwrap())
    };
    let (devices, registration) = (bind(&endpoint), bind(&registry.join("gpu.sock")));
    let service = DevicePluginServer::new(script.clone());
    runtime.spawn(async move {
        let _ = Server::builder().serve_with_incoming(service, devices).await;
    });
    let (told, statuses) = watch::channel(None);
    let service = RegistrationServer::new(Found { version, endpoint, told });
    runtime.spawn(async move {
        let _ = Server::builder().serve_with_incoming(service, registration).await;
    });
    (Running(Some(runtime)), statuses)
}

/// The registration service of a plugin that the watcher finds.
struct Found {
    version: &'static str,
    endpoint: PathBuf,
    told: watch::Sender<Option<found::RegistrationStatus>>,
}

#[tonic::async_trait]
impl Registration for Found {
    async fn get_info(
        &self,
        _: Request<found::InfoRequest>,
    ) -> Result<Response<found::PluginInfo>, Status> {
        Ok(Response::new(found::PluginInfo {
            r#type: "DevicePlugin".to_owned(),
            name: GPU.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![self.version.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<found::RegistrationStatus>,
    ) -> Result<Response<found::RegistrationStatusResponse>, Status> {
        self.told.send_replace(Some(request.into_inner()));
        Ok(Response::new(found::RegistrationStatusResponse {}))
    }
}

/// Registers a plugin.
pub(crate) async fn register(
    directory: &Path,
    version: &str,
    endpoint: &str,
    resource: &str,
) -> Result<(), Status> {
    let mut client = RegistrationClient::new(connect(directory.join("kubelet.sock")).await);
    let request = wire::RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    client.register(request).await.map(|_| ())
}

/// A connection to a socket.
pub(crate) async fn connect(socket: PathBuf) -> Channel {
    let connect = move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap()
}

#[tonic::async_trait]
impl DevicePlugin for Script {
    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        let state = self.state();
        Ok(Response::new(wire::DevicePluginOptions {
            pre_start_required: state.prepares,
            get_preferred_allocation_available: state.has_preferences,
        }))
    }

    type ListAndWatchStream =
        std::pin::Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.0.devices.subscribe());
        Ok(Response::new(Box::pin(lists.map(|devices| Ok(wire::ListAndWatchResponse { devices })))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        self.called("prefer", &request.available_device_i_ds);
        let response = wire::ContainerPreferredAllocationResponse {
            device_i_ds: self.state().preferred.clone(),
        };
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses: vec![response] }))
    }

    /// Like NVIDIA's plugin with all its strategies at the same time.
    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        self.called("allocate", &ids);
        if let Some(problem) = &self.state().allocation_fails {
            return Err(Status::unknown(problem.clone()));
        }
        let files = self.state().files.clone();
        let node = |path: String| wire::DeviceSpec {
            host_path: files.as_ref().map_or_else(|| path.clone(), |_| "/dev/null".to_owned()),
            container_path: path,
            permissions: "rw".to_owned(),
        };
        let response = wire::ContainerAllocateResponse {
            envs: [("NVIDIA_VISIBLE_DEVICES".to_owned(), ids.join(","))].into(),
            mounts: vec![wire::Mount {
                container_path: if files.is_some() { "/opt" } else { "/usr/local/nvidia" }
                    .to_owned(),
                host_path: files
                    .as_ref()
                    .map_or_else(|| "/opt/nvidia".to_owned(), |files| files.display().to_string()),
                read_only: true,
            }],
            devices: ids.iter().map(|id| node(format!("/dev/{id}"))).collect(),
            annotations: [("nvidia".to_owned(), ids.join(","))].into(),
            cdi_devices: ids
                .iter()
                .filter(|_| files.is_none())
                .map(|id| wire::CdiDevice { name: format!("{GPU}={id}") })
                .collect(),
        };
        Ok(Response::new(wire::AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        self.called("prepare", &request.into_inner().devices_ids);
        match &self.state().preparation_fails {
            Some(problem) => Err(Status::unknown(problem.clone())),
            None => Ok(Response::new(wire::PreStartContainerResponse {})),
        }
    }
}
