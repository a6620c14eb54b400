//! ◆ What differs between two reports of the same runtime: new failures, mended ones, other results, slower calls.

use compact::Map;
use serde::Deserialize;

/// How many times as long a call must take to count as slower.
const SLOWER: f64 = 1.5;
/// How many seconds more it must take: less is noise.
const SLOWER_BY: f64 = 0.005;
/// How many calls a median needs.
const ENOUGH: usize = 5;

/// What is read of a report that `--report json=FILE` wrote. Other fields are left out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Saved {
    /// The runtime's name and version.
    pub runtime: String,
    /// The rules that ran.
    pub rules: Vec<SavedRule>,
    /// Whether a signal ended the check, so that rules are missing.
    #[serde(default)]
    pub interrupted: bool,
    /// How long the successful calls took. Reports of earlier versions have none.
    #[serde(default)]
    pub calls: Vec<SavedCall>,
}

/// How a rule ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SavedRule {
    /// Its id.
    pub id: String,
    /// The severity.
    pub severity: String,
    /// The promise.
    pub says: String,
    /// How it ended: `pass`, `fail`, …
    pub result: String,
    /// What there is to say of that.
    #[serde(default)]
    pub reason: String,
}

/// All successful calls of one name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedCall {
    /// The name.
    pub call: String,
    /// How many there were.
    pub count: usize,
    /// The median of their durations.
    pub median_seconds: f64,
}

/// How the result of a rule changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It fails, and did not, or was not there.
    NewFailure,
    /// It failed, and passes.
    Mended,
    /// It ended in some other way.
    Changed,
    /// It was not there, and does not fail.
    Added,
    /// It is not there any more.
    Removed,
}

/// A rule whose result changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// How.
    pub change: Change,
    /// The old result.
    pub old: Option<String>,
    /// The new result.
    pub new: Option<String>,
    /// The rule, as the newer report that has it tells.
    pub rule: SavedRule,
}

/// A call that takes longer than it did: medians in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Slower {
    /// The call.
    pub call: String,
    /// The old median.
    pub old: f64,
    /// The new median.
    pub new: f64,
}

/// What differs between two reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The runtime of the old report.
    pub old: String,
    /// The runtime of the new report.
    pub new: String,
    /// The rules whose results changed: by change, then by id.
    pub differences: Vec<Difference>,
    /// The slower calls, the worst ratio first.
    pub slower: Vec<Slower>,
    /// How many rules ended as before.
    pub same: usize,
    /// Whether one of the checks was interrupted: then rules are missing, and nothing is known of them.
    pub incomplete: bool,
}

impl Comparison {
    /// Whether a rule fails that did not.
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
    /// Every change, the worst first, with the heading under which it is shown.
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
    // Stable: the ids stay in order.
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

/// What two results of a rule mean; `None`: the same.
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
    fn results_tell_change(
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
