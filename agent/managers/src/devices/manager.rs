//! Assigns devices to containers: calls their plugins, and saves the assignment in a checkpoint.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager/manager.go.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent::managers::{DeviceHealth, DeviceResources};
use api::pod::{Pod, is_sidecar};
use api::totals::{Kind, amount};
use compact::Map;
use cri::deviceplugin::ListAndWatchResponse;
use k8s_openapi::api::core::v1::Container;
use tokio::sync::watch;
use tokio::time::Instant;

use super::affinity::{Device, Ids, device_hints, is_aligned};
use super::checkpoint;
use super::inventory::{AssignedDevices, Inventory, Request, Step, Usage};
use super::measured::Measured;
use super::plugin::{Plugin, text};
use super::wire;
use crate::topology::hint::{Hints, Mask};

/// The device manager.
#[derive(Debug)]
pub(crate) struct DeviceManager {
    directory: PathBuf,
    /// Whether the directory was empty when the manager was opened.
    was_empty: bool,
    /// The NUMA nodes of the machine.
    nodes: Vec<usize>,
    state: Mutex<State>,
    pub(crate) measured: Measured,
    /// The number of changes of the resources.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    inventory: Inventory,
    plugins: Map<String, Registered>,
    registrations: u64,
}

/// The latest plugin of a resource.
#[derive(Debug)]
struct Registered {
    plugin: Plugin,
    /// The registration number.
    number: u64,
    /// The plugin is disconnected.
    is_disconnected: bool,
}

/// The result of the preparation for a container's creation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// The container is created with these settings.
    Usage(Usage),
    /// The container does not have all its devices yet.
    NeedsDevices,
}

impl DeviceManager {
    /// Opens the manager with its sockets and its checkpoint in this directory, which it creates. It removes the sockets of
    /// earlier plugins, which then register again.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub(crate) fn open(directory: &Path, nodes: Vec<usize>) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let was_empty = is_empty(directory)?;
        remove_sockets(directory)?;
        let mut state = State::default();
        let file = directory.join(checkpoint::FILE);
        match checkpoint::read(&file) {
            Ok(None) => {}
            Ok(Some(known)) => {
                let now = Instant::now().into_std();
                state.inventory.restore(known.pods, known.registered, now);
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(file = %file.display(), error, "ignored the unusable device checkpoint: devices of running containers may be allocated again");
            }
        }
        let (changed, _) = watch::channel(0);
        Ok(Self {
            directory: directory.to_owned(),
            was_empty,
            nodes,
            state: Mutex::new(state),
            measured: Measured::default(),
            changed,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the machine is new: neither an earlier agent nor a plugin has left a file in the directory. The kubelet lists the
    /// directory when it registers its node, and counts every file, even its own socket (ShouldResetExtendedResourceCapacity).
    pub(crate) fn is_new(&self) -> bool {
        self.was_empty && !self.directory.join(checkpoint::FILE).exists()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a plugin has registered for a resource. It replaces an earlier plugin. Returns the registration number.
    pub(super) fn connected(&self, resource: &str, plugin: Plugin) -> u64 {
        let mut state = self.state();
        state.registrations += 1;
        let registration = state.registrations;
        let registered = Registered { plugin, number: registration, is_disconnected: false };
        state.plugins.insert(resource.to_owned(), registered);
        state.inventory.connected(resource);
        registration
    }

    /// Records the devices that a plugin lists. Returns false if the plugin was replaced or is disconnected.
    pub(super) fn listed(
        &self,
        resource: &str,
        registration: u64,
        devices: ListAndWatchResponse,
    ) -> bool {
        let mut state = self.state();
        if !state.is_current(resource, registration) {
            return false;
        }
        let (before, _) = state.inventory.free(resource);
        let devices = wire::devices(devices);
        let healthy = devices.values().filter(|device| device.healthy).count();
        tracing::info!(resource, devices = devices.len(), healthy, "device plugin listed devices");
        let differs = devices != before || !state.inventory.knows(resource);
        state.inventory.listed(resource, devices);
        if let Err(error) = self.write(&state) {
            tracing::warn!(error = %error, "failed to write the device checkpoint");
        }
        drop(state);
        if differs {
            self.notify();
        }
        true
    }

    /// Records that a plugin has disconnected, unless it was replaced, or had disconnected before.
    pub(super) fn disconnected(&self, resource: &str, registration: u64, why: &str) {
        let mut state = self.state();
        if !state.is_current(resource, registration) {
            return;
        }
        tracing::warn!(resource, reason = why, "device plugin disconnected");
        if let Some(registered) = state.plugins.get_mut(resource) {
            registered.is_disconnected = true;
        }
        state.inventory.disconnected(resource, Instant::now().into_std());
        drop(state);
        self.notify();
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// The current amounts of each resource.
    pub(crate) fn resources(&self) -> DeviceResources {
        let mut state = self.state();
        if state.inventory.expire(Instant::now().into_std())
            && let Err(error) = self.write(&state)
        {
            tracing::warn!(error = %error, "failed to write the device checkpoint");
        }
        state.inventory.resources()
    }

    /// Waits until [`DeviceManager::resources`] may have changed. Cancel-safe.
    pub(crate) async fn changed(&self) {
        let mut changes = self.changed.subscribe();
        let expires = self.state().inventory.expires_at();
        let expired = async {
            match expires {
                // A resource expires after the grace period, not at its end.
                Some(at) => {
                    tokio::time::sleep_until(Instant::from_std(at)).await;
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { std::future::pending().await },
            () = expired => {}
        }
    }

    fn write(&self, state: &State) -> Result<(), String> {
        let file = self.directory.join(checkpoint::FILE);
        let (pods, registered) = (state.inventory.pods(), state.inventory.registered());
        checkpoint::write(&file, pods, &registered).map_err(|error| {
            format!("failed to write checkpoint file {:?}: {error}", checkpoint::FILE)
        })
    }

    /// Whether a container of the pod requests devices of a plugin.
    pub(crate) fn concerns(&self, pod: &Pod) -> bool {
        let state = self.state();
        pod.init_and_apps()
            .any(|container| limits(container).any(|(resource, _)| state.inventory.knows(resource)))
    }

    /// Frees the devices of pods that are not active.
    pub(crate) fn retain_active(&self, is_active: impl Fn(&str) -> bool) {
        let mut state = self.state();
        // The next allocation writes the checkpoint.
        let _ = state.inventory.retain_active(is_active);
    }

    /// Allocates the devices that a container requests. `is_running`: an earlier agent, whose checkpoint is lost, may have allocated
    /// them.
    ///
    /// # Errors
    /// The kubelet's error if the devices are unavailable.
    pub(crate) async fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        affinity: Option<Mask>,
        is_running: bool,
    ) -> Result<(), String> {
        let mut assigned = false;
        let uid = pod.uid().as_str();
        for (resource, count) in limits(container) {
            if pod.has_by_claim(&container.name, resource) {
                continue;
            }
            let request =
                Request { pod: uid, container: &container.name, resource, count, affinity };
            assigned |= self.allocate_resource(request, is_running).await?;
        }
        let init = pod.init_containers().iter().find(|init| init.name == container.name);
        let ends = init.is_some_and(|init| !is_sidecar(init));
        let mut state = self.state();
        state.inventory.reuse(uid, &container.name, ends);
        if assigned { self.write(&state) } else { Ok(()) }
    }

    /// Returns whether the allocation is new.
    async fn allocate_resource(
        &self,
        request: Request<'_>,
        is_running: bool,
    ) -> Result<bool, String> {
        let resource = request.resource;
        let step = {
            let mut state = self.state();
            if !state.inventory.knows(resource) {
                return Ok(false);
            }
            state.inventory.begin(request, is_running)?
        };
        let ids = match step {
            Step::Nothing => return Ok(false),
            Step::Allocate(ids) => ids,
            Step::Prefer(preference) => {
                let plugin = self.plugin(resource);
                let preferred = match plugin.filter(Plugin::has_preferences) {
                    Some(plugin) => {
                        let (from, with) = (&preference.available, &preference.allocated);
                        plugin.prefer(from, with, request.count).await.map_err(|status| {
                            self.state().inventory.recount();
                            let status = text(&status);
                            format!(
                                "device plugin GetPreferredAllocation rpc failed with err: {status}"
                            )
                        })?
                    }
                    None => Ids::new(),
                };
                let inventory = &mut self.state().inventory;
                inventory.prefer(resource, preference, &preferred, request.count)?
            }
        };
        let usage = match self.plugin(resource) {
            Some(plugin) => {
                let since = Instant::now();
                let usage = plugin.allocate(&ids).await.map_err(|status| text(&status));
                self.measured.allocated(resource, since.elapsed());
                usage
            }
            None => Err(has_stopped(resource)),
        };
        let mut state = self.state();
        let usage = usage.and_then(|usage| {
            let none = || "no containers return in allocation response".to_owned();
            usage.ok_or_else(none)
        });
        match usage {
            Ok(usage) => {
                state.inventory.assign(request, &ids, usage);
                Ok(true)
            }
            Err(error) => {
                state.inventory.recount();
                Err(error)
            }
        }
    }

    fn plugin(&self, resource: &str) -> Option<Plugin> {
        let state = self.state();
        let registered =
            state.plugins.get(resource).filter(|registered| !registered.is_disconnected);
        registered.map(|registered| registered.plugin.clone())
    }

    /// Whether the plugin of a resource requires PreStartContainer.
    fn prepares(&self, resource: &str) -> bool {
        self.state().plugins.get(resource).is_some_and(|registered| registered.plugin.prepares())
    }

    /// Prepares the devices of a container before its creation, and returns the container settings.
    ///
    /// # Errors
    /// The kubelet's error if a plugin cannot prepare a device.
    pub(crate) async fn prepare(
        &self,
        uid: &str,
        container: &Container,
    ) -> Result<Prepared, String> {
        let mut lacks = false;
        for (resource, count) in limits(container) {
            let (is_known, is_registered, assigned) = {
                let inventory = &self.state().inventory;
                let assigned = inventory.assigned(uid, &container.name, resource);
                (inventory.knows(resource), inventory.has_plugin(resource), assigned)
            };
            if !is_known || count == 0 {
                continue;
            }
            if !is_registered {
                return Err(format!(
                    "endpoint not found in cache for a registered resource: {resource}"
                ));
            }
            if self.prepares(resource) {
                let Some(ids) = &assigned else {
                    let name = &container.name;
                    return Err(format!(
                        "no devices found allocated in local cache for pod {uid}, container {name}, resource {resource}"
                    ));
                };
                let done = match self.plugin(resource) {
                    Some(plugin) => plugin.pre_start(ids).await.map_err(|status| text(&status)),
                    None => Err(has_stopped(resource)),
                };
                done.map_err(|error| {
                    format!("device plugin PreStartContainer rpc failed with err: {error}")
                })?;
            }
            lacks |= assigned.is_none();
        }
        if lacks {
            return Ok(Prepared::NeedsDevices);
        }
        Ok(Prepared::Usage(self.usage(uid, &container.name)))
    }

    /// The container settings for all devices of a container.
    pub(crate) fn usage(&self, uid: &str, container: &str) -> Usage {
        let state = self.state();
        let assigned = state.inventory.of_container(uid, container).into_iter().flatten();
        let mut usage = Usage::default();
        for (_, assigned) in assigned {
            usage.add(&assigned.usage);
        }
        usage
    }

    /// The topology hints for the devices of a container.
    pub(crate) fn container_hints(&self, uid: &str, container: &Container) -> Hints {
        let state = self.state();
        let assigned = |resource: &str| state.inventory.assigned(uid, &container.name, resource);
        let reusable = |resource: &str| state.inventory.reusable(uid, resource);
        let requests: Map<&str, usize> = limits(container).collect();
        self.hints(&state, &requests, assigned, reusable)
    }

    /// The topology hints for the devices of a pod.
    pub(crate) fn pod_hints(&self, pod: &Pod) -> Hints {
        let state = self.state();
        let uid = pod.uid().as_str();
        let assigned = |resource: &str| Some(state.inventory.assigned_to_pod(uid, resource));
        self.hints(&state, &pod_limits(pod), assigned, |_| Ids::new())
    }

    fn hints(
        &self,
        state: &State,
        requests: &Map<&str, usize>,
        assigned: impl Fn(&str) -> Option<Ids>,
        reusable: impl Fn(&str) -> Ids,
    ) -> Hints {
        let mut hints = Hints::new();
        for (resource, count) in requests {
            if !state.inventory.knows(resource) {
                continue;
            }
            let (devices, free) = state.inventory.free(resource);
            let of = if !is_aligned(&devices) {
                None
            } else if let Some(assigned) =
                assigned(resource).filter(|assigned| !assigned.is_empty())
            {
                Some(match assigned.len() == *count {
                    true => device_hints(&devices, &assigned, &Ids::new(), *count, &self.nodes),
                    false => Vec::new(),
                })
            } else {
                let reusable = reusable(resource);
                let enough = free.union(&reusable).count() >= *count;
                Some(match enough {
                    true => device_hints(&devices, &free, &reusable, *count, &self.nodes),
                    false => Vec::new(),
                })
            };
            hints.insert((*resource).to_owned(), of);
        }
        hints
    }

    /// The devices of a container, by resource.
    pub(crate) fn of_container(&self, uid: &str, container: &str) -> Map<String, AssignedDevices> {
        self.state().inventory.of_container(uid, container).cloned().unwrap_or_default()
    }

    /// The health of a container's devices, as last reported by their plugins.
    pub(crate) fn health(&self, uid: &str, container: &str) -> DeviceHealth {
        let state = self.state();
        let assigned = state.inventory.of_container(uid, container).into_iter().flatten();
        let health = assigned.map(|(resource, assigned)| {
            let (devices, _) = state.inventory.free(resource);
            let is_healthy = |id: String| {
                let is_healthy = devices.get(&id).is_none_or(|device| device.healthy);
                (id, is_healthy)
            };
            (resource.clone(), assigned.ids().into_iter().map(is_healthy).collect())
        });
        health.collect()
    }

    /// All healthy devices.
    pub(crate) fn allocatable(&self) -> Map<String, Map<String, Device>> {
        self.state().inventory.allocatable()
    }
}

impl State {
    fn is_current(&self, resource: &str, registration: u64) -> bool {
        let registered =
            self.plugins.get(resource).filter(|registered| !registered.is_disconnected);
        registered.is_some_and(|registered| registered.number == registration)
    }
}

fn has_stopped(resource: &str) -> String {
    format!("endpoint {resource} has been stopped")
}

/// The limits of a container in whole units: extended resources are requested by limits.
fn limits(container: &Container) -> impl Iterator<Item = (&str, usize)> {
    let limits = Kind::Limits.of(container.resources.as_ref()).into_iter().flatten();
    limits.map(|(name, limit)| {
        (name.as_str(), usize::try_from(amount(limit).value()).unwrap_or_default())
    })
}

/// The maximum amounts that the pod needs at one time.
fn pod_limits(pod: &Pod) -> Map<&str, usize> {
    let mut running: Map<&str, usize> = Map::new();
    let mut most: Map<&str, usize> = Map::new();
    for init in pod.init_containers() {
        for (name, count) in limits(init) {
            let with_sidecars = running.get(name).copied().unwrap_or_default() + count;
            let known = most.entry(name).or_default();
            *known = (*known).max(with_sidecars);
            if is_sidecar(init) {
                running.insert(name, with_sidecars);
            }
        }
    }
    for (name, count) in pod.containers().iter().flat_map(limits) {
        *running.entry(name).or_default() += count;
    }
    for (name, count) in running {
        let known = most.entry(name).or_default();
        *known = (*known).max(count);
    }
    most
}

/// Whether a directory contains only hidden files.
fn is_empty(directory: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        if !entry?.file_name().as_encoded_bytes().starts_with(b".") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the sockets of earlier plugins.
fn remove_sockets(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt as _;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
