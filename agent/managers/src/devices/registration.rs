//! Registration of device plugins, at the agent's own socket or by sockets that the plugin watcher finds, and the connections to
//! registered plugins.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager/plugin/v1beta1.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use compact::Map;
use cri::deviceplugin as wire;
use cri::deviceplugin::registration_server::{Registration, RegistrationServer};
use plugins::{PluginHandler, PluginInfo};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tonic::{Request, Response, Status};

use super::manager::DeviceManager;
use super::plugin::{Plugin, text};
use crate::socket;

/// The name of the registration socket.
const SOCKET: &str = "kubelet.sock";
/// The version of the device plugin API.
const VERSION: &str = "v1beta1";

/// The state to serve: the listener, and registered plugins.
pub(crate) struct Registrations {
    listener: UnixListener,
    changes: mpsc::UnboundedReceiver<Change>,
}

/// A change of the plugins.
enum Change {
    Registered(Follow),
    /// The plugin of this registration was deregistered.
    Deregistered {
        resource: String,
        registration: u64,
    },
}

/// A plugin whose devices must be followed.
struct Follow {
    resource: String,
    registration: u64,
    plugin: Plugin,
}

/// Binds the socket.
///
/// # Errors
/// If the socket cannot be bound.
pub(crate) fn open(manager: &Arc<DeviceManager>) -> io::Result<(Registrar, Registrations)> {
    let listener = UnixListener::bind(manager.directory().join(SOCKET))?;
    let (sender, changes) = mpsc::unbounded_channel();
    let registrar =
        Registrar { manager: Arc::clone(manager), changes: sender, watched: Arc::default() };
    Ok((registrar, Registrations { listener, changes }))
}

/// Accepts registrations, and follows the plugins' devices. Never returns.
pub(crate) async fn serve(registrar: Registrar, registrations: Registrations) {
    let Registrations { listener, mut changes } = registrations;
    let manager = Arc::clone(&registrar.manager);
    let mut tasks = JoinSet::new();
    tasks.spawn(tasks::boxed(socket::serve(listener, RegistrationServer::new(registrar))));
    let mut followed: Map<String, (u64, AbortHandle)> = Map::new();
    loop {
        tokio::select! {
            Some(change) = changes.recv() => match change {
                Change::Registered(plugin) => {
                    let (resource, registration) = (plugin.resource.clone(), plugin.registration);
                    let task = tasks.spawn(tasks::boxed(plugin.run(Arc::clone(&manager))));
                    // Stop following an earlier plugin of the resource.
                    if let Some((_, earlier)) = followed.insert(resource, (registration, task)) {
                        earlier.abort();
                    }
                }
                Change::Deregistered { resource, registration } => {
                    let is_it = followed.get(&resource).is_some_and(|(number, _)| *number == registration);
                    if is_it && let Some((_, task)) = followed.remove(&resource) {
                        task.abort();
                    }
                }
            },
            Some(ended) = tasks.join_next() => { tasks::output(ended); }
        }
    }
}

impl Follow {
    /// Follows the devices of a plugin until it disconnects.
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

/// Registers plugins. Clones share the state.
#[derive(Clone)]
pub(crate) struct Registrar {
    manager: Arc<DeviceManager>,
    changes: mpsc::UnboundedSender<Change>,
    /// The registration numbers of plugins that the watcher found, by socket.
    watched: Arc<Mutex<Map<PathBuf, u64>>>,
}

impl Registrar {
    /// Connects to a plugin, and starts to follow its devices. Returns the registration number.
    async fn connect(&self, resource: &str, socket: &Path) -> Result<u64, String> {
        let plugin = Plugin::connect(socket).await.inspect_err(|problem| {
            tracing::warn!(resource, socket = %socket.display(), problem, "failed to connect to device plugin");
        })?;
        tracing::info!(resource, socket = %socket.display(), "device plugin registered");
        let registration = self.manager.connected(resource, plugin.clone());
        let follow = Follow { resource: resource.to_owned(), registration, plugin };
        // The receiver exists while [`serve`] runs.
        let _ = self.changes.send(Change::Registered(follow));
        Ok(registration)
    }

    fn watched(&self) -> MutexGuard<'_, Map<PathBuf, u64>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let wire::RegisterRequest { version, endpoint, resource_name: resource, .. } =
            request.into_inner();
        self.manager.measured.registered(&resource);
        if let Err(problem) = check(&version, &endpoint, &resource) {
            tracing::warn!(resource, problem, "rejected device plugin");
            return Err(Status::unknown(problem));
        }
        let socket = self.manager.directory().join(&endpoint);
        self.connect(&resource, &socket).await.map_err(Status::unknown)?;
        Ok(Response::new(wire::Empty {}))
    }
}

#[async_trait]
impl PluginHandler for Registrar {
    fn kind(&self) -> &'static str {
        "DevicePlugin"
    }

    fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        check_found(&plugin.name, &plugin.versions)
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        let registration = self.connect(&plugin.name, &plugin.endpoint).await?;
        self.watched().insert(plugin.socket.clone(), registration);
        Ok(())
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        let Some(registration) = self.watched().remove(&plugin.socket) else {
            return;
        };
        let resource = plugin.name.clone();
        self.manager.disconnected(&resource, registration, "socket removed");
        let _ = self.changes.send(Change::Deregistered { resource, registration });
    }
}

/// ◆ Checks that a plugin may register.
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

/// ◆ Checks that a plugin which the watcher has found may register.
fn check_found(resource: &str, versions: &[String]) -> Result<(), String> {
    if !versions.iter().any(|version| version == VERSION) {
        let versions = versions.join(" ");
        return Err(format!(
            "manager version, {VERSION}, is not among plugin supported versions [{versions}]"
        ));
    }
    match is_extended(resource) {
        true => Ok(()),
        false => Err(format!(
            "invalid name of device plugin socket: the ResourceName {resource:?} is invalid"
        )),
    }
}

/// ◆ Whether this is the name of an extended resource: it has a domain, which is not Kubernetes' own.
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

    #[rstest]
    #[case(&["v1beta1"], "vendor.com/gpu", "")]
    #[case(&["v1alpha", "v1beta1"], "vendor.com/gpu", "")]
    #[case(
        &["v1alpha", "v1"], "vendor.com/gpu",
        "manager version, v1beta1, is not among plugin supported versions [v1alpha v1]"
    )]
    #[case(&[], "vendor.com/gpu", "manager version, v1beta1, is not among plugin supported versions []")]
    #[case(&["v1beta1"], "gpu", "invalid name of device plugin socket: the ResourceName \"gpu\" is invalid")]
    fn found_plugins_need_a_version_and_a_resource(
        #[case] versions: &[&str],
        #[case] resource: &str,
        #[case] problem: &str,
    ) {
        let versions: Vec<String> = versions.iter().map(|&version| version.to_owned()).collect();
        assert_eq!(check_found(resource, &versions).err().unwrap_or_default(), problem);
    }
}
