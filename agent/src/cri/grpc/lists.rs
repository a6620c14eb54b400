//! Lists everything, and decodes it only if it has changed: the strings of a thousand pods are most of what an agent at rest does.

use cri::codec::Bytes;
use cri::v1;

use super::calls::decoded;
use super::{DEADLINE, GrpcCri};
use crate::cri::{CriError, LastLists, Lists, wire};

impl GrpcCri {
    /// All sandboxes and containers; `None` if the answers are those of before.
    pub(super) async fn lists(&self, last: &mut LastLists) -> Result<Option<Lists>, CriError> {
        let sandboxes = v1::ListPodSandboxRequest::default();
        let containers = v1::ListContainersRequest::default();
        let (sandboxes, containers) = tokio::try_join!(
            self.undecoded(sandboxes, Some(DEADLINE)),
            self.undecoded(containers, Some(DEADLINE)),
        )?;
        if !last.differ([&sandboxes, &containers]) {
            return Ok(None);
        }
        let lists = items(sandboxes, containers);
        if lists.is_err() {
            // The same answer is an error again.
            *last = LastLists::default();
        }
        lists.map(Some)
    }
}

fn items(sandboxes: Bytes, containers: Bytes) -> Result<Lists, CriError> {
    let sandboxes = decoded::<v1::ListPodSandboxRequest>(sandboxes)?;
    let containers = decoded::<v1::ListContainersRequest>(containers)?;
    let sandboxes = sandboxes.items.into_iter();
    let containers = containers.containers.into_iter();
    Ok((
        sandboxes.filter_map(wire::listed_sandbox).collect(),
        containers.filter_map(wire::listed_container).collect(),
    ))
}
