//! Grants resizes: queues pending ones, and decides on them again when something has changed, or periodically.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/allocation/allocation_manager.go; pkg/kubelet/kubelet.go HandlePodUpdates,
//! HandlePodReconcile.

use std::time::Duration;

use api::pod::{Pod, PodUid};
use compact::Map;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{SyncLoop, has_ended};
use crate::Config;
use crate::decide::resize::ResizeState;
use crate::decide::resize::allocation::Allocation;
use crate::decide::resize::decision::{Decision, decide};
use crate::decide::resize::files;
use crate::decide::resize::queue::Rank;
use crate::decide::resize::requests::resize_requests;
use crate::decide::resize::{DEFERRED, INFEASIBLE, PENDING, ResizeCondition, set_pending};
use crate::reporting::events::{EventReason, ResizeEvent};
use crate::reporting::measures::Counted;
use crate::storage::volumes::PodDirs;
use crate::worker::PodUpdate;

/// The retry period of a pending resize, if nothing changes.
const RETRY: Duration = Duration::from_secs(180);
/// The retry period while some source has not delivered its pods.
const FIRST_RETRY: Duration = Duration::from_secs(30);

/// Why pending resizes are decided again, as in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    PodsAdded,
    PodUpdated,
    PodsRemoved,
    /// A pod has ended, or uses less.
    PodTerminated,
    PodResized,
    /// The retry period has passed.
    Period,
}

impl Trigger {
    fn as_str(self) -> &'static str {
        match self {
            Self::PodsAdded => "pods_added",
            Self::PodUpdated => "pod_updated",
            Self::PodsRemoved => "pods_removed",
            Self::PodTerminated => "pod_terminated",
            Self::PodResized => "pod_resized",
            Self::Period => "periodic_retry",
        }
    }
}

/// What becomes of a pod's resize after a decision.
enum Outcome {
    /// It is not pending.
    Decided,
    /// It may be granted later.
    Deferred,
    /// It waits for preempted pods to end.
    Preempting,
}

/// The granted resources of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Granted {
    /// A version of the pod with the granted resources, usually the source's. `None` for a pod that no source has.
    allocated: Option<Pod>,
    /// The source's pod with the granted resources, if it requests others.
    in_place: Option<Pod>,
    state: ResizeState,
}

fn directory(pod: &Pod, config: &Config) -> std::path::PathBuf {
    PodDirs::new(config, pod.uid(), pod.namespace(), pod.name()).pod
}

impl Granted {
    /// The resources that an earlier agent granted; a new pod is granted its requests.
    pub(super) fn recorded(pod: &Pod, config: &Config, now: Timestamp) -> Self {
        let recorded = files::allocated(&directory(pod, config));
        let in_place = recorded.and_then(|recorded| recorded.in_place_of_desired(pod));
        // The agent may have ended after it granted the resize, and before the status reported it: then nothing is pending.
        let pending = in_place.as_ref().and_then(|_| ResizeCondition::restored(pod, PENDING, now));
        Self {
            allocated: Some(in_place.as_ref().unwrap_or(pod).clone()),
            in_place,
            state: ResizeState { pending, granted: 0 },
        }
    }

    fn set_desired(&mut self, pod: &Pod) {
        let allocated = self.allocated.as_ref();
        self.in_place =
            allocated.and_then(|allocated| Allocation::of(allocated).in_place_of_desired(pod));
    }

    /// Whether the source requests other resources.
    pub(super) fn differs(&self) -> bool {
        self.in_place.is_some()
    }

    /// The pod with its granted resources.
    pub(super) fn pod<'a>(&'a self, desired: &'a Pod) -> &'a Pod {
        self.in_place.as_ref().unwrap_or(desired)
    }

    pub(super) fn update(&self, desired: &Pod) -> PodUpdate {
        PodUpdate::Run(self.pod(desired).clone(), self.state.clone())
    }

    /// Records the granted resources for the next agent.
    pub(super) fn keep(&self, desired: &Pod, config: &Config) {
        let directory = directory(desired, config);
        let before = files::allocated(&directory);
        files::keep_allocated(&directory, self.pod(desired), before.as_ref());
    }
}

/// The resizes that are not granted yet.
pub(super) struct Resizes {
    /// In the order of decision.
    queue: Vec<PodUid>,
    /// The number of additions to the queue.
    pushed: u64,
    retry_at: Instant,
    /// The CPU and memory of each active pod at the last decision.
    used: Map<PodUid, [i64; 2]>,
}

impl Resizes {
    pub(super) fn new() -> Self {
        Self { queue: Vec::new(), pushed: 0, retry_at: Instant::now(), used: Map::new() }
    }

    pub(super) fn are_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Waits until pending resizes must be decided again.
    pub(super) async fn due(&self) {
        if self.queue.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(self.retry_at).await;
    }
}

impl SyncLoop {
    /// Sends a worker a new version of its pod, with its granted resources.
    pub(super) fn update_allocated(&mut self, pod: &Pod, before: Option<&Pod>) {
        let Some(entry) = self.entries.get_mut(pod.uid()) else {
            return;
        };
        let granted = &mut entry.granted;
        granted.set_desired(pod);
        let requests = before.map(|before| resize_requests(before, pod)).unwrap_or_default();
        for request in requests {
            self.shared.measures.count(Counted::ResizeRequested(request));
        }
        let is_resized =
            before.is_none_or(|before| Allocation::of(before).in_place_of_desired(pod).is_some());
        if granted.differs() && is_resized && !entry.rejected {
            // The worker is updated after the decision on the resize.
            return self.push_resize(pod.uid());
        }
        if !granted.differs() {
            // A pending resize was revoked.
            granted.state.pending = None;
        }
        let update = granted.update(pod);
        entry.send(update);
    }

    /// Inserts a pod's resize into the queue.
    pub(super) fn push_resize(&mut self, uid: &PodUid) {
        self.resizes.pushed += 1;
        if !self.resizes.queue.contains(uid) {
            self.resizes.queue.push(uid.clone());
        }
        let rank = |uid: &PodUid| -> Option<Rank> {
            let entry = self.entries.get(uid)?;
            let desired = entry.state.desired.as_ref()?;
            let since: Option<Timestamp> = entry.granted.state.pending.as_ref().map(|at| at.since);
            Some(Rank::of(desired, entry.granted.pod(desired), since))
        };
        self.resizes.queue.sort_by_cached_key(rank);
    }

    /// Decides on all pending resizes, in order.
    pub(super) fn retry_resizes(&mut self, trigger: Trigger) {
        if !self.sources.iter().all(Option::is_some) {
            self.resizes.retry_at = Instant::now() + FIRST_RETRY;
            self.update_pending();
            return;
        }
        self.resizes.retry_at = Instant::now() + RETRY;
        let mut undecided = std::mem::take(&mut self.resizes.queue).into_iter();
        for uid in undecided.by_ref() {
            match self.decide_and_update(&uid, trigger) {
                Outcome::Decided => {}
                Outcome::Deferred => self.resizes.queue.push(uid),
                Outcome::Preempting => {
                    self.resizes.queue.push(uid);
                    break;
                }
            }
        }
        // As in a kubelet, the other resizes wait for the preempted pods, whose resources they must not get.
        if !undecided.as_slice().is_empty() {
            self.resizes.queue.extend(undecided);
            self.update_pending();
        }
        self.resizes.used = self.used();
    }

    /// The decision on a pod's resize; `None` if it has none. As for a new pod, the node's current properties count, such as its
    /// pressure (Kubernetes 1.36, pkg/kubelet/allocation/allocation_manager.go canAdmitPod).
    fn decide(&self, uid: &PodUid) -> Option<Decision> {
        let entry = self.entries.get(uid)?;
        let desired = entry.state.desired.as_ref()?;
        let allocated = entry.granted.in_place.as_ref()?;
        let (shared, admitted) = (&self.shared, self.entries.admitted());
        let node_info = shared.current_node_info();
        let kept = || self.entries.kept();
        let decision = decide(desired, allocated, admitted, kept, &node_info, &shared.node);
        Some(match (&decision, shared.managers.forbids_resize(allocated, desired)) {
            (Decision::Granted | Decision::Preempting(..) | Decision::Deferred(_), Some(why)) => {
                Decision::Infeasible(why)
            }
            (_, Some(_) | None) => decision,
        })
    }

    /// Decides on a pod's resize and updates its worker.
    fn decide_and_update(&mut self, uid: &PodUid, trigger: Trigger) -> Outcome {
        self.entries.count(&self.reports.borrow());
        let Some(decision) = self.decide(uid) else {
            return Outcome::Decided;
        };
        let Some(entry) = self.entries.get(uid) else {
            return Outcome::Decided;
        };
        // No other pod is evicted for the resize of a pod that ends.
        let ends = entry.evicted || has_ended(&self.reports.borrow(), uid);
        let Some(desired) = entry.state.desired.clone() else {
            return Outcome::Decided;
        };
        if let Decision::Preempting(victims, insufficient_resource) = &decision
            && !ends
        {
            self.evict_for(&desired, victims, insufficient_resource);
        }
        let Some(entry) = self.entries.get_mut(uid) else {
            return Outcome::Decided;
        };
        let shared = &self.shared;
        let granted = &mut entry.granted;
        let generation = desired.api().metadata.generation.unwrap_or_default();
        let now = shared.clock.now();
        let pending = &mut granted.state.pending;
        let (event, outcome) = match decision {
            Decision::Preempting(..) if ends => (None, Outcome::Decided),
            Decision::Preempting(..) => (None, Outcome::Preempting),
            Decision::Granted => {
                if pending.as_ref().is_some_and(|before| before.reason == DEFERRED) {
                    let granted = Counted::DeferredResizeGranted(trigger.as_str());
                    shared.measures.count(granted);
                }
                granted.allocated = Some(desired.clone());
                granted.in_place = None;
                granted.state.granted += 1;
                *pending = None;
                granted.keep(&desired, &shared.config);
                (Some(ResizeEvent::Started), Outcome::Decided)
            }
            Decision::Deferred(why) => {
                let is_changed = set_pending(pending, DEFERRED, &why.message, generation, now);
                (is_changed.then_some(ResizeEvent::Deferred(why)), Outcome::Deferred)
            }
            Decision::Infeasible(why) => {
                shared.measures.count(Counted::ResizeInfeasible(why.detail));
                let message = why.message;
                let is_changed = set_pending(pending, INFEASIBLE, &message, generation, now);
                let event = is_changed.then_some(ResizeEvent::Infeasible(message));
                (event, Outcome::Decided)
            }
        };
        if let Some(event) = event {
            tracing::info!(pod = %desired.full_name(), ?event, "decided on resize of pod");
            let reason = EventReason::Resize(event, generation);
            shared.events.record(&desired, None, &reason);
        }
        let update = granted.update(&desired);
        entry.send(update);
        outcome
    }

    /// Sends the workers of pods with pending resizes the other changes of their pods.
    fn update_pending(&self) {
        for uid in &self.resizes.queue {
            if let Some(entry) = self.entries.get(uid)
                && let Some(desired) = &entry.state.desired
            {
                entry.send(entry.granted.update(desired));
            }
        }
    }

    /// Decides on pending resizes again if a pod has ended, or uses less than before.
    pub(super) fn observe_reports(&mut self) {
        let used = self.used();
        let freed = self.resizes.used.iter().find_map(|(uid, before)| match used.get(uid) {
            None => Some(Trigger::PodTerminated),
            Some(now) => {
                let is_less = now.iter().zip(before).any(|(now, before)| now < before);
                is_less.then_some(Trigger::PodResized)
            }
        });
        if let Some(trigger) = freed {
            self.retry_resizes(trigger);
        }
    }

    /// The CPU and memory of each active pod.
    fn used(&mut self) -> Map<PodUid, [i64; 2]> {
        let admitted = self.admitted();
        let amounts = admitted.each("cpu").zip(admitted.each("memory"));
        let of = amounts.map(|((uid, cpu), (_, memory))| (uid.clone(), [cpu, memory]));
        of.collect()
    }
}
