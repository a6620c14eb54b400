//! The results of a pod's probes, as received by its worker.

use std::sync::Arc;

use api::pod::Pod;
use compact::Map;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::mpsc;

use super::Worker;
use crate::checks::probe::machine::ProbeKind;
use crate::checks::probe::prober::{ProbeUpdate, Probed, has_probes};
use crate::observed::{ContainerId, Observed, ProbeResult, ProbeResults};
use crate::reporting::causes::Causes;
use crate::reporting::report::ContainerPhase;

/// The latest results, and why containers are stopped because of them.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// `None` until the probes are registered.
    updates: Option<mpsc::UnboundedReceiver<ProbeUpdate>>,
    latest: Map<(String, ProbeKind), (ContainerId, ProbeResult)>,
    causes: Causes,
}

impl Probes {
    /// Whether the probes are registered.
    pub(super) fn are_registered(&self) -> bool {
        self.updates.is_some()
    }

    /// Waits for results.
    pub(super) async fn changed(&mut self) {
        let update = match &mut self.updates {
            Some(updates) => updates.recv().await,
            None => None,
        };
        match update {
            Some(update) => self.apply(update),
            None => std::future::pending().await,
        }
        self.receive();
    }

    /// Receives the results that have arrived.
    fn receive(&mut self) {
        while let Some(update) = self.updates.as_mut().and_then(|updates| updates.try_recv().ok()) {
            self.apply(update);
        }
    }

    fn apply(&mut self, update: ProbeUpdate) {
        let is_fatal = update.kind != ProbeKind::Readiness && update.result == ProbeResult::Failure;
        if let Some(event) = update.event.filter(|_| is_fatal) {
            let message = event.message.trim_end().to_owned();
            let ended = ContainerPhase::Terminated;
            self.causes.add(Causes::container(&event.container, ended, message));
        }
        let key = (update.container, update.kind);
        self.latest.insert(key, (update.id, update.result));
    }

    /// The failures since the last call.
    pub(super) fn take_causes(&mut self) -> Causes {
        std::mem::take(&mut self.causes)
    }

    /// The observed state with the results.
    pub(super) fn add_to(&mut self, observed: Arc<Observed>) -> Arc<Observed> {
        self.receive();
        if self.latest.is_empty() {
            return observed;
        }
        let mut results: Map<ContainerId, ProbeResults> = Map::new();
        for ((_, kind), (id, result)) in &self.latest {
            let of_container = results.entry(id.clone()).or_default();
            let place = match kind {
                ProbeKind::Startup => &mut of_container.startup,
                ProbeKind::Readiness => &mut of_container.readiness,
                ProbeKind::Liveness => &mut of_container.liveness,
            };
            *place = Some(*result);
        }
        let mut with = Observed::clone(&observed);
        with.probes = results;
        Arc::new(with)
    }
}

impl Worker {
    /// Registers the pod's probes, once its status was reported.
    pub(super) fn run_probes(&mut self, pod: &Pod, observed: &Observed) {
        if self.probes.are_registered() || !has_probes(pod) {
            return;
        }
        let is_older = |seen: &crate::observed::ObservedContainer| {
            seen.state.is_running() && seen.created_at < self.shared.started_at
        };
        let (updates, receiver) = mpsc::unbounded_channel();
        self.shared.prober.add(Probed {
            pod: pod.clone(),
            status: self.reported.published.status(),
            adopted: observed.containers.iter().any(is_older),
            updates,
        });
        self.probes.updates = Some(receiver);
    }

    /// Sends the prober the reported status between publications, because a container that has ended is not probed.
    pub(super) fn update_prober_between_publications(&self) {
        if let Some(last) = &self.reported.last {
            self.update_prober(Arc::clone(last));
        }
    }

    /// Sends the prober the published status.
    pub(super) fn update_prober(&self, status: Arc<PodStatus>) {
        if self.probes.are_registered() {
            self.shared.prober.set_status(self.uid(), status);
        }
    }
}
