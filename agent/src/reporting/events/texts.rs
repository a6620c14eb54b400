//! ◆ The kubelet's events as data: type, reason and message of each action on a pod or container.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/events/event.go and the places that record them.

use std::collections::BTreeMap;

use api::pod::{ContainerKind, Pod};

use super::{EventObject, EventObjectKind, EventType, resize};
use crate::pod_spec::admission::Rejection;
use crate::reporting::status::eviction::Eviction;

/// An event of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResizeEvent {
    /// It is granted.
    Started,
    /// It was carried out.
    Completed,
    /// A step failed, with this error.
    Error(String),
    /// It may be granted later.
    Deferred(Rejection),
    /// It can never be granted, for this reason.
    Infeasible(String),
}

impl ResizeEvent {
    fn text(&self, pod: &Pod, generation: i64) -> (EventType, String, String) {
        use EventType::{Normal, Warning};
        let (kind, reason, what, error) = match self {
            Self::Started => (Normal, "ResizeStarted", "started", ""),
            Self::Completed => (Normal, "ResizeCompleted", "completed", ""),
            Self::Error(error) => (Warning, "ResizeError", "error", error.as_str()),
            Self::Deferred(why) => {
                (Warning, "ResizeDeferred", why.reason.as_str(), why.message.as_str())
            }
            Self::Infeasible(why) => (Warning, "ResizeInfeasible", "Infeasible", why.as_str()),
        };
        let message = resize::message(&format!("Pod resize {what}"), pod, generation, error);
        (kind, reason.to_owned(), message)
    }
}

/// An event about a pod, or about one of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventReason {
    /// The container was created.
    Created,
    /// The container was started.
    Started,
    /// The container was not created or not started, for this error.
    Failed(String),
    /// The container is being stopped; the message is the cause, and empty if the pod ends.
    Killing(String),
    /// The container waits for its crash back-off.
    BackOff,
    /// The postStart hook failed.
    FailedPostStartHook,
    /// The preStop hook failed.
    FailedPreStopHook,
    /// This host answered a hook's HTTPS request in HTTP, and the request was repeated in HTTP.
    HookFellBackToHttp(String),
    /// The sandbox is replaced.
    SandboxChanged,
    /// The sandbox was not created, for this error.
    FailedCreateSandbox(String),
    /// The devices of the pod's ResourceClaims were not prepared, for this error.
    FailedPrepareClaims(String),
    /// The status of the new sandbox is unknown, for this error.
    FailedSandboxStatus(String),
    /// The pod was not stopped, for this error.
    FailedKillPod(String),
    /// An evicted pod did not end within its time limit.
    ExceededGracePeriod,
    /// The pod cannot be inspected.
    FailedSync(String),
    /// A volume of the pod could not be prepared or updated, or none was mounted in time, with this message.
    FailedMount(String),
    /// A block device could not be mapped for the pod, with this message.
    FailedMapVolume(String),
    /// Pull secrets of the pod with these names do not exist.
    MissingPullSecrets(Vec<String>),
    /// The pod was active for longer than `spec.activeDeadlineSeconds`.
    DeadlineExceeded,
    /// The runtime's network is not ready, for this reason.
    NetworkNotReady(String),
    /// The agent evicts the pod.
    Evicted(Eviction),
    /// Another pod of the same source has its name.
    FailedValidation,
    /// The node rejects the pod.
    Rejected(Rejection),
    /// A resize to the pod's resources, with its generation.
    Resize(ResizeEvent, i64),
}

impl EventReason {
    /// The annotations of the event.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        if let Self::Evicted(eviction) = self {
            eviction.annotations.clone()
        } else {
            BTreeMap::new()
        }
    }

    /// Type, reason and message.
    pub(crate) fn text(&self, pod: &Pod, container: Option<&str>) -> (EventType, String, String) {
        use EventType::{Normal, Warning};
        let name = container.unwrap_or_default();
        let (kind, reason, message) = match self {
            Self::Created => (Normal, "Created", "Container created".to_owned()),
            Self::Started => (Normal, "Started", "Container started".to_owned()),
            Self::Failed(error) => (Warning, "Failed", format!("Error: {error}")),
            Self::Killing(cause) if cause.is_empty() => {
                (Normal, "Killing", format!("Stopping container {name}"))
            }
            Self::Killing(cause) => (Normal, "Killing", cause.clone()),
            Self::BackOff => (
                Warning,
                "BackOff",
                format!("Back-off restarting failed container {name} in pod {}", pod.long_name()),
            ),
            Self::FailedPostStartHook => {
                (Warning, "FailedPostStartHook", "PostStartHook failed".to_owned())
            }
            Self::FailedPreStopHook => {
                (Warning, "FailedPreStopHook", "PreStopHook failed".to_owned())
            }
            Self::HookFellBackToHttp(host) => (
                Warning,
                "LifecycleHTTPFallback",
                format!(
                    "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                ),
            ),
            Self::SandboxChanged => (
                Normal,
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.".to_owned(),
            ),
            Self::FailedCreateSandbox(error) => (
                Warning,
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {error}"),
            ),
            Self::FailedPrepareClaims(error) => (
                Warning,
                "FailedPrepareDynamicResources",
                format!("Failed to prepare dynamic resources: {error}"),
            ),
            Self::FailedSandboxStatus(error) => (
                Warning,
                "FailedPodSandBoxStatus",
                format!("Unable to get pod sandbox status: {error}"),
            ),
            Self::ExceededGracePeriod => (
                Warning,
                "ExceededGracePeriod",
                "Container runtime did not kill the pod within specified grace period.".to_owned(),
            ),
            Self::FailedSync(error) => {
                (Warning, "FailedSync", format!("error determining status: {error}"))
            }
            Self::FailedKillPod(error) => {
                (Warning, "FailedKillPod", format!("error killing pod: {error}"))
            }
            Self::FailedMount(error) => (Warning, "FailedMount", error.clone()),
            Self::FailedMapVolume(error) => (Warning, "FailedMapVolume", error.clone()),
            Self::MissingPullSecrets(names) => (
                Warning,
                "FailedToRetrieveImagePullSecret",
                format!(
                    "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                    names.join(", ")
                ),
            ),
            Self::DeadlineExceeded => (
                Normal,
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline".to_owned(),
            ),
            Self::Evicted(eviction) => (Warning, eviction.reason, eviction.message.to_string()),
            Self::NetworkNotReady(why) => {
                (Warning, "NetworkNotReady", format!("network is not ready: {why}"))
            }
            Self::FailedValidation => (
                Warning,
                "FailedValidation",
                format!(
                    "Error validating pod {} from {} due to duplicate pod name {:?}, ignoring",
                    pod.long_name(),
                    pod.source().unwrap_or("http"),
                    pod.name()
                ),
            ),
            Self::Rejected(rejection) => {
                let reason = rejection.reason.clone();
                return (Warning, reason, rejection.message.clone());
            }
            Self::Resize(what, generation) => return what.text(pod, *generation),
        };
        (kind, reason.to_owned(), message)
    }
}

/// The object of an event: the pod, or one of its containers.
pub(crate) fn object(pod: &Pod, container: Option<&str>) -> EventObject {
    let field_path = container
        .and_then(|name| Some((pod.container(name)?.0, name)))
        .map(|(kind, name)| {
            let list = match kind {
                ContainerKind::Init => "initContainers",
                ContainerKind::App => "containers",
                ContainerKind::Ephemeral => "ephemeralContainers",
            };
            format!("spec.{list}{{{name}}}")
        })
        .unwrap_or_default();
    EventObject {
        kind: EventObjectKind::Pod,
        uid: pod.uid().clone(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        field_path,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn pod() -> Pod {
        fixtures::pod(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}],
            "ephemeralContainers": [{"name": "e"}],
        }}))
    }

    #[test]
    fn field_path_names_list_and_container() {
        let path = |container| object(&pod(), container).field_path;
        assert_eq!(path(Some("i")), "spec.initContainers{i}");
        assert_eq!(path(Some("a")), "spec.containers{a}");
        assert_eq!(path(Some("e")), "spec.ephemeralContainers{e}");
        assert_eq!(path(Some("gone")), "");
        assert_eq!(path(None), "");
    }

    #[test]
    fn event_messages_match_the_kubelet() {
        let text = |reason: EventReason| reason.text(&pod(), Some("a")).2;
        assert_eq!(text(EventReason::Killing(String::new())), "Stopping container a");
        assert_eq!(text(EventReason::Killing("killing".to_owned())), "killing");
        assert_eq!(
            text(EventReason::BackOff),
            "Back-off restarting failed container a in pod p_n(u)"
        );
        assert_eq!(text(EventReason::Failed("ErrImagePull".to_owned())), "Error: ErrImagePull");
    }
}
