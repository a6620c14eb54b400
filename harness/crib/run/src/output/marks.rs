//! ◆ The sign before a pod or container: done, running, waiting, retrying, stopped or failed. Pure.
//!
//! | mark     | pod                                     | container                                  |
//! |----------|-----------------------------------------|--------------------------------------------|
//! | done     | Succeeded                               | exited with code 0                         |
//! | running  | all of its containers are ready         | runs                                       |
//! | waiting  | Pending, not ready, or terminating      | not started yet, or not ready              |
//! | retrying | a container retries                     | waits after a failure, with its reason     |
//! | stopped  | ended by the run before it was done     | ended with its pod                         |
//! | failed   | Failed, ended incomplete, or cannot run | exited with another code, or can never run |

use agent::{ContainerPhase, ContainerReport, PodReport};
use api::pod::ContainerKind;

use crate::output::colour::{Colour, paint};
use crate::reports::{is_failure_reason, is_refused};
use crate::snapshot::{PodEnd, PodSnapshot};

/// One cycle of the spinner for waiting pods and containers in the live view.
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The first character of a row. Each has its own sign and colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Done,
    Running,
    Waiting,
    Retrying,
    Stopped,
    Failed,
}

impl Mark {
    /// The mark of a pod; the agent may no longer have a report of it. A pod that was deleted before it ran is waiting, not done.
    pub(crate) fn of_pod(pod: &PodSnapshot, report: Option<&PodReport>) -> Self {
        let containers = || report.iter().flat_map(|report| &report.containers);
        let retries =
            || containers().any(|container| Self::of_container(container) == Self::Retrying);
        let is_finished = report.is_some_and(|report| report.finished);
        let summary = &pod.summary;
        match (pod.end, pod.phase.as_str()) {
            (PodEnd::Stopped, _) => Self::Stopped,
            (_, "Succeeded") => Self::Done,
            (_, "Failed") => Self::Failed,
            (PodEnd::Ending(_), _) if !is_finished => Self::Waiting,
            (_, "Running") if is_finished => Self::Failed,
            _ if report.is_some_and(is_refused) => Self::Failed,
            _ if retries() => Self::Retrying,
            (_, "Running") if summary.ready == summary.containers => Self::Running,
            _ => Self::Waiting,
        }
    }

    /// The mark of a container in a pod with this mark.
    pub(crate) fn of_container_in(pod: Self, container: &ContainerReport) -> Self {
        let own = Self::of_container(container);
        match (pod, own) {
            (Self::Stopped, Self::Failed | Self::Retrying | Self::Waiting) => Self::Stopped,
            _ => own,
        }
    }

    /// The mark of a container.
    pub(crate) fn of_container(container: &ContainerReport) -> Self {
        match (container.state, container.exit_code) {
            (ContainerPhase::Waiting, _) if container.refused => Self::Failed,
            (ContainerPhase::Waiting, _) if is_failure_reason(&container.reason) => Self::Retrying,
            (ContainerPhase::Waiting, _) => Self::Waiting,
            (ContainerPhase::Running, _) if container.ready => Self::Running,
            (ContainerPhase::Running, _) if container.kind == ContainerKind::App => Self::Waiting,
            (ContainerPhase::Running, _) => Self::Running,
            (ContainerPhase::Terminated, Some(0)) => Self::Done,
            (ContainerPhase::Terminated, _) => Self::Failed,
        }
    }

    /// The sign. `tick` selects the frame of the spinner; `None` is for the final table.
    pub(crate) fn sign(self, tick: Option<usize>, coloured: bool) -> String {
        let sign = match (self, tick) {
            (Self::Done, _) => "✓",
            (Self::Running, _) => "●",
            (Self::Waiting, None) => "○",
            (Self::Waiting, Some(tick)) => SPINNER.get(tick % SPINNER.len()).unwrap_or(&"○"),
            (Self::Retrying, _) => "!",
            (Self::Stopped, _) => "■",
            (Self::Failed, _) => "✗",
        };
        paint(coloured, self.colour(), sign)
    }

    fn colour(self) -> Colour {
        match self {
            Self::Done => Colour::GREEN,
            Self::Running => Colour::CYAN,
            Self::Waiting | Self::Stopped => Colour::BLUE,
            Self::Retrying => Colour::YELLOW,
            Self::Failed => Colour::RED,
        }
    }
}

#[cfg(test)]
mod tests {
    use compact::Set;
    use rstest::rstest;

    use super::*;
    use crate::output::view::tests::{container, pod, shown_pod};

    /// The mark of a pod with one container.
    fn mark(phase: &str, finished: bool, one: Option<ContainerReport>, end: PodEnd) -> Mark {
        let report =
            PodReport { finished, containers: one.into_iter().collect(), ..pod("a", phase) };
        Mark::of_pod(&PodSnapshot { end, ..shown_pod(&report) }, Some(&report))
    }

    const LATER: PodEnd = PodEnd::Ending(jiff::Timestamp::MAX);

    #[rstest]
    #[case("Succeeded", true, PodEnd::None, Mark::Done)]
    #[case("Failed", true, PodEnd::None, Mark::Failed)]
    #[case("Failed", true, PodEnd::Stopped, Mark::Stopped)]
    #[case("Running", false, PodEnd::None, Mark::Running)]
    #[case("Running", false, LATER, Mark::Waiting)]
    #[case("Running", true, PodEnd::None, Mark::Failed)]
    #[case("Pending", false, PodEnd::None, Mark::Waiting)]
    #[case("Pending", true, PodEnd::None, Mark::Waiting)]
    fn pod_mark_follows_phase(
        #[case] phase: &str,
        #[case] finished: bool,
        #[case] end: PodEnd,
        #[case] expected: Mark,
    ) {
        assert_eq!(mark(phase, finished, None, end), expected);
    }

    #[test]
    fn pod_shows_that_its_container_retries_or_is_not_ready() {
        let waits = |reason| container("main", ContainerKind::App, ContainerPhase::Waiting, reason);
        let runs = container("main", ContainerKind::App, ContainerPhase::Running, "");
        let unready = ContainerReport { ready: false, ..runs };
        for (phase, finished, one, expected) in [
            ("Pending", true, waits("ErrImagePull"), Mark::Retrying),
            ("Running", false, waits("CrashLoopBackOff"), Mark::Retrying),
            ("Running", false, unready, Mark::Waiting),
        ] {
            assert_eq!(mark(phase, finished, Some(one), PodEnd::None), expected);
        }
    }

    #[test]
    fn marks_differ_in_sign_and_nearly_all_in_colour() {
        let all =
            [Mark::Done, Mark::Running, Mark::Waiting, Mark::Retrying, Mark::Stopped, Mark::Failed];
        for tick in [None, Some(0), Some(9)] {
            let signs: Set<String> = all.iter().map(|mark| mark.sign(tick, false)).collect();
            assert_eq!(signs.len(), all.len());
        }
        let painted = |mark: &Mark| mark.sign(None, true).replace(&mark.sign(None, false), "");
        let colours: Set<String> = all.iter().map(painted).collect();
        assert_eq!(colours.len(), all.len() - 1, "what waits and what was stopped");
    }
}
