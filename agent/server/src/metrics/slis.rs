//! `/metrics/slis`: counts the results of health checks.
//!
//! Source: Kubernetes 1.36, k8s.io/component-base/metrics/prometheus/slis.

use std::sync::{Mutex, MutexGuard, PoisonError};

use compact::Map;

use super::text::{Description, Metrics, counter, gauge};
use crate::health::Check;

const LAST: Description<'_> = gauge(
    "kubernetes_healthcheck",
    "[STABLE] This metric records the result of a single healthcheck.",
);
const ALL: Description<'_> = counter(
    "kubernetes_healthchecks_total",
    "[STABLE] This metric records the results of all healthcheck.",
);

/// The results of each check.
#[derive(Debug, Default)]
pub(crate) struct Slis(Mutex<Map<&'static str, Results>>);

#[derive(Clone, Copy, Debug, Default)]
struct Results {
    is_well: bool,
    successes: u64,
    errors: u64,
}

impl Slis {
    /// Counts a result of a check.
    pub(crate) fn observe(&self, check: Check, is_well: bool) {
        let mut all = self.lock();
        let results = all.entry(check.name()).or_default();
        results.is_well = is_well;
        let count = if is_well { &mut results.successes } else { &mut results.errors };
        *count += 1;
    }

    /// Resets all counts.
    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        for (name, results) in self.lock().iter() {
            let labels = [("name", *name), ("type", "healthz")];
            metrics.add(&LAST, &labels, f64::from(u8::from(results.is_well)));
            for (status, count) in [("success", results.successes), ("error", results.errors)] {
                if count > 0 {
                    let [name, kind] = labels;
                    metrics.add(&ALL, &[name, kind, ("status", status)], count as f64);
                }
            }
        }
        metrics
    }

    fn lock(&self) -> MutexGuard<'_, Map<&'static str, Results>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_until_they_are_reset() {
        let slis = Slis::default();
        for is_well in [true, true, false] {
            slis.observe(Check::SyncLoop, is_well);
        }
        slis.observe(Check::Ping, true);
        let text = slis.metrics().text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#,
            r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 0"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1"#,
            r#"kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1"#,
            r#"kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 2"#,
        ];
        assert_eq!(lines, expected);
        slis.reset();
        assert_eq!(slis.metrics().text(), "");
    }
}
