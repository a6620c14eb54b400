//! ◆ Whether pods have started, so that the command of a run in the background can end. Pure.

use agent::pod::Pod;
use agent::{ContainerPhase, PodReport};

use super::reports::{Reports, is_failure_reason};

/// Whether all of these pods have started.
pub(super) fn all_have_started(pods: &[Pod], reports: &Reports) -> bool {
    let mut reports = pods.iter().map(|pod| reports.get(pod.uid()));
    reports.all(|report| report.is_some_and(has_started))
}

/// A pod has started when one of its containers has, init containers too: they may wait for something that the user does next.
/// One that is tried again after a failure counts: what is wrong was told.
fn has_started(pod: &PodReport) -> bool {
    let has_left_pending = pod
        .status
        .phase
        .as_deref()
        .is_some_and(|phase| phase != "Pending");
    let mut containers = pod.containers.iter();
    pod.finished
        || has_left_pending
        || containers.any(|container| {
            container.state != ContainerPhase::Waiting || is_failure_reason(&container.reason)
        })
}

#[cfg(test)]
mod tests {
    use agent::{ContainerKind, ContainerReport};
    use rstest::rstest;

    use super::super::view::tests::{container, pod};
    use super::*;

    fn init(state: ContainerPhase, reason: &str) -> ContainerReport {
        container("init", ContainerKind::Init, state, reason)
    }

    #[rstest]
    #[case::new("Pending", None, false)]
    #[case::creating("Pending", Some((ContainerPhase::Waiting, "ContainerCreating")), false)]
    #[case::initializing("Pending", Some((ContainerPhase::Waiting, "PodInitializing")), false)]
    #[case::initialising("Pending", Some((ContainerPhase::Running, "")), true)]
    #[case::initialised("Pending", Some((ContainerPhase::Terminated, "Completed")), true)]
    #[case::no_image("Pending", Some((ContainerPhase::Waiting, "ErrImagePull")), true)]
    #[case::runs("Running", None, true)]
    #[case::failed("Failed", None, true)]
    fn pod_has_started(
        #[case] phase: &str,
        #[case] of_container: Option<(ContainerPhase, &str)>,
        #[case] expected: bool,
    ) {
        let mut report = pod("p", phase);
        report.finished = false;
        report.containers = of_container
            .map(|(state, reason)| init(state, reason))
            .into_iter()
            .collect();
        assert_eq!(has_started(&report), expected);
    }
}
