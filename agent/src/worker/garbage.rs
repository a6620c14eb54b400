//! Removes dead containers and sandboxes of a live pod.

use std::sync::Arc;

use super::Worker;
use crate::cri::CriError;
use crate::decide::plan::HoldKey;
use crate::decide::plan::effects::CompletedCall;
use crate::decide::plan::stop::before_removal;
use crate::execute::hook_host;
use crate::execute::kill::Killer;
use crate::observed::{ContainerId, ContainerState, Observed};
use crate::reporting::causes::Causes;
use crate::upkeep::gc::collector::remove_dead;
use crate::upkeep::gc::{self, Garbage};
use crate::upkeep::logs::links;
use tasks::{blocking, brief};

impl Worker {
    /// Removes dead containers and sandboxes of a live pod. Returns whether it removed any.
    pub(super) async fn collect_garbage(&mut self, observed: &Observed) -> bool {
        let garbage = self.garbage(observed);
        self.remove_garbage(observed, garbage).await
    }

    /// Removes dead containers of a finished pod, as a kubelet does when the last one with a name ends (Kubernetes 1.36,
    /// pkg/kubelet/kubelet.go cleanUpContainersInPod).
    pub(super) async fn collect_dead_containers(&mut self, observed: &Observed) {
        let mut garbage = self.garbage(observed);
        garbage.sandboxes.clear();
        self.remove_garbage(observed, garbage).await;
    }

    fn garbage(&self, observed: &Observed) -> Garbage {
        gc::garbage(
            observed,
            self.shared.config.dead_containers,
            &self.history.holds,
            self.shared.clock.now(),
        )
    }

    /// Removes the garbage. Returns whether it removed anything.
    async fn remove_garbage(&mut self, observed: &Observed, garbage: Garbage) -> bool {
        if garbage.is_empty() || self.history.restart_all {
            return false;
        }
        let cri = Arc::clone(&self.shared.cri);
        let mut failed = false;
        self.shared.cache.busy(&self.pod_ref.uid);
        for (id, name) in garbage.containers {
            self.stabilization.forget(id.as_str());
            let mut containers = observed.containers.iter();
            let seen = containers.find(|container| container.id == id);
            let is_unknown = seen.is_some_and(|seen| seen.state == ContainerState::Unknown);
            if self.noted(self.remove_dead(observed, (&id, &name), is_unknown).await) {
                self.defer(HoldKey::Container(id));
                failed = true;
                continue;
            }
            if let Some(log) = seen.and_then(|seen| seen.log_path.clone()) {
                let dirs = self.dirs.clone();
                blocking(move || dirs.remove_log(&log)).await;
                self.remove_log_link(&id, &name);
            }
            self.observation.expected.add(CompletedCall::Remove { name, id });
        }
        for id in garbage.sandboxes {
            self.stabilization.forget(id.as_str());
            if self.noted(cri.stop_sandbox(&id).await) || self.noted(cri.remove_sandbox(&id).await)
            {
                self.defer(HoldKey::Sandbox(id));
                failed = true;
            } else {
                self.observation.expected.add(CompletedCall::RemoveSandbox(id));
            }
        }
        let causes = Causes::pod("garbage was collected");
        if failed {
            // This is not urgent.
            self.shared.cache.refresh(&self.pod_ref.uid, causes);
            return false;
        }
        self.observation.since = self.shared.cache.refresh(&self.pod_ref.uid, causes);
        true
    }

    /// Removes a dead container. One in an unknown state is stopped first: as its pod demands, if the pod is known.
    pub(super) async fn remove_dead(
        &self,
        observed: &Observed,
        (id, name): (&ContainerId, &str),
        is_unknown: bool,
    ) -> Result<(), CriError> {
        let cri = self.shared.cri.as_ref();
        let Some(pod) = self.pod.as_ref().filter(|_| is_unknown) else {
            return remove_dead(cri, id, is_unknown).await;
        };
        let killer = Killer {
            shared: Arc::clone(&self.shared),
            pod: pod.clone(),
            host: hook_host(observed),
        };
        match killer.kill(&before_removal(pod, id, name)).await.pop() {
            Some(failure) => Err(failure.error),
            None => cri.remove_container(id).await,
        }
    }

    /// Removes the link to a removed log (Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go removeContainerLog).
    pub(super) fn remove_log_link(&self, id: &ContainerId, name: &str) {
        let directory = self.shared.config.container_logs_dir.as_deref();
        if let (Some(directory), Some(pod)) = (directory, &self.pod) {
            let link = links::name(pod, name, id);
            brief(|| links::remove(directory, &link));
        }
    }

    /// Logs an error. Returns whether there was one.
    pub(super) fn noted(&self, result: Result<(), CriError>) -> bool {
        if let Err(error) = &result {
            tracing::warn!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), %error, "failed to clean up");
        }
        result.is_err()
    }
}
