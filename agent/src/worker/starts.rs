//! Limits how many pods start at the same time: a starting pod needs more memory than an idle one, and a thousand of them would
//! need it a thousand times.
//!
//! A pod holds its slot until it is idle for the first time. A runtime that hangs delays no pod for long: each continues without a
//! slot after a while, [`SLOTS`] more in each [`SLOT_TIMEOUT`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{Clock, after};

/// The number of slots.
const SLOTS: u32 = 64;
/// The time after which [`SLOTS`] more pods continue without a slot.
const SLOT_TIMEOUT: Duration = Duration::from_millis(200);

/// The slots of all pods.
#[derive(Debug)]
pub(crate) struct Starts {
    slots: Arc<Semaphore>,
    waiting: AtomicU32,
}

/// A pod's slot; `None` for a pod that continues without one.
pub(super) type StartSlot = Option<OwnedSemaphorePermit>;

impl Default for Starts {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(SLOTS as usize)), waiting: AtomicU32::new(0) }
    }
}

impl Starts {
    /// Waits for a slot, longer the more pods wait.
    pub(super) async fn acquire(&self, clock: &dyn Clock) -> StartSlot {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Some(slot);
        }
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        let until = after(clock.now(), SLOT_TIMEOUT * (ahead / SLOTS + 1));
        let slot = tokio::select! {
            // It fails only if the semaphore is closed, which it never is.
            slot = Arc::clone(&self.slots).acquire_owned() => slot.ok(),
            () = clock.sleep_until(until) => None,
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        slot
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
    async fn taken() -> (TokioClock, Arc<Starts>, Vec<StartSlot>) {
        let clock = TokioClock::starting_at(Timestamp::UNIX_EPOCH);
        let (starts, mut slots) = (Arc::new(Starts::default()), Vec::new());
        for _ in 0..SLOTS {
            slots.push(starts.acquire(&clock).await);
        }
        assert!(slots.iter().all(Option::is_some));
        (clock, starts, slots)
    }

    /// Lets further pods wait. Each returns whether it got a slot, and after how many milliseconds.
    fn wait(clock: TokioClock, starts: &Arc<Starts>, pods: u32) -> JoinSet<(bool, i64)> {
        let mut waiting = JoinSet::new();
        for _ in 0..pods {
            let starts = Arc::clone(starts);
            waiting.spawn(tasks::boxed(async move {
                let slot = starts.acquire(&clock).await;
                (slot.is_some(), clock.now().as_millisecond())
            }));
        }
        waiting
    }

    #[tokio::test(start_paused = true)]
    async fn pod_gets_the_slot_of_another_once_that_is_idle() {
        let (clock, starts, mut slots) = taken().await;
        let mut next = wait(clock, &starts, 1);
        yield_now().await;
        assert!(next.try_join_next().is_none());
        slots.pop();
        assert_eq!(next.join_next().await.unwrap().unwrap(), (true, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_continue_without_a_slot_after_the_timeout() {
        let (clock, starts, _slots) = taken().await;
        let mut waited = wait(clock, &starts, 2 * SLOTS).join_all().await;
        waited.sort_unstable();
        let (first, second) = waited.split_at(SLOTS as usize);
        assert!(first.iter().all(|pod| *pod == (false, 200)), "{first:?}");
        assert!(second.iter().all(|pod| *pod == (false, 400)), "{second:?}");
        // The next pod does not wait for those any longer.
        let next = wait(clock, &starts, 1).join_all().await;
        assert_eq!(next, [(false, 600)]);
    }
}
