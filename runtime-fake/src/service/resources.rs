//! The calls that update resource limits.

use cri::v1;
use tonic::Status;

use super::required;
use crate::runtime::Runtime;

pub(super) async fn update_container(
    runtime: &Runtime,
    request: v1::UpdateContainerResourcesRequest,
) -> Result<(), Status> {
    let update = required(request.linux, "linux")?;
    let (operation, id) = (runtime.clone(), request.container_id);
    let update = async move { operation.update_container(&id, update).await };
    Ok(runtime.to_its_end(update).await?)
}

pub(super) async fn update_pod(
    runtime: &Runtime,
    request: v1::UpdatePodSandboxResourcesRequest,
) -> Result<(), Status> {
    let v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id: id, overhead, resources } = request;
    let operation = runtime.clone();
    let update = async move { operation.update_sandbox(&id, resources, overhead).await };
    Ok(runtime.to_its_end(update).await?)
}
