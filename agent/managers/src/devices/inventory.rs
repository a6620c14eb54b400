//! ◆ The devices of the node, their assignment to containers, and the choice of devices for a container. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager/manager.go and pod_devices.go. Where the kubelet takes devices in any
//! order, the inventory takes them in the order of their IDs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent::managers::DeviceResources;
use agent::pod_spec::spec::{DeviceSpec, MountSpec};
use compact::{Map, Set};

use super::affinity::{Affinity, Device, Ids, by_affinity};
use crate::topology::hint::Mask;

/// How long the devices of a disconnected plugin remain in the capacity.
const GRACE: Duration = Duration::from_secs(5 * 60);

/// The NUMA node of a device without affinity.
pub(crate) const NO_NODE: i64 = -1;

/// The container settings for its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) mounts: Vec<MountSpec>,
    pub(crate) devices: Vec<DeviceSpec>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) cdi_devices: Vec<String>,
}

/// The devices of one resource that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AssignedDevices {
    /// By NUMA node. A device near several nodes occurs several times.
    pub(crate) ids: Map<i64, Vec<String>>,
    pub(crate) usage: Usage,
}

impl Usage {
    /// Adds the settings for the devices of another resource. Existing entries take precedence, as in the kubelet.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, value) in &other.envs {
            self.envs.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (name, value) in &other.annotations {
            self.annotations.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for mount in &other.mounts {
            if self.mounts.iter().all(|known| known.container_path != mount.container_path) {
                self.mounts.push(mount.clone());
            }
        }
        for device in &other.devices {
            if self.devices.iter().all(|known| known.container_path != device.container_path) {
                self.devices.push(device.clone());
            }
        }
        for name in &other.cdi_devices {
            if !self.cdi_devices.contains(name) {
                self.cdi_devices.push(name.clone());
            }
        }
    }
}

impl AssignedDevices {
    pub(crate) fn ids(&self) -> Ids {
        self.ids.values().flatten().cloned().collect()
    }
}

/// The devices of each container, by resource.
pub(crate) type OfContainers = Map<String, Map<String, AssignedDevices>>;

/// The connection state of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugin {
    Connected,
    /// Disconnected at this time.
    Disconnected(Instant),
}

/// The devices of one resource.
#[derive(Clone, Debug, Default)]
struct Resource {
    devices: Map<String, Device>,
    healthy: Ids,
    unhealthy: Ids,
}

/// The devices of the node, and their assignment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    resources: Map<String, Resource>,
    plugins: Map<String, Plugin>,
    /// Resources whose plugins were disconnected for longer than the grace period.
    removed: Set<String>,
    /// The devices in use, or about to be.
    allocated: Map<String, Ids>,
    /// By pod uid.
    pods: Map<String, OfContainers>,
    /// The devices of earlier init containers of the pod in admission, which later containers may reuse.
    reusable: (String, Map<String, Ids>),
}

/// A request of a container for devices of one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) count: usize,
    /// The NUMA nodes chosen by the topology manager.
    pub(crate) affinity: Option<Mask>,
}

/// The next step of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to allocate.
    Nothing,
    /// These devices are chosen; call the plugin's Allocate.
    Allocate(Ids),
    /// Call the plugin's GetPreferredAllocation first.
    Prefer(Preference),
}

/// The parameters of GetPreferredAllocation, and the devices allocated so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preference {
    /// The devices to choose from, including `allocated`.
    pub(crate) available: Ids,
    pub(crate) allocated: Ids,
    /// The acceptable choices.
    eligible: Ids,
    /// The devices to use after the plugin's choice, in this order.
    others: Vec<Ids>,
    needed: usize,
}

impl Inventory {
    /// Records that a plugin has registered for a resource. It reports its devices later.
    pub(crate) fn connected(&mut self, resource: &str) {
        self.plugins.insert(resource.to_owned(), Plugin::Connected);
    }

    /// Records that the plugin of a resource has disconnected: its devices are unhealthy. If it had not listed devices yet, the
    /// resource has none.
    pub(crate) fn disconnected(&mut self, resource: &str, now: Instant) {
        self.plugins.insert(resource.to_owned(), Plugin::Disconnected(now));
        let known = self.resources.entry(resource.to_owned()).or_default();
        let healthy = std::mem::take(&mut known.healthy);
        known.unhealthy.extend(healthy);
    }

    /// Records the devices that a plugin lists.
    pub(crate) fn listed(&mut self, resource: &str, devices: Map<String, Device>) {
        self.removed.remove(resource);
        let known = self.resources.entry(resource.to_owned()).or_default();
        let of = |healthy: bool| -> Ids {
            let like = devices.iter().filter(|(_, device)| device.healthy == healthy);
            like.map(|(id, _)| id.clone()).collect()
        };
        (known.healthy, known.unhealthy) = (of(true), of(false));
        known.devices = devices;
    }

    /// Removes resources whose plugin has been disconnected for longer than the grace period. Returns whether there were any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let is_over = |plugin: &Plugin| match plugin {
            Plugin::Connected => false,
            Plugin::Disconnected(since) => now.saturating_duration_since(*since) > GRACE,
        };
        let over = self.plugins.iter().filter(|(_, plugin)| is_over(plugin));
        let over: Vec<String> = over.map(|(name, _)| name.clone()).collect();
        for name in &over {
            self.plugins.remove(name);
            self.resources.remove(name);
        }
        let any = !over.is_empty();
        self.removed.extend(over);
        any
    }

    /// The time at which [`Inventory::expire`] will next remove a resource.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let ends = self.plugins.values().filter_map(|plugin| match plugin {
            Plugin::Connected => None,
            Plugin::Disconnected(since) => Some(*since + GRACE),
        });
        ends.min()
    }

    /// Capacity, allocatable and allocated amounts of each resource.
    pub(crate) fn resources(&self) -> DeviceResources {
        let mut resources = DeviceResources::default();
        for (name, resource) in &self.resources {
            let healthy = count(&resource.healthy);
            resources.capacity.insert(name.clone(), healthy + count(&resource.unhealthy));
            resources.allocatable.insert(name.clone(), healthy);
        }
        for name in &self.removed {
            resources.capacity.insert(name.clone(), 0);
            resources.allocatable.insert(name.clone(), 0);
        }
        let allocated = self.allocated.iter().filter(|(_, ids)| !ids.is_empty());
        resources.allocated = allocated.map(|(name, ids)| (name.clone(), count(ids))).collect();
        resources
    }

    /// The known resources, and the IDs of their healthy devices.
    pub(crate) fn registered(&self) -> Map<String, Ids> {
        let healthy =
            |(name, resource): (&String, &Resource)| (name.clone(), resource.healthy.clone());
        self.resources.iter().map(healthy).collect()
    }

    /// The healthy devices of each resource.
    pub(crate) fn allocatable(&self) -> Map<String, Map<String, Device>> {
        let healthy = |resource: &Resource| {
            let healthy = resource.devices.iter().filter(|(id, _)| resource.healthy.contains(*id));
            healthy.map(|(id, device)| (id.clone(), device.clone())).collect()
        };
        self.resources.iter().map(|(name, resource)| (name.clone(), healthy(resource))).collect()
    }

    /// Whether the resource has a plugin, or containers with its devices.
    pub(crate) fn knows(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// Whether the resource has a plugin, or had one within the grace period.
    pub(crate) fn has_plugin(&self, resource: &str) -> bool {
        self.plugins.contains_key(resource)
    }

    /// Restores the devices of containers from a checkpoint. The plugins must register again.
    pub(crate) fn restore(
        &mut self,
        pods: Map<String, OfContainers>,
        registered: impl IntoIterator<Item = String>,
        now: Instant,
    ) {
        self.pods = pods;
        self.recount();
        for name in registered {
            self.plugins.insert(name.clone(), Plugin::Disconnected(now));
            self.resources.insert(name, Resource::default());
        }
    }

    /// The devices of all containers.
    pub(crate) fn pods(&self) -> &Map<String, OfContainers> {
        &self.pods
    }

    /// The devices of a container, by resource.
    pub(crate) fn of_container(
        &self,
        pod: &str,
        container: &str,
    ) -> Option<&Map<String, AssignedDevices>> {
        self.pods.get(pod)?.get(container)
    }

    /// The devices of one resource that a container has.
    pub(crate) fn assigned(&self, pod: &str, container: &str, resource: &str) -> Option<Ids> {
        Some(self.of_container(pod, container)?.get(resource)?.ids())
    }

    /// The devices of one resource that the containers of a pod have.
    pub(crate) fn assigned_to_pod(&self, pod: &str, resource: &str) -> Ids {
        let containers = self.pods.get(pod).into_iter().flat_map(Map::values);
        containers.filter_map(|of| of.get(resource)).flat_map(AssignedDevices::ids).collect()
    }

    /// Frees the devices of pods that are not active. Returns whether there were any.
    pub(crate) fn retain_active(&mut self, is_active: impl Fn(&str) -> bool) -> bool {
        let before = self.pods.len();
        self.pods.retain(|uid, _| is_active(uid));
        let freed = self.pods.len() != before;
        if freed {
            self.recount();
        }
        freed
    }

    /// Recomputes the devices in use from those of containers.
    pub(crate) fn recount(&mut self) {
        self.allocated.clear();
        for (name, assigned) in self.pods.values().flat_map(Map::values).flatten() {
            self.allocated.entry(name.clone()).or_default().extend(assigned.ids());
        }
    }

    /// The devices that containers of the pod may reuse.
    pub(crate) fn reusable(&self, pod: &str, resource: &str) -> Ids {
        let (of, reusable) = &self.reusable;
        reusable.get(resource).filter(|_| of == pod).cloned().unwrap_or_default()
    }

    /// Updates the reusable devices after an allocation for a container: later containers may reuse the devices of an init
    /// container that `ends`.
    pub(crate) fn reuse(&mut self, pod: &str, container: &str, ends: bool) {
        if self.reusable.0 != pod {
            self.reusable = (pod.to_owned(), Map::new());
        }
        let assigned = self.pods.get(pod).and_then(|of| of.get(container));
        for (resource, assigned) in assigned.into_iter().flatten() {
            let reusable = self.reusable.1.entry(resource.clone()).or_default();
            let ids = assigned.ids();
            if ends {
                reusable.extend(ids);
            } else {
                reusable.retain(|id| !ids.contains(id));
            }
        }
    }

    /// Begins to allocate what a container requests. `is_running`: it is already running, and the pods of an earlier agent are not
    /// known yet.
    ///
    /// # Errors
    ///
    /// The kubelet's error if the devices are unavailable.
    pub(crate) fn begin(&mut self, request: Request<'_>, is_running: bool) -> Result<Step, String> {
        let Request { pod, container, resource, count: required, affinity } = request;
        let assigned = self.assigned(pod, container, resource);
        if let Some(assigned) = assigned.as_ref().filter(|assigned| assigned.len() != required) {
            let had = assigned.len();
            return Err(format!(
                "pod {pod:?} container {container:?} changed request for resource {resource:?} from {had} to {required}"
            ));
        }
        if is_running {
            return Ok(Step::Nothing);
        }
        let Some(known) = self.resources.get(resource) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        if known.healthy.is_empty() {
            return Err(format!(
                "no healthy devices present; cannot allocate unhealthy devices {resource}"
            ));
        }
        if assigned.as_ref().is_some_and(|assigned| !assigned.is_subset(&known.healthy)) {
            return Err(format!(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            ));
        }
        if assigned.is_some() || required == 0 {
            return Ok(Step::Nothing);
        }
        let mut taken = Ids::new();
        let reusable = self.reusable(pod, resource);
        let mut needed = required;
        if self.take(resource, &reusable, &mut taken, &mut needed) {
            return Ok(Step::Allocate(taken));
        }
        let used = self.allocated.get(resource).cloned().unwrap_or_default();
        let known = &self.resources[resource];
        let available: Ids = known.healthy.difference(&used).cloned().collect();
        if available.len() < needed {
            let count = available.len();
            self.recount();
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {count}"
            ));
        }
        let Affinity { near, far, none } = by_affinity(&known.devices, &available, affinity);
        if needed < near.len() {
            let available = &near | &taken;
            let others = vec![near.clone()];
            let eligible = near;
            return Ok(Step::Prefer(Preference {
                available,
                allocated: taken,
                eligible,
                others,
                needed,
            }));
        }
        if self.take(resource, &near, &mut taken, &mut needed) {
            return Ok(Step::Allocate(taken));
        }
        let others = vec![far, none];
        let eligible = available.clone();
        let available = &available | &taken;
        Ok(Step::Prefer(Preference { available, allocated: taken, eligible, others, needed }))
    }

    /// Continues with the plugin's preferred devices.
    ///
    /// # Errors
    ///
    /// If there are fewer devices than expected.
    pub(crate) fn prefer(
        &mut self,
        resource: &str,
        preference: Preference,
        preferred: &Ids,
        required: usize,
    ) -> Result<Ids, String> {
        let Preference { allocated: mut taken, eligible, others, mut needed, .. } = preference;
        let chosen = preferred & &eligible;
        if self.take(resource, &chosen, &mut taken, &mut needed) {
            return Ok(taken);
        }
        for devices in others {
            if self.take(resource, &devices, &mut taken, &mut needed) {
                return Ok(taken);
            }
        }
        let got = required - needed;
        self.recount();
        Err(format!(
            "unexpectedly allocated less resources than required. Requested: {required}, Got: {got}"
        ))
    }

    /// Takes devices in order until enough are taken. Returns whether that succeeded.
    fn take(&mut self, resource: &str, from: &Ids, taken: &mut Ids, needed: &mut usize) -> bool {
        let allocated = self.allocated.entry(resource.to_owned()).or_default();
        for id in from {
            if taken.insert(id.clone()) {
                allocated.insert(id.clone());
                *needed -= 1;
                if *needed == 0 {
                    return true;
                }
            }
        }
        false
    }

    /// Records the devices of a container.
    pub(crate) fn assign(&mut self, request: Request<'_>, ids: &Ids, usage: Usage) {
        let devices = self.resources.get(request.resource).map(|known| &known.devices);
        let mut by_node: Map<i64, Vec<String>> = Map::new();
        for id in ids {
            let device = devices.and_then(|devices| devices.get(id));
            let nodes = device.map_or(&[][..], |device| &device.nodes);
            let nodes = if nodes.is_empty() { &[NO_NODE][..] } else { nodes };
            for node in nodes {
                by_node.entry(*node).or_default().push(id.clone());
            }
        }
        let assigned = AssignedDevices { ids: by_node, usage };
        let of_pod = self.pods.entry(request.pod.to_owned()).or_default();
        let of_container = of_pod.entry(request.container.to_owned()).or_default();
        of_container.insert(request.resource.to_owned(), assigned);
    }

    /// The devices of a resource by ID, and the free ones.
    pub(crate) fn free(&self, resource: &str) -> (Map<String, Device>, Ids) {
        let Some(known) = self.resources.get(resource) else {
            return Default::default();
        };
        let used = self.allocated.get(resource).cloned().unwrap_or_default();
        (known.devices.clone(), known.healthy.difference(&used).cloned().collect())
    }
}

fn count(ids: &Ids) -> u64 {
    u64::try_from(ids.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
