//! ◆ In-place resizes of pods, with the kubelet's names. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go; pkg/kubelet/status/status_manager.go.

use agent::decide::resize::requests::ResizeRequest;
use agent::reporting::measures::Measured;
use agent::reporting::report::Reports;
use compact::Map;

use super::text::{Description, Metrics, counter, gauge, histogram};

const REQUESTED: Description<'_> = counter(
    "kubelet_container_requested_resizes_total",
    "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
);
pub(super) const INFEASIBLE: Description<'_> = counter(
    "kubelet_pod_infeasible_resizes_total",
    "[ALPHA] Number of infeasible resizes for pods.",
);
pub(super) const DEFERRED_GRANTED: Description<'_> = counter(
    "kubelet_pod_deferred_accepted_resizes_total",
    "[ALPHA] Cumulative number of resizes that were accepted after being deferred.",
);
const DURATION: Description<'_> = histogram(
    "kubelet_pod_resize_duration_milliseconds",
    "[ALPHA] Duration in milliseconds to actuate a pod resize",
);
const PENDING: Description<'_> =
    gauge("kubelet_pod_pending_resizes", "[ALPHA] Number of pending resizes for pods.");
const IN_PROGRESS: Description<'_> =
    gauge("kubelet_pod_in_progress_resizes", "[ALPHA] Number of in-progress resizes for pods.");

/// Adds the requested resizes.
pub(super) fn add_requests(metrics: &mut Metrics, of: &ResizeRequest, count: f64) {
    let ResizeRequest { resource, requirement, operation } = of;
    let labels = [("resource", *resource), ("requirement", requirement), ("operation", operation)];
    metrics.add(&REQUESTED, &labels, count);
}

/// Adds the durations of resizes, and the resizes in progress.
pub(crate) fn add(metrics: &mut Metrics, measured: &Measured, reports: &Reports) {
    for (succeeded, durations) in &measured.resizes {
        let labels = [("success", if *succeeded { "true" } else { "false" })];
        metrics.add_histogram(&DURATION, &labels, durations);
    }
    let mut pending: Map<String, u64> = Map::new();
    let mut in_progress = 0_u32;
    let statuses = reports.iter().map(|(_, report)| &report.published);
    for condition in statuses.flat_map(|status| status.conditions.iter().flatten()) {
        match condition.type_.as_str() {
            "PodResizePending" => {
                let reason = condition.reason.clone().unwrap_or_default();
                *pending.entry(reason.to_lowercase()).or_default() += 1;
            }
            "PodResizeInProgress" => in_progress += 1,
            _ => {}
        }
    }
    for (reason, count) in pending {
        metrics.add(&PENDING, &[("reason", &reason)], count as f64);
    }
    metrics.add(&IN_PROGRESS, &[], in_progress.into());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use agent::PodReport;
    use agent::histogram::Histogram;
    use agent::reporting::measures::Counted;
    use api::pod::PodUid;
    use serde_json::json;

    use super::*;
    use crate::metrics::counts;

    #[test]
    fn resizes_have_the_names_and_labels_of_a_kubelet() {
        let request =
            ResizeRequest { resource: "cpu", requirement: "limits", operation: "increase" };
        let mut took = Histogram::new(&[10.0]);
        took.observe(3.0);
        let counts = [
            (Counted::ResizeRequested(request), 2),
            (Counted::ResizeInfeasible("swap_limitation"), 1),
            (Counted::DeferredResizeGranted("pods_removed"), 3),
        ];
        let measured = Measured {
            counts: counts.into_iter().collect(),
            resizes: [(true, took)].into_iter().collect(),
            ..Measured::default()
        };
        let report = |uid: &str, conditions: serde_json::Value| {
            let published = serde_json::from_value(json!({"conditions": conditions})).unwrap();
            let report = PodReport {
                uid: PodUid::new(uid),
                namespace: String::new(),
                name: String::new(),
                status: Arc::default(),
                published: Arc::new(published),
                finished: false,
                removed: false,
                containers: Vec::new(),
            };
            (PodUid::new(uid), report)
        };
        let pending =
            |reason: &str| json!({"type": "PodResizePending", "status": "True", "reason": reason});
        let reports: Reports = [
            report(
                "a",
                json!([pending("Deferred"), {"type": "PodResizeInProgress", "status": "True"}]),
            ),
            report("b", json!([pending("Deferred")])),
            report("c", json!([pending("Infeasible")])),
        ]
        .into_iter()
        .collect();
        let mut metrics = Metrics::default();
        counts::add(&mut metrics, &measured);
        add(&mut metrics, &measured, &reports);
        let text = metrics.text();
        for line in [
            r#"kubelet_container_requested_resizes_total{operation="increase",requirement="limits",resource="cpu"} 2"#,
            r#"kubelet_pod_infeasible_resizes_total{reason_detail="swap_limitation"} 1"#,
            r#"kubelet_pod_deferred_accepted_resizes_total{retry_trigger="pods_removed"} 3"#,
            r#"kubelet_pod_resize_duration_milliseconds_sum{success="true"} 3"#,
            r#"kubelet_pod_pending_resizes{reason="deferred"} 2"#,
            r#"kubelet_pod_pending_resizes{reason="infeasible"} 1"#,
            "kubelet_pod_in_progress_resizes 1",
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        }
    }
}
