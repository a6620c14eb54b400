//! ◆ The last step of planning: schedules the chosen starts, now or after their crash back-off.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go doBackOff and SyncPod.

use api::duration::go_duration;
use api::pod::{ContainerKind, Pod, is_sidecar};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;

use crate::decide::backoff::Verdict;
use crate::decide::plan::{
    Blocks, Choice, History, HoldKey, Pick, PodPlan, ProcessTarget, SandboxStep, Start, When, stop,
};
use crate::observed::{ContainerId, ContainerState, Observed};

/// Builds the plan of a choice.
pub(super) fn schedule(
    pod: &Pod,
    observed: &Observed,
    history: &History,
    now: Timestamp,
    choice: Choice,
) -> PodPlan {
    let lists = |kind, list: &[Container], picks: &[Pick]| -> Vec<Start> {
        picks
            .iter()
            .map(|pick| start(pod, observed, history, now, kind, &list[pick.index], &pick.reason))
            .collect()
    };
    let start_ephemeral =
        lists(ContainerKind::Ephemeral, pod.ephemeral_containers(), &choice.ephemeral);
    let start_init = lists(ContainerKind::Init, pod.init_containers(), &choice.init);
    let start_apps = lists(ContainerKind::App, pod.containers(), &choice.apps);
    let creates = matches!(choice.sandbox, SandboxStep::Create { .. });
    let (stops, stop_sandboxes) =
        stop::stops(pod, observed, choice.kill_pod.is_some(), &choice.kills);
    let mut plan = PodPlan {
        removes: init_leftovers(pod, observed, creates, !start_init.is_empty()),
        finished: choice.kill_pod.is_some() && !creates,
        kill_pod: choice.kill_pod,
        sandbox: choice.sandbox,
        kills: choice.kills,
        stops,
        stop_sandboxes,
        start_ephemeral,
        start_init,
        resize: Some(choice.resize).filter(|resize| !resize.is_empty()),
        start_apps,
        ..PodPlan::default()
    };
    if !plan.does_something() {
        let waiting = plan.starts().map(|start| start.name.as_str()).collect::<Vec<_>>().join(", ");
        plan.idle = Some(if waiting.is_empty() {
            choice.waits_for.unwrap_or_else(|| "nothing to do".to_owned())
        } else {
            format!("waiting to start {waiting}")
        });
    }
    plan
}

pub(super) fn start(
    pod: &Pod,
    observed: &Observed,
    history: &History,
    now: Timestamp,
    kind: ContainerKind,
    container: &Container,
    reason: &str,
) -> Start {
    let key = backoff_key(pod, container);
    let attempts = || observed.containers.iter().filter(|seen| seen.name == container.name);
    // The newest exited attempt, not the newest of all: an attempt that was never started has no exit time.
    let previous_end = attempts().find_map(|seen| seen.state.exit()).map(|exit| exit.finished_at);
    let verdict =
        previous_end.map_or(Verdict::Now, |ended_at| history.backoff.verdict(&key, ended_at, now));
    let held = || {
        let stop = attempts()
            .next()
            .filter(|seen| history.holds.holds_container(&seen.id, now))
            .map(|seen| HoldKey::Container(seen.id.clone()));
        // Two attempts of a container must never run at the same time: while its stop is deferred, so is its start.
        stop.into_iter()
            .chain([HoldKey::Start(key.clone())])
            .find_map(|key| history.holds.until(&key, now))
    };
    Start {
        name: container.name.clone(),
        kind,
        restart_count: attempts().next().map(|seen| seen.restart_count + 1),
        when: match verdict {
            Verdict::Now => held().map_or(When::Now, |until| When::Wait {
                until,
                delay: until.duration_since(now),
                message: String::new(),
            }),
            Verdict::Wait { until, delay } => When::Wait {
                until,
                delay,
                // Until the sync that repeats it, the container waits for the failed start.
                message: match held() {
                    Some(_) => String::new(),
                    None => backoff_message(pod, &container.name, delay),
                },
            },
        },
        reason: reason.to_owned(),
        previous_end,
        backoff_key: key,
        image: container.image.clone().unwrap_or_default(),
        pull_policy: container.image_pull_policy.clone(),
        target: target_of(pod, observed, &container.name),
        blocks: if kind == ContainerKind::Init && !is_sidecar(container) {
            Blocks::LaterStarts
        } else {
            Blocks::Nothing
        },
    }
}

/// The container that an ephemeral container targets (Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go
/// getTargetID).
fn target_of(pod: &Pod, observed: &Observed, name: &str) -> Option<ProcessTarget> {
    let ephemeral = pod
        .spec()
        .ephemeral_containers
        .iter()
        .flatten()
        .find(|container| container.name == name)?;
    let target = ephemeral.target_container_name.as_deref();
    let target = target.filter(|target| !target.is_empty())?;
    Some(match observed.container(target) {
        Some(seen) => ProcessTarget::Container(seen.id.clone()),
        None => ProcessTarget::Missing(target.to_owned()),
    })
}

/// The key of a restart series: a new image or other resources begin a new series (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/helpers.go GetBackoffKey).
pub(crate) fn backoff_key(pod: &Pod, container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let mut key =
        format!("{}_{}_{}_{}_{image}", pod.name(), pod.namespace(), pod.uid(), container.name);
    let resources = container.resources.iter();
    for list in resources.flat_map(|given| [&given.limits, &given.requests]) {
        for (name, quantity) in list.iter().flatten() {
            key.push_str(&format!("_{name}={}", quantity.0));
        }
        key.push('_');
    }
    key
}

/// The kubelet's message for the waiting state `CrashLoopBackOff`.
fn backoff_message(pod: &Pod, container: &str, delay: SignedDuration) -> String {
    format!(
        "back-off {} restarting failed container={container} pod={}",
        go_duration(delay.unsigned_abs()),
        pod.long_name()
    )
}

/// Exited init containers to remove: with a new sandbox all of them, because they would count as progress in it; before
/// another attempt, all but the newest of each name.
fn init_leftovers(
    pod: &Pod,
    observed: &Observed,
    new_sandbox: bool,
    starts_init: bool,
) -> Vec<ContainerId> {
    if !(new_sandbox || starts_init) {
        return Vec::new();
    }
    // Counted are the exited attempts: a newer one that runs or waits for its start is kept beside them.
    let kept = usize::from(!new_sandbox);
    let ended = |state: &ContainerState| match state {
        ContainerState::Exited(_) | ContainerState::Unknown => true,
        // Containers in an old sandbox are killed before anything is removed.
        ContainerState::Created | ContainerState::Running { .. } => new_sandbox,
    };
    let attempts_of = |container: &Container| {
        let name = container.name.clone();
        observed.containers.iter().filter(move |seen| seen.name == name && ended(&seen.state))
    };
    let all = pod.init_containers().iter().flat_map(|container| attempts_of(container).skip(kept));
    all.map(|seen| seen.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, running};

    fn pod(resources: Value) -> Pod {
        fixtures::pod(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always", "resources": resources}],
                "containers": [{"name": "app", "image": "i"}],
            },
        }))
    }

    fn ended() -> ContainerState {
        ContainerState::Exited(fixtures::exit(1))
    }

    /// Attempts of the sidecar, newest first, and which of them are removed before an init container starts.
    #[rstest]
    #[case::ended_twice(&[ended(), ended()], false, &["1"])]
    #[case::runs_again(&[running(), ended()], false, &[])]
    #[case::runs_after_two(&[running(), ended(), ended()], false, &["2"])]
    #[case::never_started(&[ContainerState::Created, ended()], false, &[])]
    #[case::unknown(&[ContainerState::Unknown, ended()], false, &["1"])]
    #[case::new_sandbox(&[ended(), ended()], true, &["0", "1"])]
    fn newest_ended_attempt_of_init_container_is_kept(
        #[case] attempts: &[ContainerState],
        #[case] new_sandbox: bool,
        #[case] removed: &[&str],
    ) {
        let mut observed = Observed::nothing(Timestamp::UNIX_EPOCH);
        for (at, state) in attempts.iter().enumerate() {
            let container = fixtures::container(&at.to_string(), "side", state.clone());
            observed.containers.push(container);
        }
        let ids = init_leftovers(&pod(json!({})), &observed, new_sandbox, true);
        let ids: Vec<&str> = ids.iter().map(ContainerId::as_str).collect();
        assert_eq!(ids, removed);
    }

    #[test]
    fn crash_backoff_key_depends_on_resources() {
        let key = |resources| {
            let pod = pod(resources);
            backoff_key(&pod, &pod.init_containers()[0])
        };
        let with = |memory: &str| json!({"limits": {"memory": memory}});
        assert_eq!(key(with("1Mi")), key(with("1Mi")));
        assert_ne!(key(with("1Mi")), key(with("2Mi")));
        assert_ne!(key(with("1Mi")), key(json!({"requests": {"memory": "1Mi"}})));
        assert_ne!(key(with("1Mi")), key(json!({})));
    }
}
