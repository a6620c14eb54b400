//! Restarts the whole pod after a RestartAllContainers rule fired: its containers are removed, then started anew.
//!
//! Source: Kubernetes 1.36, gate RestartAllContainersOnContainerExits (on by default).

use api::pod::Pod;
use jiff::Timestamp;

use crate::decide::plan::restart::{self, RuleAction};
use crate::decide::plan::{
    History, HoldKey, KillReason, PodPlan, Reset, Stop, sandbox, stop, terminate,
};
use crate::observed::Observed;

/// Removes every attempt of every app and init container. Those whose exit fired the rule are removed last, because
/// until then they are the record of the cause.
pub(super) fn plan(pod: &Pod, observed: &Observed, history: &History, now: Timestamp) -> PodPlan {
    let seen = sandbox::look(pod, observed);
    let mut resets = Vec::new();
    let mut causes = Vec::new();
    for container in pod.containers().iter().chain(pod.init_containers()) {
        for seen in observed.containers.iter().filter(|seen| seen.name == container.name) {
            let exit = seen.state.exit();
            let fired = exit.and_then(|exit| restart::matched_rule(container, exit.code));
            let list = match fired {
                Some((_, RuleAction::RestartAllContainers)) => &mut causes,
                Some((_, RuleAction::Restart)) | None => &mut resets,
            };
            let plan = || {
                let reason = KillReason::RestartAllContainers;
                terminate::stop_one(pod, &seen.id, &seen.name, reason, Some(0))
            };
            list.push(Reset {
                id: seen.id.clone(),
                name: seen.name.clone(),
                kill: exit.is_none(),
                stop: exit.is_none().then(|| Stop { plan: plan(), message: "killing".to_owned() }),
            });
        }
    }
    resets.append(&mut causes);
    let held = history.holds.until(&HoldKey::Pod, now).is_some()
        || resets.iter().any(|reset| history.holds.holds_container(&reset.id, now));
    if held {
        return PodPlan {
            idle: Some("an action on the pod failed and is repeated later".to_owned()),
            ..PodPlan::default()
        };
    }
    let kill_pod = seen.change.map(str::to_owned);
    let (stops, stop_sandboxes) = stop::stops(pod, observed, kill_pod.is_some(), &[]);
    PodPlan { kill_pod, sandbox: seen.step(), stops, stop_sandboxes, resets, ..PodPlan::default() }
}
