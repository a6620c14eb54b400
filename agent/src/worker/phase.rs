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
pub(crate) enum PhaseEvent {
    /// Every container has ended for good.
    Finished,
    /// No source wants the pod.
    Deleted,
    /// No container runs, no sandbox is ready.
    Stopped,
    /// The runtime has nothing of the pod, and its directories are gone.
    Removed,
}

impl Phase {
    /// The next phase; an event that does not concern the present one changes nothing.
    #[must_use]
    pub(crate) fn on(self, event: PhaseEvent) -> Self {
        match (self, event) {
            (Self::Syncing, PhaseEvent::Finished | PhaseEvent::Deleted) => Self::Terminating,
            (Self::Terminating, PhaseEvent::Stopped) => Self::Terminated,
            (Self::Terminated, PhaseEvent::Deleted) => Self::Removing,
            (Self::Removing, PhaseEvent::Removed) => Self::Gone,
            (
                Self::Syncing | Self::Terminating | Self::Terminated | Self::Removing | Self::Gone,
                PhaseEvent::Finished
                | PhaseEvent::Deleted
                | PhaseEvent::Stopped
                | PhaseEvent::Removed,
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
    const EVENTS: [PhaseEvent; 4] = [
        PhaseEvent::Finished,
        PhaseEvent::Deleted,
        PhaseEvent::Stopped,
        PhaseEvent::Removed,
    ];

    #[test]
    fn phases_only_move_forward_along_arrows() {
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
                (Phase::Syncing, PhaseEvent::Finished, Phase::Terminating),
                (Phase::Syncing, PhaseEvent::Deleted, Phase::Terminating),
                (Phase::Terminating, PhaseEvent::Stopped, Phase::Terminated),
                (Phase::Terminated, PhaseEvent::Deleted, Phase::Removing),
                (Phase::Removing, PhaseEvent::Removed, Phase::Gone),
            ]
        );
    }
}
