//! Checkpoint calls, and their timeouts.

use cri::v1;
use tonic::Status;

use super::{required, seconds};
use crate::runtime::{Error, Runtime};

pub(super) async fn container(
    runtime: &Runtime,
    request: v1::CheckpointContainerRequest,
) -> Result<(), Status> {
    let limit = seconds(request.timeout, "timeout")?;
    let work = runtime.clone();
    let checkpoint = async move {
        work.checkpoint_container(&request.container_id, &request.location, limit).await
    };
    Ok(runtime.run_to_completion(checkpoint).await?)
}

pub(super) async fn pod(
    runtime: &Runtime,
    request: v1::CheckpointPodRequest,
) -> Result<(), Status> {
    no_options(&request.options)?;
    let work = runtime.clone();
    let checkpoint = async move {
        work.checkpoint_pod(&request.pod_sandbox_id, &request.container_ids, &request.output_path)
            .await
    };
    Ok(runtime.run_to_completion(checkpoint).await?)
}

pub(super) async fn restore_pod(
    runtime: &Runtime,
    request: v1::RestorePodRequest,
) -> Result<v1::RestorePodResponse, Status> {
    no_options(&request.options)?;
    let config = required(request.config, "config")?;
    let work = runtime.clone();
    let restore = async move {
        work.restore_pod(
            &request.checkpoint_path,
            config,
            request.runtime_handler,
            request.container_configs,
        )
        .await
    };
    let (sandbox, containers) = runtime.run_to_completion(restore).await?;
    let restored = containers
        .into_iter()
        .map(|(name, id)| v1::RestoredContainer { name, container_id: id.to_string() });
    Ok(v1::RestorePodResponse {
        pod_sandbox_id: sandbox.to_string(),
        restored_containers: restored.collect(),
    })
}

/// Options are runtime-specific, and this runtime has none.
fn no_options(options: &std::collections::HashMap<String, String>) -> Result<(), Error> {
    match options.keys().min() {
        None => Ok(()),
        Some(name) => Err(crate::launch::Invalid(format!(
            "the option {name:?} is unknown: this runtime has none for checkpoints"
        ))
        .into()),
    }
}
