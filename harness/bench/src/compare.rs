//! ◆ Compares an earlier and a later benchmark of one runtime: which rows became faster or slower.

use super::{Interval, Report, Row, Section, Unit, ratio, summary};

/// With fewer rounds, a median is unreliable.
const FEW: usize = 5;
/// The factor by which medians must differ.
const FACTOR: f64 = 1.1;
/// The same factor if one of the medians is from few rounds.
const FACTOR_OF_FEW: f64 = 1.5;

/// How a row changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trend {
    /// Faster, or smaller.
    Better,
    /// No significant difference.
    Same,
    /// Slower, or larger.
    Worse,
}

/// A row that both benchmarks have.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The section.
    pub section: Section,
    /// The call or quantity.
    pub name: String,
    /// The number of pods: see [`Row::at`].
    pub at: Option<u64>,
    /// The unit of the medians.
    pub unit: Unit,
    /// The earlier median.
    pub before: Interval,
    /// The later median.
    pub after: Interval,
    /// The kind of change.
    pub trend: Trend,
}

/// The comparison of two benchmarks.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The rows that both have, in the order of the later benchmark.
    pub changes: Vec<Change>,
    /// The numbers of rows that only the earlier and only the later benchmark has.
    pub unmatched: [usize; 2],
    /// How much longer the kernel alone took in the later benchmark: the median over the rows, as a factor.
    pub pace: Option<f64>,
}

impl Comparison {
    /// Whether a row became slower or larger.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.trend == Trend::Worse)
    }
}

/// Compares the measurements of each benchmark's first runtime.
#[must_use]
pub fn compare(before: &Report, after: &Report) -> Comparison {
    let mut changes = Vec::new();
    let mut floors = Vec::new();
    for row in &after.rows {
        let Some(earlier) = before.rows.iter().find(|earlier| is_same(earlier, row)) else {
            continue;
        };
        if let (Some(first), Some(last)) = (summary(&earlier.floor), summary(&row.floor)) {
            floors.push((first.median.p50, last.median.p50));
        }
        changes.extend(change(earlier, row));
    }
    let (first, last): (Vec<f64>, Vec<f64>) = floors.into_iter().unzip();
    let unmatched = |rows: &[Row], others: &[Row]| {
        let found = |row: &&Row| others.iter().any(|other| is_same(other, row));
        rows.iter().filter(|row| !found(row)).count()
    };
    Comparison {
        changes,
        unmatched: [unmatched(&before.rows, &after.rows), unmatched(&after.rows, &before.rows)],
        pace: ratio(&last, &first).map(|pace| pace.p50),
    }
}

fn is_same(one: &Row, other: &Row) -> bool {
    let key = |row: &Row| (row.section, row.at, row.unit);
    key(one) == key(other) && one.name == other.name
}

fn change(before: &Row, after: &Row) -> Option<Change> {
    let of_first = |row: &Row| summary(row.samples.first()?);
    let (first, last) = (of_first(before)?, of_first(after)?);
    let few = first.rounds.min(last.rounds) < FEW;
    let factor = if few { FACTOR_OF_FEW } else { FACTOR };
    let (old, new) = (first.median, last.median);
    let grew = new.low > old.high && new.p50 > old.p50 * factor;
    let fell = new.high < old.low && old.p50 > new.p50 * factor;
    let more_is_better = match after.unit {
        Unit::PodsPerSecond | Unit::MegabytesPerSecond => true,
        Unit::Milliseconds | Unit::Kibibytes => false,
    };
    Some(Change {
        section: after.section,
        name: after.name.clone(),
        at: after.at,
        unit: after.unit,
        before: old,
        after: new,
        trend: match (grew, fell) {
            (false, false) => Trend::Same,
            (grew, _) if grew == more_is_better => Trend::Better,
            _ => Trend::Worse,
        },
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::{Machine, Subject};
    use super::*;

    fn report(rows: Vec<Row>) -> Report {
        Report {
            machine: Machine { cores: 2, kernel: "6.1.0".to_owned(), root: true, load: [0.0, 0.0] },
            subjects: vec![Subject {
                name: "crib 0.1.0".to_owned(),
                endpoint: "unix:///s".to_owned(),
            }],
            rows,
            notes: Vec::new(),
            failures: Vec::new(),
            seconds: 1.0,
        }
    }

    fn row(name: &str, unit: Unit, samples: &[f64], floor: &[f64]) -> Row {
        Row {
            section: Section::Calls,
            name: name.to_owned(),
            at: None,
            unit,
            samples: vec![samples.to_vec()],
            floor: floor.to_vec(),
        }
    }

    /// Six samples close to a figure.
    fn near(figure: f64) -> Vec<f64> {
        (0..6).map(|step| figure + f64::from(step) / 1000.0).collect()
    }

    #[rstest]
    #[case::same(Unit::Milliseconds, near(2.0), near(2.0), Trend::Same)]
    #[case::slower(Unit::Milliseconds, near(2.0), near(3.0), Trend::Worse)]
    #[case::faster(Unit::Milliseconds, near(3.0), near(2.0), Trend::Better)]
    #[case::little(Unit::Milliseconds, near(2.0), near(2.1), Trend::Same)]
    #[case::more_a_second(Unit::PodsPerSecond, near(2.0), near(3.0), Trend::Better)]
    #[case::fewer_a_second(Unit::MegabytesPerSecond, near(3.0), near(2.0), Trend::Worse)]
    #[case::more_memory(Unit::Kibibytes, near(2.0), near(3.0), Trend::Worse)]
    #[case::wide(Unit::Milliseconds, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], near(5.0), Trend::Same)]
    #[case::one_round(Unit::Milliseconds, vec![2.0], near(2.9), Trend::Same)]
    #[case::one_round_and_far(Unit::Milliseconds, vec![2.0], near(3.1), Trend::Worse)]
    fn trend_follows_medians(
        #[case] unit: Unit,
        #[case] before: Vec<f64>,
        #[case] after: Vec<f64>,
        #[case] expected: Trend,
    ) {
        let of = |samples: &[f64]| report(vec![row("a", unit, samples, &[])]);
        let found = compare(&of(&before), &of(&after));
        assert_eq!(found.changes[0].trend, expected);
        assert_eq!(found.is_worse(), expected == Trend::Worse);
    }

    #[test]
    fn unmatched_rows_are_counted_and_pace_is_ratio_of_floors() {
        let unit = Unit::Milliseconds;
        let before = report(vec![
            row("a", unit, &near(1.0), &near(4.0)),
            row("gone", unit, &near(1.0), &[]),
        ]);
        let after = report(vec![
            row("a", unit, &near(1.0), &near(8.0)),
            row("new", unit, &near(1.0), &[]),
            row("a", Unit::Kibibytes, &near(1.0), &[]),
        ]);
        let found = compare(&before, &after);
        assert_eq!(found.changes.len(), 1);
        assert_eq!(found.unmatched, [1, 2]);
        assert!((found.pace.unwrap() - 2.0).abs() < 0.01, "{found:?}");
    }
}
