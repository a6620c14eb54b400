//! Publishes a pod's status as a kubelet does: when a sync begins, with the state observed before it.
//!
//! The status at the start of the next sync shows a sync's effects (Kubernetes 1.36, pkg/kubelet/kubelet.go SyncPod and
//! SyncTerminatingPod). Only two changes are published in between: a new sandbox is ready (OnPodSandboxReady), and results of
//! probes (pkg/kubelet/status/status_manager.go SetContainerReadiness and SetContainerStartup).

use std::sync::Arc;

use api::pod::Pod;
use compact::Set;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Worker;
use crate::observed::Observed;
use crate::reporting::causes::Causes;
use crate::reporting::report::transitions::Stage;
use crate::reporting::status::last::last_status;

/// The last published status.
#[derive(Clone, Debug)]
pub(super) struct Published {
    status: Option<Arc<PodStatus>>,
    /// The observed state that it shows.
    observed: Option<Arc<Observed>>,
    /// Whether a sync must begin even if nothing of the pod has changed.
    due: bool,
}

impl Published {
    /// Continues from a status of an earlier worker.
    pub(super) fn after(status: Option<Arc<PodStatus>>) -> Self {
        Self { status, observed: None, due: true }
    }

    /// Removes the status.
    pub(super) fn forget(&mut self) {
        self.status = None;
        self.observed = None;
    }

    /// The status, if there is one.
    pub(super) fn known(&self) -> Option<&Arc<PodStatus>> {
        self.status.as_ref()
    }

    /// The status; an empty one before the first.
    pub(super) fn status(&self) -> Arc<PodStatus> {
        self.status.clone().unwrap_or_default()
    }

    /// The observed state that the status shows; `None` before the first status.
    pub(super) fn observed(&self) -> Option<&Arc<Observed>> {
        self.observed.as_ref()
    }

    /// The next observation begins a sync in any case.
    pub(super) fn make_due(&mut self) {
        self.due = true;
    }

    /// No sync begins until something changes.
    pub(super) fn not_due(&mut self) {
        self.due = false;
    }
}

/// The started and the ended parts of a pod. A kubelet's PLEG sends events about changes of this set.
fn events(observed: &Observed) -> Set<(&str, bool)> {
    let containers = observed
        .containers
        .iter()
        .filter(|seen| seen.state.is_running() || seen.state.exit().is_some());
    let containers = containers.map(|seen| (seen.id.as_str(), seen.state.is_running()));
    let sandboxes = observed.sandboxes.iter();
    sandboxes.map(|seen| (seen.id.as_str(), seen.ready)).chain(containers).collect()
}

/// Whether a container or sandbox has started or ended. The removal of ended ones is not an event.
fn has_event(before: &Observed, now: &Observed) -> bool {
    let (before, now) = (events(before), events(now));
    let is_gone = |id: &str| !now.contains(&(id, true)) && !now.contains(&(id, false));
    !now.is_subset(&before) || before.iter().any(|(id, runs)| *runs && is_gone(id))
}

/// Whether a status of `now` can differ from one of `before`, apart from removals.
fn differs(before: &Observed, now: &Observed) -> bool {
    let mut containers = now.containers.iter();
    let mut sandboxes = now.sandboxes.iter();
    containers.any(|seen| !before.containers.contains(seen))
        || sandboxes.any(|seen| !before.sandboxes.contains(seen))
        || before.probes != now.probes
}

/// Whether another component has changed a condition of a readiness gate. Other changes of the status by other components cause no
/// sync (Kubernetes 1.36, pkg/kubelet/kubelet.go HandlePodReconcile).
pub(super) fn gates_differ(before: &Pod, now: &Pod) -> bool {
    let status = |pod: &Pod, gate: &str| {
        let conditions = pod.api().status.as_ref()?.conditions.as_ref()?;
        let found = conditions.iter().find(|condition| condition.type_ == gate);
        found.map(|condition| condition.status.clone())
    };
    let mut gates = now.spec().readiness_gates.iter().flatten();
    gates.any(|gate| status(before, &gate.condition_type) != status(now, &gate.condition_type))
}

/// The status of a pod whose sandbox became ready during a sync: nothing else of it changes.
fn with_ready_sandbox(status: &PodStatus, now: Timestamp) -> PodStatus {
    let mut status = status.clone();
    let conditions = status.conditions.get_or_insert_default();
    let condition =
        conditions.iter_mut().find(|condition| condition.type_ == "PodReadyToStartContainers");
    match condition {
        Some(condition) if condition.status == "True" => {}
        Some(condition) => {
            *condition = PodCondition {
                type_: condition.type_.clone(),
                status: "True".to_owned(),
                observed_generation: condition.observed_generation,
                last_transition_time: Some(Time(now)),
                ..PodCondition::default()
            }
        }
        None => {}
    }
    status
}

impl Worker {
    /// Ends the holds of failed starts after an event. Returns whether there is an event since the last published status.
    pub(super) fn observe_events(&mut self, observed: &Observed) -> bool {
        let before = self.reported.published.observed.as_ref();
        let has_new_event = before.is_some_and(|before| has_event(before, observed));
        if has_new_event {
            self.history.holds.event();
        }
        has_new_event
    }

    /// Begins a sync, if a kubelet would: publishes the status. Returns whether it did. `changed`: there was an event.
    pub(super) fn begin_sync(&mut self, observed: &Arc<Observed>, changed: bool) -> bool {
        let before = self.reported.published.observed.as_ref();
        let differs = before.is_none_or(|before| changed || differs(before, observed));
        if !differs && !self.reported.published.due {
            return false;
        }
        self.reported.published.due = false;
        self.publish(observed, Stage::Active);
        true
    }

    /// Publishes the status of the observed state. The next report includes it.
    pub(super) fn publish(&mut self, observed: &Arc<Observed>, stage: Stage) {
        let Some(pod) = self.pod.clone() else { return };
        let mut present = None;
        if pod.spec().active_deadline_seconds.is_some() {
            let now = present.insert(Observed::clone(observed));
            now.at = self.shared.clock.now();
        }
        let seen = present.as_ref().unwrap_or(observed);
        let previous = self.reported.published.status.clone();
        let mut status = self.status_of(&pod, seen, previous.as_deref(), stage);
        // Live reports still show the observed state of each container.
        if matches!(stage, Stage::Terminated | Stage::Removed) {
            status = last_status(&pod, status);
        }
        let status = Arc::new(status);
        self.reported.published.status = Some(Arc::clone(&status));
        self.reported.published.observed = Some(Arc::clone(observed));
        self.update_prober(status);
    }

    /// Publishes results of probes that arrive during a sync.
    pub(super) fn publish_probes(&mut self, stage: Stage) {
        if let Some(observed) = self.reported.published.observed.clone() {
            let observed = self.probes.add_to(observed);
            self.publish(&observed, stage);
        }
    }

    /// Publishes during a sync that the pod's sandbox is ready.
    pub(super) fn publish_sandbox_ready(&mut self) {
        let Some(before) = &self.reported.published.status else {
            return;
        };
        let status = with_ready_sandbox(before, self.shared.clock.now());
        self.reported.published.status = Some(Arc::new(status));
        self.report_again(Causes::pod("sandbox is ready"));
    }
}
