//! Settings of the agent: where it keeps things and how patient it is.

use std::path::PathBuf;
use std::time::Duration;

/// What the agent is told when it starts. [`Config::new`] fills in what a kubelet of Kubernetes 1.36 uses.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name this node has in pod statuses and in the environment of containers (`spec.nodeName`).
    pub node_name: String,
    /// Where volumes, `etc-hosts` files and termination messages live, below `pods/<uid>`.
    pub root_dir: PathBuf,
    /// Where container logs live, below `<namespace>_<name>_<uid>`.
    pub pod_logs_dir: PathBuf,
    /// The resolver configuration that pods with `dnsPolicy: Default` are given; `None` gives them an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// The node's own addresses, primary first: `status.hostIPs`.
    pub node_ips: Vec<String>,
    /// Whether the log directory of a pod goes away with the pod.
    pub remove_logs: bool,
    /// How often all pods and containers are listed when the runtime gives no events.
    pub relist_period: Duration,
    /// How often all pods and containers are listed while events arrive.
    pub relist_period_with_events: Duration,
    /// How often a pod is looked at again although nothing was heard of it.
    pub resync_period: Duration,
    /// How long after a failed step a pod is tried again.
    pub retry_after_error: Duration,
    /// First and longest wait between restarts of a crashing container.
    pub crash_backoff: (Duration, Duration),
    /// First and longest wait between attempts to pull an image.
    pub image_backoff: (Duration, Duration),
    /// How many images are pulled at once.
    pub parallel_pulls: usize,
    /// How often finished containers that nobody needs are looked for.
    pub gc_period: Duration,
}

impl Config {
    /// The kubelet's periods and limits, with the given directories.
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
