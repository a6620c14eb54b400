//! ◆ The sign before a pod or container: done, running, waiting, retrying or failed. Pure.
//!
//! | mark     | pod                                     | container                                  |
//! |----------|-----------------------------------------|--------------------------------------------|
//! | done     | Succeeded                               | exited with code 0                         |
//! | running  | Running                                 | runs                                       |
//! | waiting  | Pending                                 | waits for its turn                         |
//! | retrying | Pending, a container retries            | waits after a failure, with its reason     |
//! | failed   | Failed, ended incomplete, or cannot run | exited with another code, or can never run |

use agent::{ContainerPhase, ContainerReport, PodReport};

use crate::output::colour::{Colour, paint};
use crate::reports::{is_failure_reason, is_refused};

/// One turn of the sign of what waits in the live view.
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The first character of a row. Each has its own sign and colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Done,
    Running,
    Waiting,
    Retrying,
    Failed,
}

impl Mark {
    /// The mark of a pod. A pod that was ended before it ran is not done: it still waits.
    pub(crate) fn of_pod(pod: &PodReport) -> Self {
        let phase = pod.status.phase.as_deref().unwrap_or("Pending");
        let retries = || {
            pod.containers.iter().any(|container| Self::of_container(container) == Self::Retrying)
        };
        match (phase, pod.finished) {
            ("Succeeded", _) => Self::Done,
            ("Failed", _) | ("Running", true) => Self::Failed,
            (_, _) if is_refused(pod) => Self::Failed,
            ("Running", false) => Self::Running,
            _ if retries() => Self::Retrying,
            _ => Self::Waiting,
        }
    }

    /// The mark of a container.
    pub(crate) fn of_container(container: &ContainerReport) -> Self {
        match (container.state, container.exit_code) {
            (ContainerPhase::Waiting, _) if container.refused => Self::Failed,
            (ContainerPhase::Waiting, _) if is_failure_reason(&container.reason) => Self::Retrying,
            (ContainerPhase::Waiting, _) => Self::Waiting,
            (ContainerPhase::Running, _) => Self::Running,
            (ContainerPhase::Terminated, Some(0)) => Self::Done,
            (ContainerPhase::Terminated, _) => Self::Failed,
        }
    }

    /// The sign; `tick` turns the one of what waits, `None` is for a table that stays.
    pub(crate) fn sign(self, tick: Option<usize>, coloured: bool) -> String {
        let sign = match (self, tick) {
            (Self::Done, _) => "✓",
            (Self::Running, _) => "●",
            (Self::Waiting, None) => "○",
            (Self::Waiting, Some(tick)) => SPINNER.get(tick % SPINNER.len()).unwrap_or(&"○"),
            (Self::Retrying, _) => "!",
            (Self::Failed, _) => "✗",
        };
        paint(coloured, self.colour(), sign)
    }

    fn colour(self) -> Colour {
        match self {
            Self::Done => Colour::GREEN,
            Self::Running => Colour::CYAN,
            Self::Waiting => Colour::BLUE,
            Self::Retrying => Colour::YELLOW,
            Self::Failed => Colour::RED,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::pod::ContainerKind;
    use rstest::rstest;

    use super::*;
    use crate::output::view::tests::{container, pod};

    #[rstest]
    #[case("Succeeded", true, Mark::Done)]
    #[case("Failed", true, Mark::Failed)]
    #[case("Running", false, Mark::Running)]
    #[case("Running", true, Mark::Failed)]
    #[case("Pending", false, Mark::Waiting)]
    #[case("Pending", true, Mark::Waiting)]
    fn pod_mark_follows_phase(#[case] phase: &str, #[case] finished: bool, #[case] mark: Mark) {
        let report = PodReport { finished, ..pod("a", phase) };
        assert_eq!(Mark::of_pod(&report), mark);
    }

    #[test]
    fn pod_that_never_ran_shows_that_its_container_retries() {
        let waits = container("main", ContainerKind::App, ContainerPhase::Waiting, "ErrImagePull");
        let report = PodReport { finished: true, containers: vec![waits], ..pod("a", "Pending") };
        assert_eq!(Mark::of_pod(&report), Mark::Retrying);
    }

    #[test]
    fn marks_differ_in_sign_and_in_colour() {
        let all = [Mark::Done, Mark::Running, Mark::Waiting, Mark::Retrying, Mark::Failed];
        for tick in [None, Some(0), Some(9)] {
            let signs: BTreeSet<String> = all.iter().map(|mark| mark.sign(tick, false)).collect();
            assert_eq!(signs.len(), all.len());
        }
        let painted = |mark: &Mark| mark.sign(None, true).replace(&mark.sign(None, false), "");
        let colours: BTreeSet<String> = all.iter().map(painted).collect();
        assert_eq!(colours.len(), all.len());
    }
}
