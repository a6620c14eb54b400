//! Restarts the whole pod after a RestartAllContainers rule fired: its containers are removed, then started anew.
//!
//! Source: Kubernetes 1.36, gate RestartAllContainersOnContainerExits (on by default).

use crate::observed::Observed;
use crate::plan::restart::{self, RuleAction};
use crate::plan::{PodPlan, Reset, sandbox};
use crate::pod::Pod;

/// Removes every attempt of every app and init container. Those whose exit fired the rule are removed last, because
/// until then they are the record of the cause.
pub(super) fn plan(pod: &Pod, observed: &Observed) -> PodPlan {
    let seen = sandbox::look(pod, observed);
    let mut resets = Vec::new();
    let mut causes = Vec::new();
    for container in pod.containers().iter().chain(pod.init_containers()) {
        for seen in observed
            .containers
            .iter()
            .filter(|seen| seen.name == container.name)
        {
            let exit = seen.state.exit();
            let fired = exit.and_then(|exit| restart::matched_rule(container, exit.code));
            let list = match fired {
                Some((_, RuleAction::RestartAllContainers)) => &mut causes,
                Some((_, RuleAction::Restart)) | None => &mut resets,
            };
            list.push(Reset {
                id: seen.id.clone(),
                name: seen.name.clone(),
                kill: exit.is_none(),
            });
        }
    }
    resets.append(&mut causes);
    PodPlan {
        kill_pod: seen.change.map(str::to_owned),
        sandbox: seen.step(),
        kills: Vec::new(),
        resets,
        removes: Vec::new(),
        start_ephemeral: Vec::new(),
        start_init: Vec::new(),
        start_apps: Vec::new(),
        idle: None,
        finished: false,
    }
}
