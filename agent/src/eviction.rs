//! Evicts pods under node pressure: measures the node every 10 s and when the kernel reports that memory usage crossed a threshold,
//! requests the eviction of at most one pod from the sync loop, and waits for the pod's end.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction/eviction_manager.go; `local_node::eviction::pass` ◆ decides which threshold is
//! due.

mod measure;
mod notify;
mod reclaim;

use std::sync::Arc;
use std::time::Duration;

use api::pod::{Pod, PodUid};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::clock::{Clock, after};
use crate::config::Config;
use crate::cri::Cri;
use crate::images::collector::CollectUnused;
use crate::local_node::eviction::config::Threshold;
use crate::local_node::eviction::layout::{Reclaim, is_of_containers, with_container_fs};
use crate::local_node::eviction::message::message;
use crate::local_node::eviction::observe::{Observations, thresholds_met};
use crate::local_node::eviction::pass::EvictionState;
use crate::local_node::eviction::rank::{Candidate, FsLayout, rank};
use crate::local_node::eviction::settings::EvictionSettings;
use crate::machine::Machine;
use crate::node::Pressure;
use crate::pod_spec::spec::qos::is_critical;
use crate::reporting::events::EventRecorder;
use crate::reporting::measures::{Counted, Measures};
use crate::reporting::report::Reports;
use crate::reporting::status::eviction::{AT_ONCE, Eviction};
use measure::NodeState;
use notify::Notifications;

/// The period of measurements of the node (evictionMonitoringPeriod).
const PERIOD: Duration = Duration::from_secs(10);
/// The time limit of the wait for an evicted pod's clean-up (podCleanupTimeout), followed by the poll period (podCleanupPollFreq).
const CLEANUP: Duration = Duration::from_secs(30);
const CLEANUP_POLL: Duration = Duration::from_secs(1);
/// The minimum time limit for the end of an evicted pod (pkg/kubelet/pod_workers.go killPodNow).
const LEAST_KILL: Duration = Duration::from_secs(10);

/// The task that evicts pods.
pub(crate) struct Evictor {
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) settings: EvictionSettings,
    pub(crate) config: Config,
    /// The pods of all sources, and their state.
    pub(crate) pods: watch::Receiver<Arc<[Pod]>>,
    pub(crate) reports: watch::Receiver<Arc<Reports>>,
    /// Requests the removal of unused images; `None`: images are never removed.
    pub(crate) images: Option<mpsc::Sender<CollectUnused>>,
    pub(crate) events: EventRecorder,
    /// The node's conditions.
    pub(crate) pressure: watch::Sender<Pressure>,
    /// Sends the pods to evict to the sync loop.
    pub(crate) evictions: mpsc::UnboundedSender<(PodUid, Eviction)>,
    pub(crate) measures: Measures,
    /// The cgroup of all pods, if the agent creates it.
    pub(crate) pods_cgroup: Option<String>,
}

/// State that is kept between passes.
struct Memory {
    /// Grace periods use a monotonic clock, because the wall clock may be set.
    began: Instant,
    eviction_state: EvictionState,
    node_state: NodeState,
    notifications: Notifications,
    /// The file systems as last measured, and their thresholds.
    thresholds: Option<(FsLayout, Vec<Threshold>)>,
}

/// A measurement of the node, and its time.
#[derive(Clone, Copy)]
struct Observed<'a> {
    signals: &'a Observations,
    since: Instant,
    layout: FsLayout,
}

/// An evicted pod, and the time limit for its end.
struct Evicted {
    pod: Pod,
    limit: Duration,
}

impl Evictor {
    /// Measures now and every ten seconds, and again when an evicted pod has ended.
    pub(crate) async fn run(self) {
        let mut memory = Memory {
            began: Instant::now(),
            eviction_state: EvictionState::default(),
            node_state: NodeState::default(),
            notifications: Notifications::default(),
            thresholds: None,
        };
        if self.settings.thresholds.iter().any(|threshold| is_of_containers(threshold.signal)) {
            tracing::warn!(
                "thresholds of containerfs have no effect: those of nodefs or imagefs count"
            );
        }
        loop {
            match self.pass(&mut memory).await {
                Some(evicted) => self.wait_for_cleanup(&evicted).await,
                None => tokio::select! {
                    () = self.clock.sleep_until(after(self.clock.now(), PERIOD)) => {}
                    () = memory.notifications.crossed() => {
                        tracing::info!("received memory threshold notification from the kernel");
                    }
                },
            }
        }
    }

    async fn pass(&self, memory: &mut Memory) -> Option<Evicted> {
        let since = Instant::now();
        let (observed, layout) = self.observe(&mut memory.node_state).await;
        let thresholds = match memory.thresholds.take() {
            Some((known, thresholds)) if known == layout => thresholds,
            Some(_) | None => with_container_fs(&self.settings.thresholds, layout),
        };
        let (_, thresholds) = memory.thresholds.insert((layout, thresholds));
        let now = memory.began.elapsed();
        if self.settings.kernel_notifies {
            let (known, pods) = (&mut memory.node_state, self.pods_cgroup.as_deref());
            memory.notifications.refresh(&self.machine, thresholds, pods, known, now).await;
        }
        let period = self.settings.transition_period;
        let decision = memory.eviction_state.decide(thresholds, &observed, period, now);
        self.publish(decision.pressure);
        let threshold = *decision.due.first()?;
        let resource = threshold.signal.resource().as_str();
        tracing::warn!(resource, signal = threshold.signal.as_str(), "attempting to reclaim");
        let message = format!("Attempting to reclaim {resource}");
        self.events.record_node_warning(&self.config.node_name, "EvictionThresholdMet", message);
        let reclaim = Reclaim::for_signal(threshold.signal, layout);
        if reclaim.is_any() {
            self.reclaim(reclaim).await;
            let (observed, _) = self.observe(&mut memory.node_state).await;
            if thresholds_met(thresholds, &observed, true).is_empty() {
                tracing::info!(resource, "reduced pressure without evicting pods");
                return None;
            }
        }
        let observed = Observed { signals: &observed, since, layout };
        self.evict_one(threshold, &decision.due, observed).await
    }

    fn publish(&self, pressure: Pressure) {
        self.pressure.send_if_modified(|before| {
            let differs = *before != pressure;
            if differs {
                let conditions = pressure.conditions().join(" ");
                tracing::info!(conditions, "conditions of the node changed");
                *before = pressure;
            }
            differs
        });
    }

    /// The pods that may have running containers.
    fn active(&self) -> Vec<Pod> {
        let reports = self.reports.borrow();
        let is_active = |pod: &&Pod| reports.get(pod.uid()).is_some_and(|report| !report.finished);
        self.pods.borrow().iter().filter(is_active).cloned().collect()
    }

    /// Evicts the first pod in order that may be evicted.
    async fn evict_one(
        &self,
        threshold: &Threshold,
        due: &[&Threshold],
        observed: Observed<'_>,
    ) -> Option<Evicted> {
        let pods = self.active();
        if pods.is_empty() {
            tracing::warn!("eviction thresholds are met, but no pods are active to evict");
            return None;
        }
        let stats = self.measure_pods(&pods).await;
        let candidate = |pod| {
            let stats = stats.iter().find(|stats| stats.pod_ref.uid == Pod::uid(pod).as_str());
            Candidate { pod, stats }
        };
        let candidates: Vec<Candidate<'_>> = pods.iter().map(candidate).collect();
        let ranked = rank(threshold.signal, observed.layout, &candidates).into_iter().flatten();
        for met in due {
            self.measures.record_eviction_stats_age(met.signal.as_str(), observed.since.elapsed());
        }
        let Some(first) = ranked.into_iter().find(|candidate| !is_critical(candidate.pod)) else {
            tracing::warn!("eviction thresholds are met, but all active pods are critical");
            return None;
        };
        let pod = first.pod.clone();
        let grace = self.grace(threshold, &pod);
        let eviction_message = message(threshold.signal.resource(), &first, due, observed.signals);
        tracing::warn!(pod = %pod.full_name(), message = eviction_message.message.trim_end(), "evicting pod");
        let eviction = Eviction::of_pressure(eviction_message, grace);
        self.measures.count(Counted::Evicted(threshold.signal.as_str()));
        // The send fails only if the agent ends.
        let _ = self.evictions.send((pod.uid().clone(), eviction));
        let seconds = grace.unwrap_or(pod.grace_seconds());
        let kill = Duration::from_secs(seconds.try_into().unwrap_or_default());
        let limit = LEAST_KILL.max(kill.saturating_add(kill / 2)).saturating_add(CLEANUP);
        Some(Evicted { pod, limit })
    }

    /// The grace period of an eviction in seconds; `None`: the pod's own. One of 0 is ignored, as in a kubelet.
    fn grace(&self, threshold: &Threshold, pod: &Pod) -> Option<i64> {
        if threshold.grace_period.is_zero() {
            return Some(AT_ONCE);
        }
        let most = self.settings.max_pod_grace_seconds;
        let own = pod.spec().termination_grace_period_seconds;
        Some(own.map_or(most, |own| own.min(most))).filter(|grace| *grace > 0)
    }

    /// Waits until nothing of the pod runs any more.
    async fn wait_for_cleanup(&self, evicted: &Evicted) {
        let end = after(self.clock.now(), evicted.limit);
        loop {
            self.clock.sleep_until(after(self.clock.now(), CLEANUP_POLL)).await;
            let uid = evicted.pod.uid();
            let has_ended = self.reports.borrow().get(uid).is_none_or(|report| report.finished);
            if has_ended {
                return;
            }
            if self.clock.now() >= end {
                tracing::warn!(pod = %evicted.pod.full_name(), "timed out waiting for the clean-up of an evicted pod");
                return;
            }
        }
    }
}
