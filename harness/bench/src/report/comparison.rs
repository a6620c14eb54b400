//! ◆ The comparison of two benchmarks, for a terminal.

use std::fmt::Write as _;

use super::super::compare::{Change, Comparison, Trend};
use super::super::{Report, Section};
use super::aligned;
use super::{interval, machine, name_of, number};

/// The comparison as text: each row that both benchmarks have, and how it changed.
#[must_use]
pub fn comparison(before: &Report, after: &Report, found: &Comparison) -> String {
    let mut text = String::new();
    for (which, report) in [("old", before), ("new", after)] {
        let subject = report.subjects.first();
        let subject = subject.map_or("no runtime", |subject| subject.name.as_str());
        // Writing to a string does not fail.
        let _ = writeln!(text, "{which}: {subject}; {}", machine(report));
    }
    if let Some(pace) = found.pace {
        let _ = writeln!(
            text,
            "The kernel alone took {} times as long in the new benchmark: attribute differences of that size to the machine.",
            number(pace)
        );
    }
    for section in Section::ALL {
        let changes = found.changes.iter();
        let changes: Vec<&Change> = changes.filter(|one| one.section == section).collect();
        if changes.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{}", section.title());
        let head = ["", "unit", "old", "new", "new / old", ""].map(str::to_owned);
        let mut table = vec![head.to_vec()];
        table.extend(changes.into_iter().map(cells));
        text.push_str(&aligned(&table));
    }
    let count = |trend| {
        let changes = found.changes.iter();
        changes.filter(|change| change.trend == trend).count()
    };
    let [old, new] = found.unmatched;
    let _ = writeln!(
        text,
        "\n{} worse, {} better, {} the same; {old} only in the old one, {new} only in the new one",
        count(Trend::Worse),
        count(Trend::Better),
        count(Trend::Same),
    );
    text
}

fn cells(change: &Change) -> Vec<String> {
    let (before, after) = (&change.before, &change.after);
    let ratio = match before.p50 {
        0.0 => String::new(),
        old => number(after.p50 / old),
    };
    let trend = match change.trend {
        Trend::Better => "better",
        Trend::Same => "",
        Trend::Worse => "worse",
    };
    vec![
        name_of(change.section, &change.name, change.at),
        change.unit.to_string(),
        interval(before),
        interval(after),
        ratio,
        trend.to_owned(),
    ]
}
