//! ◆ The report as JSON: the samples, and the statistics that the other reports show.

use serde_json::{Value, json};

use super::super::{Report, Row};
use super::line;

/// The report, with the statistics of each row: `summaries` (a runtime each), `ratio`, `floorSummary` and `toFloor`, which are
/// null where there are no samples. It is read again as a [`Report`].
#[must_use]
pub fn json(report: &Report) -> Value {
    let mut document = json!(report);
    document["rows"] = report.rows.iter().map(row).collect();
    document
}

fn row(row: &Row) -> Value {
    let line = line(row);
    let mut object = json!(row);
    object["summaries"] = json!(line.of_each);
    object["ratio"] = json!(line.ratio);
    object["floorSummary"] = json!(line.floor);
    object["toFloor"] = json!(line.to_floor);
    object
}
