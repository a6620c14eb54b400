//! ◆ The columns READY, STATUS and RESTARTS of a pod. Pure.
//!
//! Source: Kubernetes 1.36, printPod of pkg/printers/internalversion/printers.go.

use jiff::Timestamp;
use serde_json::Value;

use super::age::age;
use super::fields::{
    field, flag, has_condition, is_terminating, list, number, text, text_or, time,
};

/// Whether the first condition of this type is true.
#[must_use]
pub fn is_open(pod: &Value, kind: &str) -> bool {
    let mut conditions = list(pod, "/status/conditions").iter();
    let condition = conditions.find(|condition| text(condition, "/type") == kind);
    condition.is_some_and(|condition| text(condition, "/status") == "True")
}

/// The number of container restarts, and the time of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    /// Adds the restarts in a container status.
    pub fn add(&mut self, container: &Value) {
        self.count += number(container, "/restartCount");
        self.last = self.last.max(time(container, "/lastState/terminated/finishedAt"));
    }

    /// As a cell: `0`, `2 (5s ago)`.
    #[must_use]
    pub fn shown(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => format!("{} ({} ago)", self.count, age(last, now)),
            Some(_) | None => self.count.to_string(),
        }
    }
}

/// The first columns of a pod's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSummary {
    /// The number of ready containers, including sidecars.
    pub ready: usize,
    /// The number of all containers, including sidecars.
    pub containers: usize,
    /// STATUS: a phase, or the reason why a container does not run.
    pub status: String,
    /// RESTARTS.
    pub restarts: Restarts,
}

impl PodSummary {
    /// Summarises a pod in the API server's JSON.
    #[must_use]
    pub fn of(pod: &Value) -> Self {
        let init = InitContainers::of(pod);
        let sidecars = list(pod, "/spec/initContainers").iter().filter(|spec| is_sidecar(spec));
        let mut summary = Self {
            ready: init.ready,
            containers: list(pod, "/spec/containers").len() + sidecars.count(),
            status: status_of_pod(pod),
            restarts: init.restarts,
        };
        if let Some(status) = &init.unfinished {
            summary.status.clone_from(status);
        }
        if init.unfinished.is_none() || is_open(pod, "Initialized") {
            summary.restarts = init.sidecar_restarts;
            summary.add_containers(pod);
        }
        let phase = text(pod, "/status/phase");
        if is_terminating(pod) {
            if text(pod, "/status/reason") == "NodeLost" {
                "Unknown".clone_into(&mut summary.status);
            } else if !["Succeeded", "Failed"].contains(&phase) {
                "Terminating".clone_into(&mut summary.status);
            }
        }
        summary
    }

    /// READY: `1/2`.
    #[must_use]
    pub fn ready(&self) -> String {
        format!("{}/{}", self.ready, self.containers)
    }

    fn add_containers(&mut self, pod: &Value) {
        let (mut has_running, mut error) = (false, None);
        for container in list(pod, "/status/containerStatuses").iter().rev() {
            self.restarts.add(container);
            let waiting = text(container, "/state/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.status);
            } else if let Some(terminated) = field(container, "/state/terminated") {
                self.status = end(terminated);
                if number(terminated, "/exitCode") != 0 {
                    error = Some(self.status.clone());
                }
            } else if flag(container, "/ready") && field(container, "/state/running").is_some() {
                has_running = true;
                self.ready += 1;
            }
        }
        // Another container still runs, or one failed.
        if self.status == "Completed" {
            if has_running && has_condition(pod, "Ready") {
                "Running".clone_into(&mut self.status);
            } else if let Some(error) = error {
                self.status = error;
            } else if has_running {
                "NotReady".clone_into(&mut self.status);
            }
        }
    }
}

fn status_of_pod(pod: &Value) -> String {
    let is_gated = |condition: &Value| {
        text(condition, "/type") == "PodScheduled"
            && text(condition, "/reason") == "SchedulingGated"
    };
    if list(pod, "/status/conditions").iter().any(is_gated) {
        return "SchedulingGated".to_owned();
    }
    text_or(pod, "/status/reason", text(pod, "/status/phase"))
}

fn is_sidecar(spec: &Value) -> bool {
    text(spec, "/restartPolicy") == "Always"
}

/// How a container ended: its reason, or else its signal, or else its exit code.
fn end(terminated: &Value) -> String {
    match (text(terminated, "/reason"), number(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", number(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// The progress of the init containers.
#[derive(Default)]
struct InitContainers {
    /// The status of the first init container that has not finished.
    unfinished: Option<String>,
    /// The number of ready sidecars.
    ready: usize,
    restarts: Restarts,
    sidecar_restarts: Restarts,
}

impl InitContainers {
    fn of(pod: &Value) -> Self {
        let specs = list(pod, "/spec/initContainers");
        let mut init = Self::default();
        for (index, container) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let mut same = specs.iter().rev();
            let spec = same.find(|spec| text(spec, "/name") == text(container, "/name"));
            let sidecar = spec.is_some_and(is_sidecar);
            init.restarts.add(container);
            if sidecar {
                init.sidecar_restarts.add(container);
            }
            let terminated = field(container, "/state/terminated");
            if terminated.is_some_and(|terminated| number(terminated, "/exitCode") == 0) {
                continue;
            }
            if sidecar && flag(container, "/started") {
                init.ready += usize::from(flag(container, "/ready"));
                continue;
            }
            let waiting = text(container, "/state/waiting/reason");
            init.unfinished = Some(match terminated {
                Some(terminated) => format!("Init:{}", end(terminated)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => {
                    format!("Init:{waiting}")
                }
                None => format!("Init:{index}/{}", specs.len()),
            });
            break;
        }
        init
    }
}
