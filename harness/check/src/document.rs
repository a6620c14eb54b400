//! ◆ The pages that describe the rules: docs/rules has one for each rule, and an index.

use super::rule::{Rule, Severity};

/// A file of docs/rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// `CRI-CTR-017.md`.
    pub file: String,
    /// What it says, in Markdown.
    pub text: String,
}

/// Where the page of a rule is in the repository.
#[must_use]
pub(super) fn path(rule: &Rule) -> String {
    format!("docs/rules/{}.md", rule.id)
}

/// The pages of all rules, and their index.
#[must_use]
pub fn pages(rules: &[&'static Rule]) -> Vec<Page> {
    let of_rule = |rule: &&'static Rule| Page { file: format!("{}.md", rule.id), text: page(rule) };
    let index = Page { file: "README.md".to_owned(), text: index(rules) };
    [index].into_iter().chain(rules.iter().map(of_rule)).collect()
}

fn page(rule: &Rule) -> String {
    let mut text = format!(
        "# {}\n\n{}\n\n\
        - severity: {}\n\
        - source: {}\n\
        - area: {}; tags: {}\n\
        - calls: {}\n\
        - alone: `crib check --select {}`\n\n\
        It fails on runtimes with these faults, in the words of `crib proxy` ([../proxy.md](../proxy.md)):\n\n",
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
        text += &format!("- `{fault}`\n");
    }
    if rule.restarts() {
        text += "\nIt restarts the runtime, and is skipped without `--restart-command`. A fault that is `off` and called `restarted`\n\
            is switched on when the runtime was restarted.\n";
    }
    text
}

fn index(rules: &[&'static Rule]) -> String {
    let of = |severity| {
        let all = rules.iter();
        all.filter(|rule| rule.severity == severity).count()
    };
    let faults: usize = rules.iter().map(|rule| rule.faults.len()).sum();
    let mut text = format!(
        "# Rules\n\n\
        What `crib check` tests: {} rules, of which {} are *must*, {} *should* and {} *may*. A kubelet does not work on a\n\
        runtime that breaks a *must*; a feature of some client does not work without a *should*.\n\n\
        Each rule fails on faulty runtimes that break it: on {faults} faults in all. A test runs every rule against each of its\n\
        faults. To write these pages anew: `CRIB_UPDATE_DOCS=1 cargo test -p check rules_pages`.\n",
        rules.len(),
        of(Severity::Must),
        of(Severity::Should),
        of(Severity::May),
    );
    // In the order in which areas first come.
    let mut areas: Vec<&str> = Vec::new();
    for rule in rules {
        if !areas.contains(&rule.area()) {
            areas.push(rule.area());
        }
    }
    for area in areas {
        text += &format!("\n## {area}\n\n| rule | severity | promise |\n|---|---|---|\n");
        for rule in rules.iter().filter(|rule| rule.area() == area) {
            text +=
                &format!("| [{id}]({id}.md) | {} | {} |\n", rule.severity, rule.says, id = rule.id);
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
    fn rules_pages_are_up_to_date() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules");
        let pages = pages(&all());
        if std::env::var_os("CRIB_UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            for page in &pages {
                std::fs::write(directory.join(&page.file), &page.text).unwrap();
            }
        }
        for page in &pages {
            let written = std::fs::read_to_string(directory.join(&page.file)).unwrap_or_default();
            assert!(
                written == page.text,
                "docs/rules/{} is out of date: write it anew with CRIB_UPDATE_DOCS=1",
                page.file
            );
        }
        let files = std::fs::read_dir(&directory).unwrap().count();
        assert_eq!(files, pages.len(), "docs/rules has a page of a rule that is gone");
    }
}
