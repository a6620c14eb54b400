//! ◆ Failures with one cause: the same refusal of a call, or the same difference, in one rule after the other.

use compact::{Map, Set};

use crate::outcome::Outcome;
use crate::running::run::{Report, RuleResult};

/// That many failures are told once, not each.
const MANY: usize = 5;

/// What many rules failed with: a refusal, as the call and the runtime's words, or a difference; as the first of the rules saw it, and
/// all of those rules in their order.
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

/// The rules whose failure says nothing that the one of an earlier rule does not say.
#[must_use]
pub fn repeated(report: &Report) -> Set<&'static str> {
    let causes = common(report).into_iter();
    causes.flat_map(|(_, rules)| rules.into_iter().skip(1)).collect()
}

/// What a rule failed with, and what is the same of it in other rules. A difference says something else with another name.
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

/// The text without what differs from one object to the next: digits, and what is in quotes.
fn without_names(text: &str) -> String {
    let outside = text.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let words =
        outside.split(' ').map(|word| match word.contains(|one: char| one.is_ascii_digit()) {
            true => "#",
            false => word,
        });
    words.collect::<Vec<_>>().join(" ")
}
