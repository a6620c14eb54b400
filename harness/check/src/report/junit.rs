//! ◆ The report as JUnit's XML, which CI systems show.

use super::escape::escaped;
use super::{failure, reason, word};
use crate::baseline::Baseline;
use crate::running::run::Report;

/// The report as one `testsuite`. Failures that the baseline explains are skipped tests.
#[must_use]
pub fn junit(report: &Report, baseline: &Baseline) -> String {
    let passed = report.results.iter().filter(|one| word(one) == "pass");
    let failed = report
        .results
        .iter()
        .filter(|one| word(one) == "fail" && baseline.explanation(one.rule.id).is_none());
    let (passed, failed) = (passed.count(), failed.count());
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"crib check\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
        report.results.len(),
        failed,
        report.results.len() - passed - failed,
        report.took.as_secs_f64(),
    );
    for result in &report.results {
        let rule = result.rule;
        text += &format!(
            "  <testcase classname=\"{}.{}\" name=\"{} {}\" time=\"{:.3}\"",
            rule.severity,
            rule.area(),
            rule.id,
            escaped(rule.says),
            result.took.as_secs_f64(),
        );
        text += &match (word(result), baseline.explanation(rule.id)) {
            ("pass", _) => "/>\n".to_owned(),
            ("fail", Some(why)) => format!(
                ">\n    <skipped message=\"known: {}\"/>\n    <system-out>{}</system-out>\n  </testcase>\n",
                escaped(why),
                escaped(&failure(&report.command, result)),
            ),
            ("fail", None) => format!(
                ">\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n",
                escaped(&reason(result)),
                escaped(&failure(&report.command, result)),
            ),
            (other, _) => format!(
                ">\n    <skipped message=\"{other}: {}\"/>\n  </testcase>\n",
                escaped(&reason(result)),
            ),
        };
    }
    text + "</testsuite>\n"
}
