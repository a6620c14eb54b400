//! A connection to a device plugin, and the calls that the agent makes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cri::deviceplugin as wire;
use cri::deviceplugin::device_plugin_client::DevicePluginClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use super::affinity::Ids;
use super::inventory::Usage;
use super::wire::usage;

/// The connection timeout.
const CONNECT: Duration = Duration::from_secs(10);
/// The timeout of PreStartContainer.
const PRE_START: Duration = Duration::from_secs(30);

/// A connected plugin. Clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    client: DevicePluginClient,
    options: wire::DevicePluginOptions,
}

impl Plugin {
    /// Connects to a plugin's socket, and gets its options.
    ///
    /// # Errors
    /// The error as text if it does not listen, or does not answer.
    pub(super) async fn connect(socket: &Path) -> Result<Self, String> {
        let path: PathBuf = socket.to_owned();
        let connect = move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        };
        // The address is unused, but mandatory.
        let endpoint = Endpoint::from_static("http://localhost");
        let connected =
            timeout(CONNECT, endpoint.connect_with_connector(tower::service_fn(connect)));
        let failed = |why: String| format!("failed to dial device plugin: {why}");
        let channel = match connected.await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(failed(chain(&error))),
            Err(_) => return Err(failed(format!("no answer within {} s", CONNECT.as_secs()))),
        };
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(wire::Empty {}).await;
        let options = options
            .map_err(|status| format!("failed to get device plugin options: {}", text(&status)))?;
        Ok(Self { client, options: options.into_inner() })
    }

    /// Whether it supports GetPreferredAllocation.
    pub(super) fn has_preferences(&self) -> bool {
        self.options.get_preferred_allocation_available
    }

    /// Whether it requires PreStartContainer before each creation of a container.
    pub(super) fn prepares(&self) -> bool {
        self.options.pre_start_required
    }

    /// A stream of its devices: the current list, and a new one after each change.
    pub(super) async fn list(&self) -> Result<Streaming<wire::ListAndWatchResponse>, Status> {
        let stream = self.client.clone().list_and_watch(wire::Empty {}).await?;
        Ok(stream.into_inner())
    }

    /// Its preferred choice among the available devices.
    pub(super) async fn prefer(
        &self,
        available: &Ids,
        included: &Ids,
        count: usize,
    ) -> Result<Ids, Status> {
        let request = wire::ContainerPreferredAllocationRequest {
            available_device_i_ds: available.iter().cloned().collect(),
            must_include_device_i_ds: included.iter().cloned().collect(),
            allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
        };
        let request = wire::PreferredAllocationRequest { container_requests: vec![request] };
        let response = self.client.clone().get_preferred_allocation(request).await?.into_inner();
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|it| it.device_i_ds.into_iter().collect()).unwrap_or_default())
    }

    /// The container settings for these devices; `None` if the response has none.
    pub(super) async fn allocate(&self, ids: &Ids) -> Result<Option<Usage>, Status> {
        let request = wire::ContainerAllocateRequest { devices_ids: ids.iter().cloned().collect() };
        let request = wire::AllocateRequest { container_requests: vec![request] };
        let response = self.client.clone().allocate(request).await?.into_inner();
        Ok(response.container_responses.into_iter().next().map(usage))
    }

    /// Prepares devices for a container that is about to be created.
    pub(super) async fn pre_start(&self, ids: &Ids) -> Result<(), Status> {
        let request = wire::PreStartContainerRequest { devices_ids: ids.iter().cloned().collect() };
        let mut client = self.client.clone();
        match timeout(PRE_START, client.pre_start_container(request)).await {
            Ok(done) => done.map(|_| ()),
            Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
        }
    }
}

/// An error of a call as Go's gRPC prints it.
pub(super) fn text(status: &Status) -> String {
    // Go's name of this code differs.
    let code = format!("{:?}", status.code()).replace("Cancelled", "Canceled");
    format!("rpc error: code = {code} desc = {}", status.message())
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
