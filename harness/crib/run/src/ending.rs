//! ◆ The reason for which the pods are ended, and their grace periods. Pure.

use std::time::Duration;

use agent::{Transition, source};
use api::pod::{Pod, PodUid};
use cluster::controllers::Controllers;
use compact::{Map, Set};

use crate::lifecycle::Event;

/// The grace period, in seconds, of a pod without terminationGracePeriodSeconds if the user waits for its end; as in podman.
const IMPATIENT_GRACE: i64 = 10;

/// The grace periods of the pods at the end of a run.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    /// If the user waits: the pods of manifests, and the workloads, that set no grace period.
    without_grace: Set<String>,
}

impl Ending {
    /// The grace periods after an event. `without_grace` are the pods and workloads that set no grace period.
    pub(super) fn of(event: Event, without_grace: &Set<String>) -> Self {
        let user_waits = matches!(event, Event::Signal | Event::Down);
        let without_grace = user_waits.then(|| without_grace.clone());
        Self { without_grace: without_grace.unwrap_or_default() }
    }

    /// The grace period of a pod in seconds, if it differs from the pod's own.
    pub(super) fn grace_seconds(&self, pod: &Pod, controllers: &Controllers) -> Option<i64> {
        let manifest = controllers.manifest_of(pod.uid());
        let manifest = manifest.unwrap_or_else(|| format!("pod {}", pod.full_name()));
        self.without_grace.contains(&manifest).then_some(IMPATIENT_GRACE)
    }
}

/// Replaces the agent's cause of a removal, which does not name the reason, by the reason for which the run removed the pod.
pub(super) fn with_cause_of_removal(
    mut transition: Transition,
    removed: &Map<PodUid, &str>,
) -> Transition {
    if let Some(why) = removed.get(&transition.uid) {
        transition.cause = transition.cause.replace(source::REMOVED, why);
    }
    transition
}

/// The reason for which the pods are ended.
pub(super) fn cause_of_end(event: Event) -> &'static str {
    match event {
        Event::TimedOut => "--timeout expired",
        Event::OutputClosed => "standard output was closed",
        Event::Down => "crib down",
        Event::Signal | Event::Reported(_) | Event::Overdue | Event::RuntimeEnded => "interrupted",
    }
}

/// The message at the start of the end.
pub(super) fn ending(event: Event, grace: Duration) -> String {
    let why = match event {
        Event::TimedOut => "timed out: ",
        Event::OutputClosed => "standard output was closed: ",
        Event::Down => "crib down: ",
        Event::Signal | Event::Reported(_) | Event::Overdue | Event::RuntimeEnded => "",
    };
    match grace.as_secs() {
        0 => format!("{why}ending the pods"),
        seconds => {
            format!("{why}ending the pods, which may take {seconds} s; Ctrl-C kills them after 2 s")
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing_runs(Event::TimedOut, 0, "timed out: ending the pods")]
    #[case::grace(
        Event::Signal,
        30,
        "ending the pods, which may take 30 s; Ctrl-C kills them after 2 s"
    )]
    fn message_says_how_long_it_may_take(
        #[case] event: Event,
        #[case] seconds: u64,
        #[case] expected: &str,
    ) {
        assert_eq!(ending(event, Duration::from_secs(seconds)), expected);
    }

    #[test]
    fn cause_of_removal_replaces_that_of_the_agent() {
        let transition = |uid: &str, cause: &str| Transition {
            at: "2026-01-02T03:04:05Z".parse().unwrap(),
            pod: "default/p".to_owned(),
            uid: PodUid::new(uid),
            container: None,
            from: "Pending".to_owned(),
            to: "Terminating".to_owned(),
            cause: cause.to_owned(),
            exit_code: None,
        };
        let removed = Map::from([(PodUid::new("a"), "it cannot run")]);
        let cause = |uid, cause| with_cause_of_removal(transition(uid, cause), &removed).cause;
        let stopped = format!("stopped: {}", source::REMOVED);
        assert_eq!(cause("a", &stopped), "stopped: it cannot run");
        assert_eq!(cause("a", "exited"), "exited");
        assert_eq!(cause("b", &stopped), stopped);
    }
}
