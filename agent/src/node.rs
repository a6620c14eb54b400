//! The node's facts and settings, for building sandboxes and containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Facts and settings of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// The node's addresses, the preferred one first.
    pub ips: Vec<String>,
    /// DNS servers of the cluster; empty without a cluster.
    pub cluster_dns: Vec<String>,
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
    /// Allocatable quantities by resource name.
    pub allocatable: BTreeMap<String, String>,
    /// Memory of the machine, bytes; 0: unknown.
    pub memory_capacity: i64,
    /// CPU limits are enforced, with this period in microseconds.
    pub cpu_quota_period: Option<i64>,
    /// Runtime handlers by name of their RuntimeClass.
    pub runtime_classes: BTreeMap<String, String>,
}

impl Node {
    /// A node with this name, the kubelet's defaults (Kubernetes 1.36), and no facts.
    pub fn new(
        name: impl Into<String>,
        root_dir: impl Into<PathBuf>,
        pod_logs_dir: impl Into<PathBuf>,
    ) -> Self {
        let root_dir = root_dir.into();
        Self {
            name: name.into(),
            ips: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: None,
            seccomp_root: root_dir.join("seccomp"),
            root_dir,
            pod_logs_dir: pod_logs_dir.into(),
            seccomp_default: false,
            allocatable: BTreeMap::new(),
            memory_capacity: 0,
            cpu_quota_period: Some(100_000),
            runtime_classes: BTreeMap::new(),
        }
    }

    /// The directory of a pod: volumes, hosts file, termination messages.
    pub fn pod_dir(&self, uid: &crate::pod::PodUid) -> PathBuf {
        self.root_dir.join("pods").join(uid.as_str())
    }

    /// The log directory of a pod: `<namespace>_<name>_<uid>`.
    pub fn pod_log_dir(&self, pod: &crate::pod::Pod) -> PathBuf {
        self.pod_logs_dir
            .join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
    }
}
