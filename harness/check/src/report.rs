//! Reports of a check: text and an HTML page for people; JSON, JUnit XML and SARIF for machines.

mod causes;
mod html;
mod json;
mod sarif;
mod text;

pub use harness::debug_text::brief;

use harness::debug_text::reorders;

use crate::compare::{Change, Comparison};
use crate::outcome::{self, Outcome};
use crate::rule::Rule;
use crate::running::run::RuleResult;

pub use causes::repeated;
pub use html::{comparison_html, html};
pub use json::{json, trace};
pub use sarif::junit;
pub use sarif::sarif;
pub use text::{brief_failure, causes, failure, line, summary};

/// The word for how a rule ended.
#[must_use]
pub fn word(result: &RuleResult) -> &'static str {
    outcome::word(&result.outcome)
}

/// The details of a rule's result, in one line.
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

/// The command that runs only this rule; `check` is the command of the whole check, [`super::Report::command`].
#[must_use]
pub fn command(check: &str, rule: &Rule) -> String {
    format!("{check} --select {}", rule.id)
}

/// Escapes a text for an element or for an attribute in quotes. Control characters, which XML 1.0 does not allow, are replaced, and
/// so are characters that change the display order of the text after them.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(letter),
            letter
                if letter.is_control()
                    || reorders(letter)
                    || matches!(letter, '\u{fffe}' | '\u{ffff}') =>
            {
                safe.push('\u{fffd}');
            }
            letter => safe.push(letter),
        }
    }
    safe
}

/// The note for a comparison with an incomplete report.
const INCOMPLETE: &str = "a check was interrupted: rules are missing, and may fail";

/// The changed rules by kind of change, and the slower calls. Kinds of change without rules are omitted.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    let mut text = format!("old: {}\nnew: {}\n", comparison.old, comparison.new);
    for (change, heading) in Change::HEADINGS {
        let rows: Vec<_> = comparison.with(change).collect();
        if rows.is_empty() {
            continue;
        }
        text += &format!("\n{heading}: {}\n", rows.len());
        // If only some rules were checked, many are missing, and nothing else is known of these.
        if change == Change::Removed {
            let ids: Vec<_> = rows.iter().map(|row| row.rule.id.as_str()).collect();
            text += &format!("  {}\n", ids.join(", "));
            continue;
        }
        for row in rows {
            let result = |result: &Option<String>| result.clone().unwrap_or("absent".to_owned());
            text += &format!(
                "  {} {:6} {} → {}  {}\n",
                row.rule.id,
                row.rule.severity,
                result(&row.old),
                result(&row.new),
                row.rule.says
            );
            if !row.rule.reason.is_empty() {
                text += &format!("    {}\n", brief(&row.rule.reason));
            }
        }
    }
    if !comparison.slower.is_empty() {
        text += &format!("\nslower calls: {}\n", comparison.slower.len());
        for one in &comparison.slower {
            text += &format!(
                "  {}: median {:.1} ms → {:.1} ms\n",
                one.call,
                one.old * 1e3,
                one.new * 1e3
            );
        }
    }
    if comparison.incomplete {
        text += &format!("\n{INCOMPLETE}\n");
    }
    text + &format!("\n{} rules ended as before", comparison.same)
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
