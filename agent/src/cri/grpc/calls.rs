//! One call: which answer belongs to which request, and how it is made.
//!
//! A message is encoded before the call and its answer decoded after it. What waits between holds neither, and is compiled once:
//! an agent that starts a thousand pods has a thousand calls under way.

use std::future::Future;
use std::time::{Duration, Instant};

use cri::codec::{Bytes, Encoded, Message, decode};
use cri::v1;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::GrpcCri;
use crate::cri::{CriError, wire};

/// A request of the protocol.
pub(super) trait Call: Message {
    type Answer: Message + Default;
    /// Of the call, as the protocol has it.
    const NAME: &'static str;
    const PATH: &'static str;
}

macro_rules! calls {
    ($($service:literal { $($name:ident($request:ident) -> $answer:ident,)* })*) => {
        $($(impl Call for v1::$request {
            type Answer = v1::$answer;
            const NAME: &'static str = stringify!($name);
            const PATH: &'static str = concat!("/", $service, "/", stringify!($name));
        })*)*
    };
}

calls! {
    "runtime.v1.RuntimeService" {
        Version(VersionRequest) -> VersionResponse,
        Status(StatusRequest) -> StatusResponse,
        UpdateRuntimeConfig(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse,
        RuntimeConfig(RuntimeConfigRequest) -> RuntimeConfigResponse,
        RunPodSandbox(RunPodSandboxRequest) -> RunPodSandboxResponse,
        StopPodSandbox(StopPodSandboxRequest) -> StopPodSandboxResponse,
        RemovePodSandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse,
        PodSandboxStatus(PodSandboxStatusRequest) -> PodSandboxStatusResponse,
        ListPodSandbox(ListPodSandboxRequest) -> ListPodSandboxResponse,
        CreateContainer(CreateContainerRequest) -> CreateContainerResponse,
        StartContainer(StartContainerRequest) -> StartContainerResponse,
        StopContainer(StopContainerRequest) -> StopContainerResponse,
        RemoveContainer(RemoveContainerRequest) -> RemoveContainerResponse,
        ListContainers(ListContainersRequest) -> ListContainersResponse,
        ContainerStatus(ContainerStatusRequest) -> ContainerStatusResponse,
        UpdateContainerResources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse,
        UpdatePodSandboxResources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse,
        PodSandboxStats(PodSandboxStatsRequest) -> PodSandboxStatsResponse,
        ContainerStats(ContainerStatsRequest) -> ContainerStatsResponse,
        ListContainerStats(ListContainerStatsRequest) -> ListContainerStatsResponse,
        ListPodSandboxStats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse,
        ListMetricDescriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse,
        ListPodSandboxMetrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse,
        Exec(ExecRequest) -> ExecResponse,
        Attach(AttachRequest) -> AttachResponse,
        PortForward(PortForwardRequest) -> PortForwardResponse,
        ExecSync(ExecSyncRequest) -> ExecSyncResponse,
        CheckpointContainer(CheckpointContainerRequest) -> CheckpointContainerResponse,
        ReopenContainerLog(ReopenContainerLogRequest) -> ReopenContainerLogResponse,
    }
    "runtime.v1.ImageService" {
        ListImages(ListImagesRequest) -> ListImagesResponse,
        ImageStatus(ImageStatusRequest) -> ImageStatusResponse,
        PullImage(PullImageRequest) -> PullImageResponse,
        RemoveImage(RemoveImageRequest) -> RemoveImageResponse,
        ImageFsInfo(ImageFsInfoRequest) -> ImageFsInfoResponse,
    }
}

impl GrpcCri {
    /// The answer to a request, within `deadline` if there is one.
    pub(super) fn call<C: Call>(
        &self,
        request: C,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<C::Answer, CriError>> + Send + use<C> {
        let answer = self.undecoded(request, deadline);
        async move { decoded::<C>(answer.await?) }
    }

    /// The answer's bytes.
    pub(super) fn undecoded<C: Call>(
        &self,
        request: C,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Bytes, CriError>> + Send + use<C> {
        let message = Bytes::from(request.encode_to_vec());
        // In a box, for an async block that awaits what it was given has room for it twice.
        let is_of_images = C::PATH.starts_with("/runtime.v1.ImageService/");
        let grpc = if is_of_images { &self.images } else { &self.grpc };
        let answer = Box::pin(send(grpc.clone(), C::PATH, message, deadline));
        let (operations, since) = (self.operations.clone(), Instant::now());
        async move {
            let answer = answer.await;
            operations.count(C::NAME, since.elapsed(), answer.is_err());
            answer.map_err(|status| wire::error(C::NAME, &status))
        }
    }
}

/// The answer to a `C` in these bytes.
pub(super) fn decoded<C: Call>(bytes: Bytes) -> Result<C::Answer, CriError> {
    decode(bytes).map_err(|status| wire::error(C::NAME, &status))
}

/// The longest timeout that a request carries: 100 years. gRPC has eight digits for it, and tonic panics beyond 99,999,999
/// hours, which a pod's grace period may be.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A request with a gRPC timeout.
fn timed(message: Bytes, deadline: Option<Duration>) -> Request<Bytes> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline.min(LONGEST));
    }
    request
}

async fn send(
    grpc: Grpc<Channel>,
    path: &'static str,
    message: Bytes,
    deadline: Option<Duration>,
) -> Result<Bytes, Status> {
    let request = timed(message, deadline);
    let Some(deadline) = deadline else {
        return unary(grpc, path, request).await;
    };
    let answer = tokio::time::timeout(deadline, unary(grpc, path, request));
    answer.await.unwrap_or_else(|_| {
        let seconds = deadline.as_secs();
        Err(Status::deadline_exceeded(format!("no answer within {seconds} s")))
    })
}

async fn unary(
    mut grpc: Grpc<Channel>,
    path: &'static str,
    request: Request<Bytes>,
) -> Result<Bytes, Status> {
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(path);
    let answer = grpc.unary(request, path, Encoded).await?;
    Ok(answer.into_inner())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::short(Some(Duration::from_secs(2)), Some("2000000u"))]
    #[case::beyond_eight_digits_of_hours(
        Some(Duration::from_secs(400_000_000_000)),
        Some("52560000M")
    )]
    #[case::longest(Some(Duration::MAX), Some("52560000M"))]
    #[case::none(None, None)]
    fn timeout_of_request_fits_grpc(
        #[case] deadline: Option<Duration>,
        #[case] expected: Option<&str>,
    ) {
        let request = timed(Bytes::new(), deadline);
        let timeout = request.metadata().get("grpc-timeout");
        assert_eq!(timeout.map(|text| text.to_str().unwrap()), expected);
    }

    #[test]
    fn paths_are_those_of_the_protocol() {
        assert_eq!(v1::StopContainerRequest::PATH, "/runtime.v1.RuntimeService/StopContainer");
        assert_eq!(v1::PullImageRequest::PATH, "/runtime.v1.ImageService/PullImage");
    }
}
