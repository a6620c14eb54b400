//! ◆ Failures with a common cause: the same refused call, or the same difference, in several rules.

use compact::{Map, Set};

use crate::outcome::Outcome;
use crate::running::run::{Report, RuleResult};

/// From this number of failures on, a common cause is reported once.
const MANY: usize = 5;

/// The common causes of many failures, each with the ids of all its rules in order. A cause is a refused call with the runtime's
/// message, or a difference; it is shown as in the first of the rules.
#[must_use]
pub(super) fn common(report: &Report) -> Vec<(String, Vec<&'static str>)> {
    let mut causes: Map<String, (String, Vec<&'static str>)> = Map::new();
    for result in &report.results {
        if let Some((key, text)) = cause(result) {
            let cause = causes.entry(key).or_default();
            if cause.1.is_empty() {
                cause.0 = text;
            }
            cause.1.push(result.rule.id);
        }
    }
    let mut causes: Vec<_> = causes.into_values().collect();
    causes.retain(|(_, rules)| rules.len() >= MANY);
    compact::sort_by_key(&mut causes, |(_, rules)| std::cmp::Reverse(rules.len()));
    causes
}

/// The rules whose failure repeats the failure of an earlier rule.
#[must_use]
pub fn repeated(report: &Report) -> Set<&'static str> {
    let causes = common(report).into_iter();
    causes.flat_map(|(_, rules)| rules.into_iter().skip(1)).collect()
}

/// The cause of a rule's failure: a key that is equal for rules with the same cause, and the text. Names and numbers are ignored in
/// refused calls, not in differences.
fn cause(result: &RuleResult) -> Option<(String, String)> {
    match &result.outcome {
        Err(Outcome::Fail { what, expected, seen }) if expected == "success" => {
            let text = format!("{what}: {seen}");
            Some((without_names(&text), text))
        }
        Err(Outcome::Fail { what, expected, seen }) => {
            let text = format!("{what}: expected {expected}, seen {seen}");
            Some((text.clone(), text))
        }
        Ok(()) | Err(_) => None,
    }
}

/// The text without details of single objects: words with digits, and quoted text.
fn without_names(text: &str) -> String {
    let outside = text.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let words =
        outside.split(' ').map(|word| match word.contains(|one: char| one.is_ascii_digit()) {
            true => "#",
            false => word,
        });
    words.collect::<Vec<_>>().join(" ")
}
