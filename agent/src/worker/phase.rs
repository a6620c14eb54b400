//! ◆ Where a worker is in its pod's life. It only ever goes forward:
//!
//! ```text
//! Syncing --Unwanted--> Terminating --NothingRuns--> Terminated --Unwanted--> Removing --NothingLeft--> Gone
//!    \----Finished----------^                              (at once, when it is unwanted already)
//! ```

/// What the worker does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It makes the pod what it is meant to be.
    Syncing,
    /// It stops what runs.
    Terminating,
    /// Nothing runs; what is left stays to be looked at while a source still wants the pod.
    Terminated,
    /// It removes what is left.
    Removing,
    /// Nothing is left; the worker ends.
    Gone,
}

/// What moves a worker on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Every container has ended for good.
    Finished,
    /// No source wants the pod.
    Unwanted,
    /// No container runs, no sandbox is ready.
    NothingRuns,
    /// The runtime has nothing of the pod, and its directories are gone.
    NothingLeft,
}

impl Phase {
    /// The next phase; an event that does not concern the present one changes nothing.
    #[must_use]
    pub(crate) fn on(self, event: Event) -> Self {
        match (self, event) {
            (Self::Syncing, Event::Finished | Event::Unwanted) => Self::Terminating,
            (Self::Terminating, Event::NothingRuns) => Self::Terminated,
            (Self::Terminated, Event::Unwanted) => Self::Removing,
            (Self::Removing, Event::NothingLeft) => Self::Gone,
            (
                Self::Syncing | Self::Terminating | Self::Terminated | Self::Removing | Self::Gone,
                Event::Finished | Event::Unwanted | Event::NothingRuns | Event::NothingLeft,
            ) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 5] = [
        Phase::Syncing,
        Phase::Terminating,
        Phase::Terminated,
        Phase::Removing,
        Phase::Gone,
    ];
    const EVENTS: [Event; 4] = [
        Event::Finished,
        Event::Unwanted,
        Event::NothingRuns,
        Event::NothingLeft,
    ];

    #[test]
    fn only_forward_and_only_by_the_arrows() {
        let mut arrows = Vec::new();
        for phase in PHASES {
            for event in EVENTS {
                let next = phase.on(event);
                assert!(next >= phase, "{phase:?} went back on {event:?}");
                if next != phase {
                    arrows.push((phase, event, next));
                }
            }
        }
        assert_eq!(
            arrows,
            [
                (Phase::Syncing, Event::Finished, Phase::Terminating),
                (Phase::Syncing, Event::Unwanted, Phase::Terminating),
                (Phase::Terminating, Event::NothingRuns, Phase::Terminated),
                (Phase::Terminated, Event::Unwanted, Phase::Removing),
                (Phase::Removing, Event::NothingLeft, Phase::Gone),
            ]
        );
    }
}
