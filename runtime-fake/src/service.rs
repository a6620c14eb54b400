//! `runtime.v1.RuntimeService`: one short method per call. [`crate::runtime`] does the work, [`wire`] converts
//! the messages.

mod checkpoint;
mod encoded_lists;
mod error;
mod events;
pub(crate) mod files;
pub(crate) mod image;
mod lists;
mod network;
pub(crate) mod services;
mod stats;
mod status;
mod streaming;
mod verbose;
mod wire;

use std::{collections::HashMap, pin::Pin, time::Duration};

use cri::v1::{self, runtime_service_server::RuntimeService};
use jiff::Timestamp;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

pub(crate) use encoded_lists::EncodedLists;

use crate::{runtime::Runtime, streaming::Streams};

/// The version of the kubelet's interface, unchanged since 2016 (CRI v1, VersionResponse).
const KUBELET_API_VERSION: &str = "0.1.0";
const RUNTIME_NAME: &str = "crib";

/// The service over one runtime.
pub(crate) struct CriService {
    runtime: Runtime,
    streams: Streams,
}

impl CriService {
    pub(crate) fn new(runtime: Runtime, streams: Streams) -> Self {
        Self { runtime, streams }
    }
}

type Answer<T> = Result<Response<T>, Status>;
type Items<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn required<T>(value: Option<T>, what: &str) -> Result<T, Status> {
    value.ok_or_else(|| Status::invalid_argument(format!("{what} is missing")))
}

/// Whole seconds in a request; a negative number is an error.
fn seconds(value: i64, what: &str) -> Result<Duration, Status> {
    let value = u64::try_from(value)
        .map_err(|_| Status::invalid_argument(format!("{what} is negative: {value}")))?;
    // Limit the duration to one that timers support.
    Ok(Duration::from_secs(value.min(u64::from(u32::MAX))))
}

#[tonic::async_trait]
impl RuntimeService for CriService {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: KUBELET_API_VERSION.to_owned(),
            runtime_name: RUNTIME_NAME.to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let verbose = request.into_inner().verbose;
        let answer = status::status(&self.runtime, verbose).await;
        Ok(Response::new(answer))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        // Set explicitly: the message's default would mean systemd.
        let linux =
            v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
        Ok(Response::new(v1::RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = required(request.config, "config")?;
        let runtime = self.runtime.clone();
        let run = async move { runtime.run_sandbox(config, request.runtime_handler).await };
        let id = self.runtime.run_to_completion(run).await?;
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: id.to_string() }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let (runtime, id) = (self.runtime.clone(), request.into_inner().pod_sandbox_id);
        self.runtime.run_to_completion(async move { runtime.stop_sandbox(&id).await }).await?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let (runtime, id) = (self.runtime.clone(), request.into_inner().pod_sandbox_id);
        self.runtime.run_to_completion(async move { runtime.remove_sandbox(&id).await }).await?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let state = self.runtime.store.state();
        let sandbox =
            state.sandbox(&request.pod_sandbox_id).map_err(crate::runtime::Error::from)?;
        let info = if request.verbose {
            verbose::sandbox(&self.runtime, sandbox).await
        } else {
            HashMap::new()
        };
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(wire::sandbox_status(sandbox)),
            info,
            containers_statuses: wire::statuses_of(&state, &sandbox.id),
            timestamp: i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX),
        }))
    }

    // `EncodedLists` answers ListPodSandbox and ListContainers before calls reach this service.
    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let items = self.sandboxes(request.into_inner().filter);
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let config = required(request.config, "config")?;
        let runtime = self.runtime.clone();
        let create = async move { runtime.create_container(&request.pod_sandbox_id, config).await };
        let id = self.runtime.run_to_completion(create).await?;
        Ok(Response::new(v1::CreateContainerResponse { container_id: id.to_string() }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let (runtime, id) = (self.runtime.clone(), request.into_inner().container_id);
        self.runtime.run_to_completion(async move { runtime.start_container(&id).await }).await?;
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        let grace = seconds(request.timeout, "timeout")?;
        // Not run to completion: if the client disconnects, or the runtime stops, the container is not killed.
        tokio::select! {
            stopped = self.runtime.stop_container(&request.container_id, grace) => stopped?,
            () = self.runtime.stopping.cancelled() => {
                return Err(crate::runtime::Error::from(crate::store::StateError::ShuttingDown).into());
            }
        }
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let (runtime, id) = (self.runtime.clone(), request.into_inner().container_id);
        self.runtime.run_to_completion(async move { runtime.remove_container(&id).await }).await?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let containers = self.containers(request.into_inner().filter);
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        let state = self.runtime.store.state();
        let container =
            state.container(&request.container_id).map_err(crate::runtime::Error::from)?;
        let info = if request.verbose {
            let sandbox = state.sandboxes.get(&container.sandbox);
            verbose::container(&self.runtime, sandbox.map(|s| &**s), container).await
        } else {
            HashMap::new()
        };
        Ok(Response::new(v1::ContainerStatusResponse {
            status: Some(wire::container_status(container)),
            info,
        }))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        self.runtime.reopen_log(&request.into_inner().container_id).await?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        let request = request.into_inner();
        let timeout = seconds(request.timeout, "timeout")?;
        let runtime = self.runtime.clone();
        let exec =
            async move { runtime.exec_sync(&request.container_id, request.cmd, timeout).await };
        let result = self.runtime.run_to_completion(exec).await?;
        Ok(Response::new(v1::ExecSyncResponse {
            stdout: result.stdout,
            stderr: result.stderr,
            exit_code: result.exit_code,
        }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        network::update(&self.runtime, request.into_inner()).await?;
        Ok(Response::new(v1::UpdateRuntimeConfigResponse {}))
    }

    type GetContainerEventsStream = Items<v1::ContainerEventResponse>;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        let events = events::forward(self.runtime.store.subscribe(), self.runtime.stopping.clone());
        Ok(Response::new(Box::pin(events)))
    }

    type StreamPodSandboxesStream = Items<v1::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let all = self.sandboxes(request.into_inner().filter);
        lists::streamed(all, |pod_sandboxes| v1::StreamPodSandboxesResponse { pod_sandboxes })
    }

    type StreamContainersStream = Items<v1::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let all = self.containers(request.into_inner().filter);
        lists::streamed(all, |containers| v1::StreamContainersResponse { containers })
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        update_container_resources(&self.runtime, request.into_inner()).await?;
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let url = streaming::exec(&self.runtime, &self.streams, request.into_inner())?;
        Ok(Response::new(v1::ExecResponse { url }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let url = streaming::attach(&self.runtime, &self.streams, &request.into_inner())?;
        Ok(Response::new(v1::AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let url = streaming::port_forward(&self.runtime, &self.streams, &request.into_inner())?;
        Ok(Response::new(v1::PortForwardResponse { url }))
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let stats = self.stats_of_container(&request.into_inner().container_id).await?;
        Ok(Response::new(v1::ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let stats = self.stats_of_containers(request.into_inner().filter).await;
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    type StreamContainerStatsStream = Items<v1::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let all = self.stats_of_containers(request.into_inner().filter).await;
        lists::streamed(all, |container_stats| v1::StreamContainerStatsResponse { container_stats })
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let stats = self.stats_of_sandbox(&request.into_inner().pod_sandbox_id).await?;
        Ok(Response::new(v1::PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let stats = self.stats_of_sandboxes(request.into_inner().filter).await;
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    type StreamPodSandboxStatsStream = Items<v1::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let all = self.stats_of_sandboxes(request.into_inner().filter).await;
        lists::streamed(all, |pod_sandbox_stats| v1::StreamPodSandboxStatsResponse {
            pod_sandbox_stats,
        })
    }

    async fn checkpoint_container(
        &self,
        request: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        checkpoint::container(&self.runtime, request.into_inner()).await?;
        Ok(Response::new(v1::CheckpointContainerResponse {}))
    }

    async fn checkpoint_pod(
        &self,
        request: Request<v1::CheckpointPodRequest>,
    ) -> Answer<v1::CheckpointPodResponse> {
        checkpoint::pod(&self.runtime, request.into_inner()).await?;
        Ok(Response::new(v1::CheckpointPodResponse {}))
    }

    async fn restore_pod(
        &self,
        request: Request<v1::RestorePodRequest>,
    ) -> Answer<v1::RestorePodResponse> {
        let answer = checkpoint::restore_pod(&self.runtime, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        let descriptors = stats::descriptors();
        Ok(Response::new(v1::ListMetricDescriptorsResponse { descriptors }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        let pod_metrics = self.metrics().await;
        Ok(Response::new(v1::ListPodSandboxMetricsResponse { pod_metrics }))
    }

    type StreamPodSandboxMetricsStream = Items<v1::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        lists::streamed(self.metrics().await, |pod_sandbox_metrics| {
            v1::StreamPodSandboxMetricsResponse { pod_sandbox_metrics }
        })
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        update_pod_resources(&self.runtime, request.into_inner()).await?;
        Ok(Response::new(v1::UpdatePodSandboxResourcesResponse {}))
    }
}

async fn update_container_resources(
    runtime: &Runtime,
    request: v1::UpdateContainerResourcesRequest,
) -> Result<(), Status> {
    let update = required(request.linux, "linux")?;
    let (operation, id) = (runtime.clone(), request.container_id);
    let update = async move { operation.update_container(&id, update).await };
    Ok(runtime.run_to_completion(update).await?)
}

async fn update_pod_resources(
    runtime: &Runtime,
    request: v1::UpdatePodSandboxResourcesRequest,
) -> Result<(), Status> {
    let v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id: id, overhead, resources } = request;
    let operation = runtime.clone();
    let update = async move { operation.update_sandbox(&id, resources, overhead).await };
    Ok(runtime.run_to_completion(update).await?)
}
