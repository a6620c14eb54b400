//! ◆ Differences between two reports: new failures, fixed rules, other changed results, slower calls.

use compact::Map;
use serde::Deserialize;

/// A call counts as slower from this ratio of the medians on.
const SLOWER: f64 = 1.5;
/// A call counts as slower from this difference of the medians on, in seconds: less is noise.
const SLOWER_BY: f64 = 0.005;
/// The minimum number of calls for a median.
const ENOUGH: usize = 5;

/// The fields that are read from a report of `--report json=FILE`. Other fields are ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Saved {
    /// The runtime's name and version.
    pub runtime: String,
    /// The results of the rules that ran.
    pub rules: Vec<SavedRule>,
    /// Whether a signal ended the check, so that results are missing.
    #[serde(default)]
    pub interrupted: bool,
    /// Durations of the successful calls. Reports of earlier versions have none.
    #[serde(default)]
    pub calls: Vec<SavedCall>,
}

/// The result of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SavedRule {
    /// Its id.
    pub id: String,
    /// The severity.
    pub severity: String,
    /// The requirement.
    pub says: String,
    /// The result: `pass`, `fail`, …
    pub result: String,
    /// The details of the result.
    #[serde(default)]
    pub reason: String,
}

/// The successful calls of one method.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedCall {
    /// The method.
    pub call: String,
    /// The number of calls.
    pub count: usize,
    /// The median of the durations.
    pub median_seconds: f64,
}

/// How a rule's result changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The rule fails now; it did not fail before, or is missing in the old report.
    NewFailure,
    /// The rule failed before and passes now.
    Mended,
    /// Any other change.
    Changed,
    /// The rule is missing in the old report and does not fail.
    Added,
    /// The rule is missing in the new report.
    Removed,
}

/// A rule whose result changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The kind of change.
    pub change: Change,
    /// The old result.
    pub old: Option<String>,
    /// The new result.
    pub new: Option<String>,
    /// The rule as in the new report, or in the old one if the new one lacks it.
    pub rule: SavedRule,
}

/// A call that takes longer than before: medians in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Slower {
    /// The method.
    pub call: String,
    /// The old median.
    pub old: f64,
    /// The new median.
    pub new: f64,
}

/// The differences between two reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The runtime of the old report.
    pub old: String,
    /// The runtime of the new report.
    pub new: String,
    /// The rules whose results changed, sorted by change, then by id.
    pub differences: Vec<Difference>,
    /// The slower calls, the highest ratio first.
    pub slower: Vec<Slower>,
    /// The number of rules with the same result in both reports.
    pub same: usize,
    /// Whether one of the checks was interrupted, so that results are missing.
    pub incomplete: bool,
}

impl Comparison {
    /// Whether a rule fails that did not fail before.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let mut changes = self.differences.iter().map(|one| one.change);
        changes.any(|change| change == Change::NewFailure)
    }

    /// The rules with this change.
    pub fn with(&self, change: Change) -> impl Iterator<Item = &Difference> {
        self.differences.iter().filter(move |one| one.change == change)
    }
}

impl Change {
    /// Every change with its heading, the worst first.
    pub const HEADINGS: [(Self, &'static str); 5] = [
        (Self::NewFailure, "new failures"),
        (Self::Mended, "mended"),
        (Self::Changed, "changed"),
        (Self::Added, "added"),
        (Self::Removed, "removed"),
    ];
}

/// Compares an old report with a new one.
#[must_use]
pub fn compare(old: &Saved, new: &Saved) -> Comparison {
    let mut pairs: Map<&str, [Option<&SavedRule>; 2]> = Map::new();
    for (index, report) in [old, new].into_iter().enumerate() {
        for rule in &report.rules {
            if let Some(slot) = pairs.entry(&rule.id).or_default().get_mut(index) {
                *slot = Some(rule);
            }
        }
    }
    let rules = pairs.len();
    let mut differences: Vec<Difference> = pairs
        .into_values()
        .filter_map(|[old, new]| {
            let result = |rule: Option<&SavedRule>| rule.map(|rule| rule.result.clone());
            Some(Difference {
                change: change(result(old).as_deref(), result(new).as_deref())?,
                old: result(old),
                new: result(new),
                rule: new.or(old)?.clone(),
            })
        })
        .collect();
    // The sort is stable: the ids stay in order.
    compact::sort_by_key(&mut differences, |one| one.change);
    Comparison {
        old: old.runtime.clone(),
        new: new.runtime.clone(),
        same: rules - differences.len(),
        incomplete: old.interrupted || new.interrupted,
        differences,
        slower: slower(&old.calls, &new.calls),
    }
}

/// The change from an old to a new result; `None` if they are the same.
fn change(old: Option<&str>, new: Option<&str>) -> Option<Change> {
    match (old, new) {
        (old, new) if old == new => None,
        (_, Some("fail")) => Some(Change::NewFailure),
        (Some("fail"), Some("pass")) => Some(Change::Mended),
        (Some(_), Some(_)) => Some(Change::Changed),
        (None, _) => Some(Change::Added),
        (_, None) => Some(Change::Removed),
    }
}

fn slower(old: &[SavedCall], new: &[SavedCall]) -> Vec<Slower> {
    let before = |call: &SavedCall| old.iter().find(|one| one.call == call.call);
    let mut slower: Vec<Slower> = new
        .iter()
        .filter_map(|call| Some((before(call)?, call)))
        .filter(|(old, new)| {
            old.count.min(new.count) >= ENOUGH
                && new.median_seconds > old.median_seconds * SLOWER
                && new.median_seconds > old.median_seconds + SLOWER_BY
        })
        .map(|(old, new)| Slower {
            call: new.call.clone(),
            old: old.median_seconds,
            new: new.median_seconds,
        })
        .collect();
    // a.new/a.old > b.new/b.old, without dividing by zero.
    compact::sort_by(&mut slower, |a, b| (b.new * a.old).total_cmp(&(a.new * b.old)));
    slower
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("pass"), Some("pass"), None)]
    #[case(Some("fail"), Some("fail"), None)]
    #[case(Some("pass"), Some("fail"), Some(Change::NewFailure))]
    #[case(Some("skipped"), Some("fail"), Some(Change::NewFailure))]
    #[case(None, Some("fail"), Some(Change::NewFailure))]
    #[case(Some("fail"), Some("pass"), Some(Change::Mended))]
    #[case(Some("fail"), Some("skipped"), Some(Change::Changed))]
    #[case(Some("pass"), Some("diverges"), Some(Change::Changed))]
    #[case(None, Some("pass"), Some(Change::Added))]
    #[case(Some("fail"), None, Some(Change::Removed))]
    fn change_follows_from_results(
        #[case] old: Option<&str>,
        #[case] new: Option<&str>,
        #[case] expected: Option<Change>,
    ) {
        assert_eq!(change(old, new), expected);
    }

    #[rstest]
    #[case::same(10, 0.02, 10, 0.02, false)]
    #[case::twice(10, 0.02, 10, 0.04, true)]
    #[case::quicker(10, 0.04, 10, 0.02, false)]
    #[case::twice_of_little(10, 0.001, 10, 0.002, false)]
    #[case::a_bit(10, 0.1, 10, 0.12, false)]
    #[case::too_few_calls(4, 0.02, 10, 0.04, false)]
    #[case::too_few_calls_now(10, 0.02, 4, 0.04, false)]
    fn call_is_slower_by_ratio_and_difference(
        #[case] old_count: usize,
        #[case] old: f64,
        #[case] new_count: usize,
        #[case] new: f64,
        #[case] expected: bool,
    ) {
        let calls = |count, median_seconds| {
            [SavedCall { call: "Version".to_owned(), count, median_seconds }]
        };
        let found = slower(&calls(old_count, old), &calls(new_count, new));
        assert_eq!(!found.is_empty(), expected, "{found:?}");
    }

    #[test]
    fn differences_are_by_change_and_id() {
        let report = |rules: &[(&str, &str)]| Saved {
            runtime: "some".to_owned(),
            rules: rules
                .iter()
                .map(|(id, result)| SavedRule {
                    id: (*id).to_owned(),
                    severity: "must".to_owned(),
                    says: "It holds.".to_owned(),
                    result: (*result).to_owned(),
                    reason: String::new(),
                })
                .collect(),
            interrupted: false,
            calls: Vec::new(),
        };
        let old = report(&[("A", "fail"), ("B", "pass"), ("C", "pass"), ("D", "pass")]);
        let new = report(&[("D", "fail"), ("A", "pass"), ("B", "fail"), ("C", "pass")]);
        let found = compare(&old, &new);
        let ids: Vec<_> =
            found.differences.iter().map(|one| (one.change, one.rule.id.as_str())).collect();
        let expected =
            [(Change::NewFailure, "B"), (Change::NewFailure, "D"), (Change::Mended, "A")];
        assert_eq!(ids, expected);
        assert_eq!(found.same, 1);
        assert!(found.is_worse());
        assert!(!compare(&new, &new).is_worse());
        let interrupted = Saved { interrupted: true, ..new.clone() };
        let incomplete = |old, new| compare(old, new).incomplete;
        assert!(!incomplete(&old, &new));
        assert!(incomplete(&old, &interrupted) && incomplete(&interrupted, &new));
    }
}
