//! Durations of pod starts: from when the agent first saw a pod until it runs, and from its creation until all its containers are
//! reported as running.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::histogram::Histogram;
use agent::{AgentView, PodReport};
use api::pod::PodUid;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, Volume};

/// The upper bounds of the buckets of start durations, in seconds.
const BOUNDS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The annotation with the time at which the agent first saw a pod.
const SEEN: &str = "kubernetes.io/config.seen";

/// The start durations of pods in seconds.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    /// From when the agent first saw a pod to when it ran.
    pub(crate) since_seen: Histogram,
    /// From the pod's creation to when all its containers were reported as running.
    pub(crate) since_creation: Histogram,
    /// The same without image pulls and init containers, for pods that are not stateful.
    pub(crate) without_pulls: Histogram,
    /// The first of these durations for a pod without host network; 0 before.
    pub(crate) first_with_network: f64,
}

impl Default for Starts {
    fn default() -> Self {
        let new = || Histogram::new(BOUNDS);
        Self {
            since_seen: new(),
            since_creation: new(),
            without_pulls: new(),
            first_with_network: 0.0,
        }
    }
}

impl Starts {
    /// Source: Kubernetes 1.36, pkg/kubelet/util/pod_startup_latency_tracker.go.
    fn is_reported(&mut self, start: ReportedStart) {
        self.since_creation.observe(start.took);
        if let Some(without_pulls) = start.without_pulls {
            self.without_pulls.observe(without_pulls);
            if !start.host_network && self.first_with_network == 0.0 {
                self.first_with_network = without_pulls;
            }
        }
    }
}

/// The start durations of an agent's pods. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodStarts(Arc<Mutex<Starts>>);

/// The pods that are already counted.
#[derive(Debug, Default)]
struct Counted {
    running: HashSet<PodUid>,
    reported: HashSet<PodUid>,
}

impl PodStarts {
    pub(crate) fn durations(&self) -> Starts {
        self.lock().clone()
    }

    /// Follows the agent's reports. Never returns.
    pub(crate) async fn follow(&self, view: &AgentView) {
        let mut reports = view.reports();
        let mut counted = Counted::default();
        loop {
            let now = Timestamp::now();
            let latest = Arc::clone(&reports.borrow_and_update());
            for report in latest.values() {
                self.count(view, report, &mut counted, now);
            }
            counted.running.retain(|uid| latest.contains_key(uid));
            counted.reported.retain(|uid| latest.contains_key(uid));
            if reports.changed().await.is_err() {
                // The agent has ended.
                std::future::pending::<()>().await;
            }
        }
    }

    fn count(&self, view: &AgentView, report: &PodReport, counted: &mut Counted, now: Timestamp) {
        let runs = report.status.phase.as_deref() == Some("Running");
        let is_new = runs && !counted.running.contains(&report.uid);
        let is_reported = all_run(&report.published) && !counted.reported.contains(&report.uid);
        if !is_new && !is_reported {
            return;
        }
        let pod = view.pod(&report.namespace, &report.name);
        if is_new {
            counted.running.insert(report.uid.clone());
            let took = pod.as_ref().and_then(|pod| took(pod, &report.status, now));
            if let Some(took) = took {
                self.lock().since_seen.observe(took.as_secs_f64());
            }
        }
        if is_reported {
            counted.reported.insert(report.uid.clone());
            let pulls = report.containers.iter().filter_map(|container| container.pull).sum();
            let start = pod.and_then(|pod| reported_start(&pod, &report.published, pulls, now));
            if let Some(start) = start {
                self.lock().is_reported(start);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Starts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The start of a pod whose containers are all reported as running.
#[derive(Clone, Debug, PartialEq)]
struct ReportedStart {
    /// Seconds since the pod's creation.
    took: f64,
    /// The same without pulls and init containers; `None` for a stateful pod.
    without_pulls: Option<f64>,
    host_network: bool,
}

/// ◆ The start of a pod whose image pulls took `pulls`; `None` if the pod ran before the agent saw it.
fn reported_start(
    pod: &Pod,
    status: &PodStatus,
    pulls: Duration,
    now: Timestamp,
) -> Option<ReportedStart> {
    self::took(pod, status, now)?;
    let created = pod.metadata.creation_timestamp.as_ref()?.0;
    let took = now.duration_since(created).as_secs_f64().max(0.0);
    let inits = status.init_container_statuses.iter().flatten();
    let inits: f64 = inits.filter_map(run_time).sum();
    let without_pulls = took - pulls.as_secs_f64() - inits;
    let without_pulls = (!is_stateful(pod)).then(|| without_pulls.max(0.0));
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or_default();
    Some(ReportedStart { took, without_pulls, host_network })
}

/// Whether all containers of a pod are running.
fn all_run(status: &PodStatus) -> bool {
    let mut containers = status.container_statuses.iter().flatten().peekable();
    let runs = |container: &ContainerStatus| {
        container.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    containers.peek().is_some() && containers.all(runs)
}

/// The run time of a terminated container in seconds.
fn run_time(container: &ContainerStatus) -> Option<f64> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    let (from, to) = (ended.started_at.as_ref()?.0, ended.finished_at.as_ref()?.0);
    Some(to.duration_since(from).as_secs_f64().max(0.0))
}

/// Whether a pod has a volume that may hold earlier data.
fn is_stateful(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let is_empty_at_first = |volume: &Volume| {
        volume.secret.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.empty_dir.is_some()
            || volume.projected.is_some()
    };
    !volumes.into_iter().all(is_empty_at_first)
}

/// ◆ The time that a running pod took to start; `None` if it ran before the agent saw it.
fn took(pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<SignedDuration> {
    let seen = pod.metadata.annotations.as_ref()?.get(SEEN)?;
    let seen: Timestamp = seen.parse().ok()?;
    let containers = status.container_statuses.iter().flatten();
    let states = containers.filter_map(|container| container.state.as_ref()?.running.as_ref());
    let first = states.filter_map(|running| Some(running.started_at.as_ref()?.0)).min();
    // Status times may be truncated to whole seconds.
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
    fn adopted_pods_have_no_start_duration(
        #[case] started_at: &str,
        #[case] expected: Option<i64>,
    ) {
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

    fn status(inits: &serde_json::Value) -> PodStatus {
        let running = json!({"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}});
        let status = json!({"containerStatuses": [running], "initContainerStatuses": inits});
        serde_json::from_value(status).unwrap()
    }

    #[rstest]
    #[case::stateless(json!({"volumes": [{"name": "v", "emptyDir": {}}]}), Some(4.0), 4.0)]
    #[case::stateful(json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), None, 0.0)]
    #[case::without_network(json!({"hostNetwork": true}), Some(4.0), 0.0)]
    fn reported_starts_exclude_pulls_and_init_containers(
        #[case] mut spec: serde_json::Value,
        #[case] without_pulls: Option<f64>,
        #[case] first: f64,
    ) {
        spec["containers"] = json!([{"name": "a"}]);
        let pod = json!({
            "metadata": {
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {SEEN: "2026-01-01T00:00:00.5Z"},
            },
            "spec": spec,
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let init = json!([{"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0,
                "startedAt": "2026-01-01T00:00:03Z", "finishedAt": "2026-01-01T00:00:06Z"}}}]);
        let status = status(&init);
        assert!(all_run(&status));
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        let start = reported_start(&pod, &status, Duration::from_secs(3), now).unwrap();
        assert_eq!((start.took, start.without_pulls), (10.0, without_pulls));
        let mut starts = Starts::default();
        starts.is_reported(start);
        assert_eq!((starts.since_creation.count(), starts.first_with_network), (1, first));
    }
}
