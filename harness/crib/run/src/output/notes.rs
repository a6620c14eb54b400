//! ◆ Notes that a user needs once while pods run, such as that a failure is retried until Ctrl-C. Pure; it remembers what was
//! printed.

use std::time::Duration;

use agent::{ContainerPhase, ContainerReport, PodReport};
use api::pod::{Pod, PodUid, RestartPolicy};
use compact::Set;

use crate::output::lines::without_call;
use crate::reports::{Reports, is_failure_reason};

/// The notes that were printed.
#[derive(Debug)]
pub(crate) struct Notes {
    until: String,
    /// Pods with restartPolicy Never.
    once: Set<PodUid>,
    printed: Set<(PodUid, String, String)>,
}

impl Notes {
    /// Nothing was printed about `pods` yet. `timeout` is the value of `--timeout`.
    pub(crate) fn new(timeout: Option<Duration>, pods: &[Pod]) -> Self {
        let until = if timeout.is_some() { "until --timeout or Ctrl-C" } else { "until Ctrl-C" };
        let mut notes = Self { until: until.to_owned(), once: Set::new(), printed: Set::new() };
        notes.add(pods);
        notes
    }

    /// Replaces Ctrl-C in the notes by this command.
    pub(crate) fn end_with(&mut self, command: &str) {
        self.until = self.until.replace("Ctrl-C", command);
    }

    /// Adds pods.
    pub(crate) fn add(&mut self, pods: &[Pod]) {
        let once = pods.iter().filter(|pod| pod.restart_policy() == RestartPolicy::Never);
        self.once.extend(once.map(|pod| pod.uid().clone()));
    }

    /// The notes before any pod runs.
    pub(crate) fn at_start(&self, pods: &[Pod]) -> Vec<String> {
        let endless: Vec<&str> = pods
            .iter()
            .filter(|pod| pod.restart_policy() == RestartPolicy::Always)
            .map(Pod::name)
            .collect();
        match endless.as_slice() {
            [] => Vec::new(),
            [one] => vec![format!("pod {one} has restartPolicy Always and runs {}", self.until)],
            [first, ..] => {
                let count = endless.len();
                vec![format!(
                    "{count} pods (the first is {first}) have restartPolicy Always and run {}",
                    self.until
                )]
            }
        }
    }

    /// New notes: one for each container and reason.
    pub(crate) fn on_reports(&mut self, reports: &Reports) -> Vec<String> {
        let mut lines = Vec::new();
        for pod in reports.values().filter(|pod| !pod.finished) {
            for container in &pod.containers {
                let waits = container.state == ContainerPhase::Waiting
                    && is_failure_reason(&container.reason);
                // A failed pull is reported once, not again when the next pull backs off.
                let reason = if container.reason == "ImagePullBackOff" {
                    "ErrImagePull"
                } else {
                    &container.reason
                };
                let key = (pod.uid.clone(), container.name.clone(), reason.to_owned());
                if waits && self.printed.insert(key) {
                    lines.push(self.failure_line(pod, container));
                }
            }
        }
        lines
    }

    fn failure_line(&self, pod: &PodReport, container: &ContainerReport) -> String {
        let (name, reason) = (&container.name, &container.reason);
        let message = without_call(container.message.trim()).replace('\n', " ");
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        // A container that could not be created is retried under every restart policy. With policy Never, a container that was
        // created but could not be started, or whose hook failed, is not retried (kubelet 1.36, computePodActions).
        let next = if container.refused {
            "; further attempts would fail too, so the pod is not retried".to_owned()
        } else if matches!(reason.as_str(), "RunContainerError" | "PostStartHookError")
            && self.once.contains(&pod.uid)
        {
            String::new()
        } else {
            format!("; as in Kubernetes, it is retried {}", self.until)
        };
        format!("pod {}/{}, container {name}: {reason}{message}{next}", pod.namespace, pod.name)
    }
}

#[cfg(test)]
#[path = "notes/tests.rs"]
mod tests;
