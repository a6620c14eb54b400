//! ◆ Formats a plan's reasons as one phrase, the cause in the log lines of its effects.

use crate::plan::{PodPlan, SandboxStep, When};

/// The reasons of the actions in a plan.
#[must_use]
pub(super) fn of_plan(plan: &PodPlan) -> String {
    let mut parts = Vec::new();
    match (&plan.kill_pod, &plan.sandbox) {
        (_, SandboxStep::Create { reason, .. }) => parts.push(format!("new sandbox: {reason}")),
        (Some(reason), SandboxStep::Keep { .. } | SandboxStep::None { .. }) => {
            parts.push(format!("stopped: {reason}"));
        }
        (None, SandboxStep::Keep { .. } | SandboxStep::None { .. }) => {}
    }
    parts.extend(
        plan.kills
            .iter()
            .map(|kill| format!("stopped {}: {}", kill.name, kill.message)),
    );
    if !plan.resets.is_empty() {
        parts.push("restarting all containers".to_owned());
    }
    let going = plan.starts().filter(|start| start.when == When::Now);
    parts.extend(going.map(|start| format!("started {}: {}", start.name, start.reason)));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::plan::Start;
    use crate::pod::ContainerKind;

    #[test]
    fn cause_excludes_waiting_starts() {
        let start = |name: &str, when: When| Start {
            name: name.to_owned(),
            kind: ContainerKind::App,
            restart_count: None,
            when,
            reason: "it has not been started yet".to_owned(),
            previous_end: None,
            backoff_key: String::new(),
        };
        let wait = When::Wait {
            until: Timestamp::UNIX_EPOCH,
            delay: SignedDuration::ZERO,
            message: String::new(),
        };
        let plan = PodPlan {
            kill_pod: Some("the pod has no sandbox".to_owned()),
            sandbox: SandboxStep::Create {
                attempt: 0,
                replaces: None,
                reason: "the pod has no sandbox".to_owned(),
            },
            kills: Vec::new(),
            resets: Vec::new(),
            removes: Vec::new(),
            start_ephemeral: Vec::new(),
            start_init: Vec::new(),
            start_apps: vec![start("a", When::Now), start("b", wait)],
            idle: None,
            finished: false,
        };
        assert_eq!(
            of_plan(&plan),
            "new sandbox: the pod has no sandbox; started a: it has not been started yet"
        );
    }
}
