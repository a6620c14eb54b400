//! A CRI client with one short method for each call. Errors are those of the runtime. Calls carry a deadline (`grpc-timeout`), so
//! that a runtime does not continue work for which no client waits.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cri::client::Interceptor;
use cri::files::files_client::FilesClient;
use cri::gathered::Gathered;
use cri::services::services_client::ServicesClient;
use cri::v1;
use cri::v1::image_service_client::ImageServiceClient;
use cri::v1::runtime_service_client::RuntimeServiceClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Handle};
use tonic::transport::Endpoint;
use tonic::{GrpcMethod, Request, Status, Streaming};

/// The maximum message size in either direction, as in the kubelet's client (Kubernetes 1.36, cri-client).
const MAX_MESSAGE: usize = 16 << 20;
/// The maximum size of a response's headers, which contain the error message, as in Go's client (grpc-go,
/// defaultClientMaxHeaderListSize).
const MAX_HEADERS: u32 = 16 << 20;

/// The result of a call.
pub type CallResult<T> = Result<T, Status>;

/// A connection to a runtime. Clones share it. If it breaks, the next call reconnects.
#[derive(Debug, Clone)]
pub struct Client {
    /// Every call of the RuntimeService, for calls without a method here.
    pub runtime: RuntimeServiceClient,
    /// Every call of the ImageService, for calls without a method here.
    pub images: ImageServiceClient,
    /// Copies of containers' files: an extension, which only crib's own runtime has.
    pub files: FilesClient,
    /// Services in the pod network: an extension, which only crib's own runtime has.
    pub services: ServicesClient,
}

impl Client {
    /// A client of the runtime that listens on the socket at `path`. It connects with the first call.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self::connect(path, CarryDeadline::default())
    }

    /// Like [`Self::new`], but with a deadline for each unary call.
    #[must_use]
    pub fn with_deadline(path: &Path, deadline: Duration) -> Self {
        Self::connect(path, CarryDeadline { usual: Some(deadline) })
    }

    fn connect(path: &Path, deadline: CarryDeadline) -> Self {
        let path = path.to_owned();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move {
                let stream = UnixStream::connect(path).await?;
                Ok::<_, std::io::Error>(TokioIo::new(Gathered::new(stream)))
            }
        });
        // Connections run on a background thread, so that they work
        // while a test blocks, for example until its runtime exits.
        let background = background();
        let _here = background.as_ref().map(Handle::enter);
        // The authority that crictl and the kubelet send.
        let channel = Endpoint::from_static("http://localhost")
            .http2_max_header_list_size(MAX_HEADERS)
            .connect_with_connector_lazy(connector);
        let interceptor: Interceptor = Arc::new(move |request| deadline.set(request));
        Self {
            runtime: RuntimeServiceClient::with_interceptor(channel.clone(), interceptor.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(2 * MAX_MESSAGE),
            files: FilesClient::with_interceptor(channel.clone(), interceptor.clone()),
            services: ServicesClient::with_interceptor(channel.clone(), interceptor.clone())
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::with_interceptor(channel, interceptor)
                .max_decoding_message_size(MAX_MESSAGE),
        }
    }

    /// Version.
    pub async fn version(&self) -> CallResult<v1::VersionResponse> {
        let answer = self.runtime.clone().version(v1::VersionRequest::default()).await?;
        Ok(answer.into_inner())
    }

    /// Status, verbose.
    pub async fn status(&self) -> CallResult<v1::StatusResponse> {
        let answer = self.runtime.clone().status(v1::StatusRequest { verbose: true }).await?;
        Ok(answer.into_inner())
    }

    /// RunPodSandbox; returns the id.
    pub async fn run_pod(&self, config: v1::PodSandboxConfig) -> CallResult<String> {
        let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
        let answer = self.runtime.clone().run_pod_sandbox(request).await?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    /// StopPodSandbox.
    pub async fn stop_pod(&self, id: &str) -> CallResult<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime.clone().stop_pod_sandbox(request).await.map(drop)
    }

    /// RemovePodSandbox.
    pub async fn remove_pod(&self, id: &str) -> CallResult<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime.clone().remove_pod_sandbox(request).await.map(drop)
    }

    /// PodSandboxStatus, the whole response.
    pub async fn pod(&self, id: &str) -> CallResult<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        Ok(self.runtime.clone().pod_sandbox_status(request).await?.into_inner())
    }

    /// Whether PodSandboxStatus reports SANDBOX_READY.
    pub async fn pod_is_ready(&self, id: &str) -> CallResult<bool> {
        let status = self.pod(id).await?.status.unwrap_or_default();
        Ok(status.state() == v1::PodSandboxState::SandboxReady)
    }

    /// ListPodSandbox.
    pub async fn pods(&self, filter: v1::PodSandboxFilter) -> CallResult<Vec<v1::PodSandbox>> {
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_pod_sandbox(request).await?.into_inner().items)
    }

    /// CreateContainer; returns the id.
    pub async fn create(
        &self,
        pod: &str,
        config: v1::ContainerConfig,
        sandbox: v1::PodSandboxConfig,
    ) -> CallResult<String> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox),
        };
        Ok(self.runtime.clone().create_container(request).await?.into_inner().container_id)
    }

    /// StartContainer.
    pub async fn start(&self, id: &str) -> CallResult<()> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        self.runtime.clone().start_container(request).await.map(drop)
    }

    /// StopContainer; the grace period is in seconds.
    pub async fn stop(&self, id: &str, grace: i64) -> CallResult<()> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: grace };
        self.runtime.clone().stop_container(request).await.map(drop)
    }

    /// RemoveContainer.
    pub async fn remove(&self, id: &str) -> CallResult<()> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.runtime.clone().remove_container(request).await.map(drop)
    }

    /// ContainerStatus.
    pub async fn container(&self, id: &str) -> CallResult<v1::ContainerStatus> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = self.runtime.clone().container_status(request).await?.into_inner();
        answer.status.ok_or_else(|| Status::internal("ContainerStatus answered without a status"))
    }

    /// ListContainers.
    pub async fn containers(&self, filter: v1::ContainerFilter) -> CallResult<Vec<v1::Container>> {
        let request = v1::ListContainersRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_containers(request).await?.into_inner().containers)
    }

    /// ExecSync; the timeout is in seconds, 0 means none.
    pub async fn exec<S: Into<String>>(
        &self,
        id: &str,
        command: impl IntoIterator<Item = S>,
        timeout: i64,
    ) -> CallResult<v1::ExecSyncResponse> {
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.into_iter().map(Into::into).collect(),
            timeout,
        };
        // Standard output and standard error may be up to 16 MiB each.
        let mut runtime = self.runtime.clone().max_decoding_message_size(3 * MAX_MESSAGE);
        Ok(runtime.exec_sync(request).await?.into_inner())
    }

    /// ExecSync of a shell script that has to succeed; returns its standard output.
    pub async fn sh(&self, id: &str, script: &str) -> CallResult<String> {
        let answer = self.exec(id, ["/bin/sh", "-c", script], 30).await?;
        if answer.exit_code != 0 {
            return Err(Status::unknown(format!(
                "{script:?} ended with {}: {}",
                answer.exit_code,
                String::from_utf8_lossy(&answer.stderr)
            )));
        }
        Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
    }

    /// UpdateContainerResources.
    pub async fn update(&self, id: &str, linux: v1::LinuxContainerResources) -> CallResult<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.runtime.clone().update_container_resources(request).await.map(drop)
    }

    /// ContainerStats.
    pub async fn container_stats(&self, id: &str) -> CallResult<v1::ContainerStats> {
        let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
        let answer = self.runtime.clone().container_stats(request).await?;
        Ok(answer.into_inner().stats.unwrap_or_default())
    }

    /// ListContainerStats.
    pub async fn list_container_stats(
        &self,
        filter: v1::ContainerStatsFilter,
    ) -> CallResult<Vec<v1::ContainerStats>> {
        let request = v1::ListContainerStatsRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_container_stats(request).await?.into_inner().stats)
    }

    /// PodSandboxStats.
    pub async fn pod_stats(&self, id: &str) -> CallResult<v1::PodSandboxStats> {
        let request = v1::PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() };
        let answer = self.runtime.clone().pod_sandbox_stats(request).await?;
        Ok(answer.into_inner().stats.unwrap_or_default())
    }

    /// ListPodSandboxStats.
    pub async fn list_pod_stats(
        &self,
        filter: v1::PodSandboxStatsFilter,
    ) -> CallResult<Vec<v1::PodSandboxStats>> {
        let request = v1::ListPodSandboxStatsRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_pod_sandbox_stats(request).await?.into_inner().stats)
    }

    /// ListPodSandboxMetrics.
    pub async fn pod_metrics(&self) -> CallResult<Vec<v1::PodSandboxMetrics>> {
        let request = v1::ListPodSandboxMetricsRequest {};
        Ok(self.runtime.clone().list_pod_sandbox_metrics(request).await?.into_inner().pod_metrics)
    }

    /// ListMetricDescriptors.
    pub async fn metric_descriptors(&self) -> CallResult<Vec<v1::MetricDescriptor>> {
        let request = v1::ListMetricDescriptorsRequest {};
        Ok(self.runtime.clone().list_metric_descriptors(request).await?.into_inner().descriptors)
    }

    /// ImageFsInfo.
    pub async fn image_fs_info(&self) -> CallResult<v1::ImageFsInfoResponse> {
        let request = v1::ImageFsInfoRequest {};
        Ok(self.images.clone().image_fs_info(request).await?.into_inner())
    }

    /// ReopenContainerLog.
    pub async fn reopen_log(&self, id: &str) -> CallResult<()> {
        let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.runtime.clone().reopen_container_log(request).await.map(drop)
    }

    /// GetContainerEvents. The subscription is active when this returns.
    pub async fn events(&self) -> CallResult<Streaming<v1::ContainerEventResponse>> {
        let answer =
            self.runtime.clone().get_container_events(v1::GetEventsRequest::default()).await?;
        Ok(answer.into_inner())
    }

    /// PullImage; returns the image's id.
    pub async fn pull(&self, image: &str) -> CallResult<String> {
        let request = v1::PullImageRequest { image: Some(spec(image)), ..Default::default() };
        Ok(self.images.clone().pull_image(request).await?.into_inner().image_ref)
    }

    /// ImageStatus; `None` if the image is missing.
    pub async fn image(&self, image: &str) -> CallResult<Option<v1::Image>> {
        let request = v1::ImageStatusRequest { image: Some(spec(image)), verbose: false };
        Ok(self.images.clone().image_status(request).await?.into_inner().image)
    }

    /// ListImages, without a filter.
    pub async fn list_images(&self) -> CallResult<Vec<v1::Image>> {
        let answer = self.images.clone().list_images(v1::ListImagesRequest::default()).await?;
        Ok(answer.into_inner().images)
    }

    /// RemoveImage.
    pub async fn remove_image(&self, image: &str) -> CallResult<()> {
        let request = v1::RemoveImageRequest { image: Some(spec(image)) };
        self.images.clone().remove_image(request).await.map(drop)
    }
}

/// A tokio runtime with its own thread, shared by all connections of the process. If no thread can be started, connections run on
/// the caller's runtime.
fn background() -> Option<Handle> {
    static BACKGROUND: OnceLock<Option<tokio::runtime::Runtime>> = OnceLock::new();
    let made = BACKGROUND
        .get_or_init(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().ok());
    made.as_ref().map(|runtime| runtime.handle().clone())
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.to_owned(), ..Default::default() }
}

/// The maximum deadline of a call: 100 years. gRPC has eight digits for it, and tonic panics beyond 99,999,999 hours.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

tokio::task_local! {
    static DEADLINE: Duration;
}

/// Sets a call's deadline to that of [`within`], or else to the usual one, unless it has its own.
#[derive(Clone, Copy, Debug, Default)]
struct CarryDeadline {
    /// The deadline of unary calls outside of [`within`].
    usual: Option<Duration>,
}

impl CarryDeadline {
    fn set(self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if request.metadata().contains_key("grpc-timeout") {
            return Ok(request);
        }
        let usual = self.usual.filter(|_| !is_stream(&request));
        if let Some(deadline) = DEADLINE.try_with(|deadline| *deadline).ok().or(usual) {
            request.set_timeout(deadline.min(LONGEST));
        }
        Ok(request)
    }
}

/// Whether a call streams its responses, until the client ends it.
fn is_stream(request: &Request<()>) -> bool {
    let method = request.extensions().get::<GrpcMethod<'_>>().map_or("", GrpcMethod::method);
    matches!(method, "GetContainerEvents" | "Serve") || method.starts_with("Stream")
}

/// Runs calls with this deadline each, counted from the start of the call. It applies to streams, too.
pub async fn within<T>(deadline: Duration, calls: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, calls).await
}
