//! Calls drivers over their sockets. No other file of the package names wire types.
//!
//! All calls to a plugin share one connection, as those of a kubelet. A call after the driver's restart opens it again.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin.go.

use std::path::PathBuf;
use std::time::Duration;

use cri::client::{GrpcClient, single};
use cri::codec::{Incoming, Outgoing};
use cri::{dra as wire, drahealth};
use plugins::{CallError, Connection, with_timeout};
use tokio::time::timeout;
use tonic::{Request, Status, Streaming};

use crate::claims::{Claim, ClaimResults, Device};
use crate::health::{DeviceHealth, Health, TIMEOUT, truncated};
use crate::services::Service;

/// The timeout of a call.
const CALL: Duration = Duration::from_secs(45);

/// A plugin of a driver. Clones share its connection.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) endpoint: PathBuf,
    pub(crate) service: Service,
    connection: Connection,
}

impl Plugin {
    /// A plugin that serves this service on the socket.
    pub(crate) fn new(endpoint: PathBuf, service: Service) -> Self {
        let connection = Connection::new(&endpoint);
        Self { endpoint, service, connection }
    }

    /// Whether it is connected, or accepts a connection within this time.
    pub(crate) async fn is_reachable(&self, limit: Duration) -> bool {
        matches!(timeout(limit, self.connection.channel()).await, Ok(Ok(_)))
    }

    /// Prepares claims.
    pub(crate) async fn prepare(
        &self,
        claims: &[Claim],
    ) -> Result<ClaimResults<Vec<Device>>, CallError> {
        let request = wire::NodePrepareResourcesRequest { claims: named(claims) };
        let path = self.service.prepare_path();
        let answer: wire::NodePrepareResourcesResponse = self.call(request, path).await?;
        let answers = answer.claims.into_iter().map(|(uid, answer)| {
            let devices = answer.devices.into_iter().map(device).collect();
            (uid, if answer.error.is_empty() { Ok(devices) } else { Err(answer.error) })
        });
        Ok(answers.collect())
    }

    /// Unprepares claims.
    pub(crate) async fn unprepare(&self, claims: &[Claim]) -> Result<ClaimResults<()>, CallError> {
        let request = wire::NodeUnprepareResourcesRequest { claims: named(claims) };
        let path = self.service.unprepare_path();
        let answer: wire::NodeUnprepareResourcesResponse = self.call(request, path).await?;
        let answers = answer.claims.into_iter().map(|(uid, answer)| {
            (uid, if answer.error.is_empty() { Ok(()) } else { Err(answer.error) })
        });
        Ok(answers.collect())
    }

    /// Starts a stream of the health of the plugin's devices.
    pub(crate) async fn watch_health(&self) -> Result<HealthReports, Status> {
        let mut client = GrpcClient::new(self.connection.channel().await?);
        let request = single(Request::new(drahealth::NodeWatchResourcesRequest {}));
        let answer = client.streaming(request, "/v1alpha1.DRAResourceHealth/NodeWatchResources");
        Ok(HealthReports(answer.await?.into_inner()))
    }

    async fn call<A: Incoming>(
        &self,
        request: impl Outgoing + 'static,
        path: &'static str,
    ) -> Result<A, CallError> {
        let calling = async {
            let mut client = GrpcClient::new(self.connection.channel().await?);
            let answer = client.unary(single(Request::new(request)), path).await?;
            Ok(answer.into_inner())
        };
        with_timeout(CALL, calling).await
    }
}

/// A stream of health reports of a plugin.
pub(crate) struct HealthReports(Streaming<drahealth::NodeWatchResourcesResponse>);

impl HealthReports {
    /// The next report; `None` when the plugin ends the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<DeviceHealth>>, Status> {
        let report = self.0.message().await?;
        Ok(report.map(|report| report.devices.into_iter().map(health).collect()))
    }
}

fn health(device: drahealth::DeviceHealth) -> DeviceHealth {
    use drahealth::HealthStatus;
    let health = match device.health() {
        HealthStatus::Healthy => Health::Healthy,
        HealthStatus::Unhealthy => Health::Unhealthy,
        HealthStatus::Unknown => Health::Unknown,
    };
    let seconds = u64::try_from(device.health_check_timeout_seconds).unwrap_or_default();
    let named = device.device.unwrap_or_default();
    DeviceHealth {
        pool: named.pool_name,
        device: named.device_name,
        health,
        timeout: if seconds == 0 { TIMEOUT } else { Duration::from_secs(seconds) },
        message: truncated(device.message),
    }
}

fn named(claims: &[Claim]) -> Vec<wire::Claim> {
    let named = claims.iter().map(|claim| wire::Claim {
        namespace: claim.namespace.clone(),
        uid: claim.uid.clone(),
        name: claim.name.clone(),
    });
    named.collect()
}

fn device(device: wire::Device) -> Device {
    Device {
        pool: device.pool_name,
        name: device.device_name,
        share_id: device.share_id,
        requests: device.request_names,
        cdi_devices: device.cdi_device_ids,
    }
}
