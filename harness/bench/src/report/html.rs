//! ◆ The report as one self-contained page without scripts: a plot and a table for each section.

use std::fmt::Write as _;

use check::report::escaped;

use super::super::{Report, Summary};
use super::{LEGEND, Line, interval, machine, name, number, sections, table};

const STYLE: &str = "
:root { color-scheme: light dark; --a: #0b6e4f; --b: #b3541e; --k: #777; }
@media (prefers-color-scheme: dark) { :root { --a: #4fd1a5; --b: #f0a06b; --k: #999; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; font-size: 1.1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: currentColor; } svg .grid { stroke: #8884; }
.s0 { fill: var(--a); stroke: var(--a); } .s1 { fill: var(--b); stroke: var(--b); } .k { fill: var(--k); stroke: var(--k); }
.key span { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin: 0 .4em 0 1em; }
.key .s0 { background: var(--a); } .key .s1 { background: var(--b); } .key .k { background: var(--k); }
";

/// The width of the plot, of the names in it, and of the margin beside it.
const WIDTH: f64 = 900.0;
const NAMES: f64 = 300.0;
const MARGIN: f64 = 20.0;
/// The height of a line, and the vertical offset between the marks of two runtimes.
const HEIGHT: f64 = 22.0;
const OFFSET: f64 = 8.0;

/// The page.
#[must_use]
pub fn html(report: &Report) -> String {
    let names: Vec<String> = report.subjects.iter().map(|s| escaped(&s.name)).collect();
    let title = names.join(" and ");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Benchmark of {title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{}</p>\n<p>{LEGEND}</p>\n",
        escaped(&machine(report))
    );
    page.push_str("<p class=\"key\">");
    for (number, (name, subject)) in names.iter().zip(&report.subjects).enumerate() {
        // Writing to a string does not fail.
        let _ = write!(
            page,
            "<span class=\"s{number}\"></span>{name} at {}",
            escaped(&subject.endpoint)
        );
    }
    page.push_str("<span class=\"k\"></span>the kernel alone</p>\n");
    for (section, lines) in sections(report) {
        let _ = writeln!(page, "<h2>{}</h2>", escaped(section.title()));
        plot(&mut page, &lines);
        write_table(&mut page, &table(report, &lines));
    }
    for note in &report.notes {
        let _ = writeln!(page, "<p>Note: {}</p>", escaped(note));
    }
    for failure in &report.failures {
        let _ = writeln!(page, "<p>Failed: {}</p>", escaped(failure));
    }
    page.push_str("</body></html>\n");
    page
}

/// Medians with their intervals, on a logarithmic axis.
fn plot(page: &mut String, lines: &[Line<'_>]) {
    let medians = lines.iter().flat_map(|line| line.of_each.iter().chain([&line.floor]));
    let medians: Vec<&Summary> = medians.flatten().collect();
    let lowest = medians.iter().map(|s| s.median.low).filter(|low| *low > 0.0);
    let lowest = lowest.fold(f64::INFINITY, f64::min);
    let highest = medians.iter().map(|s| s.median.high).fold(0.0, f64::max);
    if !lowest.is_finite() || highest <= 0.0 {
        return;
    }
    let (first, last) = (lowest.log10().floor(), highest.log10().ceil());
    let span = (last - first).max(1.0);
    let scale = (WIDTH - NAMES - MARGIN) / span;
    let x = |figure: f64| NAMES + (figure.max(lowest).log10() - first) * scale;
    let height = HEIGHT * (lines.len() as f64 + 1.0);
    let _ = write!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"medians and their intervals\">"
    );
    for decade in 0..=span as i32 {
        let figure = 10f64.powf(first + f64::from(decade));
        let at = NAMES + f64::from(decade) * scale;
        let _ = write!(
            page,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"14\" y2=\"{height}\"/><text x=\"{at:.1}\" y=\"10\" text-anchor=\"middle\">{}</text>",
            number(figure)
        );
    }
    for (place, line) in lines.iter().enumerate() {
        let y = HEIGHT * (place as f64 + 1.4);
        let _ = write!(page, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + 4.0, escaped(&name(line)));
        let subjects = line.of_each.iter().enumerate();
        // The marks are at different heights, so that equal medians do not hide each other.
        let subjects = subjects.map(|(number, summary)| {
            let offset = (number as f64 - 0.5) * OFFSET;
            (format!("s{number}"), y + offset, summary)
        });
        for (class, y, summary) in subjects.chain([("k".to_owned(), y, &line.floor)]) {
            let Some(summary) = summary else { continue };
            let median = &summary.median;
            let _ = write!(
                page,
                "<line class=\"{class}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke-width=\"2\"/>\
                 <circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{} {}</title></circle>",
                x(median.low),
                x(median.high),
                x(median.p50),
                interval(median),
                line.row.unit
            );
        }
    }
    page.push_str("</svg>\n");
}

fn write_table(page: &mut String, table: &[Vec<String>]) {
    page.push_str("<div class=\"scroll\"><table>\n");
    for (number, row) in table.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<{tag}>{}</{tag}>", escaped(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}
