//! Assigns CPUs to containers, and tracks the CPUs that the runtime must set for running containers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/cpu_manager.go.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::pod::Pod;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::Container;

use super::checkpoint;
use super::policy::{CpuError, State, StaticPolicy};
use super::set::{CpuSet, format};
use crate::topology::hint::{Hints, Mask};

/// The CPU manager.
#[derive(Debug)]
pub(crate) struct CpuManager {
    directory: PathBuf,
    /// Whether the checkpoint has the CPUs of pods with pod-level resources.
    pod_level: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` for the policy `none`.
    policy: Option<StaticPolicy>,
    state: State,
    /// The CPUs last sent to the runtime for each container, by uid and name.
    applied: Map<(String, String), CpuSet>,
    /// The containers that share the rest of their pod's CPUs, by uid.
    pooled: Map<String, Set<String>>,
}

/// The CPUs of a new container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processors {
    /// Empty: any CPU.
    pub(crate) text: String,
    pub(crate) are_exclusive: bool,
}

/// The numbers of shared and exclusive CPUs; 0 with the policy `none`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPUs that are shared, and still available for exclusive assignment.
    pub(crate) shared: u64,
    /// Exclusively assigned CPUs.
    pub(crate) exclusive: u64,
    /// Exclusively assigned CPUs by NUMA node.
    pub(crate) exclusive_by_node: Map<usize, u64>,
}

impl CpuManager {
    /// Opens the manager with its checkpoint in this directory. `policy`: `None` for the policy `none`. `pod_level`: pods with
    /// pod-level resources can have CPUs.
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
            checkpoint::write(directory, name, &state, pod_level)
                .map_err(|error| format!("failed to write the CPU manager checkpoint: {error}"))?;
        }
        let inner = Inner { policy, state, applied: Map::new(), pooled: Map::new() };
        Ok(Self { directory: directory.to_owned(), pod_level, inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether containers can have exclusive CPUs.
    pub(crate) fn is_static(&self) -> bool {
        self.inner().policy.is_some()
    }

    /// Whether a container gets exclusive CPUs.
    pub(crate) fn pins(&self, pod: &Pod, container: &Container) -> bool {
        let inner = self.inner();
        inner.policy.as_ref().is_some_and(|policy| policy.requested(pod, container) > 0)
    }

    /// The number of the pod's containers with exclusive CPUs.
    pub(crate) fn count_exclusive(&self, pod: &Pod) -> usize {
        self.inner().policy.as_ref().map_or(0, |policy| policy.count_exclusive(pod))
    }

    /// Whether containers never share a physical core.
    pub(crate) fn aligns_cores(&self) -> bool {
        self.inner().policy.as_ref().is_some_and(StaticPolicy::aligns_cores)
    }

    /// Whether the CPUs of a container share one cache; without a container, those of a pod with pod-level resources.
    pub(crate) fn share_cache(&self, uid: &str, container: Option<&str>) -> bool {
        let inner = self.inner();
        let cpus = match container {
            Some(container) => inner.state.of(uid, container),
            None => inner.state.pods.get(uid),
        };
        let shared = inner.policy.as_ref().zip(cpus).map(|(policy, cpus)| policy.share_cache(cpus));
        shared.unwrap_or_default()
    }

    /// The numbers of shared and exclusive CPUs.
    pub(crate) fn usage(&self) -> Usage {
        let inner = self.inner();
        let Some(policy) = &inner.policy else {
            return Usage::default();
        };
        let exclusive: CpuSet =
            inner.state.exclusive.values().flat_map(Map::values).flatten().copied().collect();
        Usage {
            shared: policy.available(&inner.state).len() as u64,
            exclusive: exclusive.len() as u64,
            exclusive_by_node: policy.by_node(&exclusive),
        }
    }

    fn write(&self, inner: &Inner) {
        let name = policy_name(inner.policy.as_ref());
        if let Err(error) = checkpoint::write(&self.directory, name, &inner.state, self.pod_level) {
            tracing::error!(%error, "failed to write the CPU manager checkpoint");
        }
    }

    /// Allocates the CPUs that a container requests. Returns whether the allocation is new.
    ///
    /// # Errors
    /// If the CPUs are unavailable.
    pub(crate) fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        nodes: Option<Mask>,
    ) -> Result<bool, CpuError> {
        let mut inner = self.inner();
        let Inner { policy: Some(policy), state, .. } = &mut *inner else {
            return Ok(false);
        };
        let is_new = policy.allocate(state, pod, container, nodes)?;
        if is_new {
            self.write(&inner);
        }
        Ok(is_new)
    }

    /// Allocates the CPUs that a pod with pod-level resources requests, and divides them among its containers. Returns whether
    /// the allocation is new.
    ///
    /// # Errors
    /// If the CPUs are unavailable.
    pub(crate) fn allocate_pod(&self, pod: &Pod, nodes: Option<Mask>) -> Result<bool, CpuError> {
        let mut inner = self.inner();
        let Inner { policy: Some(policy), state, pooled, .. } = &mut *inner else {
            return Ok(false);
        };
        let is_new = policy.allocate_pod(state, pod, nodes)?;
        let shares = |container: &&Container| policy.requested(pod, container) == 0;
        let names = pod.init_and_apps().filter(shares).map(|container| container.name.clone());
        pooled.insert(pod.uid().as_str().to_owned(), names.collect());
        if is_new {
            self.write(&inner);
        }
        Ok(is_new)
    }

    /// Frees the CPUs of pods that are not active.
    pub(crate) fn retain_active(&self, is_active: &dyn Fn(&str) -> bool) {
        let mut inner = self.inner();
        inner.applied.retain(|(uid, _), _| is_active(uid));
        inner.pooled.retain(|uid, _| is_active(uid));
        let Inner { policy: Some(policy), state, .. } = &mut *inner else {
            return;
        };
        let inactive = |(uid, containers): (&String, &Map<String, CpuSet>)| {
            let names: Vec<String> = containers.keys().cloned().collect();
            (!is_active(uid)).then(|| (uid.clone(), names))
        };
        let inactive: Vec<(String, Vec<String>)> =
            state.exclusive.iter().filter_map(inactive).collect();
        for (uid, containers) in &inactive {
            for container in containers {
                policy.remove(state, uid, container);
            }
        }
        if !inactive.is_empty() {
            self.write(&inner);
        }
    }

    /// The CPUs for the creation of a container.
    pub(crate) fn of_container(&self, uid: &str, container: &str) -> Processors {
        let inner = self.inner();
        let own = inner.state.of(uid, container);
        let is_pooled = inner.pooled.get(uid).is_some_and(|names| names.contains(container));
        Processors {
            text: format(own.unwrap_or(&inner.state.shared)),
            are_exclusive: own.is_some() && !is_pooled,
        }
    }

    /// Records that a container was created with its CPUs.
    pub(crate) fn created(&self, uid: &str, container: &str) {
        let mut inner = self.inner();
        if let Some(cpus) = inner.state.of(uid, container).cloned() {
            inner.applied.insert((uid.to_owned(), container.to_owned()), cpus);
        }
    }

    /// The CPUs that the runtime must set for a running container; `None` if they are unchanged.
    pub(crate) fn pending_update(&self, uid: &str, container: &str) -> Option<CpuSet> {
        let inner = self.inner();
        inner.policy.as_ref()?;
        let cpus = inner.state.of(uid, container).unwrap_or(&inner.state.shared);
        let applied = inner.applied.get(&(uid.to_owned(), container.to_owned()));
        (!cpus.is_empty() && applied != Some(cpus)).then(|| cpus.clone())
    }

    /// Records that the runtime has set the CPUs of a container.
    pub(crate) fn set_applied(&self, uid: &str, container: &str, cpus: CpuSet) {
        self.inner().applied.insert((uid.to_owned(), container.to_owned()), cpus);
    }

    /// The exclusive CPUs of a container, or those that it shares only with containers of its pod.
    pub(crate) fn exclusive(&self, uid: &str, container: &str) -> CpuSet {
        self.inner().state.of(uid, container).cloned().unwrap_or_default()
    }

    /// The CPUs that can be assigned exclusively.
    pub(crate) fn allocatable(&self) -> CpuSet {
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
    if policy.is_some() { "static" } else { "none" }
}
