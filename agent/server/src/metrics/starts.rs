//! How long pods take to start, from when the agent saw them first until they run.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent::AgentView;
use agent::histogram::Histogram;
use api::pod::PodUid;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::own::POD_START_BOUNDS;

/// The annotation with the time at which the agent saw a pod first.
const SEEN: &str = "kubernetes.io/config.seen";

/// The durations. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PodStarts(Arc<Mutex<Histogram>>);

impl PodStarts {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Histogram::new(POD_START_BOUNDS))))
    }

    pub(crate) fn durations(&self) -> Histogram {
        self.lock().clone()
    }

    /// Follows the agent's reports. Never returns.
    pub(crate) async fn follow(&self, view: &AgentView) {
        let mut reports = view.reports();
        let mut counted: HashSet<PodUid> = HashSet::new();
        loop {
            let now = Timestamp::now();
            let latest = Arc::clone(&reports.borrow_and_update());
            for (uid, report) in latest.iter() {
                let runs = report.status.phase.as_deref() == Some("Running");
                if !runs || counted.contains(uid) {
                    continue;
                }
                counted.insert(uid.clone());
                let pod = view.pod(&report.namespace, &report.name);
                let took = pod.and_then(|pod| took(&pod, &report.status, now));
                if let Some(took) = took {
                    self.lock().observe(took.as_secs_f64());
                }
            }
            counted.retain(|uid| latest.contains_key(uid));
            if reports.changed().await.is_err() {
                // The agent has ended.
                std::future::pending::<()>().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Histogram> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// ◆ How long a pod that runs now took to start; `None` for one that ran before the agent saw it.
fn took(pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<SignedDuration> {
    let seen = pod.metadata.annotations.as_ref()?.get(SEEN)?;
    let seen: Timestamp = seen.parse().ok()?;
    let containers = status.container_statuses.iter().flatten();
    let states = containers.filter_map(|container| container.state.as_ref()?.running.as_ref());
    let first = states.filter_map(|running| Some(running.started_at.as_ref()?.0)).min();
    // Times in statuses may be whole seconds.
    let is_new = first.is_none_or(|first| first.as_second() >= seen.as_second());
    is_new.then(|| now.duration_since(seen).max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::started("2026-01-01T00:00:01Z", Some(3))]
    #[case::in_the_same_second("2026-01-01T00:00:00Z", Some(3))]
    #[case::adopted("2025-12-31T23:59:59Z", None)]
    fn adopted_pods_took_no_time(#[case] started_at: &str, #[case] expected: Option<i64>) {
        let pod = json!({
            "metadata": {"annotations": {SEEN: "2026-01-01T00:00:00.5Z"}},
            "status": {"containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": started_at}},
            }]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let status = pod.status.clone().unwrap();
        let now = "2026-01-01T00:00:03.5Z".parse().unwrap();
        assert_eq!(took(&pod, &status, now).map(|took| took.as_secs()), expected);
        assert_eq!(took(&Pod::default(), &status, now), None);
    }
}
