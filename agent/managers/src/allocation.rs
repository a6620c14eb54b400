//! Allocates the resources that a pod's containers request, before the pod is admitted.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/topologymanager/scope.go and the scopes beside it, pkg/kubelet/cm/admission.

use std::time::Instant;

use agent::cri::ListedState;
use agent::managers::Active;
use agent::pod_spec::admission::Rejection;
use api::pod::{Pod, PodUid};
use k8s_openapi::api::core::v1::Container;

use crate::NodeManagers;
use crate::counts::{Aligned, Outcome, RequestKind, Resource};
use crate::cpu::policy::CpuError;
use crate::memory::pod_level::MemoryError;
use crate::pod_level::Management;
use crate::topology::hint::{Hint, Hints};
use crate::topology::merge::{Policy, merge};

/// The reason that an allocation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationError {
    /// The NUMA nodes do not satisfy the topology policy.
    #[error("{0}")]
    Affinity(&'static str),
    /// A container would share a physical core.
    #[error(transparent)]
    Cores(CpuError),
    /// No CPUs or memory would remain for the pod's shared containers.
    #[error("{0}")]
    EmptyPool(String),
    /// Another reason.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Unexpected(String),
}

/// The messages of topology affinity errors; for pods with pod-level resources, one for each scope.
const AFFINITY: &str = "Resources cannot be allocated with Topology locality";
const POD_LEVEL_AFFINITY: [&str; 2] = [
    "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
    "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
];

impl From<CpuError> for AllocationError {
    fn from(error: CpuError) -> Self {
        match error {
            CpuError::Alignment(_) => Self::Cores(error),
            CpuError::EmptyPool(why) => Self::EmptyPool(why),
            CpuError::Other(why) => Self::Unexpected(why),
        }
    }
}

impl AllocationError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Affinity(_) => "TopologyAffinityError",
            Self::Cores(_) => "SMTAlignmentError",
            Self::EmptyPool(_) => "EmptyPodSharedPoolError",
            Self::Unexpected(_) => "UnexpectedAdmissionError",
        }
    }
}

impl NodeManagers {
    /// Allocates the resources that a pod requests.
    pub(crate) async fn allocate_pod(&self, pod: &Pod, active: Active) -> Result<(), Rejection> {
        let _allocation_guard = self.0.allocation_lock.lock().await;
        let running = match &active {
            Some(active) => {
                self.retain_active(&|uid| active.contains(&PodUid::new(uid)));
                Vec::new()
            }
            // Running containers keep their devices, whatever the checkpoint contains.
            None if self.0.devices.as_ref().is_some_and(|devices| devices.concerns(pod)) => {
                self.running(pod).await
            }
            None => Vec::new(),
        };
        let began = Instant::now();
        let allocated = self.allocate_containers(pod, &running).await;
        self.0.counts.admitted(began.elapsed());
        // As in the kubelet, the policy `none` counts no failures (scope.go admitPolicyNone).
        if allocated.is_err() && self.0.topology.policy != Policy::None {
            self.0.counts.error(RequestKind::Admission);
        }
        allocated.map_err(|error| Rejection {
            reason: error.reason().to_owned(),
            message: error.to_string(),
        })
    }

    /// Frees the resources of pods that are not active.
    pub(crate) fn retain_active(&self, is_active: &dyn Fn(&str) -> bool) {
        if let Some(devices) = &self.0.devices {
            devices.retain_active(is_active);
        }
        self.0.cpus.retain_active(is_active);
        self.0.memory.retain_active(is_active);
        self.chosen().retain(|uid, _| is_active(uid));
    }

    /// The names of the pod's running containers.
    async fn running(&self, pod: &Pod) -> Vec<String> {
        match self.0.cri.list_containers(Some(pod.uid())).await {
            Ok(containers) => {
                let running = containers.into_iter().filter(|it| it.state == ListedState::Running);
                running.map(|container| container.name).collect()
            }
            Err(error) => {
                tracing::warn!(pod = %pod.full_name(), %error, "failed to list the containers of a pod; assuming that none is running");
                Vec::new()
            }
        }
    }

    async fn allocate_containers(
        &self,
        pod: &Pod,
        running: &[String],
    ) -> Result<(), AllocationError> {
        let topology = &self.0.topology;
        let management = Management::of(pod, topology.pod_level);
        let for_pods = topology.for_pods && topology.policy != Policy::None;
        if management == Management::PodLevel && for_pods {
            return self.allocate_pod_level(pod);
        }
        let affinity = match management {
            Management::PodLevel => POD_LEVEL_AFFINITY[0],
            Management::Containers | Management::Shared => AFFINITY,
        };
        let of_pod = match for_pods {
            true => Some(self.choose(self.pod_hints(pod), affinity)?),
            false => None,
        };
        for container in pod.init_and_apps() {
            if topology.policy != Policy::None {
                let hint = match of_pod {
                    Some(hint) => hint,
                    None => self.choose(self.container_hints(pod, container), affinity)?,
                };
                self.record_hint(pod, container, hint);
            }
            self.allocate_container(pod, container, running).await?;
            if !for_pods {
                self.count_nodes(Aligned::ContainerToNode, true);
            }
        }
        if for_pods {
            self.count_nodes(Aligned::PodToNode, true);
        }
        Ok(())
    }

    /// Counts an allocation as aligned to one NUMA node, or as not alignable, if the policy guarantees alignment.
    fn count_nodes(&self, what: Aligned, is_aligned: bool) {
        if self.0.topology.policy == Policy::SingleNumaNode {
            self.0.counts.aligned(what, is_aligned);
        }
    }

    /// Allocates for a pod with pod-level resources as a whole. As in the kubelet, its containers get devices when they are
    /// created.
    fn allocate_pod_level(&self, pod: &Pod) -> Result<(), AllocationError> {
        let devices = self.0.devices.as_ref().map(|devices| devices.pod_hints(pod));
        let hints = vec![
            devices.unwrap_or_default(),
            self.0.cpus.pod_level_hints(pod),
            self.0.memory.pod_level_hints(pod),
        ];
        let chosen = self.choose(hints, POD_LEVEL_AFFINITY[1])?;
        for container in pod.init_and_apps() {
            self.record_hint(pod, container, chosen);
        }
        let counts = &self.0.counts;
        let of_cpus = self.0.cpus.allocate_pod(pod, chosen.nodes);
        match &of_cpus {
            Ok(_) => counts.requests(RequestKind::Cpus, self.0.cpus.count_exclusive(pod)),
            Err(_) => counts.error(RequestKind::Cpus),
        }
        let is_exclusive = |container: &&Container| self.0.cpus.pins(pod, container);
        self.count_pod(Resource::Cpu, pod, &of_cpus, is_exclusive);
        if matches!(of_cpus, Ok(true)) {
            self.count_cache(pod, None);
        }
        of_cpus?;
        let of_memory = self.0.memory.allocate_pod(pod, chosen);
        match &of_memory {
            Ok(_) => counts.requests(RequestKind::Memory, self.0.memory.count_requests(pod)),
            Err(_) => {
                counts.request(RequestKind::Memory);
                counts.error(RequestKind::Memory);
            }
        }
        let is_exclusive = |container: &&Container| self.0.memory.count_kinds(pod, container) > 0;
        self.count_pod(Resource::Memory, pod, &of_memory, is_exclusive);
        of_memory.map_err(|error| match error {
            MemoryError::EmptyPool(why) => AllocationError::EmptyPool(why),
            MemoryError::Other(why) => AllocationError::Unexpected(why),
        })?;
        self.count_nodes(Aligned::PodToNode, true);
        Ok(())
    }

    /// Counts a container, or a pod, whose CPUs share a cache.
    fn count_cache(&self, pod: &Pod, container: Option<&str>) {
        if self.0.cpus.share_cache(pod.uid().as_str(), container) {
            self.0.counts.aligned(Aligned::ContainerToCache, true);
        }
    }

    /// Counts the assignments of a pod's containers: exclusive ones, and those that share the rest of the pod's resources.
    fn count_pod<E>(
        &self,
        of: Resource,
        pod: &Pod,
        allocated: &Result<bool, E>,
        is_exclusive: impl FnMut(&&Container) -> bool,
    ) {
        let counts = &self.0.counts;
        match allocated {
            Ok(false) => {}
            Ok(true) => {
                let all = pod.init_and_apps().count();
                let exclusive = pod.init_and_apps().filter(is_exclusive).count();
                counts.outcomes(of, Outcome::FromPod, all);
                counts.outcomes(of, Outcome::PodExclusive, exclusive);
                counts.outcomes(of, Outcome::PodShared, all - exclusive);
            }
            Err(_) => counts.outcomes(of, Outcome::NotFromPod, 1),
        }
    }

    /// Counts the exclusive assignment of `kinds` of a resource to a container.
    fn count_container<E>(&self, of: Resource, allocated: &Result<bool, E>, kinds: usize) {
        let counts = &self.0.counts;
        match allocated {
            Ok(false) => {}
            Ok(true) => {
                counts.outcomes(of, Outcome::FromNode, kinds);
                counts.outcomes(of, Outcome::NodeExclusive, 1);
            }
            Err(_) => counts.outcomes(of, Outcome::NotFromNode, 1),
        }
    }

    fn choose(&self, hints: Vec<Hints>, affinity: &'static str) -> Result<Hint, AllocationError> {
        let (best, admitted) = merge(self.0.topology.policy, &self.0.topology.nodes, &hints);
        if admitted {
            return Ok(best);
        }
        let of_pods = self.0.topology.for_pods;
        self.count_nodes(
            if of_pods { Aligned::PodToNode } else { Aligned::ContainerToNode },
            false,
        );
        Err(AllocationError::Affinity(affinity))
    }

    fn record_hint(&self, pod: &Pod, container: &Container, chosen: Hint) {
        let mut all = self.chosen();
        let of_pod = all.entry(pod.uid().as_str().to_owned()).or_default();
        of_pod.insert(container.name.clone(), chosen);
    }

    /// The NUMA nodes chosen for a container.
    pub(crate) fn chosen_for(&self, uid: &str, container: &str) -> Hint {
        let chosen = self.chosen();
        chosen.get(uid).and_then(|of_pod| of_pod.get(container)).copied().unwrap_or_default()
    }

    fn pod_hints(&self, pod: &Pod) -> Vec<Hints> {
        let devices = self.0.devices.as_ref().map(|devices| devices.pod_hints(pod));
        vec![devices.unwrap_or_default(), self.0.cpus.pod_hints(pod), self.0.memory.pod_hints(pod)]
    }

    fn container_hints(&self, pod: &Pod, container: &Container) -> Vec<Hints> {
        let uid = pod.uid().as_str();
        let devices =
            self.0.devices.as_ref().map(|devices| devices.container_hints(uid, container));
        vec![
            devices.unwrap_or_default(),
            self.0.cpus.container_hints(pod, container),
            self.0.memory.container_hints(pod, container),
        ]
    }

    async fn allocate_container(
        &self,
        pod: &Pod,
        container: &Container,
        running: &[String],
    ) -> Result<(), AllocationError> {
        let chosen = self.chosen_for(pod.uid().as_str(), &container.name);
        let nodes = chosen.nodes;
        if let Some(devices) = &self.0.devices {
            let running = running.contains(&container.name);
            let allocated = devices.allocate(pod, container, nodes, running).await;
            allocated.map_err(AllocationError::Unexpected)?;
        }
        let mut of_cpus = self.0.cpus.allocate(pod, container, nodes);
        if self.0.cpus.pins(pod, container) {
            of_cpus = self.0.counts.count(RequestKind::Cpus, of_cpus);
            self.count_container(Resource::Cpu, &of_cpus, 1);
            if self.0.cpus.aligns_cores() {
                self.0.counts.aligned(Aligned::ContainerToCores, of_cpus.is_ok());
            }
            if matches!(of_cpus, Ok(true)) {
                self.count_cache(pod, Some(&container.name));
            }
        }
        of_cpus?;
        let mut of_memory = self.0.memory.allocate(pod, container, chosen);
        if self.0.memory.pins(pod) {
            of_memory = self.0.counts.count(RequestKind::Memory, of_memory);
            let kinds = self.0.memory.count_kinds(pod, container);
            self.count_container(Resource::Memory, &of_memory, kinds);
        }
        of_memory.map(drop).map_err(AllocationError::Unexpected)
    }
}
