//! Durations of the preparation of claims, and of calls to drivers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go, pkg/kubelet/cm/dra/plugin/dra_plugin.go newMetricsInterceptor.

use std::sync::{Mutex, MutexGuard, PoisonError};

use agent::histogram;
use agent::managers::claims::{ClaimCall, ClaimMeasures, ClaimOperation};
use plugins::CallError;
use tokio::time::Instant;

/// The upper bounds of the buckets of durations, in seconds: 15 in geometric progression from 0.1 to 40.
const BOUNDS: &[f64] = &[
    0.1,
    0.1534127404634391,
    0.23535468936502524,
    0.36106407876409946,
    0.5539182980610752,
    0.849781240983936,
    1.303672689737678,
    1.9999999999999993,
    3.0682548092687805,
    4.7070937873005025,
    7.221281575281985,
    11.078365961221499,
    16.995624819678714,
    26.07345379475354,
    39.99999999999997,
];

/// The durations of operations and calls.
#[derive(Debug, Default)]
pub(crate) struct Durations(Mutex<ClaimMeasures>);

impl Durations {
    /// Measures an operation of the agent, by the kubelet's name.
    pub(crate) async fn operation<E>(
        &self,
        name: &'static str,
        operation: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let began = Instant::now();
        let done = operation.await;
        let key = ClaimOperation { name, failed: done.is_err() };
        histogram::observe(&mut self.lock().operations, key, BOUNDS, began.elapsed());
        done
    }

    /// Measures a call to a driver.
    pub(crate) async fn call<T>(
        &self,
        driver: &str,
        path: &'static str,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let began = Instant::now();
        let answered = call.await;
        let code = answered.as_ref().map_or_else(|error| error.code, |_| "OK");
        let key = ClaimCall { driver: driver.to_owned(), path, code };
        histogram::observe(&mut self.lock().calls, key, BOUNDS, began.elapsed());
        answered
    }

    /// All durations so far.
    pub(crate) fn all(&self) -> ClaimMeasures {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, ClaimMeasures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
