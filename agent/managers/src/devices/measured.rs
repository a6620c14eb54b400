//! Counts registrations of device plugins, and measures their allocations, with the kubelet's metric names.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::histogram::{DEFAULT_BOUNDS, Histogram, observe};
use agent::managers::{ManagerMetric, ManagerValue};
use compact::Map;

/// Measurements by resource.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    registrations: Mutex<Map<String, u64>>,
    allocations: Mutex<Map<String, Histogram>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Measured {
    /// Counts the registration of a plugin through the kubelet's socket, including rejected ones.
    pub(crate) fn registered(&self, resource: &str) {
        *lock(&self.registrations).entry(resource.to_owned()).or_default() += 1;
    }

    /// Counts a call of Allocate.
    pub(crate) fn allocated(&self, resource: &str, took: Duration) {
        observe(&mut lock(&self.allocations), resource.to_owned(), DEFAULT_BOUNDS, took);
    }

    pub(crate) fn metrics(&self) -> Vec<ManagerMetric> {
        let metric = |name, help, resource: &String, value| ManagerMetric {
            name,
            labels: vec![("resource_name", resource.clone())],
            help,
            value,
        };
        let registrations = lock(&self.registrations);
        let registrations = registrations.iter().map(|(resource, count)| {
            let help = "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.";
            let value = ManagerValue::Count(*count);
            metric("kubelet_device_plugin_registration_total", help, resource, value)
        });
        let allocations = lock(&self.allocations);
        let allocations = allocations.iter().map(|(resource, durations)| {
            let help = "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
            let value = ManagerValue::Durations(durations.clone());
            metric("kubelet_device_plugin_alloc_duration_seconds", help, resource, value)
        });
        registrations.chain(allocations).collect()
    }
}
