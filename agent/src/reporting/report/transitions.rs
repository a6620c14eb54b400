//! ◆ Computes the transitions between two reports of a pod.

use std::collections::BTreeMap;

use api::pod::ContainerKind;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, PodStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    ContainerPhase, ContainerReport, PodReport, PublishedStatus, ReadinessChange, Transition,
};
use crate::reporting::causes::Causes;
use crate::reporting::measures::{Counted, kind_name};

/// The stage of a pod's lifecycle, in addition to its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The pod should run.
    Active,
    /// The pod is being terminated.
    Terminating,
    /// Nothing of the pod runs any more.
    Terminated,
    /// Nothing of the pod is left.
    Removed,
}

/// Formats a pod's state: its phase while it is active and once it is terminal.
fn pod_state(report: &PodReport, stage: Stage) -> String {
    let phase = report.status.phase.as_deref().unwrap_or("Pending");
    match stage {
        Stage::Removed => "Removed".to_owned(),
        Stage::Active => phase.to_owned(),
        Stage::Terminating | Stage::Terminated if matches!(phase, "Succeeded" | "Failed") => {
            phase.to_owned()
        }
        Stage::Terminating => "Terminating".to_owned(),
        Stage::Terminated => "Ended".to_owned(),
    }
}

/// Formats a container's state with its reason: `Waiting(CrashLoopBackOff)`.
fn container_state(container: &ContainerReport) -> String {
    let state = container.state.as_str();
    if container.reason.is_empty() {
        state.to_owned()
    } else {
        format!("{state}({})", container.reason)
    }
}

/// Returns the changes from `old` to `new`, containers first, then the pod.
#[must_use]
pub(crate) fn transitions(
    old: Option<(&PodReport, Stage)>,
    new: (&PodReport, Stage),
    at: Timestamp,
    causes: &Causes,
) -> Vec<Transition> {
    let (report, stage) = new;
    let mut found = Vec::new();
    let mut push =
        |container: Option<String>, from: String, to: String, cause: String, exit_code| {
            found.push(Transition {
                at,
                pod: format!("{}/{}", report.namespace, report.name),
                uid: report.uid.clone(),
                container,
                from,
                to,
                cause,
                exit_code,
            });
        };
    let (mut changed, mut ended) = (Vec::new(), Vec::new());
    for container in &report.containers {
        let before = old.and_then(|(old, _)| {
            old.containers.iter().find(|before| before.name == container.name)
        });
        let (from, to) =
            (before.map(container_state).unwrap_or_default(), container_state(container));
        // A different id reveals that a run started and exited, or was replaced, between two reports.
        let another_run = before.is_some_and(|before| {
            before.container_id != container.container_id
                && match container.state {
                    ContainerPhase::Terminated => true,
                    ContainerPhase::Running => !before.container_id.is_empty(),
                    ContainerPhase::Waiting => false,
                }
        });
        if from != to || another_run {
            let has_ended = container.state == ContainerPhase::Terminated;
            let cause = causes.of_container(&container.name, container.state);
            changed.push(format!("{} {cause}", container.name));
            if has_ended {
                ended.push(format!("{} {cause}", container.name));
            }
            push(
                Some(container.name.clone()),
                from,
                to,
                cause,
                container.exit_code.filter(|_| has_ended),
            );
        }
    }
    let (from, to) = (
        old.map(|(old, stage)| pod_state(old, stage)).unwrap_or_default(),
        pod_state(report, stage),
    );
    if from != to {
        let is_end = !ended.is_empty() && matches!(to.as_str(), "Succeeded" | "Failed");
        let causes = if is_end { &causes.of_end() } else { causes };
        // A pod follows its containers, unless the cause is about the pod as a whole.
        let cause = if causes.is_of_pod() || changed.is_empty() {
            causes.of_pod()
        } else if is_end {
            ended.join(", ")
        } else {
            changed.join(", ")
        };
        push(None, from, to, cause, None);
    }
    found
}

/// Returns the containers whose readiness changed from `old` to `new`. A new container was not ready before.
#[must_use]
pub(crate) fn readiness(
    old: Option<&PodReport>,
    new: &PodReport,
    at: Timestamp,
) -> Vec<ReadinessChange> {
    let was_ready = |name: &str| {
        old.and_then(|old| old.containers.iter().find(|before| before.name == name))
            .is_some_and(|before| before.ready)
    };
    new.containers
        .iter()
        .filter(|container| container.ready != was_ready(&container.name))
        .map(|container| ReadinessChange {
            at,
            pod: format!("{}/{}", new.namespace, new.name),
            uid: new.uid.clone(),
            container: container.name.clone(),
            ready: container.ready,
        })
        .collect()
}

/// Returns the status that was published between `old` and `new`, if any.
#[must_use]
pub(crate) fn published_status(
    old: Option<&PodReport>,
    new: &PodReport,
    at: Timestamp,
) -> Option<PublishedStatus> {
    let is_new = old.is_none_or(|old| old.published != new.published);
    // There is none before the first status, and after it is removed.
    (is_new && new.published.phase.is_some()).then(|| PublishedStatus {
        at,
        uid: new.uid.clone(),
        namespace: new.namespace.clone(),
        name: new.name.clone(),
        status: new.published.clone(),
    })
}

/// The containers that ended between `old` and `new`, each once.
#[must_use]
pub(crate) fn terminations(old: Option<&PodStatus>, new: &PodStatus) -> Vec<Counted> {
    let before: Vec<_> = old.into_iter().flat_map(ended_containers).collect();
    let now = ended_containers(new);
    let is_new = |(kind, name): (ContainerKind, &str)| {
        !before.iter().any(|(old, same, _)| (*old, *same) == (kind, name))
    };
    now.filter(|(kind, name, _)| is_new((*kind, name)))
        .map(|(kind, _, state)| {
            let reason = state.reason.clone().unwrap_or_default();
            Counted::Terminated(kind_name(kind), state.exit_code, reason)
        })
        .collect()
}

/// The ended containers: kind, name, and termination.
fn ended_containers(
    status: &PodStatus,
) -> impl Iterator<Item = (ContainerKind, &str, &ContainerStateTerminated)> {
    let lists = [
        (ContainerKind::Init, &status.init_container_statuses),
        (ContainerKind::App, &status.container_statuses),
        (ContainerKind::Ephemeral, &status.ephemeral_container_statuses),
    ];
    lists.into_iter().flat_map(|(kind, list)| {
        list.iter().flatten().filter_map(move |container| {
            let ended = container.state.as_ref()?.terminated.as_ref()?;
            Some((kind, container.name.as_str(), ended))
        })
    })
}

/// Whether the pod's resources on the node may have changed: it has finished, or its containers have other requests.
#[must_use]
pub(crate) fn changes_share(old: Option<&PodReport>, new: &PodReport) -> bool {
    old.is_none_or(|old| {
        old.finished != new.finished || !requests(&old.status).eq(requests(&new.status))
    })
}

/// The containers' requests in a status.
fn requests(status: &PodStatus) -> impl Iterator<Item = (&str, &BTreeMap<String, Quantity>)> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.filter_map(|of| Some((of.name.as_str(), of.resources.as_ref()?.requests.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    #[test]
    fn container_that_ends_is_counted_once() {
        let status = |state: Value| {
            let of = json!({"image": "", "imageID": "", "name": "a", "ready": false, "restartCount": 0, "state": state});
            Some(serde_json::from_value(json!([of])).unwrap_or_default())
        };
        let ended = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let pod = |init: Value, app: Value| PodStatus {
            init_container_statuses: status(init),
            container_statuses: status(app),
            ..PodStatus::default()
        };
        let terminated = |kind, code| Counted::Terminated(kind, code, "Error".to_owned());
        let first = pod(ended(0), json!({"running": {}}));
        assert_eq!(terminations(None, &first), [terminated("init_container", 0)]);
        let second = pod(ended(0), ended(3));
        assert_eq!(terminations(Some(&first), &second), [terminated("container", 3)]);
        assert_eq!(terminations(Some(&second), &pod(ended(0), ended(4))), []);
    }

    fn container(state: ContainerPhase, reason: &str, id: &str) -> ContainerReport {
        ContainerReport {
            reason: reason.to_owned(),
            exit_code: Some(3),
            container_id: id.to_owned(),
            ..fixtures::container_report("app", state)
        }
    }

    fn pod(phase: &str, containers: Vec<ContainerReport>) -> PodReport {
        let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
        PodReport { containers, ..fixtures::pod_report("p", status) }
    }

    fn describe(old: Option<(&PodReport, Stage)>, new: (&PodReport, Stage)) -> Vec<String> {
        let word = |t: &Transition| {
            let exit = t.exit_code.map(|code| format!(" {code}")).unwrap_or_default();
            format!("{}: {} -> {}{exit}", t.container.as_deref().unwrap_or("pod"), t.from, t.to)
        };
        transitions(old, new, Timestamp::UNIX_EPOCH, &Causes::default()).iter().map(word).collect()
    }

    #[test]
    fn readiness_changes_are_reported_once() {
        let with = |ready| {
            let container =
                ContainerReport { ready, ..container(ContainerPhase::Running, "", "c1") };
            pod("Running", vec![container])
        };
        let reported = |old: Option<&PodReport>, new: &PodReport| -> Vec<bool> {
            let changes = readiness(old, new, Timestamp::UNIX_EPOCH);
            changes.into_iter().map(|change| change.ready).collect()
        };
        assert_eq!(reported(None, &with(false)), Vec::<bool>::new());
        assert_eq!(reported(None, &with(true)), [true]);
        assert_eq!(reported(Some(&with(false)), &with(true)), [true]);
        assert_eq!(reported(Some(&with(true)), &with(true)), Vec::<bool>::new());
        assert_eq!(reported(Some(&with(true)), &with(false)), [false]);
    }

    #[test]
    fn transitions_follow_pod_lifecycle() {
        let waiting =
            pod("Pending", vec![container(ContainerPhase::Waiting, "ContainerCreating", "")]);
        let running = pod("Running", vec![container(ContainerPhase::Running, "", "c1")]);
        let ended = pod("Failed", vec![container(ContainerPhase::Terminated, "Error", "c1")]);
        assert_eq!(
            describe(None, (&waiting, Stage::Active)),
            ["app:  -> Waiting(ContainerCreating)", "pod:  -> Pending"]
        );
        assert_eq!(
            describe(Some((&waiting, Stage::Active)), (&running, Stage::Active)),
            ["app: Waiting(ContainerCreating) -> Running", "pod: Pending -> Running"]
        );
        assert_eq!(
            describe(Some((&running, Stage::Active)), (&running, Stage::Active)),
            Vec::<String>::new()
        );
        assert_eq!(
            describe(Some((&running, Stage::Active)), (&running, Stage::Terminating)),
            ["pod: Running -> Terminating"]
        );
        assert_eq!(
            describe(Some((&running, Stage::Terminating)), (&ended, Stage::Terminated)),
            ["app: Running -> Terminated(Error) 3", "pod: Terminating -> Failed"]
        );
        assert_eq!(
            describe(Some((&ended, Stage::Terminated)), (&ended, Stage::Removed)),
            ["pod: Failed -> Removed"]
        );
    }

    #[test]
    fn run_between_two_reports_is_not_lost() {
        let first = pod("Failed", vec![container(ContainerPhase::Terminated, "Error", "c1")]);
        let second = pod("Failed", vec![container(ContainerPhase::Terminated, "Error", "c2")]);
        assert_eq!(
            describe(Some((&first, Stage::Active)), (&second, Stage::Active)),
            ["app: Terminated(Error) -> Terminated(Error) 3"]
        );
    }

    #[test]
    fn restart_between_two_reports_is_not_lost() {
        let running = |id| pod("Running", vec![container(ContainerPhase::Running, "", id)]);
        let reported = |first: &PodReport, second: &PodReport| {
            describe(Some((first, Stage::Active)), (second, Stage::Active))
        };
        assert_eq!(reported(&running("c1"), &running("c2")), ["app: Running -> Running"]);
        // Its id was not known yet.
        assert_eq!(reported(&running(""), &running("c2")), Vec::<String>::new());
    }

    #[test]
    fn pod_transition_is_caused_by_containers_that_changed() {
        let running = pod("Running", vec![container(ContainerPhase::Running, "", "c1")]);
        let ended = pod("Failed", vec![container(ContainerPhase::Terminated, "Error", "c1")]);
        let causes = Causes::started("app", "for the first time")
            .and(Causes::started("other", "for the first time"));
        let (old, new) = ((&running, Stage::Active), (&ended, Stage::Active));
        let changes = transitions(Some(old), new, Timestamp::UNIX_EPOCH, &causes);
        let causes: Vec<&str> = changes.iter().map(|change| change.cause.as_str()).collect();
        assert_eq!(causes, ["exited", "app exited"]);
    }
}
