//! ◆ The comparison of two reports as text.

use super::brief;
use crate::compare::{Change, Comparison};

/// Said of a comparison that cannot be complete.
pub(super) const INCOMPLETE: &str = "a check was interrupted: rules are missing, and may fail";

/// The changed rules by change, and the slower calls. Nothing is said of changes that no rule has.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    let mut text = format!("old: {}\nnew: {}\n", comparison.old, comparison.new);
    for (change, heading) in Change::HEADINGS {
        let rows: Vec<_> = comparison.with(change).collect();
        if rows.is_empty() {
            continue;
        }
        text += &format!("\n{heading}: {}\n", rows.len());
        // A check of some rules only has many of these, of which nothing else is known.
        if change == Change::Removed {
            let ids: Vec<_> = rows.iter().map(|row| row.rule.id.as_str()).collect();
            text += &format!("  {}\n", ids.join(", "));
            continue;
        }
        for row in rows {
            let result = |result: &Option<String>| result.clone().unwrap_or("absent".to_owned());
            text += &format!(
                "  {} {:6} {} → {}  {}\n",
                row.rule.id,
                row.rule.severity,
                result(&row.old),
                result(&row.new),
                row.rule.says
            );
            if !row.rule.reason.is_empty() {
                text += &format!("    {}\n", brief(&row.rule.reason));
            }
        }
    }
    if !comparison.slower.is_empty() {
        text += &format!("\nslower calls: {}\n", comparison.slower.len());
        for one in &comparison.slower {
            text += &format!(
                "  {}: median {:.1} ms → {:.1} ms\n",
                one.call,
                one.old * 1e3,
                one.new * 1e3
            );
        }
    }
    if comparison.incomplete {
        text += &format!("\n{INCOMPLETE}\n");
    }
    text + &format!("\n{} rules ended as before", comparison.same)
}
