//! Reports of a check: a text and an HTML page for people, JSON, JUnit's XML, SARIF and TAP for machines.

mod causes;
mod comparison;
mod escape;
mod html;
mod json;
mod junit;
mod sarif;
mod tap;
mod text;

pub use causes::repeated;
pub use comparison::comparison;
pub use html::{comparison_html, html};
pub use json::{json, trace};
pub use junit::junit;
pub use sarif::sarif;
pub use tap::tap;
pub use text::{failure, line, summary};

use super::outcome::{self, Outcome};
use super::rule::Rule;
use super::run::RuleResult;

/// The word for how a rule ended.
#[must_use]
pub fn word(result: &RuleResult) -> &'static str {
    outcome::word(&result.outcome)
}

/// What there is to say of how a rule ended, in one line.
#[must_use]
pub fn reason(result: &RuleResult) -> String {
    match &result.outcome {
        Ok(()) => String::new(),
        Err(Outcome::Fail {
            what,
            expected,
            seen,
        }) => format!("{what}: expected {expected}, seen {}", brief(seen)),
        Err(Outcome::Refused { code, message }) => format!("{code:?}: {message}"),
        Err(Outcome::Diverges(why) | Outcome::Unsupported(why) | Outcome::Skipped(why)) => {
            why.clone()
        }
    }
}

/// The command that runs a rule alone; `check` is the one of the whole check, [`super::Report::command`].
#[must_use]
pub fn command(check: &str, rule: &Rule) -> String {
    format!("{check} --select {}", rule.id)
}

/// One line, and not a long one.
fn brief(text: &str) -> String {
    const LONGEST: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        None => line,
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
