//! ◆ The report as JSON, and the recording of all calls.

use compact::Map;
use serde_json::{Value, json};

use super::{command, reason, word};
use crate::outcome::Outcome;
use crate::running::run::{Report, RuleResult};

/// The report as one object.
#[must_use]
pub fn json(report: &Report) -> Value {
    let results: Vec<Value> = report.results.iter().map(|one| of_rule(report, one)).collect();
    json!({
        "runtime": report.runtime,
        "endpoint": report.endpoint,
        "seconds": report.took.as_secs_f64(),
        "interrupted": report.cut_short.is_some(),
        "cutShort": report.cut_short.as_ref().map(ToString::to_string),
        "notRemoved": report.left,
        "rules": results,
        "calls": durations(report),
    })
}

/// The durations of the successful calls by method, for a comparison with a later report.
fn durations(report: &Report) -> Vec<Value> {
    let mut all: Map<&str, Vec<f64>> = Map::new();
    for call in report.results.iter().flat_map(|result| &result.calls) {
        let succeeded = call.code.is_some_and(|code| i32::from(code) == 0);
        if let (Some(end), true) = (call.end, succeeded) {
            all.entry(&call.method).or_default().push(end - call.start);
        }
    }
    let medians = all.into_iter().map(|(call, mut durations)| {
        compact::sort_by(&mut durations, f64::total_cmp);
        let median = durations.get(durations.len() / 2);
        json!({"call": call, "count": durations.len(), "medianSeconds": median})
    });
    medians.collect()
}

fn of_rule(report: &Report, result: &RuleResult) -> Value {
    let rule = result.rule;
    let mut object = json!({
        "id": rule.id,
        "severity": rule.severity.to_string(),
        "area": rule.area(),
        "says": rule.says,
        "source": rule.source,
        "tags": rule.tags,
        "calls": rule.calls,
        "result": word(result),
        "seconds": result.took.as_secs_f64(),
    });
    let Some(fields) = object.as_object_mut() else {
        return object;
    };
    if let Err(outcome) = &result.outcome {
        fields.insert("reason".to_owned(), json!(reason(result)));
        if let Outcome::Fail { what, expected, seen } = outcome {
            let difference = json!({"what": what, "expected": expected, "seen": seen});
            fields.insert("difference".to_owned(), difference);
            let calls = result.calls.iter().map(proxy::Call::json).collect();
            fields.insert("trace".to_owned(), Value::Array(calls));
            fields.insert("command".to_owned(), json!(command(&report.command, rule)));
        }
    }
    object
}

/// All calls, one JSON object a line, with the rule that made them.
#[must_use]
pub fn trace(report: &Report) -> String {
    let mut text = String::new();
    for result in &report.results {
        for call in &result.calls {
            let mut line = call.json();
            if let Some(fields) = line.as_object_mut() {
                fields.insert("rule".to_owned(), json!(result.rule.id));
            }
            text += &line.to_string();
            text.push('\n');
        }
    }
    text
}
