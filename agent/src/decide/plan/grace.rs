//! The grace period of a pod's termination.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/pod_workers.go calculateEffectiveGracePeriod.

use api::pod::Pod;

/// The grace period in seconds: what the API server says (`metadata.deletionGracePeriodSeconds`), else the pod's own. It only
/// ever shrinks while the pod terminates, and is at least 1, so that preStop hooks of a pod without one are run.
#[must_use]
pub fn effective_grace(before: Option<i64>, pod: &Pod) -> i64 {
    let deletion = pod.api().metadata.deletion_grace_period_seconds;
    let grace = match (before, deletion) {
        (Some(before), Some(deletion)) => before.min(deletion),
        (Some(before), None) => before,
        (None, Some(deletion)) => deletion,
        (None, None) => pod.grace_seconds(),
    };
    grace.max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn grace_period_of_termination_shrinks_down_to_one() {
        let pod = |deletion: Option<i64>, own: Option<i64>| {
            Pod::new(
                serde_json::from_value(json!({
                    "metadata": {"name": "p", "uid": "u", "deletionGracePeriodSeconds": deletion},
                    "spec": {"containers": [], "terminationGracePeriodSeconds": own},
                }))
                .unwrap(),
            )
        };
        let table = [
            (None, None, None, 30),
            (None, None, Some(5), 5),
            (None, None, Some(0), 1),
            (None, Some(3), Some(30), 3),
            (None, Some(60), Some(30), 60),
            (None, Some(0), Some(30), 1),
            (Some(40), Some(5), Some(30), 5),
            (Some(40), Some(50), Some(30), 40),
            (Some(40), None, Some(5), 40),
        ];
        for (before, deletion, own, expected) in table {
            let grace = effective_grace(before, &pod(deletion, own));
            assert_eq!(grace, expected, "{before:?} {deletion:?} {own:?}");
        }
    }
}
