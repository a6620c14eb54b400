//! State that all workers share: configuration, node, and handles to the tasks and the runtime.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use api::pod::Pod;
use file_tree::Trash;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use tokio::sync::watch;

use crate::checks::dialer::Dialer;
use crate::checks::probe::prober::Prober;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::cri::Cri;
use crate::images::Images;
use crate::local_node::allocatable::{allocatable, cpus};
use crate::machine::{FileSystem, Machine};
use crate::managers::claims::ClaimManager;
use crate::managers::{DeviceResources, Managers};
use crate::node::{self, CgroupVersion, MemoryQos, MemoryReservation, NodeAddress, Pressure};
use crate::objects::{ObjectMap, ObjectStore};
use crate::observation::cache::Cache;
use crate::observation::readiness::Readiness;
use crate::pod_spec::admission::NodeInfo;
use crate::pod_spec::dns;
use crate::pod_spec::hosts;
use crate::pod_spec::huge_pages;
use crate::pod_spec::runtime_class;
use crate::pod_spec::spec::Node;
use crate::pod_spec::user_namespaces::UserNamespaces;
use crate::reporting::events::EventRecorder;
use crate::reporting::measures::Measures;
use crate::reporting::report::status_store::StatusStore;
use crate::storage::drivers::VolumeDrivers;
use crate::storage::volumes::claim::Claims;
use crate::storage::volumes::in_memory::InMemory;
use crate::storage::volumes::token::Tokens;
use crate::upkeep::pod_cgroups::PodCgroups;
use crate::worker::starts::Starts;
use tasks::brief;

/// The state that all workers share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) node: Node,
    /// The cluster that the node is in.
    pub(crate) cluster: Arc<dyn Cluster>,
    /// The API objects that pods may refer to.
    pub(crate) objects: Arc<ObjectStore>,
    /// Allocates the ids of pods with their own user namespace.
    pub(crate) user_namespaces: UserNamespaces,
    /// Issues the tokens of projected volumes.
    pub(crate) tokens: Tokens,
    /// The volumes that claims are bound to.
    pub(crate) claims: Claims,
    /// The drivers that mount volumes, if there may be any.
    pub(crate) drivers: Option<Arc<dyn VolumeDrivers>>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Allocates exclusive CPUs and devices to containers.
    pub(crate) managers: Arc<dyn Managers>,
    /// Prepares the devices of ResourceClaims, if supported.
    pub(crate) claim_manager: Option<Arc<dyn ClaimManager>>,
    /// Opens the connections of hooks and probes.
    pub(crate) dialer: Arc<dyn Dialer>,
    /// When the agent was started.
    pub(crate) started_at: Timestamp,
    pub(crate) cache: Cache,
    pub(crate) images: Arc<Images>,
    /// The cgroups of pods, if the agent manages them; otherwise the runtime does.
    pub(crate) cgroups: Option<PodCgroups>,
    pub(crate) prober: Prober,
    pub(crate) status_store: StatusStore,
    pub(crate) measures: Measures,
    /// The node's properties for admission.
    pub(crate) node_info: NodeInfo,
    /// Why pods cannot be synced, if so.
    pub(crate) readiness: watch::Receiver<Readiness>,
    /// The node's pressure conditions, under which it admits fewer pods.
    pub(crate) pressure: watch::Receiver<Pressure>,
    /// Whether the machine shuts down: then the node admits no pod.
    pub(crate) shutting_down: watch::Receiver<bool>,
    /// Records events about the pods.
    pub(crate) events: EventRecorder,
    /// The tmpfs directory of volumes.
    pub(crate) in_memory: InMemory,
    /// The trash for removed pod directories.
    pub(crate) trash: Arc<Trash>,
    /// Limits how many pods start at the same time.
    pub(crate) starts: Starts,
    /// Whether terminating pods get no grace period.
    pub(crate) kill_now: watch::Receiver<bool>,
}

impl Shared {
    /// The node with its runtime's features and its current resolver configuration.
    pub(crate) fn node_now(&self) -> Node {
        let mut node = self.node_with_capabilities();
        if let Some(path) = self.config.resolv_conf.clone() {
            node.resolv_conf = brief(|| match dns::read_resolv_conf(&path) {
                Ok(text) => Some(text),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "failed to read resolv.conf of the node");
                    None
                }
            });
        }
        node
    }

    /// Whether the CPU quota of the pod as a whole is enforced: not if one of its containers has exclusive CPUs, or, with pod-level
    /// resources, if all have. Kubernetes 1.36, gate DisableCPUQuotaWithExclusiveCPUs; pkg/kubelet/cm/container_manager_linux.go
    /// PodHasExclusiveCPUs.
    pub(crate) fn enforces_cpu_quota(&self, pod: &Pod) -> bool {
        let has_own = |it: &Container| self.managers.has_own_cpus(pod.uid(), &it.name);
        let is_exclusive = match pod.spec().resources {
            Some(_) => pod.init_and_apps().all(has_own),
            None => pod.init_and_apps().any(has_own),
        };
        self.node.cpu_quota && !is_exclusive
    }

    /// The node with the features that its runtime last reported. A RuntimeClass without an object has the name of its handler. If
    /// a runtime does not report its handlers, every name is accepted: the runtime rejects unknown ones.
    pub(crate) fn node_with_capabilities(&self) -> Node {
        let mut node = self.node.clone();
        let objects = self.objects.current();
        node.addresses = addresses(&objects);
        node.runtime_class_objects = runtime_class::handlers(&objects);
        if let Some(capabilities) = &self.readiness.borrow().capabilities {
            node.runtime_handlers.clone_from(&capabilities.handlers);
            node.runtime_classes = capabilities.handlers.as_ref().map(|handlers| {
                let names = handlers.keys().filter(|name| !name.is_empty());
                names.map(|name| (name.clone(), name.clone())).collect()
            });
        }
        if objects.has_all_runtime_classes() {
            node.runtime_classes = Some(BTreeMap::new());
        }
        node
    }

    /// The node's own addresses at present, at most one of each family. They may change while the agent runs.
    pub(crate) fn host_ips(&self) -> Vec<String> {
        node::host_ips(&addresses(&self.objects.current()), &self.config.node_ips)
    }

    /// The current properties of the node for admission.
    pub(crate) fn current_node_info(&self) -> NodeInfo {
        let mut node_info = self.node_info.clone();
        node_info.pressure = *self.pressure.borrow();
        if let Some(node) = self.objects.current().node() {
            node_info.follow(node);
        }
        DeviceResources::add(&mut node_info.allocatable, self.managers.devices().offered());
        if let Some(capabilities) = &self.readiness.borrow().capabilities {
            node_info.strict_supplemental_groups = capabilities.strict_supplemental_groups;
        }
        node_info
    }

    /// Whether the runtime supports recursive read-only mounts for a pod.
    pub(crate) fn has_recursive_read_only(&self, pod: &Pod) -> bool {
        let name = pod.spec().runtime_class_name.as_deref().unwrap_or_default();
        let class = self.objects.current().runtime_class(name);
        let handler = class.as_ref().map_or(name, |class| class.handler.as_str());
        let readiness = self.readiness.borrow();
        let handlers = readiness.capabilities.as_ref().and_then(|it| it.handlers.as_ref());
        let features = handlers.and_then(|handlers| handlers.get(handler));
        features.is_some_and(|features| features.recursive_read_only_mounts)
    }

    /// The text of a pod's hosts file.
    pub(crate) fn hosts_file(&self, pod: &Pod, ips: &[String]) -> String {
        let of_node = if pod.host_network() {
            brief(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default())
        } else {
            String::new()
        };
        let Node { cluster_domain, features, .. } = &self.node;
        let text = hosts::hosts_file(pod, ips, cluster_domain, &of_node, *features);
        match &self.config.host_names {
            Some((address, names)) if !pod.host_network() => {
                hosts::with_host_names(text, *address, names)
            }
            Some(_) | None => text,
        }
    }
}

/// The addresses that the cluster has of the node; empty without a cluster.
fn addresses(objects: &ObjectMap) -> Vec<NodeAddress> {
    objects.node().map(node::addresses).unwrap_or_default()
}

/// The properties of this node for admission.
pub(crate) fn node_info(config: &Config, node: &Node) -> NodeInfo {
    let rules = config.admission.clone();
    let mut allocatable = node.allocatable.clone();
    if let Some(most) = rules.max_pods {
        allocatable.insert("pods".to_owned(), most.to_string());
    }
    NodeInfo {
        node_name: node.name.clone(),
        labels: rules.node_labels,
        taints: rules.taints,
        allocatable,
        // Assumed until the runtime has reported it.
        strict_supplemental_groups: true,
        app_armor: std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
            .is_ok_and(|enabled| enabled.trim() == "Y"),
        allowed_unsafe_sysctls: rules.allowed_unsafe_sysctls,
        pressure: Pressure::default(),
        compares_taints: config.features.compares_taints,
    }
}

/// Determines the properties of this node.
pub(crate) fn node(config: &Config, machine: &dyn Machine) -> Node {
    let mut node =
        Node::new(config.node_name.clone(), config.root_dir.clone(), config.pod_logs_dir.clone());
    node.ips.clone_from(&config.node_ips);
    node.agent_id.clone_from(&config.agent_id);
    node.cluster_dns.clone_from(&config.cluster_dns);
    node.host_reaches_cluster = config.host_reaches_cluster;
    node.warn_of_missing_cluster_dns = config.warn_of_missing_cluster_dns;
    node.cluster_domain.clone_from(&config.cluster_domain);
    let memory = machine.kernel();
    node.memory_capacity = memory.capacity;
    node.swap_capacity = memory.swap_capacity;
    node.swap_controller = memory.swap_controller;
    node.swap_behavior = config.swap_behavior;
    node.container_stop_signals = config.container_stop_signals;
    node.features = config.features;
    node.cgroup_version = memory.cgroup_version;
    if let Some(directory) = &config.seccomp_profile_root {
        node.seccomp_root.clone_from(directory);
    }
    node.seccomp_default = config.seccomp_default;
    let cgroups = &config.cgroups;
    node.cgroups_per_qos = cgroups.per_qos;
    node.cgroup_driver = cgroups.driver;
    node.cgroup_root.clone_from(&cgroups.root);
    node.cpu_quota = cgroups.cpu_quota;
    node.cpu_quota_period = i64::try_from(cgroups.cpu_quota_period.as_micros()).unwrap_or(i64::MAX);
    node.single_process_oom_kill = cgroups.single_process_oom_kill;
    node.memory_qos = cgroups.memory_qos;
    if let Some(qos) = node.memory_qos {
        warn_of_memory_qos(qos, node.cgroup_version, cgroups.per_qos);
    }
    let mut capacity = BTreeMap::from([
        ("cpu".to_owned(), online_cpus().to_string()),
        ("memory".to_owned(), memory.capacity.to_string()),
    ]);
    let huge_pages = huge_pages::read(Path::new(huge_pages::HUGE_PAGES));
    node.masked_paths = thermal_counters(Path::new(CPUS));
    node.hugepage_sizes = huge_pages.iter().filter_map(|it| it.size_name()).collect();
    capacity.extend(huge_pages.iter().map(|it| it.capacity()));
    match space(machine, &config.root_dir) {
        Ok(space) => {
            let storage = space.capacity.to_string();
            capacity.insert("ephemeral-storage".to_owned(), storage);
        }
        Err(error) => {
            tracing::warn!(%error, "failed to get the size of the agent's file system; pods that request ephemeral-storage are rejected");
        }
    }
    let rules = &config.admission;
    let reserved = [&rules.system_reserved, &rules.kube_reserved];
    let thresholds = config.eviction.as_ref().map_or(&[][..], |eviction| &eviction.thresholds);
    node.allocatable = allocatable(&capacity, &reserved, thresholds);
    if let Some(most) = rules.max_pods {
        capacity.insert("pods".to_owned(), most.to_string());
    }
    node.capacity = capacity;
    node
}

/// The number of online CPUs of the machine, regardless of this process's affinity or quota.
#[must_use]
pub fn online_cpus() -> usize {
    let own = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    list.and_then(|list| cpus(list.trim())).unwrap_or_else(own)
}

/// The directory in which the kernel lists the CPUs.
const CPUS: &str = "/sys/devices/system/cpu";

/// The counters of the thermal throttling of each CPU, from which a container could learn what others do. Kubernetes 1.36 masks
/// them (pkg/securitycontext/util.go).
fn thermal_counters(cpus: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cpus).into_iter().flatten().flatten();
    let counters = entries.map(|entry| entry.path().join("thermal_throttle"));
    let found = counters.filter(|path| path.exists());
    let mut found: Vec<String> = found.map(|path| path.display().to_string()).collect();
    found.sort();
    found
}

/// Logs which parts of memory QoS have no effect on this node.
fn warn_of_memory_qos(qos: MemoryQos, version: CgroupVersion, per_qos: bool) {
    match (version, qos.reservation) {
        (CgroupVersion::V1, _) => {
            tracing::warn!("MemoryQoS has no effect: it needs the unified cgroup hierarchy (v2)");
        }
        // A kubelet sets memory.min and memory.low of pods and QoS classes too.
        (CgroupVersion::V2, MemoryReservation::TieredReservation) if !per_qos => {
            tracing::warn!(
                "TieredReservation applies only to containers: memory.min and memory.low of the parent cgroups may limit it"
            );
        }
        (CgroupVersion::V2, _) => {}
    }
}

/// The size of the file system of a directory that may not exist yet.
fn space(machine: &dyn Machine, directory: &Path) -> io::Result<FileSystem> {
    let existing = directory.ancestors().find(|ancestor| ancestor.exists());
    machine.file_system(existing.unwrap_or(directory))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn thermal_counters_of_each_cpu_are_found() {
        let cpus = tempfile::tempdir().unwrap();
        let at = |name: &str| cpus.path().join(name);
        for directory in ["cpu1/thermal_throttle", "cpu0/thermal_throttle", "cpu2", "cpufreq"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        std::fs::write(at("possible"), "0-2\n").unwrap();
        let expected =
            ["cpu0", "cpu1"].map(|cpu| at(cpu).join("thermal_throttle").display().to_string());
        assert_eq!(thermal_counters(cpus.path()), expected);
        assert!(thermal_counters(&at("missing")).is_empty());
    }
}
