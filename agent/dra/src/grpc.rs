//! Calls of drivers over their sockets. No other file of the package names wire types.
//!
//! Each call has a connection of its own: a driver that was restarted is reached by the next one.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin.go.

use std::path::PathBuf;
use std::time::Duration;

use cri::client::{GrpcClient, single};
use cri::codec::{Incoming, Outgoing};
use cri::dra as wire;
use plugins::{CallError, connect, within};
use tonic::Request;

use crate::claims::{Answers, Claim, Device};
use crate::services::Service;

/// How long a driver may take for a call.
const CALL: Duration = Duration::from_secs(45);

/// A plugin of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plugin {
    pub(crate) endpoint: PathBuf,
    pub(crate) service: Service,
}

impl Plugin {
    /// Has claims prepared for the node.
    pub(crate) async fn prepare(
        &self,
        claims: &[Claim],
    ) -> Result<Answers<Vec<Device>>, CallError> {
        let request = wire::NodePrepareResourcesRequest { claims: named(claims) };
        let path = match self.service {
            Service::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Service::V1beta1 => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"
            }
        };
        let answer: wire::NodePrepareResourcesResponse = self.call(request, path).await?;
        let answers = answer.claims.into_iter().map(|(uid, answer)| {
            let devices = answer.devices.into_iter().map(device).collect();
            (uid, if answer.error.is_empty() { Ok(devices) } else { Err(answer.error) })
        });
        Ok(answers.collect())
    }

    /// Undoes that.
    pub(crate) async fn unprepare(&self, claims: &[Claim]) -> Result<Answers<()>, CallError> {
        let request = wire::NodeUnprepareResourcesRequest { claims: named(claims) };
        let path = match self.service {
            Service::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            Service::V1beta1 => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
            }
        };
        let answer: wire::NodeUnprepareResourcesResponse = self.call(request, path).await?;
        let answers = answer.claims.into_iter().map(|(uid, answer)| {
            (uid, if answer.error.is_empty() { Ok(()) } else { Err(answer.error) })
        });
        Ok(answers.collect())
    }

    async fn call<A: Incoming>(
        &self,
        request: impl Outgoing + 'static,
        path: &'static str,
    ) -> Result<A, CallError> {
        let calling = async {
            let mut client = GrpcClient::new(connect(&self.endpoint).await?);
            let answer = client.unary(single(Request::new(request)), path).await?;
            Ok(answer.into_inner())
        };
        within(CALL, calling).await
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
