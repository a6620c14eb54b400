//! A view of a running agent: its node, its pods and their reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Container, Pod as ApiPod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use tokio::sync::watch;

use crate::checks::probe::counts::{ProbeCount, ProbeCounts, ProbeName};
use crate::cri::Capabilities;
use crate::local_node::shutdown::ShutdownTimes;
use crate::managers::claims::{ClaimManager, ClaimMeasures, PreparedClaim};
use crate::managers::{DeviceResources, ManagerMetric, Managers};
use crate::node::Pressure;
use crate::observation::readiness::Readiness;
use crate::reporting::events::{EventRecorder, EventType};
use crate::reporting::measures::{Measured, Measures};
use crate::reporting::report::Reports;
use crate::sync_loop::monitor::SyncLoopMonitor;
use crate::upkeep::machine_watch::OomCount;

/// The node's capacity, and its allocatable resources: quantities by resource name.
#[derive(Debug)]
pub(crate) struct NodeResources {
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) allocatable: BTreeMap<String, String>,
    /// The node's swap in bytes.
    pub(crate) swap_capacity: i64,
    /// The cgroup of all pods, if it is passed to the runtime.
    pub(crate) pods_cgroup: Option<String>,
}

/// Implements `Debug`, which [`Managers`] does not.
#[derive(Clone)]
pub(crate) struct ManagersView(pub(crate) Arc<dyn Managers>);

impl std::fmt::Debug for ManagersView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ManagersView").field(&self.0.devices()).finish()
    }
}

/// Implements `Debug`, which [`ClaimManager`] does not.
#[derive(Clone)]
pub(crate) struct ClaimsView(pub(crate) Option<Arc<dyn ClaimManager>>);

impl std::fmt::Debug for ClaimsView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClaimsView").field(&self.0.is_some()).finish()
    }
}

/// A view of an agent; clones show the same agent.
#[derive(Clone, Debug)]
pub struct AgentView {
    pub(crate) reports: watch::Receiver<Arc<Reports>>,
    pub(crate) pods: watch::Receiver<Arc<[Pod]>>,
    pub(crate) sources_ready: watch::Receiver<bool>,
    pub(crate) readiness: watch::Receiver<Readiness>,
    pub(crate) monitor: SyncLoopMonitor,
    pub(crate) pressure: watch::Receiver<Pressure>,
    pub(crate) shutting_down: watch::Receiver<bool>,
    pub(crate) shutdown_times: watch::Receiver<ShutdownTimes>,
    pub(crate) oom_count: Option<OomCount>,
    pub(crate) probes: ProbeCounts,
    pub(crate) measures: Measures,
    pub(crate) resources: Arc<NodeResources>,
    pub(crate) managers: ManagersView,
    pub(crate) claims: ClaimsView,
    pub(crate) events: EventRecorder,
}

impl AgentView {
    /// The node's current capacity, by resource name.
    #[must_use]
    pub fn capacity(&self) -> BTreeMap<String, String> {
        let mut capacity = self.resources.capacity.clone();
        DeviceResources::add(&mut capacity, self.managers.0.devices().capacity);
        capacity
    }

    /// The node's swap in bytes.
    #[must_use]
    pub fn swap_capacity(&self) -> i64 {
        self.resources.swap_capacity
    }

    /// Whether extended resources in an existing node's object are outdated, because the machine is a new one.
    #[must_use]
    pub fn resets_extended_resources(&self) -> bool {
        self.managers.0.resets_extended_resources()
    }

    /// The managers' metrics.
    #[must_use]
    pub fn manager_metrics(&self) -> Vec<ManagerMetric> {
        self.managers.0.metrics()
    }

    /// The durations of preparing ResourceClaims; `None`: the node has no drivers for them.
    #[must_use]
    pub fn claim_measures(&self) -> Option<ClaimMeasures> {
        Some(self.claims.0.as_ref()?.measures())
    }

    /// The allocatable resources.
    #[must_use]
    pub fn allocatable(&self) -> BTreeMap<String, String> {
        let mut allocatable = self.resources.allocatable.clone();
        DeviceResources::add(&mut allocatable, self.managers.0.devices().allocatable);
        allocatable
    }

    /// The cgroup of all pods, if it is passed to the runtime.
    #[must_use]
    pub fn pods_cgroup(&self) -> Option<&str> {
        self.resources.pods_cgroup.as_deref()
    }

    /// The features that the runtime last reported; `None` before its first status.
    #[must_use]
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.readiness.borrow().capabilities.as_deref().cloned()
    }

    /// Why pods, or those without `hostNetwork`, cannot be started; empty if they can.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let readiness = self.readiness.borrow();
        let shutdown = self.shutting_down.borrow().then(|| "node is shutting down".to_owned());
        readiness.runtime.iter().chain(&readiness.network).cloned().chain(shutdown).collect()
    }

    /// When pods were last ended by a shutdown of the machine, by this agent or an earlier one.
    #[must_use]
    pub fn shutdown_times(&self) -> ShutdownTimes {
        *self.shutdown_times.borrow()
    }

    /// The number of OOM kills since the agent started because the machine had no memory left; `None`: unknown.
    #[must_use]
    pub fn system_oom_kills(&self) -> Option<u64> {
        self.oom_count.as_ref().map(OomCount::now)
    }

    /// The node's pressure conditions.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        *self.pressure.borrow()
    }

    /// Waits until [`AgentView::not_ready`], [`AgentView::pressure`], [`AgentView::capabilities`] or the devices of
    /// [`AgentView::capacity`] may have changed. Cancel-safe.
    pub async fn readiness_changed(&mut self) {
        let changed = tokio::select! {
            changed = self.readiness.changed() => changed,
            // It fails if pods are never evicted.
            Ok(()) = self.pressure.changed() => Ok(()),
            Ok(()) = self.shutting_down.changed() => Ok(()),
            () = self.managers.0.devices_changed() => Ok(()),
        };
        if changed.is_err() {
            // The agent has ended.
            std::future::pending().await
        }
    }

    /// Why the agent is not healthy: its sync loop has not completed an iteration with a ready runtime for 5 minutes, or for two
    /// resync periods if that is longer.
    ///
    /// # Errors
    ///
    /// The reason, in a kubelet's words.
    pub fn health(&self) -> Result<(), String> {
        self.monitor.health()
    }

    /// Whether device plugins can register with the node.
    ///
    /// # Errors
    ///
    /// The reason, in a kubelet's words.
    pub fn device_plugin_health(&self) -> Result<(), String> {
        self.managers.0.device_plugin_health()
    }

    /// The successes and failures of each active probe.
    #[must_use]
    pub fn probe_counts(&self) -> Vec<(ProbeName, ProbeCount)> {
        self.probes.all()
    }

    /// The agent's measurements of its own work.
    #[must_use]
    pub fn measured(&self) -> Measured {
        self.measures.now()
    }

    /// The latest report of every pod.
    #[must_use]
    pub fn reports(&self) -> watch::Receiver<Arc<Reports>> {
        self.reports.clone()
    }

    /// The static pods of all sources, as provided by their sources.
    #[must_use]
    pub fn static_pods(&self) -> Vec<Pod> {
        self.pods.borrow().iter().filter(|pod| pod.is_static()).cloned().collect()
    }

    /// Whether each source has delivered its pods at least once: then a pod that no source has is not desired.
    #[must_use]
    pub fn sources_are_ready(&self) -> bool {
        *self.sources_ready.borrow()
    }

    /// Waits until [`AgentView::static_pods`] or [`AgentView::sources_are_ready`] may have changed. Cancel-safe.
    pub async fn pods_changed(&mut self) {
        let changed = tokio::select! {
            changed = self.pods.changed() => changed,
            changed = self.sources_ready.changed() => changed,
        };
        if changed.is_err() {
            // The agent has ended.
            std::future::pending().await
        }
    }

    /// The pods of all sources that may have running containers.
    #[must_use]
    pub fn active_pods(&self) -> Vec<Pod> {
        let (pods, reports) = (self.pods.borrow(), self.reports.borrow());
        let is_active = |pod: &&Pod| match reports.get(pod.uid()) {
            Some(report) => !report.finished,
            None => !pod.has_ended(),
        };
        pods.iter().filter(is_active).cloned().collect()
    }

    /// The uids of all pods that may have running containers, including those that no source has any more.
    #[must_use]
    pub fn active_uids(&self) -> Vec<PodUid> {
        let mut uids: Vec<PodUid> =
            self.active_pods().iter().map(|pod| pod.uid().clone()).collect();
        let reports = self.reports.borrow();
        uids.extend(reports.values().filter(|it| !it.finished).map(|it| it.uid.clone()));
        uids
    }

    /// The ResourceClaims of a container, with their prepared devices.
    #[must_use]
    pub fn claims_of(&self, pod: &Pod, container: &Container) -> Vec<PreparedClaim> {
        self.claims.0.as_ref().map(|claims| claims.claims(pod, container)).unwrap_or_default()
    }

    /// The pods of all sources with their current statuses, as a PodList.
    #[must_use]
    pub fn pod_list(&self) -> List<ApiPod> {
        let (pods, reports) = (self.pods.borrow(), self.reports.borrow());
        let items = pods.iter().map(|pod| with_status(pod, &reports)).collect();
        List { items, metadata: ListMeta::default() }
    }

    /// Records a warning about the pod with this uid, if it exists.
    pub fn record_pod_warning(&self, uid: &PodUid, reason: &str, message: &str) {
        let pods = self.pods.borrow();
        if let Some(pod) = pods.iter().find(|pod| pod.uid() == uid) {
            self.events.record_text(pod, None, EventType::Warning, reason, message);
        }
    }

    /// Records an event about the node of this name.
    pub fn record_node_event(&self, node: &str, kind: EventType, reason: &str, message: String) {
        self.events.record_node(node, kind, reason, message);
    }

    /// The pod with this name and its current status.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<ApiPod> {
        let (pods, reports) = (self.pods.borrow(), self.reports.borrow());
        let mut named =
            pods.iter().filter(|pod| (pod.namespace(), pod.name()) == (namespace, name));
        named.next().map(|pod| with_status(pod, &reports))
    }
}

fn with_status(pod: &Pod, reports: &Reports) -> ApiPod {
    let mut api = pod.api().clone();
    if let Some(report) = reports.get(pod.uid()) {
        api.status = Some(report.status.as_ref().clone());
    }
    api
}
