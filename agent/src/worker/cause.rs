//! ◆ Converts the reasons of a plan's actions to causes of changes.

use crate::decide::plan::{PodPlan, SandboxStep, When};
use crate::reporting::causes::Causes;

/// The causes of each of the plan's actions.
#[must_use]
pub(super) fn of_plan(plan: &PodPlan) -> Causes {
    let mut causes = Causes::default();
    match (&plan.kill_pod, &plan.sandbox) {
        (_, SandboxStep::Create { reason, .. }) => {
            causes.add(Causes::new_sandbox(reason));
        }
        (Some(reason), SandboxStep::Keep { .. } | SandboxStep::None { .. }) => {
            causes.add(Causes::pod(format!("stopped: {reason}")));
        }
        (None, SandboxStep::Keep { .. } | SandboxStep::None { .. }) => {}
    }
    for kill in &plan.kills {
        causes.add(Causes::stopped(&kill.name, &kill.message));
    }
    if !plan.resets.is_empty() {
        causes.add(Causes::pod("restarting all containers"));
    }
    if plan.resize.is_some() {
        causes.add(Causes::pod("its resources are resized"));
    }
    for start in plan.starts().filter(|start| start.when == When::Now) {
        causes.add(Causes::started(&start.name, &start.reason));
    }
    causes
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::decide::plan::Start;
    use crate::fixtures;

    #[test]
    fn cause_excludes_waiting_starts() {
        let start = |name: &str, when: When| Start { when, ..fixtures::start(name) };
        let wait = When::Wait {
            until: Timestamp::UNIX_EPOCH,
            delay: SignedDuration::ZERO,
            message: String::new(),
        };
        let plan = PodPlan {
            kill_pod: Some("the pod had none".to_owned()),
            sandbox: SandboxStep::Create {
                attempt: 0,
                replaces: None,
                reason: "the pod had none".to_owned(),
            },
            start_apps: vec![start("a", When::Now), start("b", wait)],
            ..PodPlan::default()
        };
        assert_eq!(
            of_plan(&plan),
            Causes::new_sandbox("the pod had none").and(Causes::started("a", "for the first time"))
        );
    }
}
