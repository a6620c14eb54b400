//! The times of the sync loop's iterations: if the loop is stuck, no pod is started, updated or ended, and the agent is not
//! healthy.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet.go syncLoop and SyncLoopHealthCheck.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The minimum time after which a stuck loop is not healthy.
const SHORTEST_LIMIT: Duration = Duration::from_secs(5 * 60);

/// The last iteration of the sync loop. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SyncLoopMonitor {
    /// Monotonic, because the wall clock may be set while the agent runs.
    last: Arc<Mutex<Option<Instant>>>,
    limit: Duration,
}

impl SyncLoopMonitor {
    /// The state before the first iteration of a loop with this resync period.
    pub(crate) fn new(resync_period: Duration) -> Self {
        let limit = resync_period.saturating_mul(2).max(SHORTEST_LIMIT);
        Self { last: Arc::default(), limit }
    }

    /// Records an iteration. Do not call it for an iteration without syncs because the runtime is not ready.
    pub(crate) fn record_iteration(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Why the loop is not healthy, in a kubelet's words. Before its first iteration it is healthy.
    pub(crate) fn health(&self) -> Result<(), String> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(at) if at.elapsed() > self.limit => {
                Err("sync Loop took longer than expected".to_owned())
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::time::advance;

    use super::*;

    #[rstest]
    #[case::usual(60, 300)]
    #[case::shortest(150, 300)]
    #[case::of_long_resyncs(200, 400)]
    #[tokio::test(start_paused = true)]
    async fn health_fails_after_two_resync_periods_and_at_least_five_minutes(
        #[case] resync: u64,
        #[case] limit: u64,
    ) {
        let monitor = SyncLoopMonitor::new(Duration::from_secs(resync));
        advance(Duration::from_secs(1000)).await;
        assert_eq!(monitor.health(), Ok(()), "no iteration has run yet");
        monitor.record_iteration();
        advance(Duration::from_secs(limit)).await;
        assert_eq!(monitor.health(), Ok(()));
        advance(Duration::from_millis(1)).await;
        assert_eq!(monitor.health(), Err("sync Loop took longer than expected".to_owned()));
        monitor.record_iteration();
        assert_eq!(monitor.health(), Ok(()));
    }
}
