//! Limits how many pods start at the same time: a starting pod needs more memory than an idle one, and a thousand of them would
//! need it a thousand times.
//!
//! A pod holds its slot until it is idle for the first time. A runtime that hangs delays no pod for long: each continues without a
//! slot after a while, [`TURNS`] more in each [`PATIENCE`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{Clock, after};

/// The number of slots.
const TURNS: u32 = 64;
/// The time after which [`TURNS`] more pods continue without a slot.
const PATIENCE: Duration = Duration::from_millis(200);

/// The slots of all pods.
#[derive(Debug)]
pub(crate) struct Starts {
    turns: Arc<Semaphore>,
    waiting: AtomicU32,
}

/// A pod's slot; `None` for a pod that continues without one.
pub(super) type Turn = Option<OwnedSemaphorePermit>;

impl Default for Starts {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(TURNS as usize)), waiting: AtomicU32::new(0) }
    }
}

impl Starts {
    /// Waits for a slot, longer the more pods wait.
    pub(super) async fn turn(&self, clock: &dyn Clock) -> Turn {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Some(turn);
        }
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        let until = after(clock.now(), PATIENCE * (ahead / TURNS + 1));
        let turn = tokio::select! {
            // It fails only if the semaphore is closed, which it never is.
            turn = Arc::clone(&self.turns).acquire_owned() => turn.ok(),
            () = clock.sleep_until(until) => None,
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        turn
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;
    use tokio::task::{JoinSet, yield_now};

    use super::*;
    use crate::clock::TokioClock;

    /// The clock, and starts with all slots taken.
    async fn taken() -> (TokioClock, Arc<Starts>, Vec<Turn>) {
        let clock = TokioClock::starting_at(Timestamp::UNIX_EPOCH);
        let (starts, mut turns) = (Arc::new(Starts::default()), Vec::new());
        for _ in 0..TURNS {
            turns.push(starts.turn(&clock).await);
        }
        assert!(turns.iter().all(Option::is_some));
        (clock, starts, turns)
    }

    /// Lets further pods wait. Each returns whether it got a slot, and after how many milliseconds.
    fn wait(clock: TokioClock, starts: &Arc<Starts>, pods: u32) -> JoinSet<(bool, i64)> {
        let mut waiting = JoinSet::new();
        for _ in 0..pods {
            let starts = Arc::clone(starts);
            waiting.spawn(tasks::boxed(async move {
                let turn = starts.turn(&clock).await;
                (turn.is_some(), clock.now().as_millisecond())
            }));
        }
        waiting
    }

    #[tokio::test(start_paused = true)]
    async fn pod_gets_the_turn_of_another_as_soon_as_that_rests() {
        let (clock, starts, mut turns) = taken().await;
        let mut next = wait(clock, &starts, 1);
        yield_now().await;
        assert!(next.try_join_next().is_none());
        turns.pop();
        assert_eq!(next.join_next().await.unwrap().unwrap(), (true, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_go_on_without_a_turn_when_none_rests() {
        let (clock, starts, _turns) = taken().await;
        let mut waited = wait(clock, &starts, 2 * TURNS).join_all().await;
        waited.sort_unstable();
        let (first, second) = waited.split_at(TURNS as usize);
        assert!(first.iter().all(|pod| *pod == (false, 200)), "{first:?}");
        assert!(second.iter().all(|pod| *pod == (false, 400)), "{second:?}");
        // The next pod does not wait for those any longer.
        let next = wait(clock, &starts, 1).join_all().await;
        assert_eq!(next, [(false, 600)]);
    }
}
