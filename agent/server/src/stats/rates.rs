//! ◆ How much processor time is used of late, from two measurements. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/stats/cri_stats_provider.go getAndUpdateContainerUsageNanoCores.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// A measurement is replaced when it is so old: several clients that ask at different times see the same rate.
const PERIOD: SignedDuration = SignedDuration::from_secs(10);
/// What was not measured for so long is forgotten.
const FORGET: SignedDuration = SignedDuration::from_mins(10);

/// Measurements by name.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<String, Sample>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Timestamp,
    total: u64,
    /// The rate before it.
    rate: Option<u64>,
}

impl Rates {
    /// Takes a measurement of nanoseconds, and returns billionths of a processor; `None` for a first one.
    pub(crate) fn rate(&mut self, name: &str, at: Timestamp, total: u64) -> Option<u64> {
        let last = self.0.get(name).copied().filter(|last| last.total <= total);
        let sample = Sample { at, total, rate: None };
        let Some(last) = last else {
            self.0.insert(name.to_owned(), sample);
            return None;
        };
        let since = at.duration_since(last.at);
        if since < PERIOD && last.rate.is_some() {
            return last.rate;
        }
        let rate = rate(total - last.total, since)?;
        if since >= PERIOD {
            self.0.insert(name.to_owned(), Sample { rate: Some(rate), ..sample });
        }
        Some(rate)
    }

    /// Forgets what was not measured for long.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.0.retain(|_, sample| now.duration_since(sample.at) <= FORGET);
    }
}

fn rate(nanoseconds: u64, since: SignedDuration) -> Option<u64> {
    let since = u128::try_from(since.as_nanos()).ok().filter(|since| *since > 0)?;
    u64::try_from(u128::from(nanoseconds) * 1_000_000_000 / since).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn rate_is_between_two_measurements() {
        let mut rates = Rates::default();
        let second = 1_000_000_000;
        assert_eq!(rates.rate("a", at(0), 0), None);
        assert_eq!(rates.rate("a", at(0), 5), None, "no time has passed");
        assert_eq!(rates.rate("a", at(2), second), Some(second / 2));
        assert_eq!(rates.rate("a", at(10), second), Some(second / 10));
        // Until the next period the rate stays.
        assert_eq!(rates.rate("a", at(12), 3 * second), Some(second / 10));
        assert_eq!(rates.rate("a", at(20), 11 * second), Some(second));
        assert_eq!(rates.rate("b", at(20), 1), None);
        // It was started anew.
        assert_eq!(rates.rate("a", at(40), 0), None);
        rates.forget(at(700));
        assert_eq!(rates.0.len(), 0);
    }
}
