//! ◆ Counts and aggregates events, so that a failing pod does not flood its observers.
//!
//! | rule | events that are combined | effect |
//! |---|---|---|
//! | aggregation | of one object, type and reason, with 10 different messages, each at most 600 s after the one before | one event, `(combined from similar events): MESSAGE` |
//! | counting | the same object, field, type, reason and message, or the same aggregate | the count increases, the first time stays |
//! | spam | of one object and type | a burst of 25, then one in 300 s; the rest is dropped |
//!
//! Source: Kubernetes 1.36, client-go tools/record/events_cache.go. Each rule caches 4096 entries.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use api::pod::PodUid;
use jiff::Timestamp;

use super::{AGGREGATE_PREFIX, Event, EventObject};

const REMEMBERED: usize = 4096;
/// The number of different messages that make an aggregate.
const AGGREGATE_AT: usize = 10;
/// Similar events further apart than this are not aggregated, in seconds.
const AGGREGATE_WITHIN: f64 = 600.0;
const BURST: f64 = 25.0;
/// Events per second after a burst.
const REFILL: f64 = 1.0 / 300.0;

/// The hash of the common parts of events: with thousands of entries, the texts would take megabytes.
type Digest = u128;

#[derive(Clone, Debug)]
struct Similar {
    /// The hashes of the messages, oldest first.
    messages: Vec<Digest>,
    last_at: Timestamp,
}

/// The remaining events of an object: a token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    filled_at: Timestamp,
}

/// The recorded earlier events.
#[derive(Clone, Debug)]
pub(super) struct Correlator {
    /// By object, type and reason.
    similar: Lru<Digest, Similar>,
    /// By event or aggregate.
    counts: Lru<Digest, Option<(u32, Timestamp)>>,
    /// By object and type.
    buckets: Lru<Digest, Bucket>,
}

impl Default for Correlator {
    fn default() -> Self {
        Self {
            similar: Lru::new(REMEMBERED),
            counts: Lru::new(REMEMBERED),
            buckets: Lru::new(REMEMBERED),
        }
    }
}

impl Correlator {
    /// The event to show: with its count, or as an aggregate; `None` if it is dropped.
    pub(super) fn correlate(&mut self, event: Event, now: Timestamp) -> Option<Event> {
        let (event, key) = self.aggregated(event, now);
        let event = self.counted(event, key);
        self.has_room(&event, now).then_some(event)
    }

    fn aggregated(&mut self, mut event: Event, now: Timestamp) -> (Event, Digest) {
        // Events of all containers of a pod are aggregated together.
        let key = digest(&(whole(&event.object), event.kind, &event.reason));
        let similar =
            self.similar.entry(key, || Similar { messages: Vec::with_capacity(1), last_at: now });
        if seconds(similar.last_at, now) > AGGREGATE_WITHIN {
            similar.messages.clear();
        }
        let message = digest(&event.message);
        if !similar.messages.contains(&message) {
            similar.messages.push(message);
        }
        similar.last_at = now;
        if similar.messages.len() < AGGREGATE_AT {
            let own = digest(&(&event.object, event.kind, &event.reason, &event.message));
            return (event, own);
        }
        similar.messages.remove(0);
        event.message.insert_str(0, AGGREGATE_PREFIX);
        (event, key)
    }

    fn counted(&mut self, mut event: Event, key: Digest) -> Event {
        let known = self.counts.entry(key, || None);
        if let Some((count, first_at)) = *known {
            event.count = count.saturating_add(1);
            event.first_at = first_at;
        }
        *known = Some((event.count, event.first_at));
        event
    }

    fn has_room(&mut self, event: &Event, now: Timestamp) -> bool {
        let key = digest(&(whole(&event.object), event.kind));
        let bucket = self.buckets.entry(key, || Bucket { left: BURST, filled_at: now });
        let refilled = seconds(bucket.filled_at, now).max(0.0) * REFILL;
        bucket.left = (bucket.left + refilled).min(BURST);
        bucket.filled_at = now;
        let accepted = bucket.left >= 1.0;
        if accepted {
            bucket.left -= 1.0;
        }
        accepted
    }
}

/// The object without its field.
fn whole(object: &EventObject) -> (&PodUid, &str, &str) {
    (&object.uid, &object.namespace, &object.name)
}

/// Two hashes of 64 bits, so that different events do not collide by chance.
fn digest(of: &impl Hash) -> Digest {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        of.hash(&mut hasher);
        Digest::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// A map of limited size that removes the least recently used entry.
#[derive(Clone, Debug)]
pub(super) struct Lru<K, V> {
    limit: usize,
    entries: BTreeMap<K, (u64, V)>,
    /// The keys by their last use.
    uses: BTreeMap<u64, K>,
    next_use: u64,
}

impl<K: Ord + Copy, V> Lru<K, V> {
    /// A map of at most `limit` entries.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: BTreeMap::new(), uses: BTreeMap::new(), next_use: 0 }
    }

    /// The entry of a key, created by `make` if it does not exist.
    pub(super) fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(&key)
            && self.entries.len() >= self.limit
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.next_use += 1;
        let used = self.next_use;
        self.uses.insert(used, key);
        let (last, value) = self.entries.entry(key).or_insert_with(|| (used, make()));
        if *last != used {
            self.uses.remove(last);
            *last = used;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporting::events::{EventObjectKind, EventType};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
    }

    fn event(field: &str, kind: EventType, reason: &str, message: &str, second: i64) -> Event {
        Event {
            object: EventObject {
                kind: EventObjectKind::Pod,
                uid: PodUid::new("u"),
                namespace: "default".to_owned(),
                name: "p".to_owned(),
                field_path: field.to_owned(),
            },
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
            annotations: BTreeMap::new(),
            count: 1,
            first_at: at(second),
            last_at: at(second),
        }
    }

    /// The count and message of each event that is shown; `None` for a dropped one.
    fn shown(events: Vec<Event>) -> Vec<Option<(u32, String)>> {
        let mut correlator = Correlator::default();
        let show = |event: Event| {
            let now = event.last_at;
            correlator.correlate(event, now).map(|event| (event.count, event.message))
        };
        events.into_iter().map(show).collect()
    }

    fn some(count: u32, message: &str) -> Option<(u32, String)> {
        Some((count, message.to_owned()))
    }

    use EventType::{Normal, Warning};

    #[test]
    fn same_event_counts_up_from_its_first_time() {
        let mut correlator = Correlator::default();
        for second in 0..3 {
            let seen = correlator.correlate(
                event("spec.containers{a}", Warning, "BackOff", "again", second),
                at(second),
            );
            let seen = seen.map(|seen| (seen.count, seen.first_at, seen.last_at));
            let count = u32::try_from(second).unwrap_or_default() + 1;
            assert_eq!(seen, Some((count, at(0), at(second))));
        }
    }

    #[test]
    fn events_differ_by_field_type_reason_and_message() {
        let events = vec![
            event("a", Normal, "R", "m", 0),
            event("b", Normal, "R", "m", 0),
            event("a", Warning, "R", "m", 0),
            event("a", Normal, "S", "m", 0),
            event("a", Normal, "R", "n", 0),
            event("a", Normal, "R", "m", 0),
        ];
        let counts: Vec<u32> =
            shown(events).into_iter().flatten().map(|(count, _)| count).collect();
        assert_eq!(counts, [1, 1, 1, 1, 1, 2]);
    }

    #[test]
    fn tenth_message_of_a_reason_is_aggregated() {
        let mut events: Vec<Event> =
            (0..12).map(|n| event("a", Normal, "R", &format!("m{n:02}"), n)).collect();
        events.push(event("a", Normal, "R", "late", 11 + 601));
        let shown = shown(events);
        assert_eq!(shown[8], some(1, "m08"));
        assert_eq!(shown[9], some(1, "(combined from similar events): m09"));
        assert_eq!(shown[11], some(3, "(combined from similar events): m11"));
        assert_eq!(shown[12], some(1, "late"), "ten minutes after the last one");
    }

    #[test]
    fn burst_is_followed_by_one_event_in_five_minutes() {
        let mut events: Vec<Event> = (0..26).map(|_| event("a", Warning, "R", "m", 0)).collect();
        events.push(event("a", Normal, "R", "m", 0));
        events.push(event("b", Warning, "S", "x", 299));
        events.push(event("a", Warning, "R", "m", 301));
        events.push(event("a", Warning, "R", "m", 301));
        let shown = shown(events);
        assert_eq!(shown[24], some(25, "m"));
        assert_eq!(shown[25], None);
        assert_eq!(shown[26], some(1, "m"), "another type has a budget of its own");
        assert_eq!(shown[27], None, "containers of a pod share one");
        assert_eq!(shown[28], some(27, "m"), "dropped events count");
        assert_eq!(shown[29], None);
    }

    #[test]
    fn entry_used_least_recently_is_forgotten() {
        let mut lru = Lru::new(2);
        for key in ["a", "b", "a", "c"] {
            *lru.entry(key, || 0) += 1;
        }
        assert_eq!(*lru.entry("a", || 0), 2);
        assert_eq!(*lru.entry("b", || 0), 0, "forgotten for c");
        assert_eq!(*lru.entry("c", || 0), 0, "forgotten for b");
        assert_eq!((lru.entries.len(), lru.uses.len()), (2, 2));
    }
}
