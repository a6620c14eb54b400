//! ◆ **shares**: the rule by which clients share a pool of connections, flows or queries.
//!
//! Each client may take any free slot. If none is free:
//!
//! 1. A client with at least two slots fewer than the client with the most takes one of that client's slots: see
//!    [`Shares::take`]. So each of N clients gets an Nth of the pool, regardless of the others.
//! 2. Any other client takes its own longest-silent slot, if that slot is not established or has been silent for 30 s.
//! 3. Otherwise the client is refused.
//!
//! Time is an argument, and the caller ends the holders of slots. This package depends on no other, so that the daemon, the pods'
//! egress and the forwarder of host ports use the same rule.

use std::{
    collections::HashMap,
    fmt::{self, Display},
    hash::Hash,
    time::{Duration, Instant},
};

/// How long an established slot must be silent before its own client may take it for another connection.
const RESTS: Duration = Duration::from_secs(30);
/// How long a silent flow of datagrams is kept, before its first answer and after it: nf_conntrack_udp_timeout and
/// nf_conntrack_udp_timeout_stream.
const UNANSWERED: Duration = Duration::from_secs(30);
const ANSWERED: Duration = Duration::from_secs(120);
/// How often refusals are reported.
const REPORTED_EVERY: Duration = Duration::from_secs(60);

/// The stage of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The client has sent data.
    Requested,
    /// The client was answered.
    Answered,
    /// The client has sent more since (or, of a connection: both ends accepted).
    Established,
}

/// A taken slot.
#[derive(Debug)]
struct Slot<C, H> {
    client: C,
    holder: H,
    stage: Stage,
    used: Instant,
}

/// A pool's slots by number, with their holders.
#[derive(Debug)]
pub struct Shares<C, H> {
    limit: usize,
    next: u64,
    slots: HashMap<u64, Slot<C, H>>,
    counts: HashMap<C, usize>,
    refused: Option<Rejections<C>>,
    reported: Option<Instant>,
}

/// A client that requested more than its share: it was refused, or lost a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejections<C> {
    /// The first one since the last report.
    pub client: C,
    /// The number of its refusals.
    pub times: u64,
    /// The number of refusals of other clients.
    pub others: u64,
}

impl<C: Display> Display for Rejections<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, times, others } = self;
        write!(f, "refused or ended {times} of {client}, {others} of other clients")
    }
}

impl<C: Copy + Eq + Hash + Ord, H> Shares<C, H> {
    /// A pool of `limit` slots, at least one.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            next: 0,
            slots: HashMap::new(),
            counts: HashMap::new(),
            refused: None,
            reported: None,
        }
    }

    /// The number of taken slots.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty pool is nothing special")]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot; `None` if the client is refused. Also returns the holder whose slot was taken and that has to end.
    #[must_use]
    pub fn take(&mut self, client: C, holder: H, now: Instant) -> Option<(u64, Option<H>)> {
        let mut ended = None;
        if self.slots.len() >= self.limit {
            let own = self.counts.get(&client).copied().unwrap_or(0);
            let victim = match self.with_most() {
                Some((most, count)) if count > own + 1 => self.oldest(most, |_| true),
                _ => self.oldest(client, |slot| {
                    slot.stage < Stage::Established || slot.used + RESTS <= now
                }),
            };
            let loser = victim.and_then(|number| Some(self.slots.get(&number)?.client));
            self.refuse(loser.unwrap_or(client));
            ended = Some(self.release(victim?)?);
        }
        self.next += 1;
        let slot = Slot { client, holder, stage: Stage::Requested, used: now };
        self.slots.insert(self.next, slot);
        *self.counts.entry(client).or_default() += 1;
        Some((self.next, ended))
    }

    /// Frees the oldest slot of the client with the most, for a resource that the pool does not count.
    #[must_use]
    pub fn evict(&mut self) -> Option<H> {
        let (most, _) = self.with_most()?;
        self.refuse(most);
        self.release(self.oldest(most, |_| true)?)
    }

    /// Records that the slot's client has sent data, or `established` a connection.
    pub fn record_request(&mut self, number: u64, established: bool, now: Instant) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.used = now;
            if established || slot.stage == Stage::Answered {
                slot.stage = Stage::Established;
            }
        }
    }

    /// Records that data was sent to the slot's client.
    pub fn record_response(&mut self, number: u64, now: Instant) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.used = now;
            slot.stage = slot.stage.max(Stage::Answered);
        }
    }

    /// When a silent slot of a flow of datagrams expires: with conntrack's timeouts. `None` if it has ended.
    #[must_use]
    pub fn expiry(&self, number: u64) -> Option<Instant> {
        let slot = self.slots.get(&number)?;
        let silence = if slot.stage == Stage::Requested { UNANSWERED } else { ANSWERED };
        Some(slot.used + silence)
    }

    /// Frees a slot that has ended; returns its holder if it still existed.
    pub fn release(&mut self, number: u64) -> Option<H> {
        let slot = self.slots.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&slot.client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&slot.client);
            }
        }
        Some(slot.holder)
    }

    /// Takes the pending report: at most one per interval, if any client was refused or lost a slot.
    #[must_use]
    pub fn report(&mut self, now: Instant) -> Option<Rejections<C>> {
        if self.reported.is_some_and(|reported| now < reported + REPORTED_EVERY) {
            return None;
        }
        let refused = self.refused.take()?;
        self.reported = Some(now);
        Some(refused)
    }

    fn with_most(&self) -> Option<(C, usize)> {
        let counts = self.counts.iter().map(|(client, count)| (*client, *count));
        counts.max_by_key(|(client, count)| (*count, *client))
    }

    /// Of a client's slots that qualify, the one that is least established and has been silent for longest.
    fn oldest(&self, client: C, qualifies: impl Fn(&Slot<C, H>) -> bool) -> Option<u64> {
        let own = self.slots.iter().filter(|(_, slot)| slot.client == client && qualifies(slot));
        let oldest = own.min_by_key(|(number, slot)| (slot.stage, slot.used, **number));
        oldest.map(|(number, _)| *number)
    }

    fn refuse(&mut self, client: C) {
        match &mut self.refused {
            Some(refused) if refused.client == client => refused.times += 1,
            Some(refused) => refused.others += 1,
            None => self.refused = Some(Rejections { client, times: 1, others: 0 }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// The client takes the next number; with the number that ends for it, or a refusal.
        Takes(char, Result<Option<usize>, ()>),
        /// The slot of this number reaches the stage.
        Reaches(usize, Stage),
        Ends(usize),
        Waits(u64),
        /// A descriptor is needed: this slot ends.
        GivesUp(Option<usize>),
        Reports(Option<(char, u64, u64)>),
    }
    use Stage::{Answered, Established};
    use Step::{Ends, GivesUp, Reaches, Reports, Takes, Waits};

    const FREE: Result<Option<usize>, ()> = Ok(None);
    const REFUSED: Result<Option<usize>, ()> = Err(());
    const fn instead(number: usize) -> Result<Option<usize>, ()> {
        Ok(Some(number))
    }
    /// Client `a` takes all four slots: numbers 0 to 3.
    const FULL: [Step; 4] = [Takes('a', FREE); 4];

    #[rstest]
    #[case::free_slots_are_anyones(&[Takes('b', FREE), Ends(4), Takes('a', FREE), Takes('a', instead(0))], 5)]
    #[case::another_client_takes_half(&[Takes('b', instead(0)), Takes('b', instead(1)), Takes('b', instead(4))], 4)]
    #[case::third_client_takes_of_the_one_with_most(&[Takes('b', instead(0)), Takes('c', instead(1)), Takes('c', instead(5))], 4)]
    #[case::equal_clients_take_nothing_of_each_other(
        &[Takes('b', instead(0)), Takes('b', instead(1)), Reaches(4, Established), Reaches(5, Established), Takes('b', REFUSED)], 4
    )]
    #[case::established_ones_of_the_client_with_most_go_last(
        &[Reaches(0, Established), Reaches(1, Answered), Takes('b', instead(2)), Takes('b', instead(3))], 4
    )]
    #[case::even_established_ones_go_for_another_client(&[
        Reaches(0, Established), Reaches(1, Established), Reaches(2, Established), Reaches(3, Established), Takes('b', instead(0)),
    ], 4)]
    #[case::silent_for_longest_goes_first(&[Waits(1), Reaches(0, Answered), Reaches(1, Answered), Waits(1), Reaches(0, Answered), Takes('b', instead(2)), Takes('b', instead(3))], 4)]
    #[case::own_established_ones_stay_while_they_are_used(&[
        Reaches(0, Established), Reaches(1, Established), Reaches(2, Established), Takes('a', instead(3)), Reaches(4, Established),
        Takes('a', REFUSED), Waits(29), Reaches(0, Established), Takes('a', REFUSED), Waits(1), Takes('a', instead(1)),
    ], 4)]
    #[case::descriptor_comes_from_the_client_with_most(&[Takes('b', instead(0)), GivesUp(Some(1)), Ends(2), Ends(3), Ends(4), GivesUp(None)], 4)]
    #[case::ended_slot_is_free_once(&[Ends(0), Ends(0), Takes('b', FREE), Takes('b', instead(1))], 4)]
    #[case::refusals_are_counted_and_reported_once_an_interval(&[
        Reports(None), Takes('b', instead(0)), Reports(Some(('a', 1, 0))), Takes('b', instead(1)), Takes('b', instead(4)),
        Takes('b', instead(5)), Waits(59), Reports(None), Waits(1), Reports(Some(('a', 1, 2))), Waits(60), Reports(None),
    ], 4)]
    fn slots_are_shared(#[case] steps: &[Step], #[case] limit: usize) {
        let (mut shares, mut now, mut numbers) = (Shares::new(limit), Instant::now(), Vec::new());
        for (index, step) in FULL.iter().chain(steps).enumerate() {
            match *step {
                Takes(client, expected) => {
                    let taken = shares.take(client, numbers.len(), now);
                    let ended = taken.map(|(_, ended)| ended);
                    assert_eq!(ended.ok_or(()), expected, "step {index}");
                    numbers.extend(taken.map(|(number, _)| number));
                }
                Reaches(holder, stage) => {
                    shares.record_response(numbers[holder], now);
                    if stage == Established {
                        shares.record_request(numbers[holder], false, now);
                    }
                }
                Ends(holder) => drop(shares.release(numbers[holder])),
                Waits(seconds) => now += Duration::from_secs(seconds),
                GivesUp(expected) => assert_eq!(shares.evict(), expected, "step {index}"),
                Reports(expected) => {
                    let report = shares.report(now).map(|r| (r.client, r.times, r.others));
                    assert_eq!(report, expected, "step {index}");
                }
            }
            let counted: usize = shares.counts.values().sum();
            assert_eq!(counted, shares.len(), "step {index}");
            assert!(counted <= limit, "step {index}");
        }
    }

    #[test]
    fn silent_slot_expires_after_timeout_of_its_stage() {
        let (mut shares, start, second) = (Shares::new(4), Instant::now(), Duration::from_secs(1));
        let (number, _) = shares.take('a', (), start).unwrap();
        let left = |shares: &Shares<char, ()>| Some(shares.expiry(number)? - start);
        assert_eq!(left(&shares), Some(30 * second));
        shares.record_request(number, false, start + second);
        assert_eq!(left(&shares), Some(31 * second));
        shares.record_response(number, start + 2 * second);
        assert_eq!(left(&shares), Some(122 * second));
        shares.release(number);
        assert_eq!(left(&shares), None);
    }

    #[test]
    fn connection_is_established_at_once() {
        let (mut shares, now) = (Shares::new(1), Instant::now());
        let (number, _) = shares.take('a', (), now).unwrap();
        shares.record_request(number, true, now);
        assert_eq!(shares.take('a', (), now), None);
    }
}
