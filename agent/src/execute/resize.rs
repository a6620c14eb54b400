//! Resizes running containers: makes the calls of the steps until one fails. Steps that were not carried out are planned again.

use tokio::time::Instant;

use super::Job;
use crate::cri::{Code, CriError};
use crate::decide::plan::{PodPlan, Resize, SandboxStep};
use crate::decide::resize::steps::{NewLimits, Step, steps, without_overhead};
use crate::execute::Progress;
use crate::node::Node;
use crate::observed::SandboxId;
use crate::pod_spec::spec::resources;

impl Job {
    /// Carries out the resize of a plan, if it has one.
    pub(super) async fn resize(&self, plan: &PodPlan) {
        let (Some(resize), SandboxStep::Keep { id, .. }) = (&plan.resize, &plan.sandbox) else {
            return;
        };
        if self.terminating.is_cancelled() {
            return;
        }
        let since = Instant::now();
        let done = self.resize_in(id, resize).await;
        self.shared.measures.record_resize(done.is_ok(), since.elapsed());
        // A failed call may have taken effect in part.
        self.shared.cache.resized(self.pod.uid());
        if let Err(message) = done {
            self.send(Progress::ResizeFailed(message));
        }
    }

    async fn resize_in(&self, sandbox: &SandboxId, resize: &Resize) -> Result<(), String> {
        let cpu_quota = self.shared.enforces_cpu_quota(&self.pod);
        let node = &Node { cpu_quota, ..self.shared.node.clone() };
        let actuated = self.actuated.now();
        let limits = NewLimits::of(&self.pod, resize, &actuated, node);
        if limits.any() {
            let usage = self.shared.cri.memory_usage(sandbox).await.map_err(|error| {
                tracing::warn!(pod = %self.pod.full_name(), %error, "failed to get the memory usage of a pod");
                let pod = self.pod.long_name();
                format!("unable to read memory usage for pod {pod:?}")
            })?;
            limits.check(&usage)?;
        }
        for step in steps(&self.pod, resize, &actuated, node) {
            self.resize_step(sandbox, step).await?;
        }
        Ok(())
    }

    async fn resize_step(&self, sandbox: &SandboxId, step: Step) -> Result<(), String> {
        let cri = &self.shared.cri;
        match step {
            Step::Pod { of, resources, limits } => {
                let overhead = resources::overhead(&self.pod, &self.shared.node);
                let updated = cri.update_sandbox(sandbox, &resources, &overhead).await;
                if let Err(error) = updated
                    && !is_unknown_call(&error)
                {
                    return Err(format!(
                        "failed to notify runtime for UpdatePodSandboxResources (resource={of}); resize rejected: \
                         updatePodSandboxResources failed for sanboxID {:?}: {}",
                        sandbox.as_str(),
                        error.go_text()
                    ));
                }
                if let Some(cgroups) = &self.shared.cgroups
                    && let Err(error) = cgroups.set(&self.pod, limits).await
                {
                    // The cgroup has the old limits.
                    let old = self.actuated.now().cgroup;
                    let old = without_overhead(&self.pod, old, &self.shared.node);
                    let restored = cri.update_sandbox(sandbox, &old, &overhead).await;
                    if let Err(error) = restored
                        && !is_unknown_call(&error)
                    {
                        tracing::warn!(pod = %self.pod.full_name(), %error, "failed to notify the runtime of the pod's old resources");
                    }
                    return Err(format!("failed to set pod cgroup config: {error}"));
                }
                self.actuated.change(|now| now.cgroup = limits).await;
            }
            Step::Container { id, name, mut resources, now } => {
                let has_own_cpus = self.shared.managers.has_own_cpus(self.pod.uid(), &name);
                if has_own_cpus && self.shared.node.cpu_quota {
                    resources.cpu_quota = -1;
                }
                let updated = cri.update_container(&id, &resources).await;
                updated.map_err(|error| error.go_text())?;
                let change = |all: &mut crate::decide::resize::actuated::Actuated| {
                    all.containers.insert(name, now);
                };
                self.actuated.change(change).await;
            }
            Step::Whole(now) => self.actuated.change(|all| all.pod = now).await,
        }
        Ok(())
    }
}

/// Whether the runtime does not implement the call, which is optional. containerd 2.2 returns no code for that.
fn is_unknown_call(error: &CriError) -> bool {
    error.code == Code::Unimplemented
        || (error.code == Code::Unknown && error.message.contains("not implemented"))
}
