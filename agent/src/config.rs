//! Settings of the agent: directories, periods and limits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use crate::images::ImageConfig;
use crate::local_node::eviction::settings::EvictionSettings;
use crate::local_node::shutdown::ShutdownPeriod;
use crate::node::{CgroupDriver, Features, MemoryQos, SwapBehavior};
use crate::upkeep::gc::limits::DeadContainerLimits;

/// Creates a directory on tmpfs, or finds the one of an earlier agent. The argument is the path in [`Config::root_dir`] at which
/// the directory or a link to it must be. Returns the directory or an error message. It is called once, when first needed, and may
/// block.
pub type MakeInMemory = fn(&Path) -> Result<PathBuf, String>;

/// The configuration of the agent. [`Config::new`] has the defaults of a kubelet of Kubernetes 1.36.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name in pod statuses and in the environment of containers (`spec.nodeName`).
    pub node_name: String,
    /// The agent's id on a shared runtime: its sandboxes get it as a label.
    pub agent_id: Option<String>,
    /// Whether the agent owns every pod of the runtime, as a kubelet does, even one without the agent's label.
    pub adopt_node: bool,
    /// The directory of volumes, `etc-hosts` files and termination messages, below `pods/<uid>`.
    pub root_dir: PathBuf,
    /// Creates the tmpfs directory of volumes that a kubelet keeps in memory; `None`: they are on the disk.
    pub volumes_in_memory: Option<MakeInMemory>,
    /// The directory of the volumes of claims, which are kept.
    pub volumes_dir: PathBuf,
    /// A file that the runtime locks (flock(2)) as long as pods run, if pods may outlive the agent: claims are in use while it is
    /// locked.
    pub pods_lock: Option<PathBuf>,
    /// The directory of container logs, below `<namespace>_<name>_<uid>`.
    pub pod_logs_dir: PathBuf,
    /// The resolv.conf for pods with `dnsPolicy: Default`; `None`: an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// The DNS servers of the cluster, for pods with `dnsPolicy: ClusterFirst`; empty without a cluster.
    pub cluster_dns: Vec<String>,
    /// Whether the node's own network, which pods with `hostNetwork` use, reaches the cluster's DNS servers; if not, such pods get
    /// the node's.
    pub host_reaches_cluster: bool,
    /// Whether pods with `dnsPolicy: ClusterFirst` get a warning event if there are no cluster DNS servers, as from a kubelet.
    pub warn_of_missing_cluster_dns: bool,
    /// The domain of the cluster; may be empty.
    pub cluster_domain: String,
    /// Names of the host, and the address at which pods reach it; `None`: hosts files have only the kubelet's entries.
    pub host_names: Option<(IpAddr, Vec<String>)>,
    /// The node's own addresses at the start, primary first: `status.hostIPs`, unless the cluster has others of the node.
    pub node_ips: Vec<String>,
    /// Whether the logs of a pod are removed.
    pub remove_logs: bool,
    /// Whether the runtime's events trigger inspections; if not, the agent relists each [`Config::relist_period`] as a kubelet
    /// does.
    pub event_driven_pleg: bool,
    /// The period of listings of all pods and containers without an event stream.
    pub relist_period: Duration,
    /// The period of listings while events arrive, if a listing takes little time.
    pub relist_period_with_events: Duration,
    /// The period after which a worker plans again without a new snapshot.
    pub resync_period: Duration,
    /// The delay before a failed action is retried.
    pub retry_after_error: Duration,
    /// First and maximum delay between restarts of a crashing container.
    pub crash_backoff: (Duration, Duration),
    /// How images are pulled, checked and removed.
    pub images: ImageConfig,
    /// The period in which orphans are searched, and pods that were re-created with their uid are started.
    pub housekeeping_period: Duration,
    /// The period of garbage collection: dead sandboxes, logs and directories of pods that no source has.
    pub gc_period: Duration,
    /// Whether a pod's sandboxes and logs are removed with it. A kubelet leaves them to its garbage collection, so that a
    /// re-created pod continues the attempt numbers of its sandboxes.
    pub remove_at_once: bool,
    /// Whether a pod that is removed during its start is first started completely, as by a kubelet. If not, the pull of an image
    /// and the creation of a sandbox are cancelled, and no further container starts.
    pub finish_starts: bool,
    /// How many dead containers are kept.
    pub dead_containers: DeadContainerLimits,
    /// When logs of containers are rotated; `None`: never.
    pub log_rotation: Option<LogRotation>,
    /// The directory of links to the logs of all containers, for log collectors; `None`: no links.
    pub container_logs_dir: Option<PathBuf>,
    /// Which pods the node admits.
    pub admission: AdmissionConfig,
    /// Which containers may use swap, where the kernel can limit it.
    pub swap_behavior: SwapBehavior,
    /// The cgroups of pods.
    pub cgroups: CgroupConfig,
    /// The directory of seccomp profiles of type Localhost; `None`: `seccomp` in the root directory.
    pub seccomp_profile_root: Option<PathBuf>,
    /// Whether containers without a seccomp profile get the runtime's default instead of none.
    pub seccomp_default: bool,
    /// Whether `lifecycle.stopSignal` takes effect, which Kubernetes 1.36 has behind the gate ContainerStopSignals.
    pub container_stop_signals: bool,
    /// Which features are on.
    pub features: Features,
    /// Whether clients may select one stream of a log, which Kubernetes 1.36 has behind the gate PodLogsQuerySplitStreams.
    pub selects_log_streams: bool,
    /// When pods are evicted because the node is short of something; `None`: never.
    pub eviction: Option<EvictionSettings>,
    /// How long pods may take to end when the machine shuts down, by priority, lowest first; empty: they are not stopped.
    pub shutdown: Vec<ShutdownPeriod>,
}

/// Which pods the node admits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionConfig {
    /// The node's labels; `None`: the node matches any name or label that a pod selects.
    pub node_labels: Option<BTreeMap<String, String>>,
    /// The node's taints.
    pub taints: Vec<Taint>,
    /// The maximum number of pods; `None`: unlimited. A kubelet admits 110.
    pub max_pods: Option<u32>,
    /// Unsafe sysctls that pods may set; a trailing `*` is a wildcard.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The node's resources that are reserved for the system.
    pub system_reserved: BTreeMap<String, String>,
    /// The node's resources that are reserved for Kubernetes' daemons and the runtime.
    pub kube_reserved: BTreeMap<String, String>,
}

/// Which cgroups pods have, and how CPU and memory are limited in them.
#[derive(Clone, Debug, PartialEq)]
pub struct CgroupConfig {
    /// Whether each pod has a cgroup below that of its QoS class, which the agent passes to the runtime as the sandbox's
    /// `cgroup_parent`; otherwise the runtime chooses. The agent creates these cgroups if it has [`crate::NodeParts::cgroups`], as
    /// a kubelet does.
    pub per_qos: bool,
    /// The form of their paths.
    pub driver: CgroupDriver,
    /// The cgroup above them.
    pub root: String,
    /// Whether CPU limits are enforced.
    pub cpu_quota: bool,
    /// The period of CPU limits.
    pub cpu_quota_period: Duration,
    /// Whether the kernel kills a single process of a container that is out of memory instead of all its processes. Only the
    /// unified hierarchy supports the latter, which is a kubelet's default there.
    pub single_process_oom_kill: bool,
    /// How memory is protected and throttled on the unified hierarchy (gate MemoryQoS); `None`: containers have only limits.
    pub memory_qos: Option<MemoryQos>,
    /// Whether the root belongs to this agent alone: it is removed with the last pod.
    pub owns_root: bool,
    /// Whether pods of other agents may be below the root: then the agent does not touch the cgroups of unknown pods.
    pub shares_root: bool,
    /// The maximum number of processes of a pod; `None`: unlimited.
    pub pod_pids_limit: Option<i64>,
    /// Which limits are enforced for all pods together, and for reserved resources.
    pub enforced: NodeAllocatable,
    /// The percentage of the memory requests of a QoS class that is reserved against the classes below it (gate QOSReserved).
    pub qos_reserved_memory: Option<i64>,
}

/// Which limits are enforced for all pods together, and for reserved resources (`enforceNodeAllocatable`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAllocatable {
    /// All pods together are limited to the unreserved resources.
    pub pods: bool,
    /// The system is limited to its reserved resources, in this cgroup.
    pub system_reserved: Option<ReservedCgroup>,
    /// Kubernetes' daemons are limited to their reserved resources, in this cgroup.
    pub kube_reserved: Option<ReservedCgroup>,
}

impl Default for NodeAllocatable {
    /// As a kubelet: only the limit of pods.
    fn default() -> Self {
        Self { pods: true, system_reserved: None, kube_reserved: None }
    }
}

/// A cgroup for reserved resources, created by the administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// Its path.
    pub path: String,
    /// Whether only the CPU is limited.
    pub compressible: bool,
}

impl Default for CgroupConfig {
    /// As a kubelet, but without cgroups of QoS classes.
    fn default() -> Self {
        Self {
            per_qos: false,
            driver: CgroupDriver::Cgroupfs,
            root: "/".to_owned(),
            cpu_quota: true,
            cpu_quota_period: Duration::from_millis(100),
            single_process_oom_kill: true,
            memory_qos: None,
            owns_root: false,
            shares_root: false,
            pod_pids_limit: None,
            enforced: NodeAllocatable::default(),
            qos_reserved_memory: None,
        }
    }
}

/// When and how logs of containers are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotation {
    /// The size from which a log is rotated, bytes.
    pub max_size: u64,
    /// How many files a log may have, the current one included; at least 2.
    pub max_files: usize,
    /// The period in which sizes are checked.
    pub period: Duration,
}

impl Default for LogRotation {
    /// 10 MiB, 5 files, every 10 s, as a kubelet.
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5, period: Duration::from_secs(10) }
    }
}

impl Config {
    /// Whether the agent may end a pod that no source has. `maker` is the id of the agent that created the pod.
    #[must_use]
    pub fn owns(&self, maker: Option<&str>) -> bool {
        match &self.agent_id {
            Some(own) if !self.adopt_node => maker == Some(own),
            Some(_) | None => true,
        }
    }

    /// The kubelet's defaults with the given directories.
    #[must_use]
    pub fn new(root_dir: PathBuf, pod_logs_dir: PathBuf) -> Self {
        Self {
            container_logs_dir: Some(root_dir.join("containers")),
            volumes_in_memory: None,
            volumes_dir: root_dir.join("volumes"),
            pods_lock: None,
            log_rotation: Some(LogRotation::default()),
            admission: AdmissionConfig::default(),
            swap_behavior: SwapBehavior::NoSwap,
            cgroups: CgroupConfig::default(),
            seccomp_profile_root: None,
            seccomp_default: false,
            container_stop_signals: true,
            features: Features::default(),
            selects_log_streams: true,
            eviction: None,
            shutdown: Vec::new(),
            node_name: "localhost".to_owned(),
            agent_id: None,
            adopt_node: false,
            pod_logs_dir,
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            cluster_dns: Vec::new(),
            host_reaches_cluster: true,
            warn_of_missing_cluster_dns: true,
            cluster_domain: "cluster.local".to_owned(),
            host_names: None,
            node_ips: vec!["127.0.0.1".to_owned()],
            remove_logs: true,
            event_driven_pleg: true,
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(10),
            resync_period: Duration::from_secs(60),
            retry_after_error: Duration::from_secs(10),
            crash_backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            images: ImageConfig::new(&root_dir),
            root_dir,
            housekeeping_period: Duration::from_secs(2),
            gc_period: Duration::from_secs(60),
            remove_at_once: true,
            finish_starts: false,
            dead_containers: DeadContainerLimits::default(),
        }
    }
}
