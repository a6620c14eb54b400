//! ◆ Restarts of workloads: a change of the pod template makes their controllers replace the pods. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/polymorphichelpers/objectrestarter.go.

use jiff::Timestamp;
use serde_json::{Value, json};

/// The annotation of a pod template with the time of the last restart.
const ANNOTATION: &str = "kubectl.kubernetes.io/restartedAt";

/// Sets the time of a restart in the pod template of a workload. The error is the reason to refuse the restart.
pub(super) fn mark(workload: &mut Value, now: Timestamp) -> Result<(), &'static str> {
    let version = workload["apiVersion"].as_str().unwrap_or_default();
    let kind = workload["kind"].as_str().unwrap_or_default();
    if !version.starts_with("apps/") || !matches!(kind, "Deployment" | "DaemonSet" | "StatefulSet")
    {
        return Err("restarting is not supported");
    }
    if kind == "Deployment" && workload["spec"]["paused"] == true {
        return Err("can't restart paused deployment");
    }
    let time = json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let annotations = &mut workload["spec"]["template"]["metadata"]["annotations"];
    // The time has no fractions of a second, so the template would not change.
    if annotations[ANNOTATION] == time {
        return Err("it was restarted within the past second: wait before restarting it again");
    }
    annotations[ANNOTATION] = time;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: &str = "2026-01-02T03:04:05.6Z";

    #[rstest]
    #[case::no_annotations(json!({}), json!({"kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"}))]
    #[case::null(
        json!({"metadata": {"annotations": null}}), json!({"kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"})
    )]
    #[case::restarted_before(
        json!({"metadata": {"annotations": {"a": "b", "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}}}),
        json!({"a": "b", "kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"})
    )]
    fn restart_changes_the_pod_template(#[case] template: Value, #[case] annotations: Value) {
        for kind in ["Deployment", "DaemonSet", "StatefulSet"] {
            let mut workload =
                json!({"apiVersion": "apps/v1", "kind": kind, "spec": {"template": template}});
            assert_eq!(mark(&mut workload, NOW.parse().unwrap()), Ok(()));
            assert_eq!(workload["spec"]["template"]["metadata"]["annotations"], annotations);
        }
    }

    #[rstest]
    #[case::replica_set(
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet"}), "restarting is not supported"
    )]
    #[case::other_group(
        json!({"apiVersion": "example.com/v1", "kind": "Deployment"}), "restarting is not supported"
    )]
    #[case::paused(
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"paused": true}}),
        "can't restart paused deployment"
    )]
    #[case::twice(
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "spec": {"template": {"metadata": {"annotations": {ANNOTATION: "2026-01-02T03:04:05Z"}}}},
        }),
        "it was restarted within the past second: wait before restarting it again"
    )]
    fn other_restarts_are_refused(#[case] mut workload: Value, #[case] expected: &str) {
        assert_eq!(mark(&mut workload, NOW.parse().unwrap()), Err(expected));
    }
}
