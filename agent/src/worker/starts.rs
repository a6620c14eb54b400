//! Whose turn it is to start: what pods need only while they start is more than what they keep, and a thousand at once would need it a
//! thousand times.
//!
//! A pod has its turn until it rests for the first time. A runtime that hangs holds up nobody for long: each pod goes on without a
//! turn after a while, [`TURNS`] more in each [`PATIENCE`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{Clock, after};

/// How many pods have a turn at the same time.
const TURNS: u32 = 64;
/// How long a pod waits for as many others.
const PATIENCE: Duration = Duration::from_millis(200);

/// The turns of all pods.
#[derive(Debug)]
pub(crate) struct Starts {
    turns: Arc<Semaphore>,
    waiting: AtomicU32,
}

/// A pod's turn; `None` for one that had to go on without.
pub(super) type Turn = Option<OwnedSemaphorePermit>;

impl Default for Starts {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(TURNS as usize)), waiting: AtomicU32::new(0) }
    }
}

impl Starts {
    /// Waits for a turn, longer the more others wait.
    pub(super) async fn turn(&self, clock: &dyn Clock) -> Turn {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Some(turn);
        }
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        let until = after(clock.now(), PATIENCE * (ahead / TURNS + 1));
        let turn = tokio::select! {
            // It fails only when it is closed, which it never is.
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

    /// The clock, and starts of which all turns are taken.
    async fn taken() -> (TokioClock, Arc<Starts>, Vec<Turn>) {
        let clock = TokioClock::starting_at(Timestamp::UNIX_EPOCH);
        let (starts, mut turns) = (Arc::new(Starts::default()), Vec::new());
        for _ in 0..TURNS {
            turns.push(starts.turn(&clock).await);
        }
        assert!(turns.iter().all(Option::is_some));
        (clock, starts, turns)
    }

    /// Has further pods wait. Each returns whether it got a turn, and after how many milliseconds.
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
        // The next one waits no longer for those.
        let next = wait(clock, &starts, 1).join_all().await;
        assert_eq!(next, [(false, 600)]);
    }
}
