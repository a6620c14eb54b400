//! Settings of the agent: directories, periods and limits.

use std::path::PathBuf;
use std::time::Duration;

/// The configuration of the agent. [`Config::new`] has the defaults of a kubelet of Kubernetes 1.36.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name this node has in pod statuses and in the environment of containers (`spec.nodeName`).
    pub node_name: String,
    /// The directory of volumes, `etc-hosts` files and termination messages, below `pods/<uid>`.
    pub root_dir: PathBuf,
    /// The directory of container logs, below `<namespace>_<name>_<uid>`.
    pub pod_logs_dir: PathBuf,
    /// The resolv.conf for pods with `dnsPolicy: Default`; `None`: an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// The node's own addresses, primary first: `status.hostIPs`.
    pub node_ips: Vec<String>,
    /// Whether the log directory of a pod is removed with the pod.
    pub remove_logs: bool,
    /// How often all pods and containers are listed without an event stream.
    pub relist_period: Duration,
    /// How often all pods and containers are listed while events arrive.
    pub relist_period_with_events: Duration,
    /// How often a worker plans again without a new snapshot.
    pub resync_period: Duration,
    /// The delay before a failed action is retried.
    pub retry_after_error: Duration,
    /// First and maximum delay between restarts of a crashing container.
    pub crash_backoff: (Duration, Duration),
    /// First and maximum delay between attempts to pull an image.
    pub image_backoff: (Duration, Duration),
    /// The number of concurrent image pulls.
    pub parallel_pulls: usize,
    /// How often orphaned pod directories are removed.
    pub gc_period: Duration,
}

impl Config {
    /// The kubelet's defaults with the given directories.
    #[must_use]
    pub fn new(root_dir: PathBuf, pod_logs_dir: PathBuf) -> Self {
        Self {
            node_name: "localhost".to_owned(),
            root_dir,
            pod_logs_dir,
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            node_ips: vec!["127.0.0.1".to_owned()],
            remove_logs: true,
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(10),
            resync_period: Duration::from_secs(60),
            retry_after_error: Duration::from_secs(10),
            crash_backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            image_backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            parallel_pulls: 1,
            gc_period: Duration::from_secs(60),
        }
    }
}
