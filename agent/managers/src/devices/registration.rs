//! The socket at which device plugins register, and the connections to those that did.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager/plugin/v1beta1.

use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use compact::Map;
use cri::deviceplugin as wire;
use cri::deviceplugin::registration_server::{Registration, RegistrationServer};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tonic::{Request, Response, Status};

use super::manager::DeviceManager;
use super::plugin::{Plugin, text};
use crate::socket;

/// The name of the socket.
const SOCKET: &str = "kubelet.sock";
/// The version of the contract.
const VERSION: &str = "v1beta1";

/// Makes the socket.
///
/// # Errors
/// It cannot be made.
pub(crate) fn bind(directory: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(directory.join(SOCKET))
}

/// A plugin whose devices are to be followed.
struct Follow {
    resource: String,
    registration: u64,
    plugin: Plugin,
}

/// Lets plugins register, and follows their devices. Never returns.
pub(crate) async fn serve(manager: Arc<DeviceManager>, listener: UnixListener) {
    let (follow, mut registered) = mpsc::unbounded_channel();
    let service = RegistrationServer::new(Registrar { manager: Arc::clone(&manager), follow });
    let mut tasks = JoinSet::new();
    tasks.spawn(tasks::boxed(socket::serve(listener, service)));
    let mut followed: Map<String, AbortHandle> = Map::new();
    loop {
        tokio::select! {
            Some(plugin) = registered.recv() => {
                let resource = plugin.resource.clone();
                let task = tasks.spawn(tasks::boxed(plugin.run(Arc::clone(&manager))));
                // The connection to an earlier plugin of the resource.
                if let Some(earlier) = followed.insert(resource, task) {
                    earlier.abort();
                }
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

impl Follow {
    /// Follows the devices of a plugin until it has gone.
    async fn run(self, manager: Arc<DeviceManager>) {
        let Self { resource, registration, plugin } = self;
        let why = match plugin.list().await {
            Err(status) => text(&status),
            Ok(mut lists) => loop {
                match lists.message().await {
                    Ok(Some(list)) => {
                        if !manager.listed(&resource, registration, list) {
                            return;
                        }
                    }
                    Ok(None) => break "ListAndWatch ended".to_owned(),
                    Err(status) => break text(&status),
                }
            },
        };
        manager.disconnected(&resource, registration, &why);
    }
}

/// Serves registrations.
struct Registrar {
    manager: Arc<DeviceManager>,
    follow: mpsc::UnboundedSender<Follow>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let wire::RegisterRequest { version, endpoint, resource_name: resource, .. } =
            request.into_inner();
        if let Err(problem) = check(&version, &endpoint, &resource) {
            tracing::warn!(resource, problem, "rejected device plugin");
            return Err(Status::unknown(problem));
        }
        let socket = self.manager.directory().join(&endpoint);
        let plugin = Plugin::connect(&socket).await.map_err(|problem| {
            tracing::warn!(resource, socket = %socket.display(), problem, "failed to connect to device plugin");
            Status::unknown(problem)
        })?;
        tracing::info!(resource, socket = %socket.display(), "device plugin registered");
        let registration = self.manager.connected(&resource, plugin.clone());
        // It is received as long as anything is served.
        let _ = self.follow.send(Follow { resource, registration, plugin });
        Ok(Response::new(wire::Empty {}))
    }
}

/// ◆ Whether a plugin may register.
fn check(version: &str, endpoint: &str, resource: &str) -> Result<(), String> {
    if version != VERSION {
        return Err(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
        ));
    }
    if !is_extended(resource) {
        return Err(format!("the ResourceName {resource:?} is invalid"));
    }
    let mut parts = Path::new(endpoint).components();
    if endpoint.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!("the endpoint {endpoint:?} is not in the directory of device plugins"));
    }
    Ok(())
}

/// ◆ Whether this is the name of an extended resource: with a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    const OF_QUOTAS: &str = "requests.";
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with(OF_QUOTAS)
        && api::manifest::qualified(&format!("{OF_QUOTAS}{name}")).is_none()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("v1beta1", "gpu.sock", "vendor.com/gpu", "")]
    #[case("v1beta1", "vendor/gpu.sock", "vendor.com/gpu", "")]
    #[case("v1alpha", "gpu.sock", "vendor.com/gpu", "requested API version \"v1alpha\"")]
    #[case("v1beta1", "gpu.sock", "gpu", "the ResourceName \"gpu\" is invalid")]
    #[case("v1beta1", "gpu.sock", "x.kubernetes.io/gpu", "the ResourceName")]
    #[case("v1beta1", "gpu.sock", "requests.vendor.com/gpu", "the ResourceName")]
    #[case("v1beta1", "gpu.sock", "vendor.com/-", "the ResourceName")]
    #[case("v1beta1", "../gpu.sock", "vendor.com/gpu", "the endpoint \"../gpu.sock\"")]
    #[case("v1beta1", "/run/gpu.sock", "vendor.com/gpu", "the endpoint")]
    #[case("v1beta1", "", "vendor.com/gpu", "the endpoint")]
    fn plugins_need_a_version_an_endpoint_and_a_resource(
        #[case] version: &str,
        #[case] endpoint: &str,
        #[case] resource: &str,
        #[case] problem: &str,
    ) {
        match check(version, endpoint, resource) {
            Ok(()) => assert_eq!(problem, ""),
            Err(told) => assert!(!problem.is_empty() && told.starts_with(problem), "{told}"),
        }
    }
}
