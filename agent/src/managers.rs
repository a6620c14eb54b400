//! Resources that containers get for themselves: processors, memory nodes and devices. The agent knows no processor and no device
//! plugin: it asks through [`Managers`], before it takes a pod, before it creates a container, and when a pod has ended.
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

/// What comes of an allocation, or why the node does not take the pod.
pub type Allocation = Pin<Box<dyn Future<Output = Result<(), Rejection>> + Send>>;

/// Gives containers processors, memory nodes and devices of their own. No method blocks for longer than a small file takes.
#[async_trait]
pub trait Managers: Send + Sync {
    /// Whether [`Managers::allocate`] has to be asked about this pod.
    fn concerns(&self, pod: &Pod) -> bool;

    /// Allocates what the containers of a pod are to have, before the node takes it. A pod that has it already keeps it. What pods have
    /// that are not in `active` is free, once `active` is known. Allocations are made one after the other, in the order of the calls.
    ///
    /// # Errors
    ///
    /// The rejection, in a kubelet's words.
    fn allocate(&self, pod: &Pod, active: Active) -> Allocation;

    /// What a container is created with. Called before each creation, for ephemeral containers too.
    ///
    /// # Errors
    ///
    /// Why it cannot be created now, in words: the message of a waiting state with reason `CreateContainerConfigError`.
    async fn prepare(&self, pod: &Pod, container: &Container) -> Result<Assigned, String>;

    /// A container was created with what [`Managers::prepare`] said, and is about to be started.
    fn created(&self, pod: &Pod, container: &str, id: &ContainerId);

    /// Nothing of a pod runs any more, or the node does not take it: what it has is free.
    fn release(&self, pod: &PodUid);

    /// Why the resize of a pod is infeasible: it would change what its containers have for themselves.
    fn forbids_resize(&self, from: &Pod, to: &Pod) -> Option<Infeasible>;

    /// Whether a container has processors that no other one has, and therefore no CPU quota.
    fn has_own_cpus(&self, pod: &PodUid, container: &str) -> bool;

    /// Which of the devices that a container has are healthy, by resource and id.
    fn health(&self, pod: &PodUid, container: &str) -> DeviceHealth;

    /// The resources of devices.
    fn devices(&self) -> DeviceResources;

    /// Whether the machine is new, so that extended resources in an existing node's object are those of an earlier machine.
    fn resets_extended_resources(&self) -> bool {
        false
    }

    /// What is measured of managers.
    fn metrics(&self) -> Vec<ManagerMetric> {
        Vec::new()
    }

    /// Waits until [`Managers::devices`] or [`Managers::health`] may say something else. Cancel-safe.
    async fn devices_changed(&self);
}

/// What is measured of managers.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagerMetric {
    /// The name of a kubelet's metric.
    pub name: &'static str,
    /// Their names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The metric's help text.
    pub help: &'static str,
    /// The value at present.
    pub value: ManagerValue,
}

/// The value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagerValue {
    /// How often something has happened.
    Count(u64),
    /// How many there are.
    Gauge(u64),
    /// How often something took how long.
    Durations(Histogram),
}

/// The pods that keep their resources; `None`: not every source has delivered its pods yet, so that all do.
pub type Active = Option<Set<PodUid>>;

/// Whether devices are healthy, by resource and id.
pub type DeviceHealth = Map<String, Map<String, bool>>;

/// Devices by resource name, such as `vendor.com/gpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceResources {
    /// How many there are; 0 for those whose plugin has gone.
    pub capacity: Map<String, u64>,
    /// How many of them are healthy.
    pub allocatable: Map<String, u64>,
    /// How many pods have.
    pub allocated: Map<String, u64>,
}

impl DeviceResources {
    /// Adds the devices to amounts of other resources.
    pub(crate) fn add(amounts: &mut BTreeMap<String, String>, devices: Map<String, u64>) {
        amounts.extend(devices.into_iter().map(|(name, count)| (name, count.to_string())));
    }

    /// The devices that pods may request beside what they have: as many as are healthy, but no fewer than pods have (Kubernetes 1.36,
    /// pkg/kubelet/cm/devicemanager/manager.go sanitizeNodeAllocatable).
    pub(crate) fn offered(mut self) -> Map<String, u64> {
        for (name, count) in self.allocated {
            let offered = self.allocatable.entry(name).or_default();
            *offered = (*offered).max(count);
        }
        self.allocatable
    }
}

/// Nothing is given to containers for themselves: a node without device plugins, and with the policies `none`.
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
    fn devices_of_pods_are_offered_although_their_plugin_has_gone() {
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
