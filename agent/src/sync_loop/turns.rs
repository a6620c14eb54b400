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
pub(crate) struct Turns {
    /// Monotonic, because the wall clock may be set while the agent runs.
    last: Arc<Mutex<Option<Instant>>>,
    limit: Duration,
}

impl Turns {
    /// The state before the first iteration of a loop with this resync period.
    pub(crate) fn new(resync_period: Duration) -> Self {
        let limit = resync_period.saturating_mul(2).max(SHORTEST_LIMIT);
        Self { last: Arc::default(), limit }
    }

    /// Records an iteration. Do not call it for an iteration without syncs because the runtime is not ready.
    pub(crate) fn note(&self) {
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
    async fn loop_may_stand_still_for_two_resyncs_and_five_minutes_at_least(
        #[case] resync: u64,
        #[case] limit: u64,
    ) {
        let turns = Turns::new(Duration::from_secs(resync));
        advance(Duration::from_secs(1000)).await;
        assert_eq!(turns.health(), Ok(()), "it has yet to turn");
        turns.note();
        advance(Duration::from_secs(limit)).await;
        assert_eq!(turns.health(), Ok(()));
        advance(Duration::from_millis(1)).await;
        assert_eq!(turns.health(), Err("sync Loop took longer than expected".to_owned()));
        turns.note();
        assert_eq!(turns.health(), Ok(()));
    }
}
