//! Unary calls: the response type of each request, and the call itself.
//!
//! The code that waits for a response does not depend on its type, so that it is compiled once. Its future is small, because an
//! agent that starts a thousand pods has a thousand calls in flight.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use cri::client::{GrpcClient, RequestMessages, single};
use cri::codec::{AnyMessage, Bytes, DecodeAny, Incoming, Message, Outgoing, decode};
use cri::v1;
use tonic::{Request, Status};

use super::GrpcCri;
use crate::cri::{CriError, wire};

/// A request message of the CRI.
pub(super) trait Call: Outgoing + 'static {
    type Answer: Incoming + Message + Default;
    /// The name of the call in the CRI.
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
    /// Makes a call and returns the response, within `deadline` if there is one.
    pub(super) fn call<C: Call>(
        &self,
        request: C,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<C::Answer, CriError>> + Send + use<C> {
        self.answer::<C, C::Answer>(request, deadline)
    }

    /// Makes a call and returns the encoded response.
    pub(super) fn undecoded<C: Call>(
        &self,
        request: C,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Bytes, CriError>> + Send + use<C> {
        self.answer::<C, Bytes>(request, deadline)
    }

    fn answer<C: Call, A: Incoming>(
        &self,
        request: C,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<A, CriError>> + Send + use<C, A> {
        let request = timed(request, deadline);
        let answer = self.counted(C::NAME, C::PATH, single(request), A::decode_any, deadline);
        async move { A::from_any(answer.await?).map_err(|status| wire::error(C::NAME, &status)) }
    }

    /// Makes a call and counts it.
    fn counted(
        &self,
        name: &'static str,
        path: &'static str,
        request: Request<RequestMessages>,
        decode: DecodeAny,
        deadline: Option<Duration>,
    ) -> Pin<Box<dyn Future<Output = Result<AnyMessage, CriError>> + Send>> {
        let is_of_images = path.starts_with("/runtime.v1.ImageService/");
        let client = if is_of_images { &self.images } else { &self.grpc };
        let (client, operations) = (client.clone(), self.operations.clone());
        Box::pin(async move {
            let since = Instant::now();
            let answer = send(client, path, request, decode, deadline).await;
            operations.count(name, since.elapsed(), answer.is_err());
            answer.map_err(|status| wire::error(name, &status))
        })
    }
}

/// Decodes the response to a `C`.
pub(super) fn decoded<C: Call>(bytes: Bytes) -> Result<C::Answer, CriError> {
    decode(bytes).map_err(|status| wire::error(C::NAME, &status))
}

/// The longest timeout of a request: 100 years. gRPC has eight digits for it, and tonic panics beyond 99,999,999 hours, which a
/// pod's grace period may exceed.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A request with a gRPC timeout.
pub(super) fn timed<M>(message: M, deadline: Option<Duration>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline.min(LONGEST));
    }
    request
}

async fn send(
    mut client: GrpcClient,
    path: &'static str,
    request: Request<RequestMessages>,
    decode: DecodeAny,
    deadline: Option<Duration>,
) -> Result<AnyMessage, Status> {
    let answer = client.unary_any(request, path, decode);
    let answer = match deadline {
        None => answer.await,
        Some(deadline) => tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| {
            let seconds = deadline.as_secs();
            Err(Status::deadline_exceeded(format!("no answer within {seconds} s")))
        }),
    };
    answer.map(tonic::Response::into_inner)
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
        let request = timed((), deadline);
        let timeout = request.metadata().get("grpc-timeout");
        assert_eq!(timeout.map(|text| text.to_str().unwrap()), expected);
    }

    #[test]
    fn rpc_paths_match_the_protocol() {
        assert_eq!(v1::StopContainerRequest::PATH, "/runtime.v1.RuntimeService/StopContainer");
        assert_eq!(v1::PullImageRequest::PATH, "/runtime.v1.ImageService/PullImage");
    }
}
