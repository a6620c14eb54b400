//! ◆ The report as one self-contained HTML page: a summary, filters, and each rule with a timeline of its calls.

mod row;
mod timeline;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::{INCOMPLETE, escaped};
use crate::baseline::Baseline;
use crate::compare::{Change, Comparison};
use crate::running::run::Report;

use row::{Row, WORDS};

/// The severities, the highest first.
const SEVERITIES: [&str; 3] = ["must", "should", "may"];

/// The report as a page. Failures that the baseline explains are marked.
#[must_use]
pub fn html(report: &Report, baseline: &Baseline) -> String {
    let mut rows: Vec<Row> =
        report.results.iter().map(|result| Row::new(report, result, baseline)).collect();
    // Failures first; the sort is stable.
    compact::sort_by_key(&mut rows, |row| row.word != "fail");
    let title = format!("crib check of {}", report.runtime);
    page(&title, &body(&title, report, &rows))
}

fn body(title: &str, report: &Report, rows: &[Row]) -> String {
    let mut areas: Vec<&str> = Vec::new();
    for row in rows {
        if !areas.contains(&row.area.as_str()) {
            areas.push(&row.area);
        }
    }
    let mut text = format!(
        "<header>\n<h1>{}</h1>\n<p>{} rules at <code>{}</code> in {:.1} s</p>\n",
        escaped(title),
        rows.len(),
        escaped(&report.endpoint),
        report.took.as_secs_f64(),
    );
    if let Some(why) = &report.cut_short {
        text += &format!(
            "<p class=\"warning\">The check ended early: {}. Rules are missing.</p>\n",
            escaped(&why.to_string())
        );
    }
    for left in &report.left {
        text += &format!("<p class=\"warning\">Not removed: {}</p>\n", escaped(left));
    }
    text += "</header>\n<main>\n<section aria-label=\"Summary\" class=\"summary\">\n";
    text += &counts("severity", &SEVERITIES, rows, |row| &row.severity);
    text += &counts("area", &areas, rows, |row| &row.area);
    text += "</section>\n";
    text += &filters(rows.len(), &areas);
    text += "<section id=\"rules\" aria-label=\"Rules\">\n";
    text.extend(rows.iter().map(Row::html));
    text + "<p id=\"none\" hidden>No rule matches the filters.</p>\n</section>\n</main>\n"
}

/// A table with the number of rules of each kind and result. The numbers are links that set the filters.
fn counts(kind: &str, names: &[&str], rows: &[Row], of: impl Fn(&Row) -> &str) -> String {
    let heads: String = WORDS.iter().map(|word| format!("<th scope=\"col\">{word}</th>")).collect();
    let mut text = format!(
        "<table id=\"by-{kind}\">\n<thead><tr><th scope=\"col\">{kind}</th>{heads}</tr></thead>\n<tbody>\n"
    );
    for name in names {
        text += &format!("<tr><th scope=\"row\">{name}</th>");
        for word in WORDS {
            let has = |row: &&Row| of(row) == *name && row.word == word;
            let count = rows.iter().filter(has).count();
            text += &cell(word, count, &format!("#result={word}&amp;{kind}={name}"));
        }
        text += "</tr>\n";
    }
    text += "</tbody>\n<tfoot><tr><th scope=\"row\">all</th>";
    for word in WORDS {
        let count = rows.iter().filter(|row| row.word == word).count();
        text += &cell(word, count, &format!("#result={word}"));
    }
    text + "</tr></tfoot>\n</table>\n"
}

fn cell(word: &str, count: usize, address: &str) -> String {
    match count {
        0 => "<td class=\"zero\">0</td>".to_owned(),
        count => format!("<td><a class=\"{word}\" href=\"{address}\">{count}</a></td>"),
    }
}

fn filters(rules: usize, areas: &[&str]) -> String {
    let select = |name: &str, options: &[&str]| {
        let options: String =
            options.iter().map(|option| format!("<option>{option}</option>")).collect();
        format!(
            "<label>{name} <select id=\"{name}\" name=\"{name}\"><option value=\"\">any</option>{options}</select></label>\n"
        )
    };
    format!(
        "<form id=\"filters\" role=\"search\">\n{}{}{}\
        <label>text <input id=\"text\" name=\"text\" type=\"search\" placeholder=\"rule, call, source …\"></label>\n\
        <button type=\"reset\">Clear</button>\n<button type=\"button\" id=\"toggle\">Open all</button>\n\
        <output id=\"shown\" aria-live=\"polite\">{rules} of {rules} rules</output>\n</form>\n",
        select("result", &WORDS),
        select("severity", &SEVERITIES),
        select("area", areas),
    )
}

/// The comparison of two reports as a page.
#[must_use]
pub fn comparison_html(comparison: &Comparison) -> String {
    let mut text = format!(
        "<header>\n<h1>crib check compare</h1>\n<p>old: {}; new: {}; {} rules ended as before</p>\n{}</header>\n<main>\n",
        escaped(&comparison.old),
        escaped(&comparison.new),
        comparison.same,
        match comparison.incomplete {
            true => format!("<p>{INCOMPLETE}</p>\n"),
            false => String::new(),
        },
    );
    for (change, heading) in Change::HEADINGS {
        let rows: Vec<_> = comparison.with(change).collect();
        text += &format!("<h2>{heading}: {}</h2>\n", rows.len());
        for row in rows {
            let result = |result: &Option<String>| {
                let result = result.as_deref().unwrap_or("absent");
                format!("<span class=\"{0}\">{0}</span>", escaped(result))
            };
            text += &format!(
                "<details class=\"rule\"><summary>{} → {} <code>{}</code> <span class=\"severity\">{}</span> {}</summary>\n<pre>{}</pre></details>\n",
                result(&row.old),
                result(&row.new),
                escaped(&row.rule.id),
                escaped(&row.rule.severity),
                escaped(&row.rule.says),
                escaped(match row.rule.reason.as_str() {
                    "" => "no reason was given",
                    reason => reason,
                }),
            );
        }
    }
    text += &format!("<h2>slower calls: {}</h2>\n", comparison.slower.len());
    if !comparison.slower.is_empty() {
        text += "<table>\n<thead><tr><th scope=\"col\">call</th><th scope=\"col\">old median</th><th scope=\"col\">new median</th></tr></thead>\n<tbody>\n";
        for one in &comparison.slower {
            text += &format!(
                "<tr><th scope=\"row\">{}</th><td>{:.1} ms</td><td>{:.1} ms</td></tr>\n",
                escaped(&one.call),
                one.old * 1e3,
                one.new * 1e3,
            );
        }
        text += "</tbody>\n</table>\n";
    }
    page("crib check compare", &(text + "</main>\n"))
}

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// A page without external resources.
fn page(title: &str, body: &str) -> String {
    // The policy permits only the script with this hash: injected markup could not run another one.
    let hash = STANDARD.encode(Sha256::digest(SCRIPT));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
        <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'\">\n\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
        <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}<script>{SCRIPT}</script>\n</body>\n</html>\n",
        escaped(title)
    )
}

#[cfg(test)]
#[path = "html/tests.rs"]
mod tests;
