//! docs/kubelet-parity.md: each package's section is generated from the results.

use std::fmt::Write;
use std::path::PathBuf;

use crate::judge::Outcome;
use crate::read::root;

/// The document in the repository.
fn page() -> String {
    std::fs::read_to_string(path()).unwrap_or_default()
}

fn path() -> PathBuf {
    root().join("docs/kubelet-parity.md")
}

/// The section with this heading, up to the next one; empty if there is none.
fn section<'t>(page: &'t str, heading: &str) -> &'t str {
    let Some(start) = page.find(&format!("## {heading}\n")) else {
        return "";
    };
    let section = &page[start..];
    section.find("\n\n## ").map_or(section, |end| &section[..=end])
}

/// A package's section in the repository.
pub(crate) fn present(heading: &str) -> String {
    section(&page(), heading).to_owned()
}

/// Replaces a package's section of the document.
pub(crate) fn write(heading: &str, outcomes: &[Outcome]) {
    let page = page();
    let old = section(&page, heading);
    assert!(!old.is_empty(), "docs/kubelet-parity.md has no section {heading:?}");
    std::fs::write(path(), page.replacen(old, &written(heading, outcomes), 1)).unwrap();
}

/// Whether the section in the repository was generated from these cases.
pub(crate) fn is_about(heading: &str, outcomes: &[Outcome]) -> bool {
    present(heading).contains(&fingerprint(outcomes))
}

fn fingerprint(outcomes: &[Outcome]) -> String {
    let all = outcomes.iter().fold(0_u64, |all, outcome| all.rotate_left(5) ^ outcome.fingerprint);
    format!("<!-- cases {all:016x} -->")
}

/// A package's section, generated from the results.
pub(crate) fn written(heading: &str, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "## {heading}\n\n\
         | set | compared result | cases | agree | excluded | agreement |\n|---|---|---:|---:|---:|---:|\n",
    );
    for outcome in outcomes {
        let excluded: usize = outcome.excluded.iter().map(|(_, count)| count).sum();
        let share = 100.0 * outcome.agree as f64 / outcome.cases as f64;
        writeln!(
            text,
            "| {} | {} | {} | {} | {excluded} | {share:.2} % |",
            outcome.set, outcome.about, outcome.cases, outcome.agree
        )
        .unwrap();
    }
    writeln!(text, "\n{}", fingerprint(outcomes)).unwrap();
    let used =
        || outcomes.iter().filter(|outcome| outcome.excluded.iter().any(|(_, count)| *count > 0));
    let intro = if used().next().is_none() {
        "No exception excludes a case from these results."
    } else {
        "Exceptions:\n"
    };
    writeln!(text, "\n{intro}").unwrap();
    for outcome in used() {
        for (reason, count) in outcome.excluded.iter().filter(|(_, count)| *count > 0) {
            writeln!(text, "- **{}**, {count} cases: {reason}.", outcome.set).unwrap();
        }
    }
    text
}
