//! ◆ The report in the Test Anything Protocol, version 13.

use super::{failure, reason, word};
use crate::check::baseline::Baseline;
use crate::check::run::Report;

/// The report as lines of `ok` and `not ok`. Failures that the baseline explains have the directive `TODO`: they do not count.
#[must_use]
pub fn tap(report: &Report, baseline: &Baseline) -> String {
    let mut text = format!("TAP version 13\n1..{}\n", report.results.len());
    for (index, result) in report.results.iter().enumerate() {
        let rule = result.rule;
        // A `#` would begin a directive.
        let name = format!("{} {}", rule.id, rule.says).replace('#', "\\#");
        let number = index + 1;
        match word(result) {
            "pass" => text += &format!("ok {number} - {name}\n"),
            "fail" => {
                text += &format!("not ok {number} - {name}");
                if let Some(why) = baseline.explanation(rule.id) {
                    text += &format!(" # TODO known: {why}");
                }
                text.push('\n');
                for line in failure(&report.command, result).lines() {
                    text += &format!("# {line}\n");
                }
            }
            other => {
                let reason = reason(result).replace('\n', " ");
                text += &format!("ok {number} - {name} # SKIP {other}: {reason}\n");
            }
        }
    }
    text
}
