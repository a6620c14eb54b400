//! ◆ Medians with their confidence intervals, and ratios of pairs.

use serde::{Deserialize, Serialize};

/// A median with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median of the samples.
    pub p50: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The summary of a row's samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of rounds.
    pub rounds: usize,
    /// The median.
    pub median: Interval,
    /// The 99th percentile: 99 of 100 rounds do not exceed it.
    pub p99: f64,
}

/// The summary of samples in any order; `None` if there are none.
#[must_use]
pub fn summary(samples: &[f64]) -> Option<Summary> {
    let sorted = sorted(samples);
    Some(Summary {
        rounds: sorted.len(),
        median: interval(&sorted)?,
        p99: at_rank(&sorted, (sorted.len() * 99).div_ceil(100))?,
    })
}

/// The median of the ratios of `of` to `to`, round by round. Rounds that only one of them has, and rounds in which `to` is zero,
/// are ignored.
#[must_use]
pub fn ratio(of: &[f64], to: &[f64]) -> Option<Interval> {
    let pairs = of.iter().zip(to).filter(|(_, to)| **to != 0.0);
    let ratios: Vec<f64> = pairs.map(|(of, to)| of / to).collect();
    interval(&sorted(&ratios))
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    compact::sort_by(&mut sorted, f64::total_cmp);
    sorted
}

/// The median, and the ranks around it whose values bound the true median for any distribution of the samples: the binomial
/// distribution of ranks, approximated by the normal one.
fn interval(sorted: &[f64]) -> Option<Interval> {
    let count = sorted.len();
    let upper_middle = at_rank(sorted, count / 2 + 1)?;
    let lower_middle = at_rank(sorted, count.div_ceil(2))?;
    let half_width = 1.96 * (count as f64).sqrt();
    let low = ((count as f64 - half_width) / 2.0).floor().max(1.0) as usize;
    let high = (1.0 + (count as f64 + half_width) / 2.0).ceil() as usize;
    Some(Interval {
        p50: f64::midpoint(lower_middle, upper_middle),
        low: at_rank(sorted, low)?,
        high: at_rank(sorted, high.min(count))?,
    })
}

/// The sample at a rank; ranks start at 1.
fn at_rank(sorted: &[f64], rank: usize) -> Option<f64> {
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn up_to(count: u32) -> Vec<f64> {
        // In descending order: the order must not matter.
        (1..=count).rev().map(f64::from).collect()
    }

    #[rstest]
    #[case::one(1, 1.0, 1.0, 1.0, 1.0)]
    #[case::two(2, 1.5, 1.0, 2.0, 2.0)]
    #[case::five_say_little(5, 3.0, 1.0, 5.0, 5.0)]
    #[case::hundred(100, 50.5, 40.0, 61.0, 99.0)]
    #[case::thousand(1000, 500.5, 469.0, 532.0, 990.0)]
    fn median_has_interval(
        #[case] count: u32,
        #[case] p50: f64,
        #[case] low: f64,
        #[case] high: f64,
        #[case] p99: f64,
    ) {
        let median = Interval { p50, low, high };
        let expected = Summary { rounds: count as usize, median, p99 };
        assert_eq!(summary(&up_to(count)), Some(expected));
    }

    #[rstest]
    #[case::nothing(&[], &[1.0], None)]
    #[case::pairs_not_medians(&[1.0, 20.0, 300.0], &[2.0, 40.0, 100.0], Some(0.5))]
    #[case::unpaired_rounds_do_not_count(&[2.0, 9.0], &[1.0], Some(2.0))]
    #[case::zero_does_not_count(&[2.0, 9.0], &[1.0, 0.0], Some(2.0))]
    fn ratio_is_that_of_pairs(
        #[case] of: &[f64],
        #[case] to: &[f64],
        #[case] expected: Option<f64>,
    ) {
        assert_eq!(ratio(of, to).map(|ratio| ratio.p50), expected);
    }

    #[test]
    fn no_samples_have_no_summary() {
        assert_eq!(summary(&[]), None);
    }
}
