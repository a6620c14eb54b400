//! ◆ The comparison of two reports as an HTML page.

use super::super::comparison::INCOMPLETE;
use super::super::escape::escaped;
use super::page;
use crate::compare::{Change, Comparison};

/// The page.
#[must_use]
pub fn html(comparison: &Comparison) -> String {
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
    page::page("crib check compare", &(text + "</main>\n"))
}
