//! State that all workers share: configuration, node, and handles to the tasks and the runtime.

use std::collections::BTreeMap;
use std::sync::Arc;

use file_tree::Trash;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::cache::Cache;
use crate::clock::Clock;
use crate::config::Config;
use crate::cri::Cri;
use crate::hosts;
use crate::images::Images;
use crate::pod::Pod;
use crate::report::status_store::StatusStore;
use crate::spec::Node;

/// The state that all workers share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) node: Node,
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) clock: Arc<dyn Clock>,
    /// When the agent was started.
    pub(crate) started_at: Timestamp,
    pub(crate) cache: Cache,
    pub(crate) images: Images,
    pub(crate) status_store: StatusStore,
    /// The trash for removed pod directories.
    pub(crate) trash: Arc<Trash>,
    /// True: terminating pods get no grace period.
    pub(crate) kill_now: watch::Receiver<bool>,
}

impl Shared {
    /// The node with its present resolver configuration.
    pub(crate) async fn node_now(&self) -> Node {
        let mut node = self.node.clone();
        if let Some(path) = self.config.resolv_conf.clone() {
            node.resolv_conf = blocking(move || match std::fs::read_to_string(&path) {
                Ok(text) => Some(text),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "failed to read resolv.conf of the node");
                    None
                }
            })
            .await;
        }
        node
    }

    /// The text of a pod's hosts file.
    pub(crate) async fn hosts_file(&self, pod: &Pod, ips: &[String]) -> String {
        let of_node = if pod.host_network() {
            blocking(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default()).await
        } else {
            String::new()
        };
        hosts::hosts_file(pod, ips, &self.node.cluster_domain, &of_node)
    }
}

/// Collects the facts of this node.
pub(crate) fn node(config: &Config) -> Node {
    let mut node = Node::new(
        config.node_name.clone(),
        config.root_dir.clone(),
        config.pod_logs_dir.clone(),
    );
    node.ips.clone_from(&config.node_ips);
    let memory = memory_bytes(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    node.memory_capacity = memory;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    node.allocatable = BTreeMap::from([
        ("cpu".to_owned(), cpus.to_string()),
        ("memory".to_owned(), memory.to_string()),
    ]);
    node
}

/// Parses the machine's memory in bytes from `/proc/meminfo`; 0 if it is absent.
fn memory_bytes(meminfo: &str) -> i64 {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            memory_bytes("MemTotal:       24689764 kB\nMemFree: 1 kB\n"),
            24_689_764 * 1024
        );
        assert_eq!(memory_bytes(""), 0);
    }
}
