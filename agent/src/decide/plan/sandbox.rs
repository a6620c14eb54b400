//! ◆ Decides whether the pod's sandbox is usable, and how the pod starts over if not.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/{kuberuntime_manager.go,util/util.go}.

use api::pod::{Pod, RestartPolicy};
use k8s_openapi::api::core::v1::Container;

use crate::decide::plan::{Choice, Pick, SandboxStep};
use crate::observed::{NetworkMode, Observed, SandboxId};

const NO_SANDBOX: &str = "the pod had none";
const OTHER_NETWORK: &str = "the pod's network mode changed";

/// The state of the pod's newest sandbox.
#[derive(Debug)]
pub(super) struct Seen {
    /// The sandbox to use or to replace; `None` if there is none or its network mode changed.
    pub(super) id: Option<SandboxId>,
    /// Attempt number of the sandbox to use or to create.
    pub(super) attempt: u32,
    /// Why a new sandbox is needed.
    pub(super) change: Option<&'static str>,
}

impl Seen {
    /// Whether to keep the sandbox or create another.
    pub(super) fn step(&self) -> SandboxStep {
        let attempt = self.attempt;
        match (self.change, &self.id) {
            (None, Some(id)) => SandboxStep::Keep { id: id.clone(), attempt },
            (reason, replaces) => SandboxStep::Create {
                attempt,
                replaces: replaces.clone(),
                reason: reason.unwrap_or_default().to_owned(),
            },
        }
    }
}

/// Evaluates the newest sandbox.
pub(super) fn look(pod: &Pod, observed: &Observed) -> Seen {
    let Some(newest) = observed.sandboxes.first() else {
        return Seen { id: None, attempt: 0, change: Some(NO_SANDBOX) };
    };
    let wanted = if pod.host_network() { NetworkMode::Node } else { NetworkMode::Pod };
    let without_address = !pod.host_network()
        && newest.ips.as_ref().is_some_and(|ips| ips.first().is_none_or(String::is_empty));

    let change = if observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count() > 1 {
        Some("the pod has more than one ready sandbox")
    } else if !newest.ready {
        Some("the pod's sandbox is not ready")
    } else if newest.network != wanted {
        Some(OTHER_NETWORK)
    } else if without_address {
        Some("the pod's sandbox has no address")
    } else {
        None
    };
    Seen {
        id: (change != Some(OTHER_NETWORK)).then(|| newest.id.clone()),
        attempt: newest.attempt + u32::from(change.is_some()),
        change,
    }
}

/// The sandbox must be replaced: all its containers stop, and the pod starts over if any container should still run.
pub(super) fn start_over(pod: &Pod, observed: &Observed, old: &Seen, reason: &str) -> Choice {
    let ended = |why: &str| {
        let mut choice =
            Choice::with(SandboxStep::None { last: old.id.clone(), attempt: old.attempt });
        choice.kill_pod = Some(format!("{reason}, and {why}"));
        choice
    };
    // Without any container, the sandbox failed before the pod started: retry regardless of the policy.
    // Only the pod's policy counts: a container's policy does not recreate a sandbox.
    let was_used = old.attempt != 0 && !observed.containers.is_empty();
    if was_used && pod.restart_policy() == RestartPolicy::Never {
        return ended("restartPolicy is Never");
    }

    let left: Vec<usize> = (0..pod.containers().len())
        .filter(|index| !has_succeeded(pod, &pod.containers()[*index], observed))
        .collect();
    if left.is_empty() {
        return ended("every app container has succeeded");
    }

    let mut choice = Choice::with(old.step());
    choice.kill_pod = Some(reason.to_owned());
    if pod.init_containers().is_empty() {
        choice.apps = left
            .into_iter()
            .map(|index| Pick::new(index, "the pod starts in a new sandbox"))
            .collect();
    } else {
        choice.init.push(Pick::new(0, "the pod starts in a new sandbox"));
    }
    choice
}

/// Whether a container that runs until it succeeds has succeeded.
fn has_succeeded(pod: &Pod, container: &Container, observed: &Observed) -> bool {
    let policy = RestartPolicy::of_container(container).unwrap_or_else(|| pod.restart_policy());
    let exit = observed.container(&container.name).and_then(|seen| seen.state.exit());
    policy == RestartPolicy::OnFailure && exit.is_some_and(|exit| exit.code == 0)
}
