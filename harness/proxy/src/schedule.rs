//! ◆ Whether a rule applies to the next call that meets it, depending on how often it was met before.

/// The schedule of a rule: to which of the calls that meet it it applies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Schedule {
    /// Skips this many calls.
    pub(super) after: u64,
    /// Applies to every n-th call.
    pub(super) every: u64,
    /// Applies to at most this many calls.
    pub(super) times: Option<u64>,
    /// Applies to this share of the calls, between 0 and 1.
    pub(super) probability: f64,
}

/// The counters of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// The number of calls that met it.
    pub(super) met: u64,
    /// The number of calls that it was applied to.
    pub(super) applied: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { after: 0, every: 1, times: None, probability: 1.0 }
    }
}

impl Schedule {
    /// Whether a rule applies to the next call that meets it; `chance` is at least 0 and below 1.
    pub(super) fn is_due(&self, count: Count, chance: f64) -> bool {
        let Some(nth) = count.met.checked_sub(self.after) else {
            return false;
        };
        let is_nth = (nth + 1).is_multiple_of(self.every.max(1));
        let is_left = self.times.is_none_or(|times| count.applied < times);
        is_nth && is_left && chance < self.probability
    }
}

/// A number of at least 0 and below 1 that depends only on the arguments, so that a seed is reproducible.
pub(super) fn chance(seed: u64, rule: u64, nth: u64) -> f64 {
    let mixed = mix(mix(mix(seed).wrapping_add(rule)).wrapping_add(nth));
    let bits = u32::try_from(mixed >> 32).unwrap_or_default();
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

/// A step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// The calls out of ten to which a schedule applies.
    fn applied(schedule: Schedule, seed: u64) -> Vec<u64> {
        let mut count = Count::default();
        let mut applied = Vec::new();
        for call in 1..=10 {
            if schedule.is_due(count, chance(seed, 0, count.met)) {
                count.applied += 1;
                applied.push(call);
            }
            count.met += 1;
        }
        applied
    }

    #[rstest]
    #[case::always(Schedule::default(), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])]
    #[case::after(Schedule { after: 8, ..Schedule::default() }, &[9, 10])]
    #[case::every(Schedule { every: 4, ..Schedule::default() }, &[4, 8])]
    #[case::times(Schedule { times: Some(2), ..Schedule::default() }, &[1, 2])]
    #[case::never(Schedule { probability: 0.0, ..Schedule::default() }, &[])]
    #[case::every_after(Schedule { after: 1, every: 3, ..Schedule::default() }, &[4, 7, 10])]
    #[case::all(Schedule { after: 1, every: 3, times: Some(2), probability: 1.0 }, &[4, 7])]
    fn schedule_chooses_calls(#[case] schedule: Schedule, #[case] expected: &[u64]) {
        assert_eq!(applied(schedule, 0), expected);
    }

    #[test]
    fn seed_decides_what_a_probability_hits() {
        let half = Schedule { probability: 0.5, ..Schedule::default() };
        assert_eq!(applied(half, 7), applied(half, 7));
        let runs: std::collections::BTreeSet<_> = (0..8).map(|seed| applied(half, seed)).collect();
        assert!(runs.len() > 4, "{runs:?}");
        let hits = (0..10_000).filter(|nth| chance(3, 1, *nth) < 0.25).count();
        assert!((2200..2800).contains(&hits), "{hits}");
    }

    proptest! {
        #[test]
        fn chance_is_a_share(seed: u64, rule: u64, nth: u64) {
            prop_assert!((0.0..1.0).contains(&chance(seed, rule, nth)));
        }
    }
}
