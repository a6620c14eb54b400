//! ◆ A histogram of durations. Pure.

use std::time::Duration;

use compact::Map;

/// The default bucket bounds of Prometheus clients, in seconds.
pub const DEFAULT_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A histogram of seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// For each bound, the number of durations up to this bound and above the previous one.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in ascending order.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    /// Counts a duration.
    pub fn observe(&mut self, seconds: f64) {
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|bucket| self.counts.get_mut(bucket)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }

    /// For each bound, the number of durations up to it.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut sum = 0;
        self.bounds.iter().zip(&self.counts).map(move |(bound, count)| {
            sum += count;
            (*bound, sum)
        })
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the durations, in seconds.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// Counts a duration in the histogram of its kind, which is created with these bounds.
pub fn observe<K: Ord>(
    all: &mut Map<K, Histogram>,
    kind: K,
    bounds: &'static [f64],
    took: Duration,
) {
    let durations = all.entry(kind).or_insert_with(|| Histogram::new(bounds));
    durations.observe(took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for seconds in [0.5, 1.0, 1.5, 9.0] {
            histogram.observe(seconds);
        }
        let buckets: Vec<(f64, u64)> = histogram.buckets().collect();
        assert_eq!(buckets, [(1.0, 2), (2.0, 3)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 12.0));
    }
}
