//! ◆ Decides which running containers are resized, in place or by a restart.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodResizeAction.

use api::pod::Pod;
use k8s_openapi::api::core::v1::Container;

use crate::decide::resize::actuated::{Actuated, CpuMemory};
use crate::observed::{ContainerId, ObservedContainer};

/// A running container whose resources change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerResize {
    /// Its id.
    pub id: ContainerId,
    /// Its name in the spec.
    pub name: String,
    /// Its actuated resources.
    pub from: CpuMemory,
    /// Its allocated resources.
    pub to: CpuMemory,
}

/// The resize of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resize {
    /// Containers whose memory changes: decreases first.
    pub memory: Vec<ContainerResize>,
    /// Containers whose CPU changes: decreases first.
    pub cpu: Vec<ContainerResize>,
    /// Whether a container is restarted with other resources, so that the pod's change too.
    pub restarts: bool,
    /// Whether the pod-level resources change.
    pub of_pod: bool,
}

/// The effect of a resize on a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It keeps running.
    Kept,
    /// It is restarted with its new resources.
    Restarted,
}

impl Resize {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty() && !self.restarts && !self.of_pod
    }

    /// Adds a running container if its actuated resources differ from the allocated ones. Without `actuated` it counts as
    /// unchanged.
    pub(super) fn consider(
        &mut self,
        pod: &Pod,
        container: &Container,
        seen: &ObservedContainer,
        actuated: Option<&Actuated>,
    ) -> Outcome {
        let Some(actuated) = actuated else {
            return Outcome::Kept;
        };
        let resize = ContainerResize {
            id: seen.id.clone(),
            name: container.name.clone(),
            from: actuated.container(&container.name),
            to: CpuMemory::of_container(pod, container),
        };
        let (from, to) = (resize.from, resize.to);
        let memory =
            (from.memory_limit, from.memory_request) != (to.memory_limit, to.memory_request);
        let cpu = (from.cpu_limit, from.cpu_request) != (to.cpu_limit, to.cpu_request);
        if (memory && restarts_for(container, "memory")) || (cpu && restarts_for(container, "cpu"))
        {
            self.restarts = true;
            return Outcome::Restarted;
        }
        if memory {
            let less = is_less(
                (from.memory_limit, to.memory_limit),
                (from.memory_request, to.memory_request),
            );
            put(&mut self.memory, resize.clone(), less);
        }
        if cpu {
            let less = is_less((from.cpu_limit, to.cpu_limit), (from.cpu_request, to.cpu_request));
            put(&mut self.cpu, resize, less);
        }
        Outcome::Kept
    }
}

/// Whether the limit shrinks, or the request if the limit stays.
fn is_less(limit: (i64, i64), request: (i64, i64)) -> bool {
    let (from, to) = if limit.0 == limit.1 { request } else { limit };
    to < from
}

fn put(list: &mut Vec<ContainerResize>, resize: ContainerResize, first: bool) {
    let at = if first { 0 } else { list.len() };
    list.insert(at, resize);
}

/// Whether the container's resize policy requires a restart for a change of a resource. Without a policy it keeps running.
fn restarts_for(container: &Container, resource: &str) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies
        .find(|policy| policy.resource_name == resource)
        .is_some_and(|policy| policy.restart_policy == "RestartContainer")
}
