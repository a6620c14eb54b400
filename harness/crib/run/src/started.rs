//! ◆ Whether pods have started or are ready, so that the command that started a background run can end. Pure.

use agent::{ContainerPhase, PodReport};
use api::pod::{Pod, PodUid};

use crate::reports::{Reports, is_failure_reason, is_refused};

/// Whether all of these pods have started.
pub(super) fn all_have_started(pods: &[Pod], reports: &Reports) -> bool {
    let mut reports = pods.iter().map(|pod| reports.get(pod.uid()));
    reports.all(|report| report.is_some_and(has_started))
}

/// Whether all of these pods are ready: `None` while a pod may still become ready, otherwise whether all are ready. A failed pod of
/// a controller (`is_owned`) does not count, because the controller replaces it.
pub(super) fn all_are_ready(
    pods: &[Pod],
    reports: &Reports,
    is_owned: impl Fn(&PodUid) -> bool,
) -> Option<bool> {
    let mut all_ready = !any_cannot_run(reports);
    for pod in pods {
        let report = reports.get(pod.uid())?;
        if is_ready(report) {
            continue;
        }
        if !report.finished && !is_refused(report) {
            return None;
        }
        all_ready &= is_owned(pod.uid());
    }
    Some(all_ready)
}

/// Ready, or Succeeded.
fn is_ready(pod: &PodReport) -> bool {
    let conditions = pod.status.conditions.as_deref().unwrap_or_default();
    let is_true = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
    is_true || pod.status.phase.as_deref() == Some("Succeeded")
}

/// Whether a pod can never run; it may be removed already. A pod that ran and failed does not count, because the result would
/// depend on the time of the call.
pub(super) fn any_cannot_run(reports: &Reports) -> bool {
    let mut all = reports.values();
    all.any(|report| is_refused(report) || is_rejected(report))
}

/// Failed before any container ran, for example because the node has insufficient resources.
fn is_rejected(pod: &PodReport) -> bool {
    let has_failed = pod.status.phase.as_deref() == Some("Failed");
    has_failed && pod.containers.iter().all(|it| it.exit_code.is_none())
}

/// A pod has started when all of its init containers have finished and all other containers have started: it is no longer Pending,
/// and commands can be run in it. A pod that retries a failed step counts as started, because the failure was reported.
fn has_started(pod: &PodReport) -> bool {
    let has_left_pending = pod.status.phase.as_deref().is_some_and(|phase| phase != "Pending");
    let mut containers = pod.containers.iter();
    pod.finished
        || has_left_pending
        || containers.any(|container| {
            container.state == ContainerPhase::Waiting && is_failure_reason(&container.reason)
        })
}

#[cfg(test)]
mod tests {
    use agent::ContainerReport;
    use api::pod::ContainerKind;
    use k8s_openapi::api::core::v1::{Pod as ApiPod, PodCondition};
    use rstest::rstest;

    use super::*;
    use crate::output::view::tests::{container, pod, reports};

    fn init(state: ContainerPhase, reason: &str) -> ContainerReport {
        container("init", ContainerKind::Init, state, reason)
    }

    #[rstest]
    #[case::waits("Pending", ContainerPhase::Waiting, None, false, false)]
    #[case::refused("Pending", ContainerPhase::Waiting, None, true, true)]
    #[case::rejected("Failed", ContainerPhase::Waiting, None, false, true)]
    #[case::ran("Failed", ContainerPhase::Terminated, Some(3), false, false)]
    fn pod_cannot_run(
        #[case] phase: &str,
        #[case] state: ContainerPhase,
        #[case] exit_code: Option<i32>,
        #[case] refused: bool,
        #[case] expected: bool,
    ) {
        let mut report = pod("p", phase);
        report.containers = vec![ContainerReport { exit_code, refused, ..init(state, "") }];
        assert_eq!(any_cannot_run(&reports(vec![report])), expected);
    }

    #[rstest]
    #[case::none(&[], Some(true))]
    #[case::new(&["new"], None)]
    #[case::runs(&["Ready", "Running"], None)]
    #[case::ready(&["Ready", "Succeeded"], Some(true))]
    #[case::failed(&["Ready", "Failed"], Some(false))]
    #[case::failed_early(&["Running", "Failed"], None)]
    #[case::replaced(&["Ready", "owned"], Some(true))]
    fn pods_are_ready(#[case] pods: &[&str], #[case] expected: Option<bool>) {
        let mut all = Vec::new();
        let mut known = Vec::new();
        for (index, state) in pods.iter().enumerate() {
            let (phase, owned) = match *state {
                "Ready" => ("Running", false),
                "owned" => ("Failed", true),
                phase => (phase, false),
            };
            let mut report = pod(&format!("p{index}"), phase);
            report.uid = PodUid::new(format!("{}{index}", if owned { "owned" } else { "u" }));
            report.finished = matches!(phase, "Failed" | "Succeeded");
            let mut status = (*report.status).clone();
            status.conditions = Some(vec![PodCondition {
                type_: "Ready".to_owned(),
                status: if *state == "Ready" { "True" } else { "False" }.to_owned(),
                ..PodCondition::default()
            }]);
            report.status = status.into();
            report.containers =
                vec![ContainerReport { exit_code: Some(0), ..init(ContainerPhase::Running, "") }];
            let mut api = ApiPod::default();
            api.metadata.uid = Some(report.uid.as_str().to_owned());
            all.push(Pod::new(api));
            if *state != "new" {
                known.push(report);
            }
        }
        let is_owned = |uid: &PodUid| uid.as_str().starts_with("owned");
        assert_eq!(all_are_ready(&all, &reports(known), is_owned), expected);
    }

    #[rstest]
    #[case::new("Pending", None, false)]
    #[case::creating("Pending", Some((ContainerPhase::Waiting, "ContainerCreating")), false)]
    #[case::initializing("Pending", Some((ContainerPhase::Waiting, "PodInitializing")), false)]
    #[case::initialising("Pending", Some((ContainerPhase::Running, "")), false)]
    #[case::initialised("Pending", Some((ContainerPhase::Terminated, "Completed")), false)]
    #[case::initialised_with_error("Pending", Some((ContainerPhase::Waiting, "CrashLoopBackOff")), true)]
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
        report.containers =
            of_container.map(|(state, reason)| init(state, reason)).into_iter().collect();
        assert_eq!(has_started(&report), expected);
    }
}
