//! ◆ Decides whether a pod's status must be written, and whether the pod's object must be deleted for good. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go needsUpdate, needsReconcile, canBeDeleted.

use std::sync::Arc;

use agent::PodReport;
use api::pod::Pod;
use k8s_openapi::api::core::v1::PodStatus;

use super::mirror::{is_mirror, reported_status};
use super::status_json::differs;

/// The last successful write of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) status: Arc<PodStatus>,
    /// The report of that write said that nothing of the pod was left to run.
    pub(crate) finished: bool,
    /// The deletion for good was requested.
    pub(crate) deleted: bool,
}

/// Whether to write a pod's status or delete the pod. `full_sync`: also compares with the server's status, and repeats the deletion of
/// a pod that still exists.
pub(crate) fn is_due(
    report: &PodReport,
    at_server: &Pod,
    written: Option<&Written>,
    full_sync: bool,
) -> bool {
    // The agent has not published a status yet.
    if report.published.phase.is_none() {
        return false;
    }
    let Some(written) = written else {
        return true;
    };
    let is_other = !Arc::ptr_eq(&written.status, &report.published)
        && differs(&written.status, &report.published);
    let is_new = is_other || written.finished != report.finished;
    let ends = may_be_deleted(at_server, report.finished) && (full_sync || !written.deleted);
    let status = || at_server.api().status.clone().unwrap_or_default();
    is_new
        || ends
        || full_sync && differs(&status(), &reported_status(at_server, &report.published))
}

/// Whether the pod's object may be deleted for good: its deletion was requested, its final status is written, and nothing of it
/// is left.
pub(crate) fn may_be_deleted(at_server: &Pod, finished: bool) -> bool {
    at_server.is_deleted() && !is_mirror(at_server) && at_server.has_ended() && finished
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use api::pod::PodUid;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(phase: &str, deleted: bool) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": []},
            "status": {"phase": phase},
        });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-28T10:00:00Z");
        }
        Pod::new(serde_json::from_value(pod).unwrap())
    }

    fn report(status: &Arc<PodStatus>, finished: bool) -> PodReport {
        PodReport {
            uid: PodUid::new("u"),
            namespace: "d".to_owned(),
            name: "p".to_owned(),
            status: Arc::clone(status),
            published: Arc::clone(status),
            finished,
            removed: false,
            containers: Vec::new(),
        }
    }

    fn status(value: Value) -> Arc<PodStatus> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[rstest]
    #[case::runs("Running", true, false, false)]
    #[case::not_deleted("Failed", false, true, false)]
    #[case::end_is_not_written("Running", true, true, false)]
    #[case::something_is_left("Failed", true, false, false)]
    #[case::over("Succeeded", true, true, true)]
    fn pod_is_deleted_after_final_status_if_finished(
        #[case] phase: &str,
        #[case] deleted: bool,
        #[case] finished: bool,
        #[case] goes: bool,
    ) {
        assert_eq!(may_be_deleted(&pod(phase, deleted), finished), goes);
    }

    #[test]
    fn mirror_pods_are_not_deleted() {
        let mut api = pod("Failed", true).api().clone();
        let mirror = ("kubernetes.io/config.mirror".to_owned(), "hash".to_owned());
        api.metadata.annotations = Some([mirror].into());
        assert!(!may_be_deleted(&Pod::new(api), true));
    }

    #[test]
    fn status_is_written_once_and_again_when_it_or_the_server_differs() {
        let running = status(json!({"phase": "Running"}));
        let (own, at_server) = (report(&running, false), pod("Running", false));
        assert!(is_due(&own, &at_server, None, false));
        let written = Written { status: Arc::clone(&running), finished: false, deleted: false };
        assert!(!is_due(&own, &at_server, Some(&written), false));
        assert!(!is_due(&own, &at_server, Some(&written), true));
        // Another client has written another status.
        assert!(!is_due(&own, &pod("Pending", false), Some(&written), false));
        assert!(is_due(&own, &pod("Pending", false), Some(&written), true));
        let same = status(json!({"phase": "Running"}));
        assert!(!is_due(&report(&same, false), &at_server, Some(&written), false));
        let next = status(json!({"phase": "Running", "message": "m"}));
        assert!(is_due(&report(&next, false), &at_server, Some(&written), false));
        assert!(is_due(&report(&running, true), &at_server, Some(&written), false));
    }

    #[test]
    fn deletion_is_requested_once_per_round() {
        let failed = status(json!({"phase": "Failed"}));
        let own = report(&failed, true);
        let mut written = Written { status: Arc::clone(&failed), finished: true, deleted: false };
        assert!(is_due(&own, &pod("Failed", true), Some(&written), false));
        written.deleted = true;
        assert!(!is_due(&own, &pod("Failed", true), Some(&written), false));
        assert!(is_due(&own, &pod("Failed", true), Some(&written), true));
    }

    #[test]
    fn pod_without_a_published_status_waits() {
        assert!(!is_due(&report(&Arc::default(), false), &pod("Pending", false), None, true));
    }
}
