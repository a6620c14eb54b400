//! ◆ The page that describes every rule: docs/rules.md.

use super::rule::{Rule, Severity};

/// The page.
#[must_use]
pub fn document(rules: &[&'static Rule]) -> String {
    let count = |severity| {
        rules
            .iter()
            .filter(|rule| rule.severity == severity)
            .count()
    };
    let faults: usize = rules.iter().map(|rule| rule.faults.len()).sum();
    let mut text = format!(
        "# Rules\n\n\
        What `crib check` tests: {} rules, of which {} are *must*, {} *should* and {} *may*. A kubelet does not work on a\n\
        runtime that breaks a *must*; a feature of some client does not work without a *should*.\n\n\
        Each rule fails on faulty runtimes that break it: on {faults} faults in all, in the words of `harness/src/proxy/fault.rs`.\n\
        A test runs every rule against each of its faults. To write this page anew:\n\
        `CRIB_UPDATE_DOCS=1 cargo test --test conformance rules_document`.\n",
        rules.len(),
        count(Severity::Must),
        count(Severity::Should),
        count(Severity::May),
    );
    for rule in rules {
        text += &format!(
            "\n## {}\n\n{}\n\n- severity: {}\n- source: {}\n- area: {}; tags: {}\n- calls: {}\n- alone: `crib check --select {}`\n- fails on:\n",
            rule.id,
            rule.says,
            rule.severity,
            rule.source,
            rule.area(),
            rule.tags.join(", "),
            rule.calls.join(", "),
            rule.id,
        );
        for fault in rule.faults {
            text += &format!("  - `{fault}`\n");
        }
    }
    text
}
