//! ◆ Computes recent CPU usage from two measurements. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/stats/cri_stats_provider.go getAndUpdateContainerUsageNanoCores.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// The age at which a measurement is replaced. Within a period, all clients get the same rate.
const PERIOD: SignedDuration = SignedDuration::from_secs(10);
/// The age at which a measurement is removed.
const FORGET: SignedDuration = SignedDuration::from_mins(10);

/// Measurements by name.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<String, Sample>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Timestamp,
    total: u64,
    /// The rate at this sample.
    rate: Option<u64>,
}

impl Rates {
    /// Records the total CPU time in nanoseconds, and returns the usage in billionths of a CPU; `None` for a first measurement.
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

    /// Removes old measurements.
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
        // Within a period the rate does not change.
        assert_eq!(rates.rate("a", at(12), 3 * second), Some(second / 10));
        assert_eq!(rates.rate("a", at(20), 11 * second), Some(second));
        assert_eq!(rates.rate("b", at(20), 1), None);
        // The counter was reset.
        assert_eq!(rates.rate("a", at(40), 0), None);
        rates.forget(at(700));
        assert_eq!(rates.0.len(), 0);
    }
}
