//! Prepares the volumes of a pod, and brings those up to date that show objects or fields.

use std::sync::Arc;

use jiff::Timestamp;

use super::chain;
use crate::blocking::blocking;
use crate::events::Happening;
use crate::pod::Pod;
use crate::shared::Shared;
use crate::spec::memory;
use crate::volumes::content::ContentInputs;
use crate::volumes::{MountError, PodDirs, Prepared, VolumeError, VolumeInputs};

/// Prepares all volumes.
pub(super) async fn prepare(
    shared: &Arc<Shared>,
    dirs: &PodDirs,
    pod: &Pod,
) -> Result<Prepared, VolumeError> {
    let dirs = dirs.clone();
    let has_memory_volumes = memory::is_wanted(pod) && runtime_is_crib(shared).await?;
    with_inputs(shared, pod, has_memory_volumes, move |pod, inputs, now| {
        dirs.prepare(pod, inputs, now)
    })
    .await
}

/// Whether the runtime is crib's own, which keeps emptyDir volumes in memory where an annotation of the sandbox asks for them.
/// Another one would mount a directory on the disk. Asked for each pod: at the agent's start it may not have been there.
async fn runtime_is_crib(shared: &Shared) -> Result<bool, VolumeError> {
    let version = shared.cri.version().await.map_err(VolumeError::Runtime)?;
    Ok(version.runtime_name == "crib")
}

/// Runs `work`, which may block, with what volumes show at present.
async fn with_inputs<T: Send + 'static>(
    shared: &Arc<Shared>,
    pod: &Pod,
    has_memory_volumes: bool,
    work: impl FnOnce(&Pod, VolumeInputs<'_>, Timestamp) -> T + Send + 'static,
) -> T {
    let (shared, pod) = (Arc::clone(shared), pod.clone());
    blocking(move || {
        let now = shared.clock.now();
        let token = |wanted: &_| shared.tokens.token(&pod, wanted, now);
        let content = ContentInputs {
            node: &shared.node,
            objects: shared.objects.as_ref(),
            token: &token,
        };
        let inputs = VolumeInputs {
            content,
            claims: &shared.claims,
            has_memory_volumes,
        };
        work(&pod, inputs, now)
    })
    .await
}

/// Brings the volumes up to date that show objects or fields. Returns whether all of them are.
pub(crate) async fn refresh(shared: &Arc<Shared>, dirs: &PodDirs, pod: &Pod) -> bool {
    let own = dirs.clone();
    // What is in memory shows nothing that could change.
    let failed = with_inputs(shared, pod, false, move |pod, inputs, now| {
        own.refresh(pod, inputs, now)
    })
    .await;
    record(shared, pod, &failed);
    failed.is_empty()
}

/// Records an event for each volume that failed.
pub(super) fn record(shared: &Shared, pod: &Pod, failed: &[MountError]) {
    for error in failed {
        let message = chain(error);
        tracing::warn!(pod = %pod.full_name(), error = %message, "failed to prepare volume");
        let event = Happening::FailedMount(message);
        shared.events.record(pod, None, &event);
    }
}
