//! ◆ The report as JUnit's XML, which CI systems show.

use super::escape::escaped;
use super::{failure, reason, word};
use crate::check::run::Report;

/// The report as one `testsuite`.
#[must_use]
pub fn junit(report: &Report) -> String {
    let count = |wanted: &[&str]| {
        report
            .results
            .iter()
            .filter(|one| wanted.contains(&word(one)))
            .count()
    };
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"crib check\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
        report.results.len(),
        count(&["fail"]),
        count(&["diverges", "unsupported", "skipped"]),
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
        text += &match word(result) {
            "pass" => "/>\n".to_owned(),
            "fail" => format!(
                ">\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n",
                escaped(&reason(result)),
                escaped(&failure(&report.endpoint, result)),
            ),
            other => format!(
                ">\n    <skipped message=\"{other}: {}\"/>\n  </testcase>\n",
                escaped(&reason(result)),
            ),
        };
    }
    text + "</testsuite>\n"
}
