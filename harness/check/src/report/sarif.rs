//! ◆ Reports for services: JUnit XML, which CI systems show, and SARIF 2.1.0, which code-scanning services show. In SARIF, failures
//! are results, and everything else is a notification.

use serde_json::{Value, json};

use super::{escaped, failure, reason, word};
use crate::baseline::Baseline;
use crate::document;
use crate::rule::Severity;
use crate::running::run::{Report, RuleResult};

/// The report as one log with one run. Failures that the baseline explains are suppressed.
#[must_use]
pub fn sarif(report: &Report, baseline: &Baseline) -> Value {
    let rules: Vec<Value> = report.results.iter().map(descriptor).collect();
    let results: Vec<Value> = report
        .results
        .iter()
        .enumerate()
        .filter(|(_, result)| word(result) == "fail")
        .map(|(index, result)| of_failure(report, baseline, index, result))
        .collect();
    // Some services would show a result of another kind as an alert.
    let notifications: Vec<Value> = report
        .results
        .iter()
        .enumerate()
        .filter(|(_, result)| !matches!(word(result), "pass" | "fail"))
        .map(|(index, result)| {
            json!({
                "level": "note",
                "message": {"text": format!("{}: {}", word(result), reason(result))},
                "associatedRule": {"id": result.rule.id, "index": index},
            })
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "crib check",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "automationDetails": {"id": format!("crib check/{}/", report.runtime)},
            "invocations": [{
                "executionSuccessful": report.cut_short.is_none(),
                "toolExecutionNotifications": notifications,
            }],
            "results": results,
        }],
    })
}

fn descriptor(result: &RuleResult) -> Value {
    let rule = result.rule;
    // A reference relative to this project's tree.
    let page = format!("{}#{}", document::INDEX, rule.area());
    let mut tags = vec![rule.area()];
    tags.extend(rule.tags);
    json!({
        "id": rule.id,
        "shortDescription": {"text": rule.says},
        "fullDescription": {"text": format!("{} Source: {}.", rule.says, rule.source)},
        "helpUri": page,
        "help": {
            "text": format!("See {page}. Calls: {}.", rule.calls.join(", ")),
            "markdown": format!("[{}]({page}): {}", rule.id, rule.says),
        },
        "defaultConfiguration": {"level": level(rule.severity)},
        "properties": {"tags": tags, "severity": rule.severity.to_string()},
    })
}

fn of_failure(report: &Report, baseline: &Baseline, index: usize, result: &RuleResult) -> Value {
    let rule = result.rule;
    let calls: Vec<Value> =
        rule.calls.iter().map(|call| json!({"name": call, "kind": "function"})).collect();
    let mut object = json!({
        "ruleId": rule.id,
        "ruleIndex": index,
        "kind": "fail",
        "level": level(rule.severity),
        "message": {"text": failure(&report.command, result)},
        // A runtime has no source file here, but services require a location: the rule's description.
        "locations": [{
            "physicalLocation": {"artifactLocation": {"uri": document::INDEX}},
            "logicalLocations": calls,
        }],
        "partialFingerprints": {"rule/v1": rule.id},
    });
    if let (Some(why), Some(fields)) = (baseline.explanation(rule.id), object.as_object_mut()) {
        let known = json!([{"kind": "external", "justification": why}]);
        fields.insert("suppressions".to_owned(), known);
    }
    object
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Must => "error",
        Severity::Should => "warning",
        Severity::May => "note",
    }
}

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
