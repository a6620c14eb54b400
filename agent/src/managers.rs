//! Exclusive resources of containers: CPUs, memory nodes and devices. The agent does not know CPUs or device plugins: it uses
//! [`Managers`] before it admits a pod, before it creates a container, and when a pod has ended.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/container_manager.go and pkg/kubelet/cm/internal_container_lifecycle.go.

pub mod claims;

use std::collections::BTreeMap;
use std::pin::Pin;

use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::Container;

use crate::decide::resize::Infeasible;
use crate::histogram::Histogram;
use crate::observed::ContainerId;
use crate::pod_spec::admission::Rejection;
use crate::pod_spec::spec::Assigned;

/// The result of an allocation, or why the node rejects the pod.
pub type Allocation = Pin<Box<dyn Future<Output = Result<(), Rejection>> + Send>>;

/// Allocates exclusive CPUs, memory nodes and devices to containers. No method blocks for longer than it takes to write a small
/// file.
#[async_trait]
pub trait Managers: Send + Sync {
    /// Whether [`Managers::allocate`] must be called for this pod.
    fn concerns(&self, pod: &Pod) -> bool;

    /// Counts the admission of a pod for which [`Managers::allocate`] need not be called.
    fn admitted_without_allocation(&self) {}

    /// Allocates the resources of a pod's containers before the node admits it. A pod keeps an existing allocation. Resources of
    /// pods that are not in `active` are free, once `active` is known. Allocations are made one after the other, in the order of
    /// the calls.
    ///
    /// # Errors
    ///
    /// The rejection, with a kubelet's message.
    fn allocate(&self, pod: &Pod, active: Active) -> Allocation;

    /// The fields with which a container is created. Called before each creation, for ephemeral containers too.
    ///
    /// # Errors
    ///
    /// Why it cannot be created now: the message of a waiting state with reason `CreateContainerConfigError`.
    async fn prepare(&self, pod: &Pod, container: &Container) -> Result<Assigned, String>;

    /// Records that a container was created with the result of [`Managers::prepare`], and is about to be started.
    fn created(&self, pod: &Pod, container: &str, id: &ContainerId);

    /// Releases a pod's allocation, because nothing of the pod runs any more, or because the node rejects it.
    fn release(&self, pod: &PodUid);

    /// Why the resize of a pod is infeasible: it would change exclusive resources of its containers.
    fn forbids_resize(&self, from: &Pod, to: &Pod) -> Option<Infeasible>;

    /// Whether a container has processors that no other one has, and therefore no CPU quota.
    fn has_own_cpus(&self, pod: &PodUid, container: &str) -> bool;

    /// The health of a container's devices, by resource and id.
    fn health(&self, pod: &PodUid, container: &str) -> DeviceHealth;

    /// The node's device resources.
    fn devices(&self) -> DeviceResources;

    /// Whether the machine is a new one, so that extended resources in an existing node's object are outdated.
    fn resets_extended_resources(&self) -> bool {
        false
    }

    /// Whether device plugins can register.
    ///
    /// # Errors
    /// The kubelet's error if they cannot.
    fn device_plugin_health(&self) -> Result<(), String> {
        Ok(())
    }

    /// The managers' metrics.
    fn metrics(&self) -> Vec<ManagerMetric> {
        Vec::new()
    }

    /// Waits until the result of [`Managers::devices`] or [`Managers::health`] may have changed. Cancel-safe.
    async fn devices_changed(&self);
}

/// A metric of the managers.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagerMetric {
    /// The name of a kubelet's metric.
    pub name: &'static str,
    /// The names and values of its labels.
    pub labels: Vec<(&'static str, String)>,
    /// The metric's help text.
    pub help: &'static str,
    /// The current value.
    pub value: ManagerValue,
}

/// The value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagerValue {
    /// The number of events.
    Count(u64),
    /// The current number.
    Gauge(u64),
    /// A histogram of durations.
    Durations(Histogram),
}

/// The pods that keep their resources; `None`: some source has not delivered its pods yet, so that all pods keep them.
pub type Active = Option<Set<PodUid>>;

/// Whether devices are healthy, by resource and id.
pub type DeviceHealth = Map<String, Map<String, bool>>;

/// Devices by resource name, such as `vendor.com/gpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceResources {
    /// The number of devices; 0 if their plugin was removed.
    pub capacity: Map<String, u64>,
    /// The number of healthy devices.
    pub allocatable: Map<String, u64>,
    /// The number of devices allocated to pods.
    pub allocated: Map<String, u64>,
}

impl DeviceResources {
    /// Adds the devices to amounts of other resources.
    pub(crate) fn add(amounts: &mut BTreeMap<String, String>, devices: Map<String, u64>) {
        amounts.extend(devices.into_iter().map(|(name, count)| (name, count.to_string())));
    }

    /// The devices that pods may request in total: the healthy ones, but no fewer than are allocated (Kubernetes 1.36,
    /// pkg/kubelet/cm/devicemanager/manager.go sanitizeNodeAllocatable).
    pub(crate) fn offered(mut self) -> Map<String, u64> {
        for (name, count) in self.allocated {
            let offered = self.allocatable.entry(name).or_default();
            *offered = (*offered).max(count);
        }
        self.allocatable
    }
}

/// Allocates nothing: for a node without device plugins, and with the policies `none`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoManagers;

#[async_trait]
impl Managers for NoManagers {
    fn concerns(&self, _: &Pod) -> bool {
        false
    }

    fn allocate(&self, _: &Pod, _: Active) -> Allocation {
        Box::pin(std::future::ready(Ok(())))
    }

    async fn prepare(&self, _: &Pod, _: &Container) -> Result<Assigned, String> {
        Ok(Assigned::default())
    }

    fn created(&self, _: &Pod, _: &str, _: &ContainerId) {}

    fn release(&self, _: &PodUid) {}

    fn forbids_resize(&self, _: &Pod, _: &Pod) -> Option<Infeasible> {
        None
    }

    fn has_own_cpus(&self, _: &PodUid, _: &str) -> bool {
        false
    }

    fn health(&self, _: &PodUid, _: &str) -> DeviceHealth {
        DeviceHealth::new()
    }

    fn devices(&self) -> DeviceResources {
        DeviceResources::default()
    }

    async fn devices_changed(&self) {
        std::future::pending().await
    }
}

#[cfg(test)]
pub(crate) mod fake;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_in_use_stay_allocatable_after_their_plugin_is_removed() {
        let counts = |counts: &[(&str, u64)]| -> Map<String, u64> {
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let resources = DeviceResources {
            capacity: Map::new(),
            allocatable: counts(&[("a.com/x", 3), ("a.com/y", 1)]),
            allocated: counts(&[("a.com/x", 2), ("a.com/y", 2), ("a.com/z", 1)]),
        };
        let offered = counts(&[("a.com/x", 3), ("a.com/y", 2), ("a.com/z", 1)]);
        assert_eq!(resources.offered(), offered);
    }
}
