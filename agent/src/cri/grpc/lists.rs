//! Lists everything, and decodes it only if it has changed: the strings of a thousand pods are most of what an agent at rest does.

use cri::codec::{Bytes, Message, Undecoded, decode};
use cri::v1;
use http::uri::PathAndQuery;
use tonic::Status;
use tonic::client::Grpc;

use super::{DEADLINE, GrpcCri, MAX_MESSAGE, timed, within};
use crate::cri::{CriError, LastLists, Lists, wire};

const SANDBOXES: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
const CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";

impl GrpcCri {
    /// All sandboxes and containers; `None` if the answers are those of before.
    pub(super) async fn lists(&self, last: &mut LastLists) -> Result<Option<Lists>, CriError> {
        let sandboxes = v1::ListPodSandboxRequest::default();
        let containers = v1::ListContainersRequest::default();
        let sandboxes = self.undecoded(SANDBOXES, sandboxes);
        let containers = self.undecoded(CONTAINERS, containers);
        let (sandboxes, containers) = tokio::try_join!(
            within(DEADLINE, "ListPodSandbox", sandboxes),
            within(DEADLINE, "ListContainers", containers),
        )?;
        if !last.differ([&sandboxes, &containers]) {
            return Ok(None);
        }
        let lists = decoded(sandboxes, containers);
        if lists.is_err() {
            // The same answer is an error again.
            *last = LastLists::default();
        }
        lists.map(Some)
    }

    async fn undecoded<T: Message + Send + Sync + 'static>(
        &self,
        path: &'static str,
        request: T,
    ) -> Result<tonic::Response<Bytes>, Status> {
        let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        client
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        client
            .unary(timed(DEADLINE, request), path, Undecoded::default())
            .await
    }
}

fn decoded(sandboxes: Bytes, containers: Bytes) -> Result<Lists, CriError> {
    let sandboxes: v1::ListPodSandboxResponse =
        decode(sandboxes).map_err(|status| wire::error("ListPodSandbox", &status))?;
    let containers: v1::ListContainersResponse =
        decode(containers).map_err(|status| wire::error("ListContainers", &status))?;
    let sandboxes = sandboxes.items.into_iter();
    let containers = containers.containers.into_iter();
    Ok((
        sandboxes.filter_map(wire::listed_sandbox).collect(),
        containers.filter_map(wire::listed_container).collect(),
    ))
}
