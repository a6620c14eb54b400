//! ◆ Reports of a benchmark: text for a terminal, JSON for programs, Markdown for documents, HTML with plots.

mod comparison;
mod html;

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Interval, Report, Row, Section, Subject, Summary, ratio, summary};

pub use comparison::comparison;
pub use html::html;

/// A row with its statistics.
struct Line<'a> {
    row: &'a Row,
    of_each: Vec<Option<Summary>>,
    /// The ratio of the first endpoint to the second one.
    ratio: Option<Interval>,
    floor: Option<Summary>,
    /// The ratio of the first endpoint to the kernel alone.
    to_floor: Option<Interval>,
}

fn line(row: &Row) -> Line<'_> {
    let samples = |subject: usize| row.samples.get(subject).map_or(&[][..], Vec::as_slice);
    Line {
        row,
        of_each: row.samples.iter().map(|samples| summary(samples)).collect(),
        ratio: ratio(samples(0), samples(1)),
        floor: summary(&row.floor),
        to_floor: ratio(samples(0), &row.floor),
    }
}

/// The sections that have rows, with these rows.
fn sections(report: &Report) -> impl Iterator<Item = (Section, Vec<Line<'_>>)> {
    let all = Section::ALL.into_iter();
    let all = all.map(|section| (section, report.of(section).map(line).collect::<Vec<_>>()));
    all.filter(|(_, lines)| !lines.is_empty())
}

/// The table of a section: a head and its lines, with the name of the row in the first cell. Columns without a figure are omitted.
fn table(report: &Report, lines: &[Line<'_>]) -> Vec<Vec<String>> {
    let pair = lines.iter().any(|line| line.ratio.is_some());
    let floor = lines.iter().any(|line| line.floor.is_some());
    let mut head = vec![String::new(), "unit".to_owned()];
    for subject in &report.subjects {
        head.extend([column(report, subject), "p99".to_owned()]);
    }
    head.extend(pair.then(|| "ratio".to_owned()));
    if floor {
        head.extend(["kernel alone".to_owned(), "ratio to kernel".to_owned()]);
    }
    let mut table = vec![head];
    for line in lines {
        let mut cells = vec![name(line), line.row.unit.to_string()];
        for summary in &line.of_each {
            let cell = summary.as_ref();
            let cell = cell.map(|summary| [median(summary), number(summary.p99)]);
            cells.extend(cell.unwrap_or_default());
        }
        if pair {
            cells.push(line.ratio.as_ref().map(interval).unwrap_or_default());
        }
        if floor {
            let alone = line.floor.as_ref().map(median);
            let ratio = line.to_floor.as_ref().map(interval);
            cells.extend([alone.unwrap_or_default(), ratio.unwrap_or_default()]);
        }
        table.push(cells);
    }
    table
}

/// The name of a row, with its number of pods.
fn name(line: &Line<'_>) -> String {
    name_of(line.row.section, &line.row.name, line.row.at)
}

fn name_of(section: Section, name: &str, at: Option<u64>) -> String {
    match at {
        None => name.to_owned(),
        Some(at) => format!("{name}, {at} {}", section.at()),
    }
}

/// The heading of a runtime's column: its name, and its socket if another runtime has the same name.
fn column(report: &Report, subject: &Subject) -> String {
    let name = short(&subject.name);
    let same = report.subjects.iter();
    let same = same.filter(|other| short(&other.name) == name).count();
    match same {
        1 => name.to_owned(),
        _ => format!("{name} at {}", subject.endpoint.trim_start_matches("unix://")),
    }
}

/// The name of a runtime without its version.
fn short(name: &str) -> &str {
    name.split(' ').next().unwrap_or_default()
}

/// A number with three significant digits.
fn number(figure: f64) -> String {
    match figure {
        x if x.abs() >= 100.0 => format!("{x:.0}"),
        x if x.abs() >= 10.0 => format!("{x:.1}"),
        x if x.abs() >= 1.0 => format!("{x:.2}"),
        x => format!("{x:.3}"),
    }
}

/// `5.10 (5.01–5.32)`
fn interval(interval: &Interval) -> String {
    // The interval of one sample.
    if interval.low == interval.high {
        return number(interval.p50);
    }
    format!("{} ({}–{})", number(interval.p50), number(interval.low), number(interval.high))
}

/// The median with its interval.
fn median(summary: &Summary) -> String {
    interval(&summary.median)
}

/// A sentence about the machine.
fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let [before, after] = machine.load;
    format!(
        "{} processors, Linux {}, as {}; load {before:.1} at the start and {after:.1} at the end; duration {:.0} s.",
        machine.cores,
        machine.kernel,
        if machine.root { "root" } else { "an ordinary user" },
        report.seconds
    )
}

/// How to read the figures.
const LEGEND: &str = "Medians with 95 % confidence intervals in parentheses, and 99th percentiles. A ratio is the median of the \
                      per-round ratios of the first runtime to the second, or to the kernel alone.";

/// The report with the statistics of each row: `summaries` (one for each runtime), `ratio`, `floorSummary` and `toFloor`, which are
/// null if there are no samples. It can be deserialized as a [`Report`].
#[must_use]
pub fn json(report: &Report) -> Value {
    let mut document = json!(report);
    document["rows"] = report.rows.iter().map(json_row).collect();
    document
}

fn json_row(row: &Row) -> Value {
    let line = line(row);
    let mut object = json!(row);
    object["summaries"] = json!(line.of_each);
    object["ratio"] = json!(line.ratio);
    object["floorSummary"] = json!(line.floor);
    object["toFloor"] = json!(line.to_floor);
    object
}

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

/// Text on one line, without characters that end a cell or begin a tag.
fn cell(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ").replace('|', "\\|");
    text.replace('<', "&lt;")
}

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

/// Aligns columns: names left, figures right.
fn aligned(table: &[Vec<String>]) -> String {
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::{Machine, Subject, Unit};
    use super::*;

    fn report() -> Report {
        let subject = |name: &str| Subject {
            name: name.to_owned(),
            endpoint: format!("unix:///run/{name}.sock"),
        };
        let row = |section, name: &str, at, samples: Vec<Vec<f64>>, floor: Vec<f64>| Row {
            section,
            name: name.to_owned(),
            at,
            unit: Unit::Milliseconds,
            samples,
            floor,
        };
        Report {
            machine: Machine {
                cores: 2,
                kernel: "6.1.0".to_owned(),
                root: false,
                load: [0.25, 1.5],
            },
            subjects: vec![subject("crib"), subject("<script>alert(1)</script>")],
            rows: vec![
                row(
                    Section::Calls,
                    "from nothing",
                    None,
                    vec![vec![4.0, 6.0, 5.0], vec![40.0, 60.0, 50.0]],
                    vec![2.0, 2.0, 2.0],
                ),
                row(
                    Section::Growth,
                    "ListPodSandbox",
                    Some(100),
                    vec![vec![0.125], vec![]],
                    vec![],
                ),
            ],
            notes: vec!["events are not measured: <b>".to_owned()],
            failures: vec!["pulls: PullImage failed: <i>".to_owned()],
            seconds: 12.0,
        }
    }

    #[rstest]
    #[case(0.0, "0.000")]
    #[case(0.01234, "0.012")]
    #[case(1.0, "1.00")]
    #[case(12.345, "12.3")]
    #[case(123.45, "123")]
    fn three_digits_count(#[case] figure: f64, #[case] text: &str) {
        assert_eq!(number(figure), text);
    }

    #[test]
    fn text_has_medians_ratios_and_floor() {
        let text = text(&report());
        for part in [
            "2 processors, Linux 6.1.0, as an ordinary user",
            "5.00 (4.00–6.00)",
            "50.0 (40.0–60.0)",
            "  0.100  ",
            "2.50 (2.00–3.00)",
            "100 pods",
            "events are not measured",
            "failed: pulls: PullImage failed",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn json_has_samples_and_their_statistics() {
        let json = json(&report());
        let row = &json["rows"][0];
        assert_eq!(row["samples"][0], serde_json::json!([4.0, 6.0, 5.0]));
        assert_eq!(row["summaries"][1]["median"]["p50"], 50.0);
        assert_eq!(row["ratio"]["p50"], 0.1);
        assert_eq!(row["toFloor"]["p50"], 2.5);
        assert_eq!(row["floorSummary"]["rounds"], 3);
        assert_eq!(json["rows"][1]["summaries"][1], serde_json::Value::Null);
        assert_eq!(json["rows"][1]["ratio"], serde_json::Value::Null);
        // The statistics are ignored on deserialization.
        assert_eq!(serde_json::from_value::<Report>(json).ok(), Some(report()));
    }

    #[test]
    fn markdown_has_table_for_each_section() {
        let text = markdown(&report());
        assert!(text.contains("## Calls of a pod lifecycle"), "{text}");
        assert!(text.contains("| ListPodSandbox, 100 pods | ms | 0.125 | 0.125 |"), "{text}");
        let tables = text.lines().filter(|line| line.starts_with("|---")).count();
        assert_eq!(tables, 2);
    }

    #[test]
    fn page_is_complete_and_hostile_names_are_inert() {
        let page = html(&report());
        assert!(!page.contains("<script>"), "{page}");
        assert!(
            page.contains("&lt;script&gt;")
                && page.contains("&lt;b&gt;")
                && page.contains("&lt;i&gt;")
        );
        assert!(!page.contains("http://") && !page.contains("https://"), "nothing is loaded");
        // One mark for each endpoint with figures, and one for the kernel alone.
        assert_eq!(page.matches("<circle").count(), 4, "{page}");
    }
}
