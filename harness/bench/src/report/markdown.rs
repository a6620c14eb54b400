//! ◆ The report as Markdown, for a document.

use std::fmt::Write as _;

use super::super::Report;
use super::{LEGEND, machine, sections, table};

/// A heading and a table for each section.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let names = report.subjects.iter().map(|subject| cell(&subject.name));
    let names = names.collect::<Vec<_>>().join(" and ");
    // Writing to a string does not fail.
    let mut text = format!("{names}; {}\n\n{LEGEND}\n", machine(report));
    for (section, lines) in sections(report) {
        let _ = writeln!(text, "\n## {}\n", section.title());
        for (number, row) in table(report, &lines).iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if number == 0 {
                let columns = row.len().saturating_sub(1);
                let _ = writeln!(text, "|---|{}", "---:|".repeat(columns));
            }
        }
    }
    for note in &report.notes {
        let _ = writeln!(text, "\nNote: {}", cell(note));
    }
    for failure in &report.failures {
        let _ = writeln!(text, "\nFailed: {}", cell(failure));
    }
    text
}

/// Text on one line without a cell's end or a tag.
fn cell(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ").replace('|', "\\|");
    text.replace('<', "&lt;")
}
