//! Tests of the reports.
use std::time::Duration;

use super::*;
use crate::baseline::Baseline;
use crate::outcome::failed;
use crate::rule::Severity;
use crate::running::run::Report;

static MUST: Rule = rule("CRI-CTR-001", Severity::Must);
static MAY: Rule = rule("CRI-CTR-002", Severity::May);
static SHOULD: Rule = rule("CRI-CTR-003", Severity::Should);

const fn rule(id: &'static str, severity: Severity) -> Rule {
    Rule {
        id,
        severity,
        says: "It holds <#1>.",
        source: "a source",
        tags: &[],
        calls: &["Version"],
        faults: &[],
        body: |_| Box::pin(async { Ok(()) }),
    }
}

fn report() -> Report {
    let result = |rule, outcome| RuleResult {
        rule,
        outcome,
        took: Duration::from_millis(1500),
        calls: Vec::new(),
    };
    Report {
        runtime: "some 1.2".to_owned(),
        endpoint: "unix:///s".to_owned(),
        command: "crib check --runtime-endpoint unix:///s --image a".to_owned(),
        results: vec![
            result(&MUST, Ok(())),
            result(&MAY, failed("the \"state\"", "a", "b\u{1}\nc")),
            result(&SHOULD, Err(Outcome::Skipped("no box".to_owned()))),
        ],
        cut_short: None,
        left: vec!["pod x: busy".to_owned()],
        took: Duration::from_secs(2),
    }
}

#[test]
fn only_failures_of_severity_or_worse_fail() {
    let report = report();
    let baseline = Baseline::default();
    assert!(baseline.fails(&report, Severity::May));
    assert!(!baseline.fails(&report, Severity::Should));
}

/// A report of six failed rules; `failure` makes the outcome of each from its number.
fn six_failures(failure: impl Fn(usize) -> Outcome) -> Report {
    static RULES: [Rule; 6] = [
        rule("CRI-A-001", Severity::Must),
        rule("CRI-A-002", Severity::Must),
        rule("CRI-A-003", Severity::Must),
        rule("CRI-A-004", Severity::Must),
        rule("CRI-A-005", Severity::Must),
        rule("CRI-A-006", Severity::Must),
    ];
    let mut report = report();
    report.results.clear();
    for (number, rule) in RULES.iter().enumerate() {
        report.results.push(RuleResult {
            rule,
            outcome: Err(failure(number)),
            took: Duration::ZERO,
            calls: Vec::new(),
        });
    }
    report
}

fn unequal(what: &str, expected: &str, seen: &str) -> Outcome {
    Outcome::Fail { what: what.to_owned(), expected: expected.to_owned(), seen: seen.to_owned() }
}

#[test]
fn equal_differences_are_reported_once_and_others_each() {
    let report = six_failures(|_| unequal("the stream", "to go on", "its end"));
    assert_eq!(repeated(&report).len(), 5);
    let expected =
        "6 rules failed with one cause, the stream: expected to go on, seen its end\n  CRI-A-001, ";
    assert!(causes(&report).contains(expected), "{}", causes(&report));
    let report = six_failures(|number| unequal("the label", "\"a\"", &format!("\"{number}\"")));
    assert_eq!(repeated(&report).len(), 0);
}

#[test]
fn refusals_with_one_cause_are_reported_once() {
    let mut report = six_failures(|number| match number {
        5 => unequal("RunPodSandbox", "success", "Unknown: something else"),
        _ => unequal(
            "RunPodSandbox",
            "success",
            &format!("Unknown: no pause image for \"pod-{number}\" of run-{number}"),
        ),
    });
    let repeated: Vec<_> = repeated(&report).into_iter().collect();
    assert_eq!(repeated, ["CRI-A-002", "CRI-A-003", "CRI-A-004", "CRI-A-005"]);
    let expected = "5 rules failed with one cause, RunPodSandbox: Unknown: no pause image for \"pod-0\" of run-0\n  \
        CRI-A-001, CRI-A-002, CRI-A-003, CRI-A-004, CRI-A-005";
    assert!(causes(&report).contains(expected), "{}", causes(&report));
    report.results.remove(1);
    assert_eq!(super::repeated(&report).len(), 0);
}

#[test]
fn known_failure_does_not_fail_and_passing_one_is_outdated() {
    let report = report();
    let baseline = Baseline::parse("CRI-CTR-001\told\nCRI-CTR-002\told\n").unwrap();
    assert!(!baseline.fails(&report, Severity::May));
    assert_eq!(baseline.outdated(&report), ["CRI-CTR-001"]);
}

#[test]
fn summary_counts_results_and_names_what_is_left() {
    let expected = "3 rules on some 1.2 in 2.0 s: 1 pass, 1 fail, 0 diverges, 0 unsupported, 1 skipped\nnot removed: pod x: busy";
    assert_eq!(summary(&report()), expected);
}

#[test]
fn failure_has_rule_difference_and_command() {
    let report = report();
    let text = failure(&report.command, &report.results[1]);
    for part in [
        "CRI-CTR-002 (may) fails after 1.5 s",
        "looked at the \"state\"",
        "expected  a",
        "crib check --runtime-endpoint unix:///s --image a --select CRI-CTR-002",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn brief_failure_has_few_short_lines() {
    let mut report = six_failures(|_| {
        let long = "x\n".repeat(50_000);
        unequal(&long, &long, &long)
    });
    report.left =
        (0..1000).map(|number| format!("pod {number}: {}", "busy\n".repeat(1000))).collect();
    let text = brief_failure(&report.command, &report.results[0]);
    assert!(text.lines().count() <= 10 && text.lines().all(|line| line.len() < 400), "{text}");
    let text = summary(&report);
    assert_eq!(text.lines().count(), 1 + 20 + 1, "{text}");
    assert!(text.ends_with("not removed: 980 more, which the JSON report names"), "{text}");
    assert!(text.lines().all(|line| line.len() < 400), "{text}");
}

#[test]
fn junit_escapes_what_xml_does_not_hold() {
    let text = junit(&report(), &Baseline::default());
    assert!(text.contains("tests=\"3\" failures=\"1\" skipped=\"1\""), "{text}");
    assert!(text.contains("name=\"CRI-CTR-001 It holds &lt;#1&gt;.\""), "{text}");
    assert!(text.contains("the &quot;state&quot;: expected a, seen b\\u{1} c"), "{text}");
    assert!(!text.contains('\u{1}'));
}

#[test]
fn known_failure_is_red_in_no_report_for_ci() {
    let baseline = Baseline::parse("CRI-CTR-002\tit is <old>\n").unwrap();
    let text = junit(&report(), &baseline);
    for part in [
        "tests=\"3\" failures=\"0\" skipped=\"2\"",
        "<skipped message=\"known: it is &lt;old&gt;\"/>",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("<failure"), "{text}");
}

#[test]
fn json_has_difference_of_failures_alone() {
    let value = json(&report());
    assert_eq!(value["rules"][0]["result"], "pass");
    assert_eq!(value["rules"][0]["difference"], serde_json::Value::Null);
    assert_eq!(value["rules"][1]["difference"]["expected"], "a");
    assert_eq!(value["rules"][2]["reason"], "no box");
}

#[test]
fn sarif_has_failures_as_results_and_the_rest_as_notifications() {
    let baseline = Baseline::parse("CRI-CTR-002\told\n").unwrap();
    let log = sarif(&report(), &baseline);
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "crib check");
    assert_eq!(driver["rules"].as_array().unwrap().len(), 3);
    assert_eq!(driver["rules"][1]["helpUri"], "docs/rules.md#container");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 1);
    let result = &results[0];
    // The index is the position of the rule with that id, as the schema requires.
    let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
    assert_eq!(driver["rules"][index]["id"], result["ruleId"]);
    assert_eq!(result["level"], "note");
    assert!(result["message"]["text"].is_string());
    assert_eq!(result["suppressions"][0]["justification"], "old");
    assert_eq!(run["invocations"][0]["executionSuccessful"], true);
    let notes = run["invocations"][0]["toolExecutionNotifications"].as_array().unwrap();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0]["message"]["text"], "skipped: no box");
    let unknown = sarif(&report(), &Baseline::default());
    let result = &unknown["runs"][0]["results"][0];
    assert_eq!(result["suppressions"], serde_json::Value::Null);
}

#[test]
fn saved_report_is_compared() {
    use crate::compare::{Saved, compare};
    let value = json(&report());
    let old: Saved = serde_json::from_value(value.clone()).unwrap();
    let mut new = old.clone();
    new.rules[0].result = "fail".to_owned();
    new.rules[0].reason = "</script>".to_owned();
    new.rules[1].result = "pass".to_owned();
    let found = compare(&old, &new);
    let text = comparison(&found);
    for part in [
        "new failures: 1\n  CRI-CTR-001 must   pass → fail  It holds <#1>.\n    </script>\n",
        "mended: 1\n  CRI-CTR-002 may    fail → pass",
        "1 rules ended as before",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = comparison_html(&found);
    assert!(page.contains("new failures: 1</h2>"), "{page}");
    assert!(page.contains("<pre>&lt;/script&gt;</pre>"), "{page}");
    assert_eq!(page.matches("</script>").count(), 1, "{page}");
}

#[test]
fn markup_quotes_and_control_characters_are_replaced() {
    let text = "</script><b a='1' b=\"2\">&\u{1}\r\n\t\u{ffff}\u{202e}\u{2066}é";
    let expected = "&lt;/script&gt;&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;\u{fffd}\u{fffd}\n\t\u{fffd}\u{fffd}\u{fffd}é";
    assert_eq!(escaped(text), expected);
}
