//! Calls drivers over their sockets. No other file of the package names wire types.
//!
//! Each call opens its own connection, as in the kubelet, so that a call after a driver's restart reaches the new driver.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_client.go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::histogram;
use agent::reporting::measures::VOLUME_BOUNDS;
use agent::storage::drivers::{Amount, DriverCall, DriverCalls, DriverCondition};
use cri::csi::node_client::NodeClient;
use cri::csi::node_service_capability::{Type, rpc};
use cri::csi::volume_capability::access_mode::Mode;
use cri::csi::volume_capability::{
    AccessMode as WireAccessMode, AccessType, BlockVolume, MountVolume,
};
use cri::csi::volume_usage::Unit;
use cri::csi::{self, CapacityRange, VolumeCapability, VolumeUsage};
use plugins::{CallError, connect, with_timeout};
use tokio::time::Instant;
use tonic::Status;

use crate::cluster::NodeDriver;
use crate::request::{AccessKind, AccessMode, Capabilities, Capability, Strings};
use crate::stats::{Stats, UsageUnit};

/// The timeout of a call (csiTimeout).
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The durations of the calls of all drivers. Clones share them.
///
/// Source: Kubernetes 1.36, pkg/volume/csi/csi_metrics.go RecordMetricsInterceptor.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallDurations(Arc<Mutex<DriverCalls>>);

impl CallDurations {
    pub(crate) fn all(&self) -> DriverCalls {
        self.lock().clone()
    }

    fn observe(&self, call: DriverCall, took: Duration) {
        histogram::observe(&mut self.lock(), call, VOLUME_BOUNDS, took);
    }

    fn lock(&self) -> MutexGuard<'_, DriverCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A driver's node service.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    name: String,
    endpoint: PathBuf,
    durations: CallDurations,
}

/// The parameters of NodeStageVolume.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) handle: String,
    pub(crate) publish_context: Strings,
    pub(crate) staging: PathBuf,
    pub(crate) capability: Capability,
    pub(crate) secrets: Strings,
    pub(crate) context: Strings,
}

/// The parameters of NodePublishVolume.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    pub(crate) handle: String,
    pub(crate) publish_context: Strings,
    /// The staging path, if the driver stages volumes.
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: PathBuf,
    pub(crate) capability: Capability,
    pub(crate) readonly: bool,
    pub(crate) secrets: Strings,
    pub(crate) context: Strings,
}

/// The parameters of NodeExpandVolume.
#[derive(Clone, Debug)]
pub(crate) struct Expand {
    pub(crate) handle: String,
    pub(crate) target: PathBuf,
    /// The staging path, if the driver stages volumes.
    pub(crate) staging: Option<PathBuf>,
    /// The minimum size.
    pub(crate) bytes: i64,
    pub(crate) capability: Capability,
    pub(crate) secrets: Strings,
}

impl Driver {
    /// Creates a client of the driver with this name and socket, whose calls are measured.
    pub(crate) fn new(name: &str, endpoint: PathBuf, durations: CallDurations) -> Self {
        Self { name: name.to_owned(), endpoint, durations }
    }

    /// Makes a call. `path` names its method.
    async fn call<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        path: &'static str,
        call: impl FnOnce(NodeClient) -> F,
    ) -> Result<T, CallError> {
        let since = Instant::now();
        let calling = async { call(NodeClient::new(connect(&self.endpoint).await?)).await };
        let answered = with_timeout(CALL_TIMEOUT, calling).await;
        let code = answered.as_ref().map_or_else(|error| error.code, |_| "OK");
        let driver = self.name.clone();
        self.durations.observe(DriverCall { driver, path, code }, since.elapsed());
        Ok(answered?.into_inner())
    }

    /// Gets the driver's information about the node.
    pub(crate) async fn node(&self) -> Result<NodeDriver, CallError> {
        let call = self.call("/csi.v1.Node/NodeGetInfo", |mut node| async move {
            node.node_get_info(csi::NodeGetInfoRequest {}).await
        });
        let answer = call.await?;
        let topology = answer.accessible_topology.unwrap_or_default().segments;
        Ok(NodeDriver {
            name: self.name.clone(),
            node_id: answer.node_id,
            max_volumes: answer.max_volumes_per_node,
            topology: topology.into_iter().collect(),
        })
    }

    pub(crate) async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let call = self.call("/csi.v1.Node/NodeGetCapabilities", |mut node| async move {
            node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await
        });
        let answer = call.await?;
        let has = |wanted: rpc::Type| {
            answer.capabilities.iter().any(|capability| match &capability.r#type {
                Some(Type::Rpc(rpc)) => rpc.r#type() == wanted,
                None => false,
            })
        };
        Ok(Capabilities {
            stages: has(rpc::Type::StageUnstageVolume),
            several_writers: has(rpc::Type::SingleNodeMultiWriter),
            applies_fs_group: has(rpc::Type::VolumeMountGroup),
            measures: has(rpc::Type::GetVolumeStats),
            has_condition: has(rpc::Type::VolumeCondition),
            expands: has(rpc::Type::ExpandVolume),
        })
    }

    pub(crate) async fn stage(&self, stage: Stage) -> Result<(), CallError> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: stage.handle,
            publish_context: map(stage.publish_context),
            staging_target_path: text(&stage.staging),
            volume_capability: Some(capability(stage.capability)),
            secrets: map(stage.secrets),
            volume_context: map(stage.context),
        };
        let staged = self.call("/csi.v1.Node/NodeStageVolume", |mut node| async move {
            node.node_stage_volume(request).await
        });
        staged.await.map(drop)
    }

    pub(crate) async fn unstage(&self, handle: &str, staging: &Path) -> Result<(), CallError> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(staging),
        };
        let unstaged = self.call("/csi.v1.Node/NodeUnstageVolume", |mut node| async move {
            node.node_unstage_volume(request).await
        });
        unstaged.await.map(drop)
    }

    pub(crate) async fn publish(&self, publish: Publish) -> Result<(), CallError> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: publish.handle,
            publish_context: map(publish.publish_context),
            staging_target_path: publish.staging.as_deref().map(text).unwrap_or_default(),
            target_path: text(&publish.target),
            volume_capability: Some(capability(publish.capability)),
            readonly: publish.readonly,
            secrets: map(publish.secrets),
            volume_context: map(publish.context),
        };
        let published = self.call("/csi.v1.Node/NodePublishVolume", |mut node| async move {
            node.node_publish_volume(request).await
        });
        published.await.map(drop)
    }

    pub(crate) async fn unpublish(&self, handle: &str, target: &Path) -> Result<(), CallError> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: text(target),
        };
        let unpublished = self.call("/csi.v1.Node/NodeUnpublishVolume", |mut node| async move {
            node.node_unpublish_volume(request).await
        });
        unpublished.await.map(drop)
    }

    pub(crate) async fn expand(&self, expand: Expand) -> Result<(), CallError> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: expand.handle,
            volume_path: text(&expand.target),
            capacity_range: Some(CapacityRange { required_bytes: expand.bytes, limit_bytes: 0 }),
            staging_target_path: expand.staging.as_deref().map(text).unwrap_or_default(),
            volume_capability: Some(capability(expand.capability)),
            secrets: map(expand.secrets),
        };
        let expanded = self.call("/csi.v1.Node/NodeExpandVolume", |mut node| async move {
            node.node_expand_volume(request).await
        });
        expanded.await.map(drop)
    }

    /// Gets the usage of a volume that is published at `target`.
    pub(crate) async fn stats(&self, handle: &str, target: &Path) -> Result<Stats, CallError> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: text(target),
            staging_target_path: String::new(),
        };
        let call = self.call("/csi.v1.Node/NodeGetVolumeStats", |mut node| async move {
            node.node_get_volume_stats(request).await
        });
        let answer = call.await?;
        let amount = |usage: &VolumeUsage| {
            let unit = match usage.unit() {
                Unit::Bytes => UsageUnit::Bytes,
                Unit::Inodes => UsageUnit::Inodes,
                Unit::Unknown => return None,
            };
            let number = |number: i64| u64::try_from(number).unwrap_or_default();
            let (available, total, used) = (usage.available, usage.total, usage.used);
            let [available, total, used] = [available, total, used].map(number);
            Some((unit, Amount { available, total, used }))
        };
        let condition = answer.volume_condition.map(|condition| DriverCondition {
            is_abnormal: condition.abnormal,
            message: condition.message,
        });
        Ok(Stats { amounts: answer.usage.iter().filter_map(amount).collect(), condition })
    }
}

fn map(strings: Strings) -> HashMap<String, String> {
    strings.into_iter().collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn capability(capability: Capability) -> VolumeCapability {
    let mode = match capability.access {
        AccessMode::Unknown => Mode::Unknown,
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
    };
    VolumeCapability {
        access_mode: Some(WireAccessMode { mode: mode.into() }),
        access_type: Some(match capability.kind {
            AccessKind::Block => AccessType::Block(BlockVolume {}),
            AccessKind::Mount { fs_type, flags, group } => AccessType::Mount(MountVolume {
                fs_type,
                mount_flags: flags,
                volume_mount_group: group.unwrap_or_default(),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn driver_without_a_socket_is_unavailable_and_its_call_is_counted() {
        let (endpoint, durations) =
            (PathBuf::from("/nonexistent/csi.sock"), CallDurations::default());
        let driver = Driver::new("d", endpoint, durations.clone());
        let error = driver.capabilities().await.unwrap_err();
        assert!(!error.is_final);
        let text = error.to_string();
        let begin = "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix /nonexistent/csi.sock: ";
        assert!(text.starts_with(begin), "{text}");
        let path = "/csi.v1.Node/NodeGetCapabilities";
        let call = DriverCall { driver: "d".to_owned(), path, code: "Unavailable" };
        assert_eq!(durations.all().get(&call).map(histogram::Histogram::count), Some(1));
    }
}
