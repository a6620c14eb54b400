//! ◆ Why the pods end, in words. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use agent::{Transition, source};
use api::pod::{Pod, PodUid};

use super::lifecycle::Event;
use super::reports::Reports;

/// The transition with the cause that the agent does not know: why its source lost the pod.
pub(super) fn with_cause_of_removal(
    mut transition: Transition,
    removed: &BTreeMap<PodUid, &str>,
) -> Transition {
    if let Some(why) = removed.get(&transition.uid) {
        transition.cause = transition.cause.replace(source::REMOVED, why);
    }
    transition
}

/// Why the pods end.
pub(super) fn cause_of_end(event: Event) -> &'static str {
    match event {
        Event::TimedOut => "--timeout is over",
        Event::OutputClosed => "standard output was closed",
        Event::Down => "crib down",
        Event::Signal | Event::Reported(_) | Event::Overdue | Event::RuntimeEnded => "interrupted",
    }
}

/// How long each of the pods may take to end.
pub(super) fn graces(pods: &[Pod]) -> BTreeMap<PodUid, Duration> {
    let of = |pod: &Pod| {
        let seconds = u64::try_from(pod.grace_seconds()).unwrap_or_default();
        (pod.uid().clone(), Duration::from_secs(seconds))
    };
    pods.iter().map(of).collect()
}

/// How long those that have not ended may take.
pub(super) fn longest_grace(graces: &BTreeMap<PodUid, Duration>, reports: &Reports) -> Duration {
    let has_ended = |uid: &PodUid| reports.get(uid).is_some_and(|report| report.finished);
    let left = graces.iter().filter(|(uid, _)| !has_ended(uid));
    left.map(|(_, grace)| *grace).max().unwrap_or_default()
}

/// The message when pods begin to end.
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

    use super::super::view::tests::{pod, reports};
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
    fn ended_pods_have_no_grace_period_left() {
        let graces = BTreeMap::from([
            (PodUid::new("ended"), Duration::from_secs(30)),
            (PodUid::new("runs"), Duration::from_secs(2)),
        ]);
        let report = |name: &str, phase: &str| {
            let mut report = pod(name, phase);
            report.uid = PodUid::new(name);
            report
        };
        let runs = report("runs", "Running");
        let both = reports(vec![report("ended", "Failed"), runs.clone()]);
        let longest = |reports: &Reports| longest_grace(&graces, reports).as_secs();
        assert_eq!(longest(&both), 2);
        assert_eq!(longest(&reports(vec![runs])), 30, "one not seen yet");
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
        let removed = BTreeMap::from([(PodUid::new("a"), "it cannot run")]);
        let cause = |uid, cause| with_cause_of_removal(transition(uid, cause), &removed).cause;
        let stopped = format!("stopped: {}", source::REMOVED);
        assert_eq!(cause("a", &stopped), "stopped: it cannot run");
        assert_eq!(cause("a", "exited"), "exited");
        assert_eq!(cause("b", &stopped), stopped);
    }
}
