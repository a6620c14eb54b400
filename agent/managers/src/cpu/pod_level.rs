//! ◆ CPUs of pods with pod-level resources, in the scope `pod` of the topology manager: the pod gets the CPUs that it requests,
//! exclusive containers get a part of them, and the others share the rest. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/policy_static.go AllocatePod. Unlike in the kubelet, a pod keeps its CPUs
//! when it is admitted again after a restart: the kubelet would allocate others, and lose track of the first.

use api::pod::{Pod, is_sidecar};
use compact::Map;

use super::policy::{CpuError, State, StaticPolicy};
use super::set::CpuSet;
use crate::topology::hint::{Hints, Mask};

impl StaticPolicy {
    /// Allocates the CPUs of a pod, and divides them among its containers. Returns whether the allocation is new.
    ///
    /// # Errors
    /// If the CPUs are unavailable; nothing is allocated then.
    pub(crate) fn allocate_pod(
        &self,
        state: &mut State,
        pod: &Pod,
        nodes: Option<Mask>,
    ) -> Result<bool, CpuError> {
        let count = self.requested_by_pod(pod);
        let uid = pod.uid().as_str();
        if count == 0 || state.pods.contains_key(uid) || state.exclusive.contains_key(uid) {
            return Ok(false);
        }
        self.check_pool(pod).map_err(CpuError::EmptyPool)?;
        self.check_cores(state, count)?;
        let of_pod = self.take_near(&self.available(state), count, nodes)?;
        let of_containers = self.divide(pod, &of_pod).map_err(CpuError::Other)?;
        state.shared = &state.shared - &of_pod;
        state.pods.insert(uid.to_owned(), of_pod);
        state.exclusive.insert(uid.to_owned(), of_containers);
        Ok(true)
    }

    /// Divides the pod's CPUs among its containers.
    fn divide(&self, pod: &Pod, of_pod: &CpuSet) -> Result<Map<String, CpuSet>, String> {
        let mut of_containers: Map<String, CpuSet> = Map::new();
        let mut left = of_pod.clone();
        for init in pod.init_containers() {
            let count = self.requested(pod, init);
            // A non-restartable init container can use all CPUs except those of the sidecars before it.
            let cpus = match (count, is_sidecar(init)) {
                (0, true) => continue,
                (0, false) => left.clone(),
                (count, _) => self.take(&left, count)?,
            };
            if is_sidecar(init) {
                left = &left - &cpus;
            }
            of_containers.insert(init.name.clone(), cpus);
        }
        for app in pod.containers() {
            let count = self.requested(pod, app);
            if count > 0 {
                let cpus = self.take(&left, count)?;
                left = &left - &cpus;
                of_containers.insert(app.name.clone(), cpus);
            }
        }
        for container in pod.init_and_apps() {
            of_containers.entry(container.name.clone()).or_insert_with(|| left.clone());
        }
        Ok(of_containers)
    }

    /// Checks that the exclusive containers leave CPUs for the shared ones.
    fn check_pool(&self, pod: &Pod) -> Result<(), String> {
        let of_pod = self.requested_by_pod(pod);
        let (mut exclusive, mut are_shared) = (0, false);
        for init in pod.init_containers() {
            let count = self.requested(pod, init);
            if is_sidecar(init) {
                exclusive += count;
                are_shared |= count == 0;
            } else if count == 0 && exclusive >= of_pod {
                return Err(
                    "pod rejected, pod has shared init containers but no cpus available for them"
                        .to_owned(),
                );
            }
        }
        for app in pod.containers() {
            let count = self.requested(pod, app);
            exclusive += count;
            are_shared |= count == 0;
        }
        if are_shared && exclusive >= of_pod {
            return Err("pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers".to_owned());
        }
        Ok(())
    }

    /// The topology hints for the CPUs of a pod with pod-level resources.
    pub(crate) fn pod_level_hints(&self, state: &State, pod: &Pod) -> Hints {
        let count = self.requested_by_pod(pod);
        let known = state.pods.get(pod.uid().as_str());
        let of = match known {
            _ if count == 0 => return Hints::new(),
            _ if self.check_pool(pod).is_err() => Vec::new(),
            None => return self.pod_hints(state, pod),
            Some(cpus) if cpus.len() != count => Vec::new(),
            Some(cpus) => self.hints(cpus, &CpuSet::new(), count),
        };
        Hints::from([("cpu".to_owned(), Some(of))])
    }

    /// The number of the pod's containers with exclusive CPUs.
    pub(crate) fn count_exclusive(&self, pod: &Pod) -> usize {
        pod.init_and_apps().filter(|container| self.requested(pod, container) > 0).count()
    }
}

#[cfg(test)]
mod tests;
