//! The number, duration and failures of calls of the runtime.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/instrumented_services.go, pkg/kubelet/metrics/metrics.go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use compact::Map;

use crate::histogram::Histogram;

/// The upper bounds of durations, in seconds: from 5 ms on, each 2.5 times the previous one.
const BOUNDS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];

/// A kubelet's operation names of the calls.
const NAMES: [(&str, &str); 33] = [
    ("Version", "version"),
    ("Status", "status"),
    ("CreateContainer", "create_container"),
    ("StartContainer", "start_container"),
    ("StopContainer", "stop_container"),
    ("RemoveContainer", "remove_container"),
    ("ListContainers", "list_containers"),
    ("ContainerStatus", "container_status"),
    ("UpdateContainerResources", "update_container"),
    ("ReopenContainerLog", "reopen_container_log"),
    ("ExecSync", "exec_sync"),
    ("Exec", "exec"),
    ("Attach", "attach"),
    ("RunPodSandbox", "run_podsandbox"),
    ("StopPodSandbox", "stop_podsandbox"),
    ("RemovePodSandbox", "remove_podsandbox"),
    ("PodSandboxStatus", "podsandbox_status"),
    ("ListPodSandbox", "list_podsandbox"),
    ("ContainerStats", "container_stats"),
    ("ListContainerStats", "list_container_stats"),
    ("PodSandboxStats", "podsandbox_stats"),
    ("ListPodSandboxStats", "list_podsandbox_stats"),
    ("PortForward", "port_forward"),
    ("UpdatePodSandboxResources", "update_podsandbox_resources"),
    ("UpdateRuntimeConfig", "update_runtime_config"),
    ("ListImages", "list_images"),
    ("ImageStatus", "image_status"),
    ("PullImage", "pull_image"),
    ("RemoveImage", "remove_image"),
    ("ImageFsInfo", "image_fs_info"),
    ("CheckpointContainer", "checkpoint_container"),
    ("ListMetricDescriptors", "list_metric_descriptors"),
    ("ListPodSandboxMetrics", "list_podsandbox_metrics"),
];

/// The calls of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The number of failed calls.
    pub errors: u64,
    /// The durations of all calls.
    pub durations: Histogram,
}

/// All calls, by a kubelet's operation names. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<Map<&'static str, Operation>>>);

impl Operations {
    /// Counts a completed call.
    pub(super) fn count(&self, call: &'static str, took: Duration, failed: bool) {
        let name = NAMES.iter().find(|(known, _)| *known == call);
        let name = name.map_or(call, |(_, name)| *name);
        let new = || Operation { errors: 0, durations: Histogram::new(BOUNDS) };
        let mut all = self.lock();
        let operation = all.entry(name).or_insert_with(new);
        operation.durations.observe(took.as_secs_f64());
        operation.errors += u64::from(failed);
    }

    pub(super) fn all(&self) -> Map<&'static str, Operation> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Map<&'static str, Operation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn operations_are_counted_by_kubelet_names() {
        let operations = Operations::default();
        operations.count("RunPodSandbox", Duration::from_millis(10), true);
        operations.count("RunPodSandbox", Duration::from_millis(20), false);
        operations.count("SomethingNew", Duration::ZERO, false);
        let all = operations.all();
        let names: Vec<&str> = all.keys().copied().collect();
        assert_eq!(names, ["SomethingNew", "run_podsandbox"]);
        let run = all.get("run_podsandbox").unwrap();
        assert_eq!((run.errors, run.durations.count()), (1, 2));
        assert_eq!(run.durations.buckets().nth(1), Some((0.0125, 1)));
    }
}
