//! ◆ The effect of a failed pod on its Job: `podFailurePolicy`, and restarted containers. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/job/pod_failure_policy.go.

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyOnExitCodesRequirement};
use k8s_openapi::api::core::v1::ContainerStatus;

use super::super::owned::OwnedPod;
use super::count;

/// The effect of a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It counts towards `backoffLimit`.
    Counted,
    /// It is replaced and does not count.
    Ignored,
    /// Its index has failed.
    IndexFails,
    /// The Job has failed, with this message.
    JobFails(String),
}

/// The effect of a failed pod by the first matching rule.
pub(super) fn verdict(job: &JobSpec, pod: &OwnedPod) -> Verdict {
    let policy = job.pod_failure_policy.iter();
    let rules = policy.flat_map(|policy| &policy.rules).enumerate();
    for (index, rule) in rules {
        let name = || format!("{}/{}", pod.pod.namespace(), pod.pod.name());
        let what = if let Some(codes) = &rule.on_exit_codes {
            matching_container(pod, codes).map(|(container, code)| {
                format!("Container {container} for pod {} failed with exit code {code}", name())
            })
        } else {
            let patterns = rule.on_pod_conditions.iter().flatten();
            let conditions = pod.status.conditions.iter().flatten();
            let mut pairs = patterns.flat_map(|pattern| {
                let conditions = conditions.clone();
                conditions.map(move |condition| (pattern, condition))
            });
            let found = pairs.find(|(pattern, condition)| {
                // An API server sets True if a pattern has no status.
                let status = pattern.status.as_deref().unwrap_or("True");
                pattern.type_ == condition.type_ && status == condition.status
            });
            found.map(|(pattern, _)| format!("Pod {} has condition {}", name(), pattern.type_))
        };
        let Some(what) = what else { continue };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignored,
            "FailIndex" => Verdict::IndexFails,
            "FailJob" => {
                Verdict::JobFails(format!("{what} matching FailJob rule at index {index}"))
            }
            _ => Verdict::Counted,
        };
    }
    Verdict::Counted
}

/// The first container that ended with an exit code that matches the rule.
fn matching_container<'p>(
    pod: &'p OwnedPod,
    rule: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'p str, i32)> {
    let apps = pod.status.container_statuses.iter().flatten();
    let inits = pod.status.init_container_statuses.iter().flatten();
    apps.chain(inits)
        .filter(|status| {
            let wanted = rule.container_name.as_deref();
            wanted.is_none_or(|wanted| wanted == status.name)
        })
        .find_map(|status| {
            let code = exit_code(status).filter(|code| *code != 0)?;
            let is_listed = rule.values.contains(&code);
            let matches = match rule.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                _ => false,
            };
            matches.then_some((status.name.as_str(), code))
        })
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    let state = status.state.as_ref()?;
    Some(state.terminated.as_ref()?.exit_code)
}

/// Whether the containers of running pods were restarted more often than `backoffLimit` allows (`restartPolicy: OnFailure`).
pub(super) fn restarted_too_often(job: &JobSpec, pods: &[OwnedPod]) -> bool {
    let spec = job.template.spec.as_ref();
    if spec.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
        return false;
    }
    let restarts: i32 = pods
        .iter()
        .filter(|pod| pod.is_active())
        .flat_map(|pod| {
            let apps = pod.status.container_statuses.iter().flatten();
            apps.chain(pod.status.init_container_statuses.iter().flatten())
        })
        .map(|status| status.restart_count)
        .sum();
    match super::backoff_limit(job) {
        0 => restarts > 0,
        limit => count(restarts) >= limit,
    }
}
