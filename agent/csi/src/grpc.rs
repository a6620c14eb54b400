//! Calls of drivers over their sockets. No other file of the package names wire types.
//!
//! Each call has a connection of its own, as in a kubelet: a driver that was replaced is reached by the next one.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_client.go; pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::storage::drivers::{Amount, DriverCondition};
use cri::csi::node_client::NodeClient;
use cri::csi::node_service_capability::{Type, rpc};
use cri::csi::volume_capability::access_mode::Mode;
use cri::csi::volume_capability::{
    AccessMode as WireAccessMode, AccessType, BlockVolume, MountVolume,
};
use cri::csi::volume_usage::Unit;
use cri::csi::{self, CapacityRange, VolumeCapability, VolumeUsage};
use cri::pluginregistration::registration_client::RegistrationClient;
use cri::pluginregistration::{InfoRequest, RegistrationStatus};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::cluster::NodeDriver;
use crate::request::{AccessKind, AccessMode, Capabilities, Capability, Strings};
use crate::stats::{Stats, UsageUnit};

/// How long a driver may take for a call (csiTimeout).
const CALL: Duration = Duration::from_secs(120);
/// How long it may take until it accepts a connection, says what it is, and takes that it is registered.
const DIAL: Duration = Duration::from_secs(10);
const INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub(crate) struct CallError {
    /// As Go names it.
    pub(crate) code: &'static str,
    message: String,
    /// The driver has not begun, or has ended and undone its work. Otherwise it may be at work, or may have done it.
    pub(crate) is_final: bool,
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // csi_client.go isFinalError.
        let is_final = !matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        );
        Self { code: go_name(status.code()), message: status.message().to_owned(), is_final }
    }
}

fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// Connects to a socket.
async fn connect(socket: &Path) -> Result<Channel, Status> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // Kubernetes' clients send this authority; some servers reject a socket path in it.
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.map_err(|error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        Status::unavailable(format!(
            "connection error: desc = \"transport: Error while dialing: dial unix {}: {cause}\"",
            socket.display()
        ))
    })
}

/// Gives a call this long.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, CallError> {
    match timeout(limit, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded").into()),
    }
}

/// What a plugin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginInfo {
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The socket of its service.
    pub(crate) endpoint: PathBuf,
    pub(crate) versions: Vec<String>,
}

/// A plugin that makes itself known by a socket.
pub(crate) struct Plugin {
    client: RegistrationClient<Channel>,
    socket: PathBuf,
}

impl Plugin {
    pub(crate) async fn connect(socket: &Path) -> Result<Self, CallError> {
        let channel = within(DIAL, connect(socket)).await?;
        Ok(Self { client: RegistrationClient::new(channel), socket: socket.to_owned() })
    }

    /// Asks what it is.
    pub(crate) async fn info(&mut self) -> Result<PluginInfo, CallError> {
        let answer = within(INFO, self.client.get_info(InfoRequest {})).await?.into_inner();
        let endpoint = answer.endpoint.strip_prefix("unix://").unwrap_or(&answer.endpoint);
        Ok(PluginInfo {
            kind: answer.r#type,
            name: answer.name,
            endpoint: match endpoint {
                "" => self.socket.clone(),
                endpoint => PathBuf::from(endpoint),
            },
            versions: answer.supported_versions,
        })
    }

    /// Reports that it is registered, or why not.
    pub(crate) async fn notify(&mut self, registered: Result<(), &str>) -> Result<(), CallError> {
        let status = RegistrationStatus {
            plugin_registered: registered.is_ok(),
            error: registered.err().unwrap_or_default().to_owned(),
        };
        within(NOTIFY, self.client.notify_registration_status(status)).await.map(drop)
    }
}

/// The node service of a driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    endpoint: PathBuf,
}

/// What NodeStageVolume is asked.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) handle: String,
    pub(crate) publish_context: Strings,
    pub(crate) staging: PathBuf,
    pub(crate) capability: Capability,
    pub(crate) secrets: Strings,
    pub(crate) context: Strings,
}

/// What NodePublishVolume is asked.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    pub(crate) handle: String,
    pub(crate) publish_context: Strings,
    /// Where the volume is prepared, if the driver does that.
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: PathBuf,
    pub(crate) capability: Capability,
    pub(crate) readonly: bool,
    pub(crate) secrets: Strings,
    pub(crate) context: Strings,
}

/// What NodeExpandVolume is asked.
#[derive(Clone, Debug)]
pub(crate) struct Expand {
    pub(crate) handle: String,
    pub(crate) target: PathBuf,
    /// Where the volume is prepared, if the driver does that.
    pub(crate) staging: Option<PathBuf>,
    /// The size that it is to have at least.
    pub(crate) bytes: i64,
    pub(crate) capability: Capability,
    pub(crate) secrets: Strings,
}

impl Driver {
    pub(crate) fn at(endpoint: PathBuf) -> Self {
        Self { endpoint }
    }

    async fn call<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl FnOnce(NodeClient<Channel>) -> F,
    ) -> Result<T, CallError> {
        let calling = async { call(NodeClient::new(connect(&self.endpoint).await?)).await };
        Ok(within(CALL, calling).await?.into_inner())
    }

    /// What the driver, of this name, says of the node.
    pub(crate) async fn node(&self, name: &str) -> Result<NodeDriver, CallError> {
        let asked = self
            .call(|mut node| async move { node.node_get_info(csi::NodeGetInfoRequest {}).await });
        let answer = asked.await?;
        let topology = answer.accessible_topology.unwrap_or_default().segments;
        Ok(NodeDriver {
            name: name.to_owned(),
            node_id: answer.node_id,
            max_volumes: answer.max_volumes_per_node,
            topology: topology.into_iter().collect(),
        })
    }

    pub(crate) async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let asked = self.call(|mut node| async move {
            node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await
        });
        let answer = asked.await?;
        let has = |wanted: rpc::Type| {
            answer.capabilities.iter().any(|capability| match &capability.r#type {
                Some(Type::Rpc(rpc)) => rpc.r#type() == wanted,
                None => false,
            })
        };
        Ok(Capabilities {
            stages: has(rpc::Type::StageUnstageVolume),
            several_writers: has(rpc::Type::SingleNodeMultiWriter),
            gives_groups: has(rpc::Type::VolumeMountGroup),
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
        self.call(|mut node| async move { node.node_stage_volume(request).await }).await.map(drop)
    }

    pub(crate) async fn unstage(&self, handle: &str, staging: &Path) -> Result<(), CallError> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(staging),
        };
        self.call(|mut node| async move { node.node_unstage_volume(request).await }).await.map(drop)
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
        self.call(|mut node| async move { node.node_publish_volume(request).await }).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, handle: &str, target: &Path) -> Result<(), CallError> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: text(target),
        };
        self.call(|mut node| async move { node.node_unpublish_volume(request).await })
            .await
            .map(drop)
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
        self.call(|mut node| async move { node.node_expand_volume(request).await }).await.map(drop)
    }

    /// Has a volume measured that is published at `target`.
    pub(crate) async fn stats(&self, handle: &str, target: &Path) -> Result<Stats, CallError> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: text(target),
            staging_target_path: String::new(),
        };
        let asked = self.call(|mut node| async move { node.node_get_volume_stats(request).await });
        let answer = asked.await?;
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
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Status::internal("no disk"), "rpc error: code = Internal desc = no disk", true)]
    #[case(Status::cancelled("x"), "rpc error: code = Canceled desc = x", false)]
    #[case(Status::aborted("pending"), "rpc error: code = Aborted desc = pending", false)]
    #[case(Status::deadline_exceeded("x"), "rpc error: code = DeadlineExceeded desc = x", false)]
    #[case(Status::not_found("x"), "rpc error: code = NotFound desc = x", true)]
    fn errors_are_named_as_in_go(
        #[case] status: Status,
        #[case] text: &str,
        #[case] is_final: bool,
    ) {
        let error = CallError::from(status);
        assert_eq!((error.to_string().as_str(), error.is_final), (text, is_final));
    }

    #[tokio::test]
    async fn driver_without_a_socket_is_unavailable() {
        let driver = Driver::at(PathBuf::from("/nonexistent/csi.sock"));
        let error = driver.capabilities().await.unwrap_err();
        assert!(!error.is_final);
        let text = error.to_string();
        let begin = "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix /nonexistent/csi.sock: ";
        assert!(text.starts_with(begin), "{text}");
    }
}
