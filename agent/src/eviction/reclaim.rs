//! Reclaims node resources without evicting pods: removes dead containers of ended pods, and unused images.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_gc.go (DeleteAllUnusedContainers),
//! pkg/kubelet/images/image_gc_manager.go (DeleteUnusedImages). Dead containers of a pod whose end the source has not recorded yet
//! are kept, because they are the record of it; the workers of running pods keep one of each container.

use api::pod::Pod;
use compact::Set;
use tokio::sync::oneshot;

use super::Evictor;
use crate::cri::{CriError, ListedState};
use crate::images::collector::CollectUnused;
use crate::local_node::eviction::layout::Reclaim;
use crate::upkeep::gc::collector::remove_with_log;

impl Evictor {
    pub(super) async fn reclaim(&self, reclaim: Reclaim) {
        if reclaim.containers
            && let Err(error) = self.remove_containers().await
        {
            tracing::warn!(%error, "failed to list dead containers");
        }
        if let Some(images) = self.images.as_ref().filter(|_| reclaim.images) {
            let (done, collected) = oneshot::channel();
            // Both fail only if the agent ends.
            if images.send(CollectUnused(done)).await.is_ok() {
                let _ = collected.await;
            }
        }
    }

    /// Removes the dead containers of pods that have ended, with their logs, and then their sandboxes.
    async fn remove_containers(&self) -> Result<(), CriError> {
        let (sandboxes, containers) =
            tokio::try_join!(self.cri.list_sandboxes(None), self.cri.list_containers(None))?;
        let has_ended: Set<_> = {
            let (pods, reports) = (self.pods.borrow(), self.reports.borrow());
            let is_finished = |pod: &&Pod| {
                let report = reports.get(pod.uid());
                pod.has_ended() && report.is_some_and(|report| report.finished)
            };
            pods.iter().filter(is_finished).map(|pod| pod.uid().clone()).collect()
        };
        let mut kept = Set::new();
        for container in containers {
            let is_dead = container.state != ListedState::Running;
            if !is_dead || !has_ended.contains(&container.pod.uid) {
                kept.insert(container.sandbox_id);
            } else if let Err(error) = remove_with_log(self.cri.as_ref(), &container).await {
                tracing::warn!(container = %container.id, %error, "failed to remove dead container");
                kept.insert(container.sandbox_id);
            }
        }
        for sandbox in sandboxes {
            let is_dead = !sandbox.ready && has_ended.contains(&sandbox.pod.uid);
            if is_dead
                && !kept.contains(&sandbox.id)
                && let Err(error) = self.cri.remove_sandbox(&sandbox.id).await
            {
                tracing::warn!(sandbox = %sandbox.id, %error, "failed to remove dead sandbox");
            }
        }
        Ok(())
    }
}
