//! ◆ The report as JUnit's XML, which CI systems show.

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

/// A text as XML 1.0 has it, in which most control characters have no form.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(letter),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push('\u{fffd}');
            }
            letter => safe.push(letter),
        }
    }
    safe
}
