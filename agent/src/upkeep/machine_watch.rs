//! Events of the node about its machine: OOM kills, cgroup v1, swap, and a resolv.conf beyond the limits.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/oom/oom_watcher_linux.go, pkg/kubelet/kubelet_linux.go cgroupVersionCheck,
//! pkg/kubelet/cm/container_manager_linux.go NewContainerManager, pkg/kubelet/network/dns/dns.go CheckLimitsForResolvConf.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::machine::OomKill;
use crate::node::CgroupVersion;
use crate::pod_spec::dns::{limit_problem, read_resolv_conf};
use crate::reporting::events::{EventRecorder, EventType};
use tasks::brief;

/// pkg/kubelet/cm/container_manager.go CgroupV1DeprecatedWarning.
const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

const NO_NOSWAP: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.";

/// The number of OOM kills because the machine had no memory left. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OomCount(Arc<AtomicU64>);

impl OomCount {
    /// The current number.
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reports OOM kills of the whole machine; a kill in a pod's cgroup is reported with the pod.
pub(crate) async fn watch_oom_kills(
    mut kills: mpsc::UnboundedReceiver<OomKill>,
    node: String,
    events: EventRecorder,
    count: OomCount,
) {
    while let Some(OomKill { cgroup, process }) = kills.recv().await {
        if cgroup != "/" {
            continue;
        }
        count.0.fetch_add(1, Ordering::Relaxed);
        let mut message = "System OOM encountered".to_owned();
        if let Some((id, name)) = process {
            message.push_str(&format!(", victim process: {name}, pid: {id}"));
        }
        events.record_node(&node, EventType::Warning, "SystemOOM", message);
    }
}

/// Reports once that the machine has cgroup v1.
pub(crate) fn check_cgroup_version(version: CgroupVersion, node: &str, events: &EventRecorder) {
    if version == CgroupVersion::V1 {
        events.record_node(node, EventType::Warning, "CgroupV1", CGROUP_V1.to_owned());
    }
}

/// Reports once that the machine has this much swap, if volumes in memory are on file systems without the option noswap.
pub(crate) fn check_swap(bytes: i64, has_noswap: bool, node: &str, events: &EventRecorder) {
    if bytes > 0 && !has_noswap {
        let reason = "PossibleMemoryBackedVolumesOnDisk";
        events.record_node_warning(node, reason, NO_NOSWAP.to_owned());
    }
}

/// Reports once how the node's resolv.conf exceeds the limits of pods, to which the cluster adds its own domains.
pub(crate) fn check_resolv_conf(path: &Path, in_cluster: bool, node: &str, events: &EventRecorder) {
    let problem = match brief(|| read_resolv_conf(path)) {
        Ok(text) => limit_problem(path, &text, in_cluster),
        Err(error) => Some(format!("failed to read {}: {error}", path.display())),
    };
    if let Some(problem) = problem {
        events.record_node(node, EventType::Warning, "CheckLimitsForResolvConf", problem);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::clock::TokioClock;

    #[tokio::test]
    async fn cgroup_v1_is_an_event_of_the_node() {
        let clock = TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let events = EventRecorder::new(Arc::new(clock));
        let mut seen = events.subscribe();
        check_cgroup_version(CgroupVersion::V2, "n1", &events);
        assert!(seen.try_recv().is_err(), "nothing is wrong");
        check_cgroup_version(CgroupVersion::V1, "n1", &events);
        let event = seen.try_recv().unwrap();
        assert_eq!((event.object.name.as_str(), event.reason.as_str()), ("n1", "CgroupV1"));
        assert_eq!((event.kind, event.message.as_str()), (EventType::Warning, CGROUP_V1));
    }

    #[tokio::test]
    async fn swap_is_an_event_of_the_node() {
        let clock = TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let events = EventRecorder::new(Arc::new(clock));
        let mut seen = events.subscribe();
        for (bytes, has_noswap) in [(0, false), (4096, true)] {
            check_swap(bytes, has_noswap, "n1", &events);
            assert!(seen.try_recv().is_err(), "nothing is wrong");
        }
        check_swap(4096, false, "n1", &events);
        let event = seen.try_recv().unwrap();
        let expected = ("n1", "PossibleMemoryBackedVolumesOnDisk");
        assert_eq!((event.object.name.as_str(), event.reason.as_str()), expected);
        assert_eq!((event.kind, event.message.as_str()), (EventType::Warning, NO_NOSWAP));
    }

    #[tokio::test]
    async fn invalid_resolv_conf_is_a_node_event() {
        let clock = TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let events = EventRecorder::new(Arc::new(clock));
        let mut seen = events.subscribe();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        std::fs::write(&path, "search a.example\n").unwrap();
        check_resolv_conf(&path, true, "n1", &events);
        assert!(seen.try_recv().is_err(), "nothing is wrong");
        for (text, prefix) in [("nameserver\n", ""), ("", "failed to read ")] {
            match text {
                "" => std::fs::remove_file(&path).unwrap(),
                _ => std::fs::write(&path, text).unwrap(),
            }
            check_resolv_conf(&path, true, "n1", &events);
            let event = seen.try_recv().unwrap();
            assert_eq!(
                (event.object.name, event.reason.as_str()),
                ("n1".to_owned(), "CheckLimitsForResolvConf")
            );
            assert!(event.message.starts_with(prefix), "{}", event.message);
        }
        check_resolv_conf(Path::new("/dev/zero"), true, "n1", &events);
        let message = seen.try_recv().unwrap().message;
        assert_eq!(message, "failed to read /dev/zero: it has more than 10 MiB");
    }
}
