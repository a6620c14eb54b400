//! ◆ Memory of pods with pod-level resources, in the scope `pod` of the topology manager: the pod gets the memory that it
//! requests, exclusive containers get a part of it, and the others share the rest. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/memorymanager/policy_static.go AllocatePod. Unlike in the kubelet, a pod keeps its
//! memory when it is admitted again after a restart: the kubelet would reserve it again.

use api::pod::{Pod, is_sidecar};
use compact::Map;
use k8s_openapi::api::core::v1::Container;

use super::policy::{StaticPolicy, as_hints, existing_hints};
use super::requests::{Amounts, requested, requested_by_pod};
use super::state::{Block, State, reserve};
use crate::topology::hint::{Hint, Hints};

/// The reason that memory was not allocated, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryError {
    /// No memory would remain for the pod's shared containers.
    #[error("{0}")]
    EmptyPool(String),
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

impl StaticPolicy {
    /// Allocates the memory of a pod, and divides it among its containers. Returns whether the allocation is new.
    ///
    /// # Errors
    /// If the memory is unavailable; nothing is allocated then.
    pub(crate) fn allocate_pod(
        &self,
        state: &mut State,
        pod: &Pod,
        chosen: Hint,
    ) -> Result<bool, MemoryError> {
        let uid = pod.uid().as_str();
        let is_known = state.pods.contains_key(uid) || state.blocks.contains_key(uid);
        if !self.concerns(pod) || is_known {
            return Ok(false);
        }
        self.check_pool(pod).map_err(MemoryError::EmptyPool)?;
        let requests = self.of_pod(pod);
        let nodes = self.place(&state.machine, pod, &requests, chosen);
        let nodes = nodes.map_err(MemoryError::Other)?.nodes();
        let of_containers = self.divide(pod, &requests).into_iter();
        let of_containers =
            of_containers.map(|(name, amounts)| (name, blocks(&amounts, &nodes))).collect();
        for (kind, size) in &requests {
            reserve(&mut state.machine, &nodes, kind, *size);
        }
        state.pods.insert(uid.to_owned(), blocks(&requests, &nodes));
        state.blocks.insert(uid.to_owned(), of_containers);
        Ok(true)
    }

    fn of_pod(&self, pod: &Pod) -> Amounts {
        requested_by_pod(pod, self.pod_level)
    }

    pub(super) fn of_container(&self, pod: &Pod, container: &Container) -> Amounts {
        requested(pod, container, self.pod_level)
    }

    /// Divides the pod's memory among its containers.
    fn divide(&self, pod: &Pod, of_pod: &Amounts) -> Map<String, Amounts> {
        let mut of_containers: Map<String, Amounts> = Map::new();
        let mut left = of_pod.clone();
        for init in pod.init_containers() {
            let amounts = self.of_container(pod, init);
            // A non-restartable init container can use all memory except that of the sidecars before it.
            let amounts = match (amounts.is_empty(), is_sidecar(init)) {
                (true, true) => continue,
                (true, false) => left.clone(),
                (false, _) => amounts,
            };
            if is_sidecar(init) {
                take(&mut left, &amounts);
            }
            of_containers.insert(init.name.clone(), amounts);
        }
        for app in pod.containers() {
            let amounts = self.of_container(pod, app);
            if !amounts.is_empty() {
                take(&mut left, &amounts);
                of_containers.insert(app.name.clone(), amounts);
            }
        }
        for container in pod.init_and_apps() {
            of_containers.entry(container.name.clone()).or_insert_with(|| left.clone());
        }
        of_containers
    }

    /// Checks that the exclusive containers leave memory for the shared ones.
    fn check_pool(&self, pod: &Pod) -> Result<(), String> {
        let of_pod = self.of_pod(pod);
        let (mut exclusive, mut are_shared) = (Amounts::new(), false);
        let missing = |exclusive: &Amounts| {
            let used = |kind: &String| exclusive.get(kind).copied().unwrap_or_default();
            of_pod.iter().find(|(kind, size)| used(kind) >= **size).map(|(kind, _)| kind.clone())
        };
        for init in pod.init_containers() {
            let amounts = self.of_container(pod, init);
            if is_sidecar(init) {
                are_shared |= amounts.is_empty();
                add(&mut exclusive, &amounts);
            } else if amounts.is_empty()
                && let Some(kind) = missing(&exclusive)
            {
                return Err(format!(
                    "pod rejected, pod has shared init containers but no {kind} available for them"
                ));
            }
        }
        for app in pod.containers() {
            let amounts = self.of_container(pod, app);
            are_shared |= amounts.is_empty();
            add(&mut exclusive, &amounts);
        }
        match missing(&exclusive).filter(|_| are_shared) {
            Some(kind) => Err(format!(
                "pod rejected, sum of exclusive container {kind} requests equals pod budget, leaving no memory for shared containers"
            )),
            None => Ok(()),
        }
    }

    /// The topology hints for the memory of a pod with pod-level resources.
    pub(crate) fn pod_level_hints(&self, state: &State, pod: &Pod) -> Hints {
        if !self.concerns(pod) {
            return Hints::new();
        }
        let requests = self.of_pod(pod);
        if self.check_pool(pod).is_err() {
            let kinds = requests.into_keys().map(|kind| (kind, Vec::new()));
            return as_hints(Some(kinds.collect()));
        }
        match state.pods.get(pod.uid().as_str()) {
            Some(blocks) => existing_hints(blocks, &requests),
            None => self.pod_hints(state, pod),
        }
    }

    /// The number of requests that the kubelet counts for the pod: one for the pod, and one for each init or exclusive container.
    pub(crate) fn count_requests(&self, pod: &Pod) -> usize {
        let exclusive =
            pod.containers().iter().filter(|app| !self.of_container(pod, app).is_empty());
        match self.concerns(pod) {
            true => 1 + pod.init_containers().len() + exclusive.count(),
            false => 0,
        }
    }
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (kind, size) in more {
        *sum.entry(kind.clone()).or_default() += size;
    }
}

fn take(left: &mut Amounts, amounts: &Amounts) {
    for (kind, size) in amounts {
        if let Some(left) = left.get_mut(kind) {
            *left = left.saturating_sub(*size);
        }
    }
}

/// The non-empty blocks of these nodes.
fn blocks(amounts: &Amounts, nodes: &[usize]) -> Vec<Block> {
    let block = |(kind, size): (&String, &u64)| Block {
        nodes: nodes.to_vec(),
        kind: kind.clone(),
        size: *size,
    };
    amounts.iter().filter(|(_, size)| **size > 0).map(block).collect()
}

#[cfg(test)]
mod tests;
