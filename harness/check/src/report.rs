//! Reports of a check: a text and an HTML page for people, JSON, JUnit's XML and SARIF for machines.

mod causes;
mod comparison;
mod escape;
mod html;
mod json;
mod junit;
mod sarif;
mod text;

pub use causes::repeated;
pub use comparison::comparison;
pub use escape::escaped;
pub use html::{comparison_html, html};
pub use json::{json, trace};
pub use junit::junit;
pub use sarif::sarif;
pub use text::{brief_failure, causes, failure, line, summary};

pub use harness::shown::brief;

use crate::outcome::{self, Outcome};
use crate::rule::Rule;
use crate::running::run::RuleResult;

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
        Err(Outcome::Fail { what, expected, seen }) => {
            format!("{}: expected {}, seen {}", brief(what), brief(expected), brief(seen))
        }
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

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
