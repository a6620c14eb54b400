//! The gRPC client for a runtime on a unix socket, with the kubelet's deadlines (Kubernetes 1.36, cri-client).

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use api::pod::PodUid;
use async_trait::async_trait;
use compact::{Map, Set};
use cri::client::GrpcClient;
use cri::gathered::Gathered;
use cri::v1;
use cri::v1::runtime_service_client::RuntimeServiceClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::operations::Operations;
use super::stats::{ContainerStats, Metric, MetricDescriptor, SandboxStats};
use super::{
    CgroupDriver, Cri, CriError, EventStream, ExecOutput, FsUsage, Image, LastLists,
    ListedContainer, ListedSandbox, Lists, Operation, RegistryAuth, RuntimeStatus, StreamOptions,
    Version, wire,
};
use crate::observed::{ContainerId, MemoryUsage, ObservedContainer, ObservedSandbox, SandboxId};
use crate::pod_spec::spec::{ContainerSpec, ImageSpec, Resources, SandboxSpec};

/// The maximum size of messages.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

mod calls;
mod connect;
mod lists;

pub use connect::{ConnectError, ConnectOptions, connect, connect_with};

/// See [`connect`].
struct GrpcCri {
    grpc: GrpcClient,
    /// The client for image calls, which another server may serve.
    images: GrpcClient,
    /// The deadline of most calls (`runtimeRequestTimeout`).
    deadline: Duration,
    /// For the calls whose answers are a stream.
    runtime: RuntimeServiceClient,
    operations: Operations,
    socket: PathBuf,
    /// Whether sandboxes and containers are listed by streams.
    streams_lists: AtomicBool,
}

impl GrpcCri {
    fn new(path: PathBuf, images: Option<PathBuf>, options: &ConnectOptions) -> Self {
        let of_runtime = channel(path.clone());
        let of_images = images.map_or_else(|| of_runtime.clone(), channel);
        let grpc = |channel| {
            GrpcClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        };
        Self {
            grpc: grpc(of_runtime.clone()),
            images: grpc(of_images),
            deadline: options.deadline,
            runtime: RuntimeServiceClient::new(of_runtime).max_decoding_message_size(MAX_MESSAGE),
            operations: Operations::default(),
            socket: path,
            streams_lists: AtomicBool::new(options.streams_lists),
        }
    }

    /// The deadline of RunPodSandbox, which may wait for network plugins.
    fn sandbox_deadline(&self) -> Duration {
        self.deadline.saturating_mul(2)
    }
}

fn channel(path: PathBuf) -> Channel {
    // Kubernetes' clients send this authority; some servers reject a socket path in it.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let path = path.clone();
            async move {
                let stream = UnixStream::connect(path).await?;
                Ok::<_, std::io::Error>(TokioIo::new(Gathered::new(stream)))
            }
        },
    ))
}

#[async_trait]
impl Cri for GrpcCri {
    async fn version(&self) -> Result<Version, CriError> {
        let request = v1::VersionRequest { version: "0.1.0".to_owned() };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::verify::version(&answer)?;
        Ok(wire::version(answer))
    }

    async fn status(&self) -> Result<RuntimeStatus, CriError> {
        let request = v1::StatusRequest { verbose: false };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::verify::runtime_status(&answer)?;
        Ok(wire::runtime_status(answer))
    }

    async fn update_pod_cidr(&self, cidrs: &str) -> Result<(), CriError> {
        let network_config = Some(v1::NetworkConfig { pod_cidr: cidrs.to_owned() });
        let request = v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(v1::RuntimeConfig { network_config }),
        };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, CriError> {
        let answer = self.call(v1::RuntimeConfigRequest {}, Some(self.deadline)).await?;
        Ok(answer.linux.and_then(|linux| wire::cgroup_driver(linux.cgroup_driver)))
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError> {
        let request = v1::RunPodSandboxRequest {
            config: Some(wire::sandbox_config(spec)),
            runtime_handler: spec.runtime_handler.clone(),
        };
        let answer = self.call(request, Some(self.sandbox_deadline())).await?;
        wire::verify::new_sandbox(answer.pod_sandbox_id, spec)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError> {
        let request =
            v1::PodSandboxStatusRequest { pod_sandbox_id: id.as_str().to_owned(), verbose: false };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::sandbox_status(answer.status)
    }

    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError> {
        let filter = of.map(|uid| v1::PodSandboxFilter {
            label_selector: wire::pod_selector(uid),
            ..v1::PodSandboxFilter::default()
        });
        let listed = self.sandboxes(filter).await?;
        Ok(listed.into_iter().filter_map(wire::listed_sandbox).collect())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        sandbox_spec: &SandboxSpec,
    ) -> Result<ContainerId, CriError> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.as_str().to_owned(),
            config: Some(wire::container_config(spec)),
            sandbox_config: Some(wire::sandbox_config(sandbox_spec)),
        };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::verify::new_container(answer.container_id, spec)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let request = v1::StartContainerRequest { container_id: id.as_str().to_owned() };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError> {
        let request = v1::StopContainerRequest {
            container_id: id.as_str().to_owned(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        self.call(request, Some(grace.saturating_add(self.deadline))).await.map(drop)
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let request = v1::RemoveContainerRequest { container_id: id.as_str().to_owned() };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn container_status(
        &self,
        listed: &ListedContainer,
    ) -> Result<ObservedContainer, CriError> {
        let request = v1::ContainerStatusRequest {
            container_id: listed.id.as_str().to_owned(),
            verbose: false,
        };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::container_status(answer.status, listed)
    }

    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError> {
        let filter = of.map(|uid| v1::ContainerFilter {
            label_selector: wire::pod_selector(uid),
            ..v1::ContainerFilter::default()
        });
        let listed = self.containers(filter).await?;
        Ok(listed.into_iter().filter_map(wire::listed_container).collect())
    }

    async fn list_all(&self, last: &mut LastLists) -> Result<Option<Lists>, CriError> {
        self.lists(last).await
    }

    async fn update_container(&self, id: &ContainerId, limits: &Resources) -> Result<(), CriError> {
        let request = wire::update_container(id, limits);
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn update_sandbox(
        &self,
        id: &SandboxId,
        limits: &Resources,
        overhead: &Resources,
    ) -> Result<(), CriError> {
        let request = wire::update_sandbox(id, limits, overhead);
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn memory_usage(&self, id: &SandboxId) -> Result<MemoryUsage, CriError> {
        let request = v1::PodSandboxStatsRequest { pod_sandbox_id: id.as_str().to_owned() };
        self.call(request, Some(self.deadline)).await.map(wire::memory_usage)
    }

    async fn sandbox_stats(&self) -> Result<Vec<SandboxStats>, CriError> {
        let request = v1::ListPodSandboxStatsRequest { filter: None };
        let answer = self.call(request, Some(self.deadline)).await?;
        Ok(answer.stats.into_iter().filter_map(wire::sandbox_stats).collect())
    }

    async fn container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        let request = v1::ListContainerStatsRequest { filter: None };
        let answer = self.call(request, Some(self.deadline)).await?;
        Ok(answer.stats.into_iter().filter_map(wire::container_stats).collect())
    }

    async fn metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, CriError> {
        let answer = self.call(v1::ListMetricDescriptorsRequest {}, Some(self.deadline)).await?;
        Ok(answer.descriptors.into_iter().map(wire::metric_descriptor).collect())
    }

    async fn metrics(&self) -> Result<Vec<Metric>, CriError> {
        let answer = self.call(v1::ListPodSandboxMetricsRequest {}, Some(self.deadline)).await?;
        Ok(answer.pod_metrics.into_iter().flat_map(wire::metrics).collect())
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError> {
        let request =
            v1::ImageStatusRequest { image: Some(wire::image_spec(image)), verbose: false };
        let answer = self.call(request, Some(self.deadline)).await?;
        if let Some(found) = &answer.image {
            wire::verify::image(found, image)?;
        }
        Ok(answer.image.map(wire::image))
    }

    async fn pull_image(
        &self,
        image: &ImageSpec,
        sandbox: &SandboxSpec,
        auth: Option<&RegistryAuth>,
    ) -> Result<String, CriError> {
        let request = v1::PullImageRequest {
            image: Some(wire::image_spec(image)),
            auth: auth.map(wire::registry_auth),
            sandbox_config: Some(wire::sandbox_config(sandbox)),
        };
        let answer = self.call(request, None).await?;
        Ok(answer.image_ref)
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        let request = v1::ListImagesRequest { filter: None };
        let answer = self.call(request, Some(self.deadline)).await?;
        Ok(answer.images.into_iter().map(wire::image).collect())
    }

    async fn images_in_use(&self) -> Result<Set<String>, CriError> {
        let mut ids = Set::new();
        for container in self.containers(None).await? {
            let request =
                v1::ContainerStatusRequest { container_id: container.id.clone(), verbose: false };
            ids.insert(wire::image_id(container));
            let answer = self.call(request, Some(self.deadline)).await;
            match answer {
                Ok(answer) => {
                    if let Some(status) = &answer.status {
                        wire::verify::container(status)?;
                    }
                    ids.extend(wire::mounted_images(answer.status));
                }
                // The container was removed meanwhile.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ids)
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError> {
        let request = v1::RemoveImageRequest { image: Some(wire::image_spec(image)) };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        let answer = self.call(v1::ImageFsInfoRequest {}, Some(self.deadline)).await?;
        Ok(answer.image_filesystems.into_iter().map(wire::fs_usage).collect())
    }

    async fn container_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        let answer = self.call(v1::ImageFsInfoRequest {}, Some(self.deadline)).await?;
        Ok(answer.container_filesystems.into_iter().map(wire::fs_usage).collect())
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        let seconds =
            timeout.map_or(0, |timeout| i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX));
        let request = v1::ExecSyncRequest {
            container_id: id.as_str().to_owned(),
            cmd: command.to_vec(),
            timeout: seconds,
        };
        let deadline = timeout.map(|timeout| timeout.saturating_add(self.deadline));
        let answer = self.call(request, deadline).await?;
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        streams: StreamOptions,
    ) -> Result<String, CriError> {
        let request = v1::ExecRequest {
            container_id: id.as_str().to_owned(),
            cmd: command.to_vec(),
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::verify::url("Exec", answer.url)
    }

    async fn attach(&self, id: &ContainerId, streams: StreamOptions) -> Result<String, CriError> {
        let request = v1::AttachRequest {
            container_id: id.as_str().to_owned(),
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::verify::url("Attach", answer.url)
    }

    async fn port_forward(&self, id: &SandboxId, ports: &[u16]) -> Result<String, CriError> {
        let request = v1::PortForwardRequest {
            pod_sandbox_id: id.as_str().to_owned(),
            port: ports.iter().map(|port| i32::from(*port)).collect(),
        };
        let answer = self.call(request, Some(self.deadline)).await?;
        wire::verify::url("PortForward", answer.url)
    }

    async fn writable_layer(&self, id: &ContainerId) -> Result<u64, CriError> {
        let request = v1::ContainerStatsRequest { container_id: id.as_str().to_owned() };
        let answer = self.call(request, Some(self.deadline)).await?;
        let layer = answer.stats.and_then(|stats| stats.writable_layer);
        Ok(layer.map_or(0, |layer| wire::fs_usage(layer).used_bytes))
    }

    fn operations(&self) -> Map<&'static str, Operation> {
        self.operations.all()
    }

    async fn server_process(&self) -> Option<u32> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        let pid = u32::try_from(stream.peer_cred().ok()?.pid()?).ok()?;
        // A process of another PID namespace has no pid here, and with socket activation the peer is systemd.
        Some(pid).filter(|pid| *pid > 1)
    }

    async fn checkpoint(
        &self,
        id: &ContainerId,
        location: &Path,
        timeout: Duration,
    ) -> Result<(), CriError> {
        let request = v1::CheckpointContainerRequest {
            container_id: id.as_str().to_owned(),
            location: location.display().to_string(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        };
        self.call(request, Some(timeout)).await.map(drop)
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError> {
        let request = v1::ReopenContainerLogRequest { container_id: id.as_str().to_owned() };
        self.call(request, Some(self.deadline)).await.map(drop)
    }

    async fn events(&self) -> Result<EventStream, CriError> {
        let failed = |status: Status| wire::error("GetContainerEvents", &status);
        let mut runtime = self.runtime.clone();
        let stream = runtime
            .get_container_events(v1::GetEventsRequest {})
            .await
            .map_err(failed)?
            .into_inner();
        Ok(Box::pin(stream.map(move |event| event.map(wire::event).map_err(failed))))
    }
}
