//! Limits of scripted containers: they are what was asked for last.

use super::{FakeCri, not_found};
use crate::cri::CriError;
use crate::observed::{ContainerId, ContainerResources, MemoryUsage, SandboxId};
use crate::pod_spec::spec::Resources;

impl FakeCri {
    /// Defines the memory that every pod uses.
    pub fn set_memory(&self, usage: MemoryUsage) {
        self.lock().memory = usage;
    }

    pub(super) fn limit_container(
        &self,
        id: &ContainerId,
        limits: &Resources,
    ) -> Result<(), CriError> {
        let about = format!("{} {}", self.about(id), in_words(limits));
        self.called("UpdateContainerResources", &about)?;
        let mut inner = self.lock();
        let container = inner
            .containers
            .get_mut(id)
            .ok_or_else(|| not_found("UpdateContainerResources", id.as_str()))?;
        container.spec.resources = limits.clone();
        Ok(())
    }

    pub(super) fn limit_sandbox(&self, id: &SandboxId, limits: &Resources) -> Result<(), CriError> {
        let name = self.lock().sandboxes.get(id).map(|sandbox| sandbox.spec.name.clone());
        let name = name.ok_or_else(|| not_found("UpdatePodSandboxResources", id.as_str()))?;
        let about = format!("{name} {}", in_words(limits));
        self.called("UpdatePodSandboxResources", &about)
    }
}

/// Shares, quota and memory.
fn in_words(limits: &Resources) -> String {
    format!(
        "shares={} quota={} memory={}",
        limits.cpu_shares, limits.cpu_quota, limits.memory_limit
    )
}

/// What the kernel has.
pub(super) fn kernel(limits: &Resources) -> ContainerResources {
    ContainerResources {
        cpu_shares: limits.cpu_shares,
        cpu_quota: limits.cpu_quota,
        cpu_period: limits.cpu_period,
        memory_limit: limits.memory_limit,
    }
}
