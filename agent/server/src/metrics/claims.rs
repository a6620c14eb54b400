//! ◆ Durations of ResourceClaim preparation, and numbers of prepared claims, with the kubelet's names. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go, pkg/kubelet/cm/dra/claiminfo.go.

use agent::managers::claims::ClaimMeasures;

use super::text::{Description, Metrics, gauge, histogram};

const OPERATIONS: Description<'_> = histogram(
    "dra_operations_duration_seconds",
    "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.",
);
const CALLS: Description<'_> = histogram(
    "dra_grpc_operations_duration_seconds",
    "[ALPHA] Duration in seconds of the DRA gRPC operations",
);
const IN_USE: Description<'_> = gauge(
    "dra_resource_claims_in_use",
    "[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use the count for the <any> driver_name.",
);

/// Adds these metrics.
pub(crate) fn add(metrics: &mut Metrics, measures: &ClaimMeasures) {
    for (operation, durations) in &measures.operations {
        let is_error = if operation.failed { "true" } else { "false" };
        let labels = [("operation_name", operation.name), ("is_error", is_error)];
        metrics.add_histogram(&OPERATIONS, &labels, durations);
    }
    for (call, durations) in &measures.calls {
        let labels = [
            ("driver_name", call.driver.as_str()),
            ("method_name", call.path),
            ("grpc_status_code", call.code),
        ];
        metrics.add_histogram(&CALLS, &labels, durations);
    }
    for (driver, count) in &measures.in_use {
        metrics.add(&IN_USE, &[("driver_name", driver)], *count as f64);
    }
}

#[cfg(test)]
mod tests {
    use agent::histogram::Histogram;
    use agent::managers::claims::{ClaimCall, ClaimOperation};

    use super::*;

    #[test]
    fn measures_have_the_labels_of_a_kubelet() {
        let mut durations = Histogram::new(&[0.1]);
        durations.observe(0.5);
        let mut measures = ClaimMeasures::default();
        let operation = ClaimOperation { name: "PrepareResources", failed: true };
        measures.operations.insert(operation, durations.clone());
        let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
        let call = ClaimCall { driver: "d".to_owned(), path, code: "Internal" };
        measures.calls.insert(call, durations);
        measures.in_use.insert("<any>".to_owned(), 2);
        let mut metrics = Metrics::default();
        add(&mut metrics, &measures);
        let text = metrics.text();
        for line in [
            r#"dra_operations_duration_seconds_sum{is_error="true",operation_name="PrepareResources"} 0.5"#,
            r#"dra_grpc_operations_duration_seconds_count{driver_name="d",grpc_status_code="Internal",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"} 1"#,
            r#"dra_resource_claims_in_use{driver_name="<any>"} 2"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        }
    }
}
