//! The report that people read.

use std::fmt::Write as _;

use super::causes::common;
use super::{brief, command, reason, word};
use crate::check::outcome::Outcome;
use crate::check::run::{Report, RuleResult};
use crate::proxy::Call;

/// A rule that ended, in one line.
#[must_use]
pub fn line(result: &RuleResult) -> String {
    let rule = result.rule;
    let mut line = format!("{:11} {} {:6} ", word(result), rule.id, rule.severity);
    line += rule.says;
    if !matches!(&result.outcome, Ok(()) | Err(Outcome::Fail { .. })) {
        line += &format!(" [{}]", brief(&reason(result)));
    }
    line
}

/// A failure: the rule, what was expected and seen, the calls, and the command that runs it alone; `check` is the one of the whole
/// check, [`Report::command`].
#[must_use]
pub fn failure(check: &str, result: &RuleResult) -> String {
    let rule = result.rule;
    let mut text = format!(
        "{} ({}) fails after {:.1} s\n",
        rule.id,
        rule.severity,
        result.took.as_secs_f64()
    );
    text += &format!("  rule      {}\n  source    {}\n", rule.says, rule.source);
    if let Err(Outcome::Fail {
        what,
        expected,
        seen,
    }) = &result.outcome
    {
        let seen = if seen.is_empty() { "nothing" } else { seen };
        text += &format!("  looked at {what}\n  expected  {expected}\n  seen      {seen}\n");
    }
    text += "  calls\n";
    for call in &result.calls {
        text += &format!("    {}\n", of_call(call));
    }
    text + &format!("  alone     {}\n", command(check, rule))
}

fn of_call(call: &Call) -> String {
    let mut text = format!("{:8.3} s {}", call.start, call.method);
    // Writing to a string does not fail.
    let _ = write!(text, " {}", brief(&call.request().to_string()));
    let responses = call.responses();
    for message in &responses {
        let _ = write!(
            text,
            "\n    {:8.3} s   → {}",
            message.at,
            brief(&message.value.to_string())
        );
    }
    match (call.end, call.code) {
        (Some(_), Some(tonic::Code::Ok)) => {}
        (Some(end), Some(code)) => {
            let _ = write!(text, "\n    {end:8.3} s   → {code:?}: {}", call.message);
        }
        _ => text += "\n                 → no end",
    }
    text
}

/// The last lines: how many rules ended how.
#[must_use]
pub fn summary(report: &Report) -> String {
    let count = |wanted: &str| {
        report
            .results
            .iter()
            .filter(|one| word(one) == wanted)
            .count()
    };
    let counts = ["pass", "fail", "diverges", "unsupported", "skipped"];
    let counts = counts
        .map(|word| format!("{} {word}", count(word)))
        .join(", ");
    let mut text = format!(
        "{} rules on {} in {:.1} s: {counts}",
        report.results.len(),
        report.runtime,
        report.took.as_secs_f64()
    );
    for (cause, rules) in common(report) {
        text += &format!(
            "\n{} rules failed with one cause, {}\n  {}",
            rules.len(),
            brief(&cause),
            rules.join(", ")
        );
    }
    if let Some(why) = &report.cut_short {
        text += &format!("\n{why}: the other rules did not end");
        if report.left.is_empty() {
            text += "; everything that the check made is removed";
        }
    }
    for left in &report.left {
        text += &format!("\nnot removed: {left}");
    }
    text
}
