//! ◆ The managers' policies in a KubeletConfiguration. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/{cpumanager,memorymanager,topologymanager}, the functions NewManager.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use agent::local_node::allocatable::allocatable;
use agent::local_node::kubelet_config::{GoDuration, KubeletConfiguration};
use api::quantity::Quantity;
use compact::Map;

use crate::cpu::layout::Layout;
use crate::cpu::options::{Gates, Options, go_bool};
use crate::cpu::policy::StaticPolicy as StaticCpus;
use crate::cpu::set::parse;
use crate::memory::policy::StaticPolicy as StaticMemory;
use crate::memory::requests::Amounts;
use crate::numa::Node;
use crate::topology::merge::{Nodes, Policy};

/// The maximum number of NUMA nodes of a topology manager, unless an option sets another.
const MAX_NODES: usize = 8;
/// The interval between updates of running containers' CPUs.
const RECONCILE: Duration = Duration::from_secs(10);

/// The settings of the managers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's directory.
    pub root_dir: PathBuf,
    /// The directory with the machine's `sys`.
    pub machine: PathBuf,
    /// The configuration's fields about managers.
    pub file: KubeletConfiguration,
    /// The node's reserved resources, by name.
    pub reserved: BTreeMap<String, String>,
}

impl Settings {
    /// Settings with which managers assign only devices.
    #[must_use]
    pub fn new(root_dir: PathBuf) -> Self {
        Self {
            root_dir,
            machine: PathBuf::from("/"),
            file: KubeletConfiguration::default(),
            reserved: BTreeMap::new(),
        }
    }

    /// The settings of an agent and its configuration file, on a machine with this much memory in bytes.
    #[must_use]
    pub fn of(config: &agent::Config, file: &KubeletConfiguration, memory: i64) -> Self {
        let rules = &config.admission;
        let lists = [&rules.system_reserved, &rules.kube_reserved];
        let thresholds = config.eviction.as_ref().map_or(&[][..], |it| &it.thresholds);
        let capacity = BTreeMap::from([("memory".to_owned(), memory.to_string())]);
        let left = allocatable(&capacity, &lists, thresholds);
        let left = left.get("memory").and_then(|left| Quantity::parse(left).ok());
        let left = left.map_or(memory, Quantity::value);
        let cpu = lists.iter().filter_map(|list| Quantity::parse(list.get("cpu")?).ok());
        let cpu: i64 = cpu.map(Quantity::milli_value).sum();
        let reserved = [("cpu", format!("{cpu}m")), ("memory", (memory - left).to_string())];
        Self {
            file: file.clone(),
            reserved: reserved.map(|(name, amount)| (name.to_owned(), amount)).into(),
            ..Self::new(config.root_dir.clone())
        }
    }

    /// Whether managers follow pod-level resources: the gate PodLevelResourceManagers.
    pub(crate) fn pod_level(&self) -> bool {
        self.file.gates().enabled("PodLevelResourceManagers")
    }

    fn reserved(&self, name: &str) -> Quantity {
        let amount = self.reserved.get(name).and_then(|amount| Quantity::parse(amount).ok());
        amount.unwrap_or(Quantity::ZERO)
    }

    /// The interval between updates of running containers' CPUs.
    pub(crate) fn reconcile_period(&self) -> Duration {
        let period = self.file.cpu_manager_reconcile_period.map(GoDuration::get);
        period.filter(|period| !period.is_zero()).unwrap_or(RECONCILE)
    }

    /// The CPU policy; `None`: containers share all CPUs.
    ///
    /// # Errors
    /// The kubelet's error.
    pub(crate) fn cpus(
        &self,
        nodes: &[Node],
        topology: Policy,
    ) -> Result<Option<StaticCpus>, String> {
        let given = self.file.cpu_manager_policy_options.clone().unwrap_or_default();
        match self.file.cpu_manager_policy.as_deref().unwrap_or("none") {
            "" | "none" if given.is_empty() => Ok(None),
            "" | "none" => {
                let given: Vec<String> =
                    given.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                Err(format!(
                    "new none policy error: None policy: received unsupported options=map[{}]",
                    given.join(" ")
                ))
            }
            "static" => {
                let reserved = self.reserved("cpu").milli_value();
                if reserved <= 0 {
                    return Err("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero".to_owned());
                }
                let enabled = self.file.gates();
                let gates = Gates {
                    alpha: enabled.enabled("CPUManagerPolicyAlphaOptions"),
                    beta: enabled.enabled("CPUManagerPolicyBetaOptions"),
                    pod_level: self.pod_level(),
                };
                let specific = self.file.reserved_system_cpus.as_deref().unwrap_or_default();
                let specific = parse(specific).ok_or_else(|| {
                    format!("reservedSystemCPUs: {specific:?} is not a list of processors")
                })?;
                let whole = usize::try_from((reserved + 999) / 1000).unwrap_or_default();
                let layout = Layout::of(nodes);
                let single_node = topology == Policy::SingleNumaNode;
                let policy = Options::parse(&given, gates).and_then(|options| {
                    options.check(&layout, single_node)?;
                    StaticCpus::new(layout, options, whole, specific)
                });
                policy.map(Some).map_err(|error| format!("new static policy error: {error}"))
            }
            other => Err(format!("unknown policy: {other:?}")),
        }
    }

    /// The memory policy; `None`: memory may be on any node.
    ///
    /// # Errors
    /// The kubelet's error.
    pub(crate) fn memory(&self, nodes: &[Node]) -> Result<Option<StaticMemory>, String> {
        match self.file.memory_manager_policy.as_deref().unwrap_or("None") {
            "" | "None" => Ok(None),
            "Static" => {
                let reserved = self.reserved_memory(nodes)?;
                StaticMemory::new(nodes, &reserved, self.pod_level()).map(Some)
            }
            "BestEffort" => {
                Err("policy \"BestEffort\" is not available for platform \"linux\"".to_owned())
            }
            other => Err(format!("unknown policy: {other:?}")),
        }
    }

    /// The reserved memory of each NUMA node. The sum must equal the machine's reserved memory.
    fn reserved_memory(&self, nodes: &[Node]) -> Result<Map<usize, Amounts>, String> {
        let mut reserved: Map<usize, Amounts> = Map::new();
        let mut total = Amounts::new();
        for reservation in self.file.reserved_memory.iter().flatten() {
            let number = reservation.numa_node.unwrap_or_default();
            let node =
                usize::try_from(number).ok().filter(|id| nodes.iter().any(|it| it.id == *id));
            let Some(node) = node else {
                return Err(format!(
                    "the reserved memory configuration references a NUMA node {number} that does not exist on this machine"
                ));
            };
            for (kind, amount) in reservation.limits.iter().flatten() {
                let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                let amount = Quantity::parse(&text).map_err(|error| error.to_string())?;
                let bytes = u64::try_from(amount.value()).unwrap_or_default();
                reserved.entry(node).or_default().insert(kind.clone(), bytes);
                *total.entry(kind.clone()).or_default() += bytes;
            }
        }
        total.entry("memory".to_owned()).or_default();
        for (kind, bytes) in total {
            let expected = u64::try_from(self.reserved(&kind).value()).unwrap_or_default();
            if bytes != expected {
                return Err(format!(
                    "the total amount \"{bytes}\" of type {kind:?} is not equal to the value \"{expected}\" determined by Node Allocatable feature"
                ));
            }
        }
        Ok(reserved)
    }

    /// The topology policy, whether its scope is the pod, and the nodes.
    ///
    /// # Errors
    /// The kubelet's error.
    pub(crate) fn topology(&self, nodes: &[Node]) -> Result<(Policy, bool, Nodes), String> {
        let ids: Vec<usize> = nodes.iter().map(|node| node.id).collect();
        let policy = match self.file.topology_manager_policy.as_deref().unwrap_or("none") {
            "" | "none" => return Ok((Policy::None, false, Nodes { ids, distances: None })),
            "best-effort" => Policy::BestEffort,
            "restricted" => Policy::Restricted,
            "single-numa-node" => Policy::SingleNumaNode,
            other => return Err(format!("unknown policy: {other:?}")),
        };
        let (mut closest, mut most) = (false, MAX_NODES);
        for (name, value) in self.file.topology_manager_policy_options.iter().flatten() {
            match name.as_str() {
                "prefer-closest-numa-nodes" => closest = go_bool(name, value)?,
                "max-allowable-numa-nodes" => {
                    let number: i64 = value.parse().map_err(|_| {
                        format!("unable to convert policy option to integer {name:?}: strconv.Atoi: parsing {value:?}: invalid syntax")
                    })?;
                    most = usize::try_from(number).unwrap_or_default();
                    if most < MAX_NODES {
                        return Err(format!(
                            "the minimum value of {name:?} should not be less than {MAX_NODES}"
                        ));
                    }
                }
                _ => return Err(format!("unknown Topology Manager Policy option: {name:?}")),
            }
        }
        if closest && nodes.iter().any(|node| node.distances.is_empty()) {
            return Err(
                "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
                    .to_owned(),
            );
        }
        if nodes.len() > most {
            return Err(format!("unsupported on machines with more than {most} NUMA Nodes"));
        }
        let for_pods = match self.file.topology_manager_scope.as_deref().unwrap_or("container") {
            "" | "container" => false,
            "pod" => true,
            other => return Err(format!("unknown scope: {other:?}")),
        };
        let distances = nodes.iter().map(|node| (node.id, node.distances.clone()));
        let distances = closest.then(|| distances.collect());
        Ok((policy, for_pods, Nodes { ids, distances }))
    }
}

#[cfg(test)]
mod tests;
