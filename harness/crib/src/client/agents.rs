//! The state of pods and containers from the agents of `crib run`, which the CRI lacks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use api::manifest::to_json;
use cri::v1;
use crib_base::columns::fields::{field, is_terminating, list, number, text};
use crib_base::columns::pod_summary::Restarts;
use crib_base::report::{chain, print_stderr};
use crib_base::run_socket::Request;
use serde_json::Value;

use super::Cri;

/// The pods of runs as in an API server, by the runtime's socket.
#[derive(Debug, Default)]
pub(crate) struct Agents(HashMap<PathBuf, RunPods>);

/// The pods of a run by uid: pods of different runs may have the same uid.
type RunPods = HashMap<String, Value>;

impl Agents {
    /// Queries the runs of these runtimes. Skips a run that does not answer, with a warning, because the runtime's own information
    /// can still be shown.
    pub(crate) fn ask<'a>(runtimes: impl IntoIterator<Item = &'a Cri>) -> Self {
        let mut agents = Self::default();
        for cri in runtimes {
            match cri.call_run(Request::Pods) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let pods = answer.pods.iter().map(|answer| {
                        let uid = answer.pod.metadata.uid.clone().unwrap_or_default();
                        (uid, to_json(&answer.pod))
                    });
                    agents.0.insert(cri.endpoint.path().to_owned(), pods.collect());
                }
                Err(error) => print_stderr(&format!("warning: {}", chain(&error))),
            }
        }
        agents
    }

    /// Whether no run answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the run of this runtime answered.
    pub(crate) fn has(&self, cri: &Cri) -> bool {
        self.0.contains_key(cri.endpoint.path())
    }

    /// The pod with this uid in the runtime with this socket, if its agent reported it.
    pub(crate) fn pod(&self, runtime: &Path, uid: &str) -> Option<&Value> {
        self.0.get(runtime)?.get(uid)
    }
}

/// The status of a container in a pod, if the container is the latest attempt.
fn status_of<'p>(pod: &'p Value, container: &v1::Container) -> Option<&'p Value> {
    let name = container.metadata.as_ref().map_or("", |metadata| &metadata.name);
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().flat_map(|of| list(pod, &format!("/status/{of}")));
    let status = all.find(|status| text(status, "/name") == name)?;
    let ids = ["/containerID", "/lastState/terminated/containerID"];
    let is_it = |at: &&str| text(status, at).rsplit('/').next() == Some(&container.id);
    ids.iter().any(is_it).then_some(status)
}

/// Whether the agent will restart a container that has exited.
pub(crate) fn is_restarted(pod: &Value, container: &v1::Container) -> bool {
    container.state() != v1::ContainerState::ContainerRunning
        && status_of(pod, container).is_some_and(|status| field(status, "/state/waiting").is_some())
}

/// The state of a container that the CRI lacks: that its pod is terminating, or why it waits for a restart.
pub(crate) fn state(pod: &Value, container: &v1::Container) -> Option<String> {
    if container.state() == v1::ContainerState::ContainerRunning {
        return is_terminating(pod).then(|| "Terminating".to_owned());
    }
    let reason = text(status_of(pod, container)?, "/state/waiting/reason");
    (!reason.is_empty()).then(|| reason.to_owned())
}

/// The restarts of a container before this attempt.
pub(crate) fn restarts(pod: &Value, container: &v1::Container) -> Option<Restarts> {
    let status = status_of(pod, container)?;
    let mut restarts = Restarts::default();
    restarts.add(status);
    // The status of an ended attempt may already include the restart count of the next attempt.
    let attempt = container.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    (number(status, "/restartCount") >= i64::from(attempt)).then_some(restarts)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn container(id: &str, state: v1::ContainerState) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt: 2 }),
            state: state.into(),
            ..v1::Container::default()
        }
    }

    const RUNNING: v1::ContainerState = v1::ContainerState::ContainerRunning;
    const EXITED: v1::ContainerState = v1::ContainerState::ContainerExited;

    #[rstest]
    #[case::runs("b", RUNNING, json!({"running": {}}), None, None)]
    #[case::ends("b", RUNNING, json!({"running": {}}), Some("2026-01-02T03:04:05Z"), Some("Terminating"))]
    #[case::waits("b", EXITED, json!({"waiting": {"reason": "CrashLoopBackOff"}}), None, Some("CrashLoopBackOff"))]
    #[case::earlier("a", EXITED, json!({"waiting": {"reason": "CrashLoopBackOff"}}), None, None)]
    #[case::ended("b", EXITED, json!({"terminated": {"exitCode": 1}}), None, None)]
    fn state_is_what_the_cri_does_not_tell(
        #[case] id: &str,
        #[case] of: v1::ContainerState,
        #[case] state_now: Value,
        #[case] deleted: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let pod = json!({
            "metadata": {"deletionTimestamp": deleted},
            "status": {"containerStatuses": [
                {"name": "side", "containerID": "crib://c", "state": {}},
                {"name": "main", "containerID": "crib://b", "restartCount": 2, "state": state_now},
            ]},
        });
        let container = container(id, of);
        assert_eq!(state(&pod, &container).as_deref(), expected);
        let is_waiting = expected == Some("CrashLoopBackOff");
        assert_eq!(is_restarted(&pod, &container), is_waiting);
        assert_eq!(restarts(&pod, &container).is_some(), id == "b");
    }
}
