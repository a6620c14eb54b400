//! ◆ The lifecycle of `crib run` as a pure state machine: event to next step.
//!
//! ```text
//!  Running ──all finished──────────────────────────▶ Over(0 or 1)
//!     │ interrupt, down, timeout ── keep ──────────▶ Over(130 or 124)
//!     ▼
//!  Ending(why) ──all finished──────────────────────▶ Over(why)
//!     │ interrupt
//!     ▼
//!  Killing(why) ──all finished, interrupt, overdue─▶ Over(why)
//!
//!  any state ──the runtime ended───────────────────▶ Over(3)
//! ```

use agent::PodReport;
use api::pod::PodUid;
use cluster::controllers::Tally;
use compact::Set;
use crib_base::exit::Exit;

use crate::reports::{Reports, is_refused};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The agent sent reports; these are their counts.
    Reported(PodCounts),
    /// SIGINT, SIGTERM, SIGHUP.
    Signal,
    /// `crib down` asked for the end.
    Down,
    /// The reader closed standard output.
    OutputClosed,
    /// `--timeout` expired.
    TimedOut,
    /// The pods have exceeded their grace periods.
    Overdue,
    /// The runtime's process exited, or the agent cannot go on.
    RuntimeEnded,
}

/// The next step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// Ends all pods within their grace periods.
    End,
    /// Kills all pods.
    Kill,
    /// Clean up and exit.
    Finish(Exit),
}

/// The progress of pods and workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodCounts {
    /// Pods of manifests, and workloads, that the run waits for.
    pub(crate) open: usize,
    /// Pods of manifests, and workloads, that did not succeed.
    pub(crate) failed: usize,
    /// Pods of manifests and of controllers that the agent has reported and that have not ended.
    pub(crate) running: usize,
}

/// Counts the reported pods of manifests (`wanted`), and adds the counts of workloads. `keep`: pods are not ended.
pub(crate) fn count_pods(
    wanted: &Set<PodUid>,
    objects: Tally,
    reports: &Reports,
    keep: bool,
) -> PodCounts {
    // The state of a pod that cannot run is final; with `keep`, it is not deleted.
    let is_over = |report: &PodReport| report.finished || keep && is_refused(report);
    let has_failed = |report: &PodReport| report.status.phase.as_deref() != Some("Succeeded");
    let over = || {
        let reports = wanted.iter().filter_map(|uid| reports.get(uid));
        reports.filter(|report| is_over(report))
    };
    PodCounts {
        open: wanted.len() - over().count() + objects.open,
        failed: over().filter(|report| has_failed(report)).count() + objects.failed,
        running: reports.values().filter(|report| !is_over(report)).count(),
    }
}

/// See the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Ending(Exit),
    Killing(Exit),
    Over,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    state: State,
    keep: bool,
}

impl Lifecycle {
    /// The initial state. With `keep`, the run never ends pods.
    pub(crate) fn new(keep: bool) -> Self {
        Self { state: State::Running, keep }
    }

    /// Handles an event.
    pub(crate) fn on(&mut self, event: Event) -> Step {
        let step = self.decide(event);
        self.state = match step {
            Step::Wait => self.state,
            Step::End => State::Ending(self.why(event)),
            Step::Kill => State::Killing(self.why(event)),
            Step::Finish(_) => State::Over,
        };
        step
    }

    /// The exit code for an end: the first reason determines it.
    fn why(&self, event: Event) -> Exit {
        match (self.state, event) {
            (State::Ending(why) | State::Killing(why), _) => why,
            (State::Running | State::Over, Event::TimedOut) => Exit::TimedOut,
            (State::Running | State::Over, _) => Exit::Interrupted,
        }
    }

    fn decide(&self, event: Event) -> Step {
        match (self.state, event) {
            (State::Over, _) => Step::Wait,
            (State::Running | State::Ending(_) | State::Killing(_), Event::RuntimeEnded) => {
                Step::Finish(Exit::NoRuntime)
            }

            (State::Running, Event::Reported(tally)) if tally.open == 0 => {
                Step::Finish(if tally.failed == 0 { Exit::Success } else { Exit::PodFailed })
            }
            (State::Running, Event::Reported(_) | Event::Overdue) => Step::Wait,
            (
                State::Running,
                Event::Signal | Event::Down | Event::OutputClosed | Event::TimedOut,
            ) if self.keep => Step::Finish(self.why(event)),
            (
                State::Running,
                Event::Signal | Event::Down | Event::OutputClosed | Event::TimedOut,
            ) => Step::End,

            // A pod that the agent never reported, or no longer reports, does not run.
            (State::Ending(why) | State::Killing(why), Event::Reported(tally))
                if tally.running == 0 =>
            {
                Step::Finish(why)
            }
            (
                State::Ending(_) | State::Killing(_),
                Event::Reported(_) | Event::Down | Event::OutputClosed | Event::TimedOut,
            ) => Step::Wait,
            (State::Ending(_), Event::Signal | Event::Overdue) => Step::Kill,
            (State::Killing(why), Event::Signal | Event::Overdue) => Step::Finish(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use Event::{Down, OutputClosed, Overdue, Reported, RuntimeEnded, Signal, TimedOut};
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const NONE: Event = Reported(PodCounts { open: 2, failed: 0, running: 0 });
    const SOME: Event = Reported(PodCounts { open: 1, failed: 1, running: 1 });
    const GOOD: Event = Reported(PodCounts { open: 0, failed: 0, running: 0 });
    const BAD: Event = Reported(PodCounts { open: 0, failed: 1, running: 0 });
    // Between two pods of a workload that is not complete.
    const BETWEEN: Event = Reported(PodCounts { open: 1, failed: 0, running: 0 });

    #[rstest]
    #[case::succeeded(false, &[NONE, SOME, GOOD], &[Step::Wait, Step::Wait, Step::Finish(Exit::Success)])]
    #[case::failed(false, &[BAD], &[Step::Finish(Exit::PodFailed)])]
    #[case::graceful(false, &[Signal, SOME, BAD], &[Step::End, Step::Wait, Step::Finish(Exit::Interrupted)])]
    #[case::replaced(false, &[BETWEEN, Signal, BETWEEN], &[Step::Wait, Step::End, Step::Finish(Exit::Interrupted)])]
    #[case::never_seen(false, &[Signal, NONE], &[Step::End, Step::Finish(Exit::Interrupted)])]
    #[case::second_signal(false, &[Signal, Signal, BAD], &[Step::End, Step::Kill, Step::Finish(Exit::Interrupted)])]
    #[case::third_signal(false, &[Signal, Signal, Signal], &[Step::End, Step::Kill, Step::Finish(Exit::Interrupted)])]
    #[case::timeout(false, &[TimedOut, GOOD], &[Step::End, Step::Finish(Exit::TimedOut)])]
    #[case::impatient_after_timeout(false, &[TimedOut, Signal, GOOD], &[Step::End, Step::Kill, Step::Finish(Exit::TimedOut)])]
    #[case::overdue(false, &[Signal, Overdue, Overdue], &[Step::End, Step::Kill, Step::Finish(Exit::Interrupted)])]
    #[case::closed_once(false, &[OutputClosed, OutputClosed, GOOD], &[Step::End, Step::Wait, Step::Finish(Exit::Interrupted)])]
    #[case::down_twice(false, &[Down, Down, GOOD], &[Step::End, Step::Wait, Step::Finish(Exit::Interrupted)])]
    #[case::down_and_kill(false, &[Down, Signal, BAD], &[Step::End, Step::Kill, Step::Finish(Exit::Interrupted)])]
    #[case::runtime_died(false, &[SOME, RuntimeEnded], &[Step::Wait, Step::Finish(Exit::NoRuntime)])]
    #[case::kept(true, &[SOME, GOOD], &[Step::Wait, Step::Finish(Exit::Success)])]
    #[case::left(true, &[SOME, Signal], &[Step::Wait, Step::Finish(Exit::Interrupted)])]
    #[case::left_by_time(true, &[TimedOut], &[Step::Finish(Exit::TimedOut)])]
    fn run_steps_follow_events(
        #[case] keep: bool,
        #[case] events: &[Event],
        #[case] steps: &[Step],
    ) {
        let mut lifecycle = Lifecycle::new(keep);
        let taken: Vec<Step> = events.iter().map(|event| lifecycle.on(*event)).collect();
        assert_eq!(taken, steps);
    }

    fn event() -> impl Strategy<Value = Event> {
        let reported = (0_usize..4, 0_usize..4, 0_usize..4)
            .prop_map(|(open, failed, running)| Reported(PodCounts { open, failed, running }));
        prop_oneof![
            reported,
            Just(Signal),
            Just(Down),
            Just(OutputClosed),
            Just(TimedOut),
            Just(Overdue),
            Just(RuntimeEnded)
        ]
    }

    proptest! {
        #[test]
        fn third_signal_ends_run_in_every_state(keep: bool, events in proptest::collection::vec(event(), 0..20)) {
            let mut lifecycle = Lifecycle::new(keep);
            let mut steps: Vec<Step> = events.into_iter().map(|event| lifecycle.on(event)).collect();
            steps.extend([Signal, Signal, Signal].map(|event| lifecycle.on(event)));
            let end = steps.iter().position(|step| matches!(step, Step::Finish(_)));
            prop_assert!(end.is_some());
            prop_assert!(steps.iter().skip(end.unwrap_or(0) + 1).all(|step| *step == Step::Wait));
            if keep {
                prop_assert!(!steps.contains(&Step::End) && !steps.contains(&Step::Kill));
            }
        }
    }
}
