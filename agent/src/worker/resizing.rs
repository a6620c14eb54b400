//! Follows the resizes of a pod: which one is in progress, and when it is complete.

use api::pod::Pod;
use jiff::Timestamp;

use super::{WorkItem, Worker};
use crate::decide::plan::HoldKey;
use crate::decide::resize::actuated::Actuated;
use crate::decide::resize::files::ActuatedRecord;
use crate::decide::resize::{IN_PROGRESS, ResizeCondition, ResizeConditions, ResizeState};
use crate::observed::Observed;
use crate::pod_spec::spec::Node;
use crate::reporting::events::{EventReason, ResizeEvent};
use crate::storage::volumes::PodDirs;

/// The state of a pod's resizes.
#[derive(Debug)]
pub(super) struct Resizing {
    /// The resources last passed to the runtime.
    pub(super) actuated: ActuatedRecord,
    /// The conditions that the status shows.
    pub(super) conditions: ResizeConditions,
    /// The number of handled grants.
    granted: u64,
}

impl Resizing {
    /// The state that an earlier agent left. The sync loop sends pending resizes.
    pub(super) fn new(item: &WorkItem, dirs: &PodDirs, node: &Node, now: Timestamp) -> Self {
        let (assumed, in_progress) = match item {
            WorkItem::Pod(pod, _) => {
                (Actuated::new(pod, node), ResizeCondition::restored(pod, IN_PROGRESS, now))
            }
            WorkItem::Orphan(_) => (Actuated::default(), None),
        };
        Self {
            actuated: ActuatedRecord::open(dirs.pod.clone(), assumed),
            conditions: ResizeConditions { pending: None, in_progress },
            granted: 0,
        }
    }
}

/// The generation of a pod; 0 if it has none.
pub(crate) fn generation(pod: &Pod) -> i64 {
    pod.api().metadata.generation.unwrap_or_default()
}

impl Worker {
    /// Applies the sync loop's state of a pod's resizes. Returns whether it changed.
    pub(super) fn take_resize(&mut self, pod: &Pod, state: ResizeState) -> bool {
        let resizing = &mut self.resizing;
        let differs =
            state.pending != resizing.conditions.pending || state.granted != resizing.granted;
        resizing.conditions.pending = state.pending;
        if state.granted != resizing.granted {
            resizing.granted = state.granted;
            let now = self.shared.clock.now();
            resizing.conditions.granted(generation(pod), now);
        }
        differs
    }

    /// Compares the running containers with the granted resources.
    pub(super) fn follow_resize(&mut self, pod: &Pod, observed: &Observed) {
        let is_running = |name: &str| {
            let seen = observed.container(name);
            seen.is_some_and(|seen| seen.state.is_running())
        };
        let actuated = self.resizing.actuated.now();
        let conditions = &mut self.resizing.conditions;
        if actuated.differs_from(pod, is_running) {
            conditions.in_progress(generation(pod), self.shared.clock.now());
        } else if let Some(generation) = conditions.complete() {
            let completed = EventReason::Resize(ResizeEvent::Completed, generation);
            self.event(None, &completed);
        }
    }

    /// Records that a resize failed. It is retried later.
    pub(super) fn resize_failed(&mut self, message: String) {
        let Some(pod) = self.pod.clone() else { return };
        tracing::warn!(pod = %pod.full_name(), error = %message, "failed to resize pod; will retry");
        self.defer(HoldKey::Resize);
        let now = self.shared.clock.now();
        let conditions = &mut self.resizing.conditions;
        if let Some(generation) = conditions.failed(&message, generation(&pod), now) {
            let failed = EventReason::Resize(ResizeEvent::Error(message), generation);
            self.event(None, &failed);
        }
    }
}
