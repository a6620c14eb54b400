//! Exclusive resources of containers: devices of plugins, CPUs, and memory of NUMA nodes.
//!
//! | module | what |
//! |---|---|
//! | `devices` | devices: `inventory` ◆ assigns them, `registration` and `plugin` connect to plugins, `checkpoint` saves the assignment |
//! | `cpu` | CPUs: `policy` ◆ assigns them, `take` ◆ and `distribute` ◆ choose them; `checkpoint` saves the assignment, `migration` reads an older format |
//! | `memory` | memory: `policy` ◆ assigns NUMA nodes; `checkpoint` saves the assignment |
//! | `topology` ◆ | NUMA nodes: topology hints, and the merged choice for a container |
//! | `pod_level` ◆ | which containers of pods with pod-level resources get their own; files of this name in `cpu` and `memory` allocate for them |
//! | `numa` | reads the machine's NUMA nodes and CPUs |
//! | `settings` ◆ | the policies in a KubeletConfiguration |
//! | `allocation` | allocates what a pod requests, one pod after another, in the kubelet's order |
//! | `reconcile` | updates the CPUs of running containers in the runtime |
//! | `pod_resources` | the pod resources API for monitoring agents |
//! | `socket` | serves gRPC on a socket |
//! | `counts` | counts of requests to managers, with the kubelet's metric names |
//! | `state_file` | checkpoints with the kubelet's checksums, so that each can read the other's |
//!
//! # Invariants
//! - Nothing is assigned to two containers at the same time, even if the agent is killed: an assignment is in a file before the
//!   pod is admitted.
//! - An assignment of an earlier agent or a kubelet remains as long as its pod exists.

mod allocation;
mod counts;
mod numa;
mod pod_level;
mod pod_resources;
mod reconcile;
mod settings;
mod socket;
mod state_file;

mod cpu {
    //! CPUs: exclusive CPUs of containers.

    mod checkpoint;
    mod distribute;
    pub(crate) mod layout;
    pub(crate) mod manager;
    pub(crate) mod migration;
    pub(crate) mod options;
    mod pod_level;
    pub(crate) mod policy;
    pub(crate) mod set;
    mod take;
}

mod devices {
    //! Devices of plugins, which are vendors' programs with sockets in the agent's directory.

    pub(crate) mod affinity;
    mod checkpoint;
    pub(crate) mod inventory;
    pub(crate) mod manager;
    mod measured;
    mod plugin;
    pub(crate) mod registration;
    mod wire;
}

mod memory {
    //! Memory: the NUMA nodes of containers' memory.

    mod checkpoint;
    pub(crate) mod manager;
    pub(crate) mod pod_level;
    pub(crate) mod policy;
    pub(crate) mod requests;
    pub(crate) mod state;
}

mod topology {
    //! NUMA nodes: the hints of managers, and the merged choice for a container.

    pub(crate) mod hint;
    pub(crate) mod merge;
}

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::AgentView;
use agent::cri::Cri;
use agent::decide::resize::Infeasible;
use agent::managers::{Active, Allocation, DeviceHealth, DeviceResources, ManagerMetric, Managers};
use agent::observed::ContainerId;
use agent::pod_spec::spec::Assigned;
use api::pod::{Pod, PodUid};
use api::qos::{QosClass, qos_class};
use api::totals::{Kind, amount};
use async_trait::async_trait;
use compact::Map;
use k8s_openapi::api::core::v1::Container;
use plugins::PluginHandler;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;

pub use settings::Settings;

use counts::{Counts, MetricCapabilities, gauges};
use cpu::manager::CpuManager;
use devices::manager::{DeviceManager, Prepared};
use devices::registration::{self, Registrar, Registrations};
use memory::manager::MemoryManager;
use topology::hint::Hint;
use topology::merge::{Nodes, Policy};

/// The directory of the device plugins' sockets, below the agent's.
const DEVICE_PLUGINS: &str = "device-plugins";

/// A node's managers. Clones share them.
#[derive(Clone)]
pub struct NodeManagers(Arc<Inner>);

struct Inner {
    cri: Arc<dyn Cri>,
    root_dir: PathBuf,
    devices: Option<Arc<DeviceManager>>,
    /// Registers device plugins.
    registrar: Option<Registrar>,
    cpus: CpuManager,
    memory: MemoryManager,
    /// The interval between updates of running containers' CPUs.
    reconcile_period: Duration,
    /// Whether containers with exclusive processors have no CPU quota (gate DisableCPUQuotaWithExclusiveCPUs).
    lifts_quota: bool,
    /// Whether the pod resources API leaves out pods that have ended (gate KubeletPodResourcesListUseActivePods).
    lists_active_pods: bool,
    /// Whether Guaranteed pods may be resized beside static policies, which keep what containers have (gates
    /// InPlacePodVerticalScalingExclusiveCPUs and InPlacePodVerticalScalingExclusiveMemory).
    resizes_cpus: bool,
    resizes_memory: bool,
    topology: Topology,
    /// The NUMA nodes chosen for containers, by pod uid.
    chosen: Mutex<Map<String, Map<String, Hint>>>,
    /// Serializes allocations.
    allocation_lock: AsyncMutex<()>,
    counts: Counts,
    /// The device plugin registrations to serve.
    registrations: Mutex<Option<Registrations>>,
}

/// How NUMA nodes are chosen.
#[derive(Clone, Debug, Default)]
struct Topology {
    policy: Policy,
    /// Whether they are chosen for a pod as a whole.
    for_pods: bool,
    /// Whether pods with pod-level resources get their own resources.
    pod_level: bool,
    nodes: Nodes,
}

impl NodeManagers {
    /// Migrates checkpoints of an old kubelet to the format that [`NodeManagers::open`] reads. The runtime maps their container
    /// IDs.
    ///
    /// # Errors
    /// The kubelet's error if a file cannot be used.
    pub async fn migrate(settings: &Settings, cri: &dyn Cri) -> Result<(), String> {
        cpu::migration::migrate(&settings.root_dir, cri).await
    }

    /// Opens the managers with the assignments of an earlier agent. [`NodeManagers::serve`] serves their sockets.
    ///
    /// # Errors
    /// The kubelet's error if the configuration contradicts the machine or the existing assignments.
    pub fn open(settings: &Settings, cri: Arc<dyn Cri>) -> Result<Self, String> {
        let (root_dir, gates) = (settings.root_dir.clone(), settings.file.gates());
        std::fs::create_dir_all(&root_dir)
            .map_err(|error| format!("failed to create {}: {error}", root_dir.display()))?;
        let nodes = numa::read(&settings.machine);
        let (policy, for_pods, of_topology) = settings.topology(&nodes)?;
        let pod_level = settings.pod_level();
        let topology = Topology { policy, for_pods, pod_level, nodes: of_topology };
        let cpus = CpuManager::open(&root_dir, settings.cpus(&nodes, policy)?, pod_level)?;
        let memory = MemoryManager::open(&root_dir, settings.memory(&nodes)?, pod_level)?;
        let directory = root_dir.join(DEVICE_PLUGINS);
        let opened =
            DeviceManager::open(&directory, topology.nodes.ids.clone()).and_then(|manager| {
                let manager = Arc::new(manager);
                Ok((registration::open(&manager)?, manager))
            });
        let (devices, registrar, registrations) = match opened {
            Ok(((registrar, registrations), manager)) => {
                (Some(manager), Some(registrar), Some(registrations))
            }
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "failed to open the device plugin directory; device plugins cannot register");
                (None, None, None)
            }
        };
        Ok(Self(Arc::new(Inner {
            cri,
            root_dir,
            devices,
            registrar,
            cpus,
            memory,
            reconcile_period: settings.reconcile_period(),
            lifts_quota: gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
            lists_active_pods: gates.enabled("KubeletPodResourcesListUseActivePods"),
            resizes_cpus: gates.enabled("InPlacePodVerticalScalingExclusiveCPUs"),
            resizes_memory: gates.enabled("InPlacePodVerticalScalingExclusiveMemory"),
            topology,
            chosen: Mutex::default(),
            allocation_lock: AsyncMutex::default(),
            counts: Counts::default(),
            registrations: Mutex::new(registrations),
        })))
    }

    /// The handler that registers device plugins which the plugin watcher finds; `None` if no device plugin can register.
    #[must_use]
    pub fn plugin_handler(&self) -> Option<Arc<dyn PluginHandler>> {
        let registrar = self.0.registrar.clone()?;
        Some(Arc::new(registrar))
    }

    /// Serves device plugins and the pod resources API. Never returns; call it once.
    ///
    /// # Panics
    ///
    /// If one of its tasks panics.
    pub async fn serve(&self, agent: AgentView) {
        let mut tasks = JoinSet::new();
        let registrations = &self.0.registrations;
        let registrations = registrations.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((registrar, registrations)) = self.0.registrar.clone().zip(registrations) {
            tasks.spawn(tasks::boxed(registration::serve(registrar, registrations)));
        }
        if self.0.cpus.is_static() {
            tasks.spawn(tasks::boxed(reconcile::run(self.clone(), agent.clone())));
        }
        tasks.spawn(tasks::boxed(pod_resources::serve(self.clone(), agent)));
        while let Some(ended) = tasks.join_next().await {
            tasks::output(ended);
        }
        std::future::pending().await
    }

    fn chosen(&self) -> MutexGuard<'_, Map<String, Map<String, Hint>>> {
        self.0.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Managers for NodeManagers {
    fn concerns(&self, pod: &Pod) -> bool {
        self.0.topology.policy != Policy::None
            || self.0.cpus.is_static()
            || self.0.memory.is_static()
            || self.0.devices.as_ref().is_some_and(|devices| devices.concerns(pod))
    }

    /// The kubelet's topology manager admits every pod.
    fn admitted_without_allocation(&self) {
        self.0.counts.admitted(Duration::ZERO);
    }

    fn allocate(&self, pod: &Pod, active: Active) -> Allocation {
        let (managers, pod) = (self.clone(), pod.clone());
        Box::pin(async move { managers.allocate_pod(&pod, active).await })
    }

    async fn prepare(&self, pod: &Pod, container: &Container) -> Result<Assigned, String> {
        let uid = pod.uid().as_str();
        let cpus = self.0.cpus.of_container(uid, &container.name);
        let mut assigned = Assigned {
            cpus: cpus.text,
            cpus_are_exclusive: cpus.are_exclusive && self.0.lifts_quota,
            memory_nodes: self.0.memory.nodes(uid, &container.name),
            ..Assigned::default()
        };
        if let Some(devices) = &self.0.devices {
            let usage = match devices.prepare(uid, container).await? {
                Prepared::Usage(usage) => usage,
                Prepared::NeedsDevices => {
                    let _allocation_guard = self.0.allocation_lock.lock().await;
                    let nodes = self.chosen_for(uid, &container.name).nodes;
                    devices.allocate(pod, container, nodes, false).await?;
                    devices.usage(uid, &container.name)
                }
            };
            assigned.devices = usage.devices;
            assigned.cdi_devices = usage.cdi_devices;
            assigned.mounts = usage.mounts;
            assigned.envs = usage.envs.into_iter().collect();
            assigned.annotations = usage.annotations;
        }
        Ok(assigned)
    }

    fn created(&self, pod: &Pod, container: &str, _: &ContainerId) {
        self.0.cpus.created(pod.uid().as_str(), container);
        self.0.memory.created(pod, container);
    }

    fn release(&self, pod: &PodUid) {
        let is_other = |uid: &str| uid != pod.as_str();
        self.retain_active(&is_other);
    }

    /// Source: Kubernetes 1.36, pkg/kubelet/allocation/handlers.go.
    fn forbids_resize(&self, from: &Pod, to: &Pod) -> Option<Infeasible> {
        if qos_class(to) != QosClass::Guaranteed {
            return None;
        }
        let request = |pod: &Pod, container: &str, resource: &str| {
            let mut named = pod.init_and_apps().filter(|it| it.name == container);
            let resources = named.next().and_then(|container| container.resources.as_ref());
            let requests = Kind::Requests.of(resources);
            requests.and_then(|requests| requests.get(resource)).map(amount)
        };
        let changes = |resource: &str| {
            let mut containers = to.init_and_apps();
            containers
                .any(|it| request(from, &it.name, resource) != request(to, &it.name, resource))
        };
        let infeasible = |manager: &str, policy: &str, detail| {
            let message = format!(
                "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\""
            );
            Some(Infeasible { message, detail })
        };
        if !self.0.resizes_cpus && self.0.cpus.is_static() && changes("cpu") {
            infeasible("CPU", "static", "guaranteed_pod_cpu_manager_static_policy")
        } else if !self.0.resizes_memory && self.0.memory.is_static() && changes("memory") {
            infeasible("Memory", "Static", "guaranteed_pod_memory_manager_static_policy")
        } else {
            None
        }
    }

    fn has_own_cpus(&self, pod: &PodUid, container: &str) -> bool {
        self.0.lifts_quota && self.0.cpus.of_container(pod.as_str(), container).are_exclusive
    }

    fn health(&self, pod: &PodUid, container: &str) -> DeviceHealth {
        let devices = self.0.devices.as_ref();
        devices.map(|devices| devices.health(pod.as_str(), container)).unwrap_or_default()
    }

    fn devices(&self) -> DeviceResources {
        self.0.devices.as_ref().map(|devices| devices.resources()).unwrap_or_default()
    }

    fn resets_extended_resources(&self) -> bool {
        self.0.devices.as_ref().is_some_and(|devices| devices.is_new())
    }

    fn device_plugin_health(&self) -> Result<(), String> {
        let failure = "device registration error: device plugin registration gRPC server failed and no device plugins can register";
        self.0.devices.as_ref().map(|_| ()).ok_or_else(|| failure.to_owned())
    }

    fn metrics(&self) -> Vec<ManagerMetric> {
        let capabilities = MetricCapabilities {
            topology: self.0.topology.policy != Policy::None,
            processors: self.0.cpus.is_static(),
            pod_level: self.0.topology.pod_level,
        };
        let mut metrics = self.0.counts.all(capabilities);
        metrics.extend(gauges(&self.0.cpus.usage()));
        if let Some(devices) = &self.0.devices {
            metrics.extend(devices.measured.metrics());
        }
        metrics
    }

    async fn devices_changed(&self) {
        match &self.0.devices {
            Some(devices) => devices.changed().await,
            None => std::future::pending().await,
        }
    }
}
