//! Lists of sandboxes and containers, in one message or, with the gate CRIListStreaming, in a stream of messages.
//!
//! Source: Kubernetes 1.36, cri-client/pkg/remote_runtime.go.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cri::codec::Bytes;
use cri::v1;
use tonic::{Code, Status};

use super::GrpcCri;
use super::calls::{decoded, timed};
use crate::cri::{CriError, LastLists, Lists, wire};

impl GrpcCri {
    /// All sandboxes and containers; `None` if the answers are those of before, which are not decoded: the strings of a thousand pods
    /// are most of what an agent at rest does. Streamed lists are always decoded.
    pub(super) async fn lists(&self, last: &mut LastLists) -> Result<Option<Lists>, CriError> {
        if self.streams_lists.load(Ordering::Relaxed) {
            *last = LastLists::default();
            let listed = tokio::try_join!(self.sandboxes(None), self.containers(None));
            return listed.map(|(sandboxes, containers)| Some(items(sandboxes, containers)));
        }
        let sandboxes = v1::ListPodSandboxRequest::default();
        let containers = v1::ListContainersRequest::default();
        let (sandboxes, containers) = tokio::try_join!(
            self.undecoded(sandboxes, Some(self.deadline)),
            self.undecoded(containers, Some(self.deadline)),
        )?;
        if !last.differ([&sandboxes, &containers]) {
            return Ok(None);
        }
        let lists = decoded_items(sandboxes, containers);
        if lists.is_err() {
            // The same answer is an error again.
            *last = LastLists::default();
        }
        lists.map(Some)
    }

    /// The sandboxes that a filter selects.
    pub(super) async fn sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, CriError> {
        if self.streams_lists.load(Ordering::Relaxed) {
            let request = v1::StreamPodSandboxesRequest { filter: filter.clone() };
            let (request, mut runtime) =
                (timed(request, Some(self.deadline)), self.runtime.clone());
            let listed = async move {
                let mut stream = runtime.stream_pod_sandboxes(request).await?.into_inner();
                let mut all = Vec::new();
                while let Some(message) = stream.message().await? {
                    all.extend(message.pod_sandboxes);
                }
                Ok::<_, Status>(all)
            };
            if let Some(listed) = self.streamed("ListPodSandbox", listed).await {
                return listed;
            }
        }
        let answer = self.call(v1::ListPodSandboxRequest { filter }, Some(self.deadline)).await?;
        Ok(answer.items)
    }

    /// The containers that a filter selects.
    pub(super) async fn containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, CriError> {
        if self.streams_lists.load(Ordering::Relaxed) {
            let request = v1::StreamContainersRequest { filter: filter.clone() };
            let (request, mut runtime) =
                (timed(request, Some(self.deadline)), self.runtime.clone());
            let listed = async move {
                let mut stream = runtime.stream_containers(request).await?.into_inner();
                let mut all = Vec::new();
                while let Some(message) = stream.message().await? {
                    all.extend(message.containers);
                }
                Ok::<_, Status>(all)
            };
            if let Some(listed) = self.streamed("ListContainers", listed).await {
                return listed;
            }
        }
        let answer = self.call(v1::ListContainersRequest { filter }, Some(self.deadline)).await?;
        Ok(answer.containers)
    }

    /// A streamed list, counted as the call that it replaces; `None` if the runtime does not support it: then it is not tried again.
    async fn streamed<T: Send>(
        &self,
        call: &'static str,
        list: impl Future<Output = Result<Vec<T>, Status>> + Send,
    ) -> Option<Result<Vec<T>, CriError>> {
        let since = Instant::now();
        let listed = tokio::time::timeout(self.deadline, list).await.unwrap_or_else(|_| {
            let seconds = self.deadline.as_secs();
            Err(Status::deadline_exceeded(format!("streamed list timed out after {seconds} s")))
        });
        if listed.as_ref().is_err_and(|status| status.code() == Code::Unimplemented) {
            tracing::info!(call, "the runtime does not support streamed lists");
            self.streams_lists.store(false, Ordering::Relaxed);
            return None;
        }
        self.operations.count(call, since.elapsed(), listed.is_err());
        Some(listed.map_err(|status| wire::error(call, &status)))
    }
}

fn decoded_items(sandboxes: Bytes, containers: Bytes) -> Result<Lists, CriError> {
    let sandboxes = decoded::<v1::ListPodSandboxRequest>(sandboxes)?;
    let containers = decoded::<v1::ListContainersRequest>(containers)?;
    Ok(items(sandboxes.items, containers.containers))
}

fn items(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Lists {
    let (sandboxes, containers) = (sandboxes.into_iter(), containers.into_iter());
    (
        sandboxes.filter_map(wire::listed_sandbox).collect(),
        containers.filter_map(wire::listed_container).collect(),
    )
}
