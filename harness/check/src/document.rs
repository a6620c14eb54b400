//! ◆ Documents of the rules: docs/rules.md lists them, and `crib check --explain` describes one in detail.

use crate::rule::{Rule, Severity};

/// The page of all rules in the repository.
pub(super) const INDEX: &str = "docs/rules.md";

/// Describes a rule: its requirement, its source, and the faults that violate it.
#[must_use]
pub fn explanation(rule: &Rule) -> String {
    let mut text = format!(
        "{}: {}\n\n\
        severity:  {}\n\
        source:    {}\n\
        area:      {}\n\
        tags:      {}\n\
        calls:     {}\n\
        run alone: crib check --select {}\n\n\
        It fails on runtimes with these faults, in the language of crib proxy (docs/proxy.md):\n",
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
        text += &format!("  {fault}\n");
    }
    if rule.restarts() {
        text += "\nIt restarts the runtime, and is skipped without --restart-command. A fault that begins with `off restarted:` is\n\
            switched on after the restart.\n";
    }
    text
}

/// All rules by area, in Markdown.
#[must_use]
pub fn index(rules: &[&'static Rule]) -> String {
    let of = |severity| {
        let all = rules.iter();
        all.filter(|rule| rule.severity == severity).count()
    };
    let faults: usize = rules.iter().map(|rule| rule.faults.len()).sum();
    let mut text = format!(
        "# Rules\n\n\
        `crib check` tests a runtime against {} rules, of which {} are *must*, {} *should* and {} *may*. The kubelet does not\n\
        work with a runtime that violates a *must* rule. If a runtime violates a *should* rule, a feature of some client does\n\
        not work. If a runtime satisfies a *may* rule, some clients work better.\n\n\
        Each rule lists the runtime faults that it detects; all rules together list {faults} faults. A test injects each fault\n\
        into a runtime, and verifies that `crib check` then reports the fault's rule as failed. For the rule CRI-AGR-001,\n\
        `crib check --explain CRI-AGR-001` shows the faults that the rule detects, the calls that it tests, and its source: a\n\
        specification, a client, a test suite or a runtime.\n\
        `CRIB_UPDATE_DOCS=1 cargo test -p check rules_document` generates this page.\n",
        rules.len(),
        of(Severity::Must),
        of(Severity::Should),
        of(Severity::May),
    );
    // In the order of their first rule.
    let mut areas: Vec<&str> = Vec::new();
    for rule in rules {
        if !areas.contains(&rule.area()) {
            areas.push(rule.area());
        }
    }
    for area in areas {
        text += &format!("\n## {area}\n\n| rule | severity | requirement |\n|---|---|---|\n");
        for rule in rules.iter().filter(|rule| rule.area() == area) {
            text += &format!("| {} | {} | {} |\n", rule.id, rule.severity, rule.says);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::rules::all;

    #[test]
    fn rules_document_is_up_to_date() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(INDEX);
        let text = index(&all());
        if std::env::var_os("CRIB_UPDATE_DOCS").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            written == text,
            "{INDEX} is out of date: run this test with CRIB_UPDATE_DOCS=1 to update it"
        );
    }

    #[test]
    fn explanation_names_every_fault() {
        for rule in all() {
            let text = explanation(rule);
            assert!(text.starts_with(&format!("{}: {}\n", rule.id, rule.says)));
            assert!(rule.faults.iter().all(|fault| text.contains(fault)), "{text}");
            assert_eq!(text.contains("--restart-command"), rule.restarts(), "{text}");
        }
    }
}
