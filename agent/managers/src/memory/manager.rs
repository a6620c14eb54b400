//! Assigns memory of NUMA nodes to containers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/memorymanager/memory_manager.go.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::pod::{Pod, is_sidecar};
use k8s_openapi::api::core::v1::Container;

use super::checkpoint;
use super::pod_level::MemoryError;
use super::policy::StaticPolicy;
use super::state::{Block, State};
use crate::topology::hint::{Hint, Hints};

/// The memory manager.
#[derive(Debug)]
pub(crate) struct MemoryManager {
    directory: PathBuf,
    /// Whether the checkpoint has the memory of pods with pod-level resources.
    pod_level: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` for the policy `None`.
    policy: Option<StaticPolicy>,
    state: State,
}

impl MemoryManager {
    /// Opens the manager with its checkpoint in this directory. `policy`: `None` for the policy `None`. `pod_level`: pods with
    /// pod-level resources can have memory.
    ///
    /// # Errors
    /// The kubelet's error if the checkpoint contradicts the configuration or the machine.
    pub(crate) fn open(
        directory: &Path,
        policy: Option<StaticPolicy>,
        pod_level: bool,
    ) -> Result<Self, String> {
        let name = policy_name(policy.as_ref());
        let known = checkpoint::read(directory, name, pod_level)?;
        let is_new = known.is_none();
        let known = known.unwrap_or_default();
        let state = match &policy {
            None => known.clone(),
            Some(policy) => policy.start(known.clone())?,
        };
        if is_new || state != known {
            checkpoint::write(directory, name, &state, pod_level).map_err(|error| {
                format!("failed to write the memory manager checkpoint: {error}")
            })?;
        }
        let inner = Mutex::new(Inner { policy, state });
        Ok(Self { directory: directory.to_owned(), pod_level, inner })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether containers get memory of particular NUMA nodes.
    pub(crate) fn is_static(&self) -> bool {
        self.inner().policy.is_some()
    }

    /// Whether containers of this pod get memory of particular NUMA nodes.
    pub(crate) fn pins(&self, pod: &Pod) -> bool {
        self.inner().policy.as_ref().is_some_and(|policy| policy.concerns(pod))
    }

    /// The number of memory types that a container requests exclusively.
    pub(crate) fn count_kinds(&self, pod: &Pod, container: &Container) -> usize {
        let inner = self.inner();
        inner.policy.as_ref().map_or(0, |policy| policy.of_container(pod, container).len())
    }

    /// The number of requests that a pod with pod-level resources counts as.
    pub(crate) fn count_requests(&self, pod: &Pod) -> usize {
        self.inner().policy.as_ref().map_or(0, |policy| policy.count_requests(pod))
    }

    fn write(&self, inner: &Inner) {
        let name = policy_name(inner.policy.as_ref());
        if let Err(error) = checkpoint::write(&self.directory, name, &inner.state, self.pod_level) {
            tracing::error!(%error, "failed to write the memory manager checkpoint");
        }
    }

    /// Allocates the memory that a container requests. Returns whether the allocation is new.
    ///
    /// # Errors
    /// If the memory is unavailable.
    pub(crate) fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        chosen: Hint,
    ) -> Result<bool, String> {
        let mut inner = self.inner();
        let Inner { policy: Some(policy), state } = &mut *inner else {
            return Ok(false);
        };
        let is_new = policy.allocate(state, pod, container, chosen)?;
        if is_new {
            self.write(&inner);
        }
        Ok(is_new)
    }

    /// Allocates the memory that a pod with pod-level resources requests, and divides it among its containers. Returns whether
    /// the allocation is new.
    ///
    /// # Errors
    /// If the memory is unavailable.
    pub(crate) fn allocate_pod(&self, pod: &Pod, chosen: Hint) -> Result<bool, MemoryError> {
        let mut inner = self.inner();
        let Inner { policy: Some(policy), state } = &mut *inner else {
            return Ok(false);
        };
        let is_new = policy.allocate_pod(state, pod, chosen)?;
        if is_new {
            self.write(&inner);
        }
        Ok(is_new)
    }

    /// Frees the memory of the containers for which `is_free` is true, given uid and name.
    fn free(&self, is_free: impl Fn(&str, &str) -> bool) {
        let mut inner = self.inner();
        let Inner { policy: Some(policy), state } = &mut *inner else {
            return;
        };
        let mut inactive = Vec::new();
        for (uid, containers) in &state.blocks {
            let names = containers.keys().filter(|name| is_free(uid, name));
            inactive.extend(names.map(|name| (uid.clone(), name.clone())));
        }
        for (uid, container) in &inactive {
            policy.remove(state, uid, container);
        }
        if !inactive.is_empty() {
            self.write(&inner);
        }
    }

    /// Frees the memory of pods that are not active.
    pub(crate) fn retain_active(&self, is_active: &dyn Fn(&str) -> bool) {
        self.free(|uid, _| !is_active(uid));
    }

    /// Records that a container was created, so its preceding init containers have ended.
    pub(crate) fn created(&self, pod: &Pod, container: &str) {
        let earlier = pod.init_containers().iter().take_while(|init| init.name != container);
        let ended: Vec<&str> =
            earlier.filter(|init| !is_sidecar(init)).map(|init| init.name.as_str()).collect();
        if !ended.is_empty() {
            self.free(|uid, name| uid == pod.uid().as_str() && ended.contains(&name));
        }
    }

    /// The NUMA nodes of a container, such as `0,1`; empty: any.
    pub(crate) fn nodes(&self, uid: &str, container: &str) -> String {
        let nodes = self.inner().state.nodes_of(uid, container);
        nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    /// The memory blocks of a container.
    pub(crate) fn of_container(&self, uid: &str, container: &str) -> Vec<Block> {
        self.inner().state.of(uid, container).cloned().unwrap_or_default()
    }

    /// The allocatable memory.
    pub(crate) fn allocatable(&self) -> Vec<Block> {
        self.inner().policy.as_ref().map(StaticPolicy::allocatable).unwrap_or_default()
    }

    pub(crate) fn container_hints(&self, pod: &Pod, container: &Container) -> Hints {
        let inner = self.inner();
        let policy = inner.policy.as_ref();
        policy.map(|it| it.container_hints(&inner.state, pod, container)).unwrap_or_default()
    }

    pub(crate) fn pod_hints(&self, pod: &Pod) -> Hints {
        let inner = self.inner();
        inner.policy.as_ref().map(|it| it.pod_hints(&inner.state, pod)).unwrap_or_default()
    }

    pub(crate) fn pod_level_hints(&self, pod: &Pod) -> Hints {
        let inner = self.inner();
        inner.policy.as_ref().map(|it| it.pod_level_hints(&inner.state, pod)).unwrap_or_default()
    }
}

fn policy_name(policy: Option<&StaticPolicy>) -> &'static str {
    if policy.is_some() { "Static" } else { "None" }
}
