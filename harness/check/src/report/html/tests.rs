//! Tests of the HTML page's text. Tests of the command test the page in a browser.
use std::time::Duration;

use serde_json::json;

use super::row::Call;
use super::*;
use crate::outcome::{Outcome, failed};
use crate::rule::{Rule, Severity};
use crate::running::run::{CutShort, RuleResult};

const HOSTILE: &str = "</script></pre><img src=x onerror=alert(1)>\" onclick='x'";

static RULES: [Rule; 3] = [
    rule("CRI-CTR-001", Severity::Must),
    rule("CRI-CTR-002", Severity::Should),
    rule("CRI-SBX-001", Severity::Must),
];

const fn rule(id: &'static str, severity: Severity) -> Rule {
    Rule {
        id,
        severity,
        says: "It holds.",
        source: "a source",
        tags: &["tag"],
        calls: &["Version"],
        faults: &[],
        body: |_| Box::pin(async { Ok(()) }),
    }
}

fn report() -> Report {
    let outcomes =
        [Ok(()), failed(HOSTILE, HOSTILE, HOSTILE), Err(Outcome::Unsupported(HOSTILE.to_owned()))];
    let results = RULES.iter().zip(outcomes).map(|(rule, outcome)| RuleResult {
        rule,
        outcome,
        took: Duration::from_millis(1500),
        calls: Vec::new(),
    });
    Report {
        runtime: HOSTILE.to_owned(),
        endpoint: HOSTILE.to_owned(),
        command: HOSTILE.to_owned(),
        results: results.collect(),
        cut_short: Some(CutShort::Interrupted),
        left: vec![HOSTILE.to_owned()],
        took: Duration::from_secs(2),
    }
}

fn call(code: Option<&str>) -> Call {
    Call {
        method: HOSTILE.to_owned(),
        start: 0.5,
        end: code.map(|_| 0.75),
        code: code.map(str::to_owned),
        message: HOSTILE.to_owned(),
        request: json!({HOSTILE: HOSTILE}),
        responses: vec![(0.7, json!([HOSTILE])); 51],
    }
}

#[test]
fn summary_counts_results_by_severity_and_area() {
    let text = html(&report(), &Baseline::default());
    for part in [
        "<a class=\"fail\" href=\"#result=fail&amp;severity=should\">1</a>",
        "<a class=\"unsupported\" href=\"#result=unsupported&amp;area=sandbox\">1</a>",
        "<a class=\"pass\" href=\"#result=pass\">1</a>",
        "<tr><th scope=\"row\">may</th><td class=\"zero\">0</td>",
        "3 of 3 rules",
        "The check ended early: interrupted.",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn failures_come_first_and_the_rest_keeps_its_order() {
    let text = html(&report(), &Baseline::default());
    let ids: Vec<&str> = text
        .split("class=\"rule\" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(ids, ["CRI-CTR-002", "CRI-CTR-001", "CRI-SBX-001"]);
}

#[test]
fn failure_is_open_unless_baseline_has_it() {
    let open = |baseline: &Baseline| html(&report(), baseline).matches(" open>").count();
    assert_eq!(open(&Baseline::default()), 1);
    let known = Baseline::parse("CRI-CTR-002\tit is <old>").unwrap();
    assert_eq!(open(&known), 0);
    let text = html(&report(), &known);
    assert!(text.contains("<dt>known</dt><dd>it is &lt;old&gt;</dd>"));
}

#[test]
fn text_of_runtime_is_escaped_everywhere() {
    let report = report();
    let rows: Vec<Row> = report
        .results
        .iter()
        .map(|result| {
            let mut row = Row::new(&report, result, &Baseline::default());
            row.calls = vec![call(Some("Internal")), call(None)];
            row
        })
        .collect();
    let text = body("title", &report, &rows);
    for part in ["<img", "</script>", "onclick='", "alert(1)>"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let escaped = "&lt;/script&gt;&lt;/pre&gt;&lt;img src=x onerror=alert(1)&gt;";
    // Each rule has the text at least in a title, a name, a status, and the request of a call.
    assert!(text.matches(escaped).count() > 3 * 2 * 4, "{text}");
}

#[test]
fn call_shows_times_status_and_no_more_than_fifty_responses() {
    let report = report();
    let mut row = Row::new(&report, &report.results[0], &Baseline::default());
    row.calls = vec![call(Some("Internal")), call(None)];
    let text = row.html();
    for part in [
        "at 0.500 s for 0.250 s",
        "at 0.500 s, no end",
        "Internal: ",
        "1 more responses",
        "href=\"#CRI-CTR-001-call-2\"",
        "id=\"CRI-CTR-001-call-2\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn page_has_no_outside_resource_and_lets_only_its_script_run() {
    let text = html(&report(), &Baseline::default());
    assert!(text.contains("default-src 'none'"));
    assert!(text.contains("script-src 'sha256-"));
    assert_eq!(text.matches("<script").count(), 1);
    for part in ["<link", "@import", "url(", "http://", "https://"] {
        assert!(!text.contains(part), "{part}");
    }
}

#[test]
fn long_message_is_cut_with_a_note() {
    let report = report();
    let mut row = Row::new(&report, &report.results[0], &Baseline::default());
    let mut long = call(Some("Ok"));
    long.request = json!("é".repeat(20_000));
    row.calls = vec![long];
    assert!(row.html().contains("… and "), "{}", row.html().len());
}
