//! The text report.

use std::fmt::Write as _;

use proxy::Call;

use super::causes::common;
use super::{brief, command, reason, word};
use crate::outcome::Outcome;
use crate::running::run::{Report, RuleResult};

/// The number of rule ids in a line.
const IDS: usize = 9;
/// The maximum number of ids listed for one cause.
const MOST_IDS: usize = 3 * IDS;
/// The maximum number of remaining objects that are listed.
const MOST_LEFT: usize = 20;

/// The result of a rule, in one line.
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

/// A failure in a few lines of bounded length: the rule, the expected and the actual value, the names of the calls, and the command
/// that runs only this rule; `check` is the command of the whole check, [`Report::command`].
#[must_use]
pub fn brief_failure(check: &str, result: &RuleResult) -> String {
    let calls = brief(&names(&result.calls));
    failure_text(
        check,
        result,
        brief,
        &format!("     {}\n", if calls.is_empty() { "none" } else { &calls }),
    )
}

/// A failure with full values, and all calls with their requests and responses.
#[must_use]
pub fn failure(check: &str, result: &RuleResult) -> String {
    let calls: String =
        result.calls.iter().map(|call| format!("    {}\n", of_call(call))).collect();
    failure_text(check, result, str::to_owned, &format!("\n{calls}"))
}

fn failure_text(
    check: &str,
    result: &RuleResult,
    value: fn(&str) -> String,
    calls: &str,
) -> String {
    let rule = result.rule;
    let mut text =
        format!("{} ({}) fails after {:.1} s\n", rule.id, rule.severity, result.took.as_secs_f64());
    text += &format!("  rule      {}\n  source    {}\n", rule.says, rule.source);
    if let Err(Outcome::Fail { what, expected, seen }) = &result.outcome {
        let seen = if seen.is_empty() { "nothing" } else { seen };
        let [what, expected, seen] = [what, expected, seen].map(value);
        text += &format!("  looked at {what}\n  expected  {expected}\n  seen      {seen}\n");
    }
    text + &format!("  calls{calls}  alone     {}\n", command(check, rule))
}

/// The names of the calls in order; repeated ones once with their number: `Version, 3 × ListContainers`.
fn names(calls: &[Call]) -> String {
    let repeated = calls.chunk_by(|one, next| one.method == next.method);
    let each = repeated.filter_map(|calls| {
        let method = &calls.first()?.method;
        Some(match calls.len() {
            1 => method.clone(),
            count => format!("{count} × {method}"),
        })
    });
    each.collect::<Vec<_>>().join(", ")
}

fn of_call(call: &Call) -> String {
    let mut text = format!("{:8.3} s {}", call.start, call.method);
    // Writing to a string does not fail.
    let _ = write!(text, " {}", brief(&call.request().to_string()));
    let responses = call.responses();
    for message in &responses {
        let _ =
            write!(text, "\n    {:8.3} s   → {}", message.at, brief(&message.value.to_string()));
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

/// The common causes of many failures, with their rules.
#[must_use]
pub fn causes(report: &Report) -> String {
    let causes = common(report).into_iter().map(|(cause, rules)| {
        let more = rules.len().saturating_sub(MOST_IDS);
        let ids = rules[..rules.len() - more].chunks(IDS);
        let mut ids =
            ids.map(|ids| format!("  {}", ids.join(", "))).collect::<Vec<_>>().join(",\n");
        if more > 0 {
            ids += &format!(" and {more} more");
        }
        format!("{} rules failed with one cause, {}\n{ids}\n", rules.len(), brief(&cause))
    });
    causes.collect()
}

/// The last lines: the number of rules by result.
#[must_use]
pub fn summary(report: &Report) -> String {
    let count = |wanted: &str| report.results.iter().filter(|one| word(one) == wanted).count();
    let counts = ["pass", "fail", "diverges", "unsupported", "skipped"];
    let counts = counts.map(|word| format!("{} {word}", count(word))).join(", ");
    let mut text = format!(
        "{} rules on {} in {:.1} s: {counts}",
        report.results.len(),
        brief(&report.runtime),
        report.took.as_secs_f64()
    );
    if let Some(why) = &report.cut_short {
        text += &format!("\n{}: the other rules did not end", brief(&why.to_string()));
        if report.left.is_empty() {
            text += "; everything that the check made is removed";
        }
    }
    for left in report.left.iter().take(MOST_LEFT) {
        text += &format!("\nnot removed: {}", brief(left));
    }
    if let Some(more @ 1..) = report.left.len().checked_sub(MOST_LEFT) {
        text += &format!("\nnot removed: {more} more, which the JSON report names");
    }
    text
}
