//! The number of concurrent rules, and how long they wait for calls that the runtime never answers. A check of any runtime ends
//! soon, and a working runtime is not loaded beyond `--parallel`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use compact::Set;
use proxy::Call;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Code;

/// The maximum number of concurrent rules.
const MOST_SLOTS: u32 = 1024;
/// A runtime whose fastest response takes longer than this gets more concurrent rules: they mostly wait.
const LATE: Duration = Duration::from_millis(50);
/// The maximum number of waiting rules for each slot.
const WAITING: u32 = 16;
/// A rule that takes longer than this counts as waiting, and releases its slot to the next rule.
const LONG: Duration = Duration::from_secs(10);
/// The same limit if the runtime keeps many rules waiting.
const SHORT: Duration = Duration::from_secs(1);
/// From this number of rules that failed after waiting, the runtime counts as unresponsive.
const MANY: usize = 8;
/// How many seconds a rule waits for a method that another rule awaited in vain until its deadline.
const SILENCE: f64 = 3.0;

/// The slots of rules, and what is known about the runtime's response times.
#[derive(Debug)]
pub(crate) struct Pace {
    slots: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    every: u32,
    most_waiting: u32,
    end: Instant,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The number of rules that failed after waiting.
    kept_waiting: usize,
    /// The methods that were never answered.
    silent: Set<String>,
    /// For how many consecutive rules the pods could not be removed in time.
    keeps_pods: usize,
}

/// The permit of a rule to run.
#[derive(Debug)]
pub(crate) struct Slot {
    _permits: Vec<OwnedSemaphorePermit>,
    /// Whether no other rule may run.
    alone: bool,
    waits: bool,
}

impl Pace {
    /// Creates `parallel` slots, or more if the runtime answers no call faster than `fastest`. `silent` are methods without a
    /// response so far. `end` is when the check of an unresponsive runtime stops starting rules.
    pub(crate) fn new(
        parallel: usize,
        end: Instant,
        (fastest, silent): (Duration, Set<String>),
    ) -> Self {
        let wanted = u32::try_from(parallel).map_or(MOST_SLOTS, |slots| slots.clamp(1, MOST_SLOTS));
        let times = u32::try_from(fastest.as_millis() / LATE.as_millis()).unwrap_or(u32::MAX);
        let every = wanted.saturating_mul(times.clamp(1, WAITING)).min(MOST_SLOTS);
        let waiting = wanted.saturating_mul(WAITING).min(MOST_SLOTS);
        Self {
            slots: Arc::new(Semaphore::new(every as usize)),
            waiting: Arc::new(Semaphore::new(waiting as usize)),
            every,
            most_waiting: waiting,
            end,
            known: Mutex::new(Known { silent, ..Known::default() }),
        }
    }

    /// Waits for a slot or, if `alone`, for all slots and the end of all waiting rules. `None` after [`Self::close`].
    pub(crate) async fn slot(&self, alone: bool) -> Option<Slot> {
        let needed = if alone { self.every } else { 1 };
        let mut permits = vec![Arc::clone(&self.slots).acquire_many_owned(needed).await.ok()?];
        if alone {
            let waiting = Arc::clone(&self.waiting).acquire_many_owned(self.most_waiting);
            permits.push(waiting.await.ok()?);
        }
        Some(Slot { _permits: permits, alone, waits: false })
    }

    /// Releases the slot of a rule that has taken this long, unless too many rules are waiting.
    pub(crate) fn release_slot(&self, slot: &mut Slot, took: Duration) {
        let long = if self.known().kept_waiting < MANY / 2 { LONG } else { SHORT };
        if slot.alone || slot.waits || took < long {
            return;
        }
        if let Ok(permit) = Arc::clone(&self.waiting).try_acquire_owned() {
            *slot = Slot { _permits: vec![permit], alone: false, waits: true };
        }
    }

    /// Whether there is time for rules: `false` only after `end`, if the runtime kept many rules waiting.
    pub(crate) fn has_time(&self) -> bool {
        self.known().kept_waiting < MANY || Instant::now() < self.end
    }

    /// Stops handing out slots.
    pub(crate) fn close(&self) {
        self.slots.close();
    }

    /// The call that this rule awaits in vain, because the runtime has never answered its method.
    pub(crate) fn unanswered_call<'a>(&self, calls: &'a [Call], now: f64) -> Option<&'a Call> {
        let known = self.known();
        calls.iter().find(|call| {
            let is_open = call.end.is_none() && now - call.start > SILENCE;
            is_open && known.silent.contains(&call.method)
        })
    }

    /// Counts a rule that failed after waiting.
    pub(crate) fn kept_waiting(&self) {
        self.known().kept_waiting += 1;
    }

    /// Records which methods were answered by the calls of a rule. If the rule reached its deadline, methods of calls that were
    /// open for most of it are recorded as silent.
    pub(crate) fn learn(&self, calls: &[Call], reached: Option<Duration>) {
        let mut known = self.known();
        if let Some(deadline) = reached {
            let latest = deadline.as_secs_f64() / 2.0;
            let open =
                |call: &&Call| call.end.is_none() && call.start < latest && !call.is_stream();
            known.silent.extend(calls.iter().filter(open).map(|call| call.method.clone()));
        }
        let answered = |call: &&Call| {
            call.code.is_some_and(|code| {
                !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable)
            })
        };
        for call in calls.iter().filter(answered) {
            known.silent.remove(&call.method);
        }
    }

    /// The time limit for the removal of a rule's pods.
    pub(crate) fn removal(&self, usual: Duration) -> Duration {
        let known = self.known();
        let left = self.end.saturating_duration_since(Instant::now());
        match (known.keeps_pods, known.kept_waiting < MANY) {
            (MANY.., _) => SHORT / 10,
            (1.., _) => SHORT,
            (0, true) => usual,
            (0, false) => usual.min(left).max(SHORT),
        }
    }

    /// The time limit for the list of a rule's pods: zero if the runtime has never answered this call.
    pub(crate) fn listing(&self, usual: Duration) -> Duration {
        match self.known().silent.contains("ListPodSandbox") {
            true => Duration::ZERO,
            false => usual,
        }
    }

    /// Records whether the pods of a rule were removed in time.
    pub(crate) fn learn_removal(&self, in_time: bool) {
        let mut known = self.known();
        known.keeps_pods = if in_time { 0 } else { known.keeps_pods + 1 };
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(parallel: usize, fastest: Duration) -> Pace {
        Pace::new(parallel, Instant::now() + Duration::from_secs(10), (fastest, Set::new()))
    }

    /// Whether a rule gets a slot immediately.
    async fn begins(pace: &Pace, alone: bool) -> bool {
        tokio::time::timeout(Duration::from_millis(1), pace.slot(alone)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_rule_releases_its_slot() {
        let pace = pace(1, Duration::ZERO);
        let mut slot = pace.slot(false).await.unwrap();
        pace.release_slot(&mut slot, LONG / 2);
        assert!(!begins(&pace, false).await);
        pace.release_slot(&mut slot, LONG);
        assert!(begins(&pace, false).await);
        // A rule that runs alone still waits for it.
        assert!(!begins(&pace, true).await);
        drop(slot);
        let mut alone = pace.slot(true).await.unwrap();
        pace.release_slot(&mut alone, LONG);
        assert!(!begins(&pace, false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_rules_beside_slots_are_limited() {
        let pace = pace(1, Duration::ZERO);
        let mut waiting = Vec::new();
        for _ in 0..=WAITING {
            let mut slot = pace.slot(false).await.unwrap();
            pace.release_slot(&mut slot, LONG);
            waiting.push(slot);
        }
        assert!(!begins(&pace, false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_runtime_runs_more_rules_at_once() {
        for (fastest, slots) in [(LATE, 2), (LATE * 3, 6), (LATE * 1000, 2 * WAITING)] {
            let pace = pace(2, fastest);
            let mut all = Vec::new();
            for _ in 0..slots {
                all.push(pace.slot(false).await.unwrap());
            }
            assert!(!begins(&pace, false).await, "{fastest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_runs_out_only_if_many_rules_waited() {
        let (pace, usual) = (pace(1, Duration::ZERO), Duration::from_secs(20));
        tokio::time::advance(Duration::from_secs(11)).await;
        for _ in 1..MANY {
            pace.kept_waiting();
        }
        assert!(pace.has_time());
        assert_eq!(pace.removal(usual), usual);
        pace.kept_waiting();
        assert!(!pace.has_time());
        assert_eq!(pace.removal(usual), SHORT);
    }

    #[tokio::test(start_paused = true)]
    async fn kept_pods_shorten_removal_limit() {
        let (pace, usual) = (pace(1, Duration::ZERO), Duration::from_secs(20));
        pace.learn_removal(false);
        assert_eq!(pace.removal(usual), SHORT);
        for _ in 1..MANY {
            pace.learn_removal(false);
        }
        assert_eq!(pace.removal(usual), SHORT / 10);
        pace.learn_removal(true);
        assert_eq!(pace.removal(usual), usual);
    }
}
