//! ◆ The last status of a pod: a container whose end is unknown counts as failed.
//!
//! | container | known state | resulting state |
//! |---|---|---|
//! | app | it ended | unchanged |
//! | app | anything else, and the pod was initialized | ContainerStatusUnknown, 137 |
//! | app | anything else, and the pod was not initialized | unchanged |
//! | init | it ended | unchanged |
//! | init | anything else; it is the first, or it or a later one has started | ContainerStatusUnknown, 137 |
//! | init | neither it nor a later one has started | unchanged |
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go TerminatePod.

use api::pod::{Pod, is_sidecar};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus,
};

use crate::reporting::status::containers::lost;

/// The status of a pod of which nothing runs any more and nothing will be started. A static pod keeps its phase.
pub(crate) fn last_status(pod: &Pod, mut status: PodStatus) -> PodStatus {
    if was_initialized(pod) {
        status.container_statuses.iter_mut().flatten().for_each(end);
    }
    let inits = status.init_container_statuses.as_deref().unwrap_or_default();
    let begun = inits.iter().rposition(has_begun).unwrap_or_default();
    status.init_container_statuses.iter_mut().flatten().take(begun + 1).for_each(end);
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if !is_over && !pod.is_static() {
        status.phase = Some("Failed".to_owned());
    }
    status
}

fn end(status: &mut ContainerStatus) {
    if exit(status.state.as_ref()).is_none() {
        status.state =
            Some(ContainerState { terminated: Some(lost()), ..ContainerState::default() });
    }
}

/// Whether an app container may have run, according to the API server's copy of the pod alone.
fn was_initialized(pod: &Pod) -> bool {
    if pod.init_containers().is_empty() {
        return true;
    }
    let Some(known) = pod.api().status.as_ref() else {
        return false;
    };
    if known.container_statuses.iter().flatten().any(has_begun) {
        return true;
    }
    let inits = known.init_container_statuses.as_deref().unwrap_or_default();
    let Some(last) = inits.last() else {
        return false;
    };
    let container = pod.init_containers().iter().find(|init| init.name == last.name);
    let Some(container) = container else {
        return false;
    };
    if is_sidecar(container) {
        let runs = last.state.as_ref().is_some_and(|state| state.running.is_some());
        return runs && last.started == Some(true);
    }
    [&last.last_state, &last.state]
        .into_iter()
        .filter_map(|state| exit(state.as_ref()))
        .any(|exit| exit.exit_code == 0)
}

fn exit(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state?.terminated.as_ref()
}

/// Whether an attempt has been started.
fn has_begun(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    !waits || exit(status.last_state.as_ref()).is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    fn pod(spec: Value, known: Value, source: &str) -> Pod {
        let annotations = json!({"kubernetes.io/config.source": source});
        fixtures::pod(
            json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec, "status": known}),
        )
    }

    /// Statuses of containers, each as `name:state`: `w` waiting, `r` running, an exit code, or `wN`: waiting after exit code N.
    fn statuses(text: &str) -> Value {
        let one = |text: &str| {
            let (name, state) = text.split_once(':').unwrap();
            let exit =
                |code: &str| json!({"terminated": {"exitCode": code.parse::<i32>().unwrap()}});
            let (state, last) = match state {
                "w" => (json!({"waiting": {}}), json!({})),
                "r" => (json!({"running": {}}), json!({})),
                state => match state.strip_prefix('w') {
                    Some(code) => (json!({"waiting": {}}), exit(code)),
                    None => (exit(state), json!({})),
                },
            };
            json!({"name": name, "state": state, "lastState": last, "started": true, "ready": false,
                "restartCount": 0, "image": "i", "imageID": ""})
        };
        text.split_whitespace().map(one).collect()
    }

    fn status(phase: &str, inits: &str, apps: &str) -> Value {
        json!({"phase": phase, "initContainerStatuses": statuses(inits), "containerStatuses": statuses(apps)})
    }

    /// Each container's name with its exit code, or `-`.
    fn shown(list: Option<&Vec<ContainerStatus>>) -> String {
        let one = |status: &ContainerStatus| {
            let code = exit(status.state.as_ref()).map(|exit| exit.exit_code.to_string());
            format!("{}:{}", status.name, code.unwrap_or("-".to_owned()))
        };
        let shown: Vec<String> = list.into_iter().flatten().map(one).collect();
        shown.join(" ")
    }

    #[rstest]
    #[case::no_init_containers("", "", "", "a:w b:r c:3", "a:137 b:137 c:3", "")]
    #[case::nothing_known("i:job", "", "i:0", "a:w", "a:-", "i:0")]
    #[case::app_had_run("i:job", "a:r", "i:0", "a:w", "a:137", "i:0")]
    #[case::app_had_ended("i:job", "a:w1", "i:0", "a:w", "a:137", "i:0")]
    #[case::init_had_ended("i:job", "/i:0", "i:0", "a:w", "a:137", "i:0")]
    #[case::init_had_failed("i:job", "/i:1", "i:1", "a:w", "a:-", "i:1")]
    #[case::init_had_ended_before("i:job", "/i:w0", "i:w0", "a:w", "a:137", "i:137")]
    #[case::sidecar_had_started("s:side", "/s:r", "s:r", "a:w", "a:137", "s:137")]
    #[case::sidecar_waited("s:side", "/s:w", "s:w", "a:w", "a:-", "s:137")]
    #[case::first_init_counts("i:job j:job", "", "i:w j:w", "a:w", "a:-", "i:137 j:-")]
    #[case::inits_up_to_the_last_begun(
        "i:job j:job k:job",
        "",
        "i:w j:r k:w",
        "a:w",
        "a:-",
        "i:137 j:137 k:-"
    )]
    fn container_without_an_end_counts_as_failed(
        #[case] spec_inits: &str,
        #[case] known: &str,
        #[case] inits: &str,
        #[case] apps: &str,
        #[case] apps_after: &str,
        #[case] inits_after: &str,
    ) {
        let init = |text: &str| {
            let (name, kind) = text.split_once(':').unwrap();
            let policy = (kind == "side").then_some("Always");
            json!({"name": name, "restartPolicy": policy})
        };
        let init: Vec<Value> = spec_inits.split_whitespace().map(init).collect();
        let spec = json!({"containers": [], "initContainers": init});
        let (known_apps, known_inits) = known.split_once('/').unwrap_or((known, ""));
        let pod = pod(spec, status("Pending", known_inits, known_apps), "api");
        let before = serde_json::from_value(status("Pending", inits, apps)).unwrap();
        let last = last_status(&pod, before);
        assert_eq!(shown(last.container_statuses.as_ref()), apps_after);
        assert_eq!(shown(last.init_container_statuses.as_ref()), inits_after);
        for status in last.container_statuses.iter().flatten() {
            if let Some(exit) = exit(status.state.as_ref()).filter(|exit| exit.exit_code == 137) {
                assert_eq!(exit.reason.as_deref(), Some("ContainerStatusUnknown"));
                let message = "The container could not be located when the pod was terminated";
                assert_eq!(exit.message.as_deref(), Some(message));
            }
        }
    }

    #[rstest]
    #[case("api", "Running", "Failed")]
    #[case("api", "Pending", "Failed")]
    #[case("api", "Succeeded", "Succeeded")]
    #[case("file", "Running", "Running")]
    #[case("file", "Pending", "Pending")]
    fn phase_becomes_terminal_unless_the_pod_is_static(
        #[case] source: &str,
        #[case] phase: &str,
        #[case] expected: &str,
    ) {
        let pod = pod(json!({"containers": []}), json!({}), source);
        let before = serde_json::from_value(status(phase, "", "")).unwrap();
        assert_eq!(last_status(&pod, before).phase.as_deref(), Some(expected));
    }
}
