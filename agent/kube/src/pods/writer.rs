//! Writes the statuses of pods to the server, and deletes pods for good once their end is written and nothing of them is left.
//!
//! A failed write is repeated in the next round, or with the pod's next status.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go syncBatch, syncPod.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::histogram::Histogram;
use agent::reporting::status::merge::merged;
use agent::{PodReport, Reports};
use api::manifest::pod_json;
use api::pod::{Pod, PodUid};
use compact::Map;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::due::{Written, is_due, may_be_deleted};
use super::mirror::{reported_status, reported_uid};
use super::status_json::patch;
use super::{KnownPods, path};
use crate::client::{ApiClient, ApiError, PatchKind};

/// The interval between comparisons of all statuses with the server's.
const ROUND: Duration = Duration::from_secs(10);

/// The upper bounds of the buckets of delays from changes to their writes, in seconds.
const BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// The delays from status changes to their writes, in seconds. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct WriteDelays(Arc<Mutex<Histogram>>);

impl Default for WriteDelays {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Histogram::new(BOUNDS))))
    }
}

impl WriteDelays {
    pub(crate) fn durations(&self) -> Histogram {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Histogram> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes statuses.
pub(crate) struct Writer {
    client: ApiClient,
    written: Map<PodUid, Written>,
    /// The time at which the status of each pod became due.
    due_since: Map<PodUid, Instant>,
    delays: WriteDelays,
}

impl Writer {
    pub(crate) fn new(client: ApiClient, delays: WriteDelays) -> Self {
        Self { client, written: Map::new(), due_since: Map::new(), delays }
    }

    /// Writes new statuses among the `reports` for pods that the server has.
    pub(crate) async fn run(
        mut self,
        mut reports: watch::Receiver<Arc<Reports>>,
        mut known: watch::Receiver<Arc<KnownPods>>,
    ) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let full_sync = tokio::select! {
                _ = rounds.tick() => true,
                Ok(()) = reports.changed() => false,
                Ok(()) = known.changed() => false,
            };
            let reports = Arc::clone(&reports.borrow_and_update());
            known.mark_unchanged();
            self.write_all(&reports, &known, full_sync).await;
        }
    }

    async fn write_all(
        &mut self,
        reports: &Reports,
        known: &watch::Receiver<Arc<KnownPods>>,
        full_sync: bool,
    ) {
        let at_first = Arc::clone(&known.borrow());
        self.written.retain(|uid, _| at_first.contains_key(uid));
        self.due_since.retain(|uid, _| at_first.contains_key(uid));
        for uid in at_first.keys() {
            // If a pod disappeared during earlier writes, the node may no longer get it.
            let at_server = known.borrow().get(uid).cloned();
            let Some(at_server) = at_server else {
                continue;
            };
            let Some(report) = reports.get(&reported_uid(&at_server)) else {
                continue;
            };
            // Anybody may write the annotation with which a mirror pod names its static pod, so compare the names.
            if (report.namespace.as_str(), report.name.as_str())
                != (at_server.namespace(), at_server.name())
            {
                continue;
            }
            if !is_due(report, &at_server, self.written.get(uid), full_sync) {
                // The agent published an equal status again.
                if let Some(written) = self.written.get_mut(uid) {
                    written.status = Arc::clone(&report.published);
                }
                continue;
            }
            self.due_since.entry(uid.clone()).or_insert_with(Instant::now);
            match self.write(report, uid).await {
                Ok(written) => {
                    if let Some(since) = self.due_since.remove(uid) {
                        self.delays.lock().observe(since.elapsed().as_secs_f64());
                    }
                    self.written.insert(uid.clone(), written);
                }
                Err(error) => {
                    let concerns_all = error.concerns_all_objects();
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(pod = %at_server.full_name(), error, "failed to write a pod's status; will retry");
                    // Requests for the other pods would fail as well.
                    if concerns_all {
                        return;
                    }
                }
            }
        }
    }

    /// Writes a status to the pod of this uid, if it still exists.
    async fn write(&self, report: &PodReport, uid: &PodUid) -> Result<Written, ApiError> {
        let mut written = Written {
            status: Arc::clone(&report.published),
            finished: report.finished,
            deleted: false,
        };
        let path = path(&report.namespace, &report.name);
        let Some(pod) = self.pod(&path, uid).await? else {
            return Ok(written);
        };
        let before = pod.api().status.clone().unwrap_or_default();
        let own = reported_status(&pod, &report.published);
        let after = merged(&pod, &before, own, !report.finished, Timestamp::now());
        let patch = patch(pod.uid().as_str(), &before, &after)
            .map_err(|error| ApiError::Malformed(error.to_string()))?;
        let pod = match patch {
            Some(patch) => {
                let path = format!("{path}/status");
                match self.client.patch(&path, PatchKind::StrategicMerge, &patch).await {
                    Ok(patched) => decoded(patched)?,
                    // The pod was deleted meanwhile.
                    Err(error) if error.is_not_found() => return Ok(written),
                    Err(error) => return Err(error),
                }
            }
            None => pod,
        };
        if may_be_deleted(&pod, report.finished) {
            match self.client.delete_now(&path, pod.uid().as_str()).await {
                Ok(()) => {
                    tracing::info!(pod = %pod.full_name(), "deleted the pod from the API server")
                }
                // The pod is already gone, or another pod has its name.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
            written.deleted = true;
        }
        Ok(written)
    }

    /// The pod at the server; `None` if it is gone or another pod has its name.
    async fn pod(&self, path: &str, uid: &PodUid) -> Result<Option<Pod>, ApiError> {
        match self.client.get(path, &[]).await {
            Ok(object) => Ok(Some(decoded(object)?).filter(|pod| pod.uid() == uid)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn decoded(object: serde_json::Value) -> Result<Pod, ApiError> {
    pod_json::from_json(object).map(Pod::new).map_err(ApiError::Malformed)
}
