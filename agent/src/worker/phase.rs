//! ◆ The state machine of a worker. It only moves forward:
//!
//! ```text
//! Syncing --Deleted--> Terminating --Stopped--> Terminated --Deleted--> Removing --Removed--> Gone
//!    \----Finished---------^                       (immediately, if the pod was deleted before)
//! ```

/// A worker's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The worker brings the pod to its desired state.
    Syncing,
    /// The worker stops containers and sandboxes.
    Terminating,
    /// Nothing runs; logs and status are kept while a source still has the pod.
    Terminated,
    /// The worker removes containers, sandboxes and directories.
    Removing,
    /// Nothing is left; the worker exits.
    Gone,
}

/// An event that moves a worker to the next phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseEvent {
    /// Every container has exited and will not be restarted.
    Finished,
    /// No source has the pod any more.
    Deleted,
    /// No container runs and no sandbox is ready.
    Stopped,
    /// The pod's containers, sandboxes and directories are removed.
    Removed,
}

impl Phase {
    /// Returns the next phase; an event that does not apply to the current phase is ignored.
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

    const PHASES: [Phase; 5] =
        [Phase::Syncing, Phase::Terminating, Phase::Terminated, Phase::Removing, Phase::Gone];
    const EVENTS: [PhaseEvent; 4] =
        [PhaseEvent::Finished, PhaseEvent::Deleted, PhaseEvent::Stopped, PhaseEvent::Removed];

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
