//! How often probes have succeeded and failed. A probe that has ended is no longer counted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use compact::Map;

use super::machine::Target;
use crate::histogram::{DEFAULT_BOUNDS, Histogram};

/// Identifies a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeName {
    /// Its kind: `Liveness`, `Readiness` or `Startup`.
    pub kind: String,
    /// The container's name.
    pub container: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
}

/// The results of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeCount {
    /// How many checks succeeded.
    pub successful: u64,
    /// How many failed.
    pub failed: u64,
    /// How long the successful checks took.
    pub durations: Histogram,
}

/// The results of all probes. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeCounts(Arc<Mutex<Map<ProbeName, ProbeCount>>>);

impl ProbeCounts {
    /// The counts of all probes that were checked at least once.
    pub(crate) fn all(&self) -> Vec<(ProbeName, ProbeCount)> {
        self.lock().iter().map(|(name, count)| (name.clone(), count.clone())).collect()
    }

    /// Counts the checks of a probe until the returned counter is dropped.
    pub(super) fn counter(&self, target: &Target) -> ProbeCounter {
        let name = ProbeName {
            kind: target.kind.to_string(),
            container: target.container.name.clone(),
            pod: target.pod.name().to_owned(),
            namespace: target.pod.namespace().to_owned(),
            uid: target.pod.uid().as_str().to_owned(),
        };
        ProbeCounter { counts: self.clone(), name }
    }

    fn lock(&self) -> MutexGuard<'_, Map<ProbeName, ProbeCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the checks of one probe.
#[derive(Debug)]
pub(super) struct ProbeCounter {
    counts: ProbeCounts,
    name: ProbeName,
}

impl ProbeCounter {
    /// Counts a check with this duration.
    pub(super) fn count(&self, succeeded: bool, took: Duration) {
        let mut all = self.counts.lock();
        let count = all.entry(self.name.clone()).or_insert_with(|| ProbeCount {
            successful: 0,
            failed: 0,
            durations: Histogram::new(DEFAULT_BOUNDS),
        });
        if succeeded {
            count.successful += 1;
            count.durations.observe(took.as_secs_f64());
        } else {
            count.failed += 1;
        }
    }
}

impl Drop for ProbeCounter {
    fn drop(&mut self) {
        self.counts.lock().remove(&self.name);
    }
}
