//! ◆ The node's properties and settings, for building sandboxes and containers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use compact::Map;
use k8s_openapi::api::core::v1::Node as NodeObject;
use serde::Deserialize;

/// Properties and settings of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// The node's configured addresses, the preferred one first; empty: IPv4 is preferred.
    pub ips: Vec<String>,
    /// The node's addresses in the status of its object; empty: the configured ones.
    pub addresses: Vec<NodeAddress>,
    /// DNS servers of the cluster; empty without a cluster.
    pub cluster_dns: Vec<String>,
    /// Whether the node's own network, which pods with `hostNetwork` use, reaches the cluster's DNS servers.
    pub host_reaches_cluster: bool,
    /// Whether pods with `dnsPolicy: ClusterFirst` get a warning event if there are no cluster DNS servers.
    pub warn_of_missing_cluster_dns: bool,
    /// Domain of the cluster; may be empty.
    pub cluster_domain: String,
    /// Content of the resolv.conf that pods inherit; `None`: they inherit nothing.
    pub resolv_conf: Option<String>,
    /// The agent's state directory, which contains the pods' directories.
    pub root_dir: PathBuf,
    /// Directory of container logs.
    pub pod_logs_dir: PathBuf,
    /// Directory of seccomp profiles of type Localhost.
    pub seccomp_root: PathBuf,
    /// Whether containers without a seccomp profile get the runtime's default instead of none.
    pub seccomp_default: bool,
    /// The machine's capacity by resource name.
    pub capacity: BTreeMap<String, String>,
    /// Allocatable quantities by resource name.
    pub allocatable: BTreeMap<String, String>,
    /// Memory of the machine, bytes; 0: unknown.
    pub memory_capacity: i64,
    /// The agent's id, with which its sandboxes are labelled.
    pub agent_id: Option<String>,
    /// Swap of the machine, bytes.
    pub swap_capacity: i64,
    /// Whether the kernel can limit a cgroup's swap.
    pub swap_controller: bool,
    /// Which containers may use swap.
    pub swap_behavior: SwapBehavior,
    /// Whether CPU limits are enforced.
    pub cpu_quota: bool,
    /// The period of CPU limits, in microseconds.
    pub cpu_quota_period: i64,
    /// How cgroups are created.
    pub cgroup_driver: CgroupDriver,
    /// The parent of the pods' cgroups.
    pub cgroup_root: String,
    /// Whether QoS classes and pods have cgroups.
    pub cgroups_per_qos: bool,
    /// The version of the cgroup hierarchy.
    pub cgroup_version: CgroupVersion,
    /// Whether the kernel kills a single process of a container that is out of memory instead of all its processes.
    pub single_process_oom_kill: bool,
    /// How memory is protected and throttled (gate MemoryQoS); `None`: containers have only limits.
    pub memory_qos: Option<MemoryQos>,
    /// Sizes of the machine's huge pages, as `2MB`.
    pub hugepage_sizes: Vec<String>,
    /// Runtime handlers by name of the RuntimeClass objects.
    pub runtime_class_objects: BTreeMap<String, String>,
    /// Runtime handlers by name of the other RuntimeClasses; `None`: each class has the name of its handler.
    pub runtime_classes: Option<BTreeMap<String, String>>,
    /// The features of the runtime's handlers, by name; `None`: not reported.
    pub runtime_handlers: Option<Map<String, HandlerFeatures>>,
    /// Paths of this machine that are masked in containers in addition to the usual ones: what each CPU counts.
    pub masked_paths: Vec<String>,
    /// Whether SELinux is enabled.
    pub selinux: bool,
    /// Whether `lifecycle.stopSignal` takes effect (gate ContainerStopSignals).
    pub container_stop_signals: bool,
    /// Which features are on.
    pub features: Features,
}

/// Features that feature gates switch. The default is that of Kubernetes 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Variables may come from files of volumes (gate EnvFiles); otherwise these variables are empty.
    pub env_files: bool,
    /// `spec.hostnameOverride` counts (gate HostnameOverride).
    pub hostname_override: bool,
    /// Pod-level resources can be resized, and are in the status (gate InPlacePodLevelResourcesVerticalScaling).
    pub pod_level_resizes: bool,
    /// Pods have the condition PodReadyToStartContainers (gate PodReadyToStartContainersCondition).
    pub ready_to_start_condition: bool,
    /// Statuses of containers have the health of devices (gate ResourceHealthStatus).
    pub device_health: bool,
    /// The health of a device may have a message (gate ResourceHealthStatusMessage).
    pub device_health_message: bool,
    /// Tolerations may compare numbers: `Lt` and `Gt` (gate TaintTolerationComparisonOperators).
    pub compares_taints: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            env_files: true,
            hostname_override: true,
            pod_level_resizes: true,
            ready_to_start_condition: true,
            device_health: true,
            device_health_message: true,
            compares_taints: false,
        }
    }
}

impl Features {
    /// The features whose gates are on.
    #[must_use]
    pub fn of(is_enabled: impl Fn(&str) -> bool) -> Self {
        Self {
            env_files: is_enabled("EnvFiles"),
            hostname_override: is_enabled("HostnameOverride"),
            pod_level_resizes: is_enabled("InPlacePodLevelResourcesVerticalScaling"),
            ready_to_start_condition: is_enabled("PodReadyToStartContainersCondition"),
            device_health: is_enabled("ResourceHealthStatus"),
            device_health_message: is_enabled("ResourceHealthStatusMessage"),
            compares_taints: is_enabled("TaintTolerationComparisonOperators"),
        }
    }
}

/// An address in a node's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname`, …
    pub kind: String,
    /// The address.
    pub address: String,
}

/// How cgroups are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// As directories of the cgroup file system.
    Cgroupfs,
    /// As systemd slices.
    Systemd,
}

/// The version of the cgroup hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy for each controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Which containers may use swap (`memorySwap.swapBehavior`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum SwapBehavior {
    /// None.
    #[default]
    #[serde(alias = "")]
    NoSwap,
    /// Containers of Burstable pods, in proportion to their memory requests.
    LimitedSwap,
}

/// How memory is protected and throttled on a node with the gate MemoryQoS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// The point between request and limit at which a container is throttled (`memoryThrottlingFactor`), above 0, at most 1.
    pub throttling_factor: f64,
    /// Which memory of containers is protected (`memoryReservationPolicy`).
    pub reservation: MemoryReservation,
}

impl MemoryQos {
    /// A kubelet's default of `memoryThrottlingFactor`.
    pub const THROTTLING_FACTOR: f64 = 0.9;
}

/// Which memory of containers is protected (`memoryReservationPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum MemoryReservation {
    /// None.
    #[default]
    #[serde(alias = "")]
    None,
    /// Their requests: of Guaranteed pods always, of others as long as other memory can be reclaimed.
    TieredReservation,
}

/// The memory that is protected for pods on a node with Memory QoS, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectedMemory {
    /// For Guaranteed pods (`memory.min`).
    pub guaranteed: i64,
    /// For Burstable pods (`memory.low`).
    pub burstable: i64,
}

/// The features of a runtime handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    /// Recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// User namespaces.
    pub user_namespaces: bool,
}

/// The pressure conditions of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// MemoryPressure.
    pub memory: bool,
    /// DiskPressure.
    pub disk: bool,
    /// PIDPressure.
    pub pids: bool,
}

impl Pressure {
    /// The names of the conditions.
    #[must_use]
    pub fn conditions(self) -> Vec<&'static str> {
        let all = [
            (self.memory, "MemoryPressure"),
            (self.disk, "DiskPressure"),
            (self.pids, "PIDPressure"),
        ];
        all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect()
    }
}

/// The node does not have the RuntimeClass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("runtimeclass.node.k8s.io {name:?} not found")]
pub struct UnknownRuntimeClass {
    name: String,
}

/// The addresses in the status of a node's object.
pub(crate) fn addresses(node: &NodeObject) -> Vec<NodeAddress> {
    let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    listed
        .map(|one| NodeAddress { kind: one.type_.clone(), address: one.address.clone() })
        .collect()
}

/// The node's own addresses, at most one of each family: those of its status, or the configured ones if it has none.
pub(crate) fn host_ips(addresses: &[NodeAddress], configured: &[String]) -> Vec<String> {
    let of_kind = |kind: &'static str| {
        let addresses = addresses.iter();
        addresses.filter(move |address| address.kind == kind).map(|address| &address.address)
    };
    let all: Vec<&String> = if addresses.is_empty() {
        configured.iter().collect()
    } else {
        of_kind("InternalIP").chain(of_kind("ExternalIP")).collect()
    };
    let mut parsed = all.into_iter().filter_map(|text| text.parse::<IpAddr>().ok());
    let Some(first) = parsed.next() else {
        return Vec::new();
    };
    let second = parsed.find(|ip| ip.is_ipv6() != first.is_ipv6());
    std::iter::once(first).chain(second).map(|ip| ip.to_string()).collect()
}

/// Converts a name from a manifest or label to a single path component, so that it cannot escape its directory.
pub(crate) fn component(name: &str) -> String {
    match name {
        "" | "." | ".." => format!("_{name}"),
        _ => name.replace('/', "_"),
    }
}

impl Node {
    /// A node with this name and the kubelet's defaults (Kubernetes 1.36), except that it has no pod cgroups, and without
    /// properties of a machine.
    pub fn new(
        name: impl Into<String>,
        root_dir: impl Into<PathBuf>,
        pod_logs_dir: impl Into<PathBuf>,
    ) -> Self {
        let root_dir = root_dir.into();
        Self {
            name: name.into(),
            ips: Vec::new(),
            addresses: Vec::new(),
            cluster_dns: Vec::new(),
            host_reaches_cluster: true,
            warn_of_missing_cluster_dns: true,
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: None,
            seccomp_root: root_dir.join("seccomp"),
            root_dir,
            pod_logs_dir: pod_logs_dir.into(),
            seccomp_default: false,
            capacity: BTreeMap::new(),
            allocatable: BTreeMap::new(),
            memory_capacity: 0,
            agent_id: None,
            swap_capacity: 0,
            swap_controller: false,
            swap_behavior: SwapBehavior::NoSwap,
            cpu_quota: true,
            cpu_quota_period: 100_000,
            cgroup_driver: CgroupDriver::Cgroupfs,
            cgroup_root: "/".to_owned(),
            cgroups_per_qos: false,
            cgroup_version: CgroupVersion::V2,
            single_process_oom_kill: true,
            memory_qos: None,
            hugepage_sizes: Vec::new(),
            runtime_class_objects: BTreeMap::new(),
            runtime_classes: None,
            runtime_handlers: None,
            masked_paths: Vec::new(),
            selinux: false,
            container_stop_signals: false,
            features: Features::default(),
        }
    }

    /// The directory of a pod: volumes, hosts file, termination messages.
    pub fn pod_dir(&self, uid: &api::pod::PodUid) -> PathBuf {
        self.root_dir.join("pods").join(component(uid.as_str()))
    }

    /// The log directory of a pod: `<namespace>_<name>_<uid>`.
    pub fn pod_log_dir(&self, pod: &api::pod::Pod) -> PathBuf {
        self.pod_logs_dir.join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
    }

    /// The runtime handler of a RuntimeClass; empty (the default handler) without a class.
    pub fn runtime_handler(&self, class: Option<&str>) -> Result<String, UnknownRuntimeClass> {
        match class {
            None | Some("") => Ok(String::new()),
            Some(name) => {
                let of_object = self.runtime_class_objects.get(name).cloned();
                let handler = of_object.or_else(|| match &self.runtime_classes {
                    Some(classes) => classes.get(name).cloned(),
                    None => Some(name.to_owned()),
                });
                handler.ok_or_else(|| UnknownRuntimeClass { name: name.to_owned() })
            }
        }
    }

    /// The node's own addresses, at most one of each family: `status.hostIPs` of its pods.
    ///
    /// Kubernetes 1.36, pkg/util/node GetNodeHostIPs: internal addresses before external ones.
    pub fn host_ips(&self) -> Vec<String> {
        host_ips(&self.addresses, &self.ips)
    }

    /// A pod's addresses in the order of the node's preference, at most one of each family.
    ///
    /// Kubernetes 1.36, pkg/kubelet/kubelet_pods.go sortPodIPs.
    pub fn sort_pod_ips(&self, ips: &[String]) -> Vec<String> {
        let prefers_v6 = self
            .ips
            .first()
            .and_then(|ip| ip.parse::<IpAddr>().ok())
            .is_some_and(|ip| ip.is_ipv6());
        let parsed: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        let of_family = |v6: bool| parsed.iter().find(|ip| ip.is_ipv6() == v6);
        of_family(prefers_v6)
            .into_iter()
            .chain(of_family(!prefers_v6))
            .map(ToString::to_string)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn host_ips_are_one_of_each_family_internal_first() {
        let mut node = Node::new("n", "/r", "/l");
        node.ips = vec!["10.0.0.1".to_owned()];
        assert_eq!(node.host_ips(), ["10.0.0.1"]);
        for (kind, address) in [
            ("ExternalIP", "fd00::1"),
            ("Hostname", "n"),
            ("InternalIP", "10.0.0.2"),
            ("InternalIP", "10.0.0.3"),
        ] {
            let (kind, address) = (kind.to_owned(), address.to_owned());
            node.addresses.push(NodeAddress { kind, address });
        }
        assert_eq!(node.host_ips(), ["10.0.0.2", "fd00::1"]);
    }

    #[test]
    fn host_ips_come_from_node_status_or_configuration() {
        let internal = |address: &str| json!({"type": "InternalIP", "address": address});
        let name = json!({"type": "Hostname", "address": "n"});
        let configured = ["10.0.0.1".to_owned(), "fd00::1".to_owned()];
        let table: [(Value, &[&str]); 6] = [
            (json!({}), &["10.0.0.1", "fd00::1"]),
            (json!({"status": {}}), &["10.0.0.1", "fd00::1"]),
            (json!({"status": {"addresses": []}}), &["10.0.0.1", "fd00::1"]),
            (json!({"status": {"addresses": [internal("10.0.0.9"), name]}}), &["10.0.0.9"]),
            (
                json!({"status": {"addresses": [internal("fd00::9"), internal("10.0.0.9")]}}),
                &["fd00::9", "10.0.0.9"],
            ),
            // As for a kubelet, such a node has no address.
            (json!({"status": {"addresses": [name]}}), &[]),
        ];
        for (object, expected) in table {
            let node: NodeObject = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(host_ips(&addresses(&node), &configured), expected, "{object}");
        }
    }

    #[test]
    fn pod_ips_follow_family_of_node() {
        let mut node = Node::new("n", "/r", "/l");
        let ips = ["fd00::2", "10.0.0.2", "10.0.0.3"].map(str::to_owned);
        assert_eq!(node.sort_pod_ips(&ips), ["10.0.0.2", "fd00::2"]);
        node.ips = vec!["fd00::1".to_owned()];
        assert_eq!(node.sort_pod_ips(&ips), ["fd00::2", "10.0.0.2"]);
    }
}
