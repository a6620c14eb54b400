//! ◆ The report for a terminal.

use std::fmt::Write as _;

use super::super::Report;
use super::{LEGEND, machine, sections, table};

/// The report as text.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for subject in &report.subjects {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} at {}", subject.name, subject.endpoint);
    }
    let _ = writeln!(text, "{}\n{LEGEND}", machine(report));
    for (section, lines) in sections(report) {
        let _ = writeln!(text, "\n{}", section.title());
        text.push_str(&aligned(&table(report, &lines)));
    }
    for note in &report.notes {
        let _ = writeln!(text, "\nnote: {note}");
    }
    for failure in &report.failures {
        let _ = writeln!(text, "\nfailed: {failure}");
    }
    text
}

/// Aligns columns: names to the left, figures to the right.
pub(super) fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in table {
        let cells = row.iter().zip(&widths).enumerate();
        let padded = cells.map(|(column, (cell, width))| match column {
            0 => format!("  {cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
