//! The tables of `crib get`: a table for each kind, or one row per change.

use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use super::printers::{Printer, TableOptions, labels};
use crate::client::CallError;
use crate::client::output::{Columns, escape_control, print};
use crate::client::run_objects::Found;
use crate::objects::kinds::Resource;
use crate::objects::metadata;

/// The number of spaces between columns.
const GAP: usize = 3;

/// Options for the columns.
#[derive(Debug, Args)]
pub(super) struct TableArgs {
    /// Omit the headings
    #[arg(long)]
    pub(super) no_headers: bool,
    /// Show names with their kinds: `pod/web`
    #[arg(long)]
    show_kind: bool,
    /// Show all labels as the last column
    #[arg(long)]
    show_labels: bool,
    /// Show each of these labels as a column
    #[arg(short = 'L', long, value_name = "LABEL", value_delimiter = ',')]
    label_columns: Vec<String>,
}

/// The columns of a table of one kind.
pub(super) struct Layout<'a> {
    args: &'a TableArgs,
    printer: Printer,
    wide: bool,
    with_namespace: bool,
    /// Whether names are printed with their kinds.
    with_kind: bool,
    /// Whether there is a column RUN; kubectl has none, and scripts may depend on kubectl's columns.
    several_runs: bool,
}

impl TableArgs {
    /// A table with these headings, unless `--no-headers` is given.
    pub(super) fn columns(&self, headings: &[&str]) -> Columns {
        match self.no_headers {
            true => Columns::without_headings(headings.len()),
            false => Columns::new(headings),
        }
    }

    /// The layout for objects of a kind.
    pub(super) fn layout(
        &self,
        resource: &Resource,
        all_namespaces: bool,
        wide: bool,
        several_runs: bool,
    ) -> Layout<'_> {
        Layout {
            args: self,
            printer: Printer::of(resource, wide),
            wide,
            with_namespace: all_namespaces && resource.namespaced,
            with_kind: self.show_kind,
            several_runs,
        }
    }
}

impl Layout<'_> {
    fn options(&self) -> TableOptions {
        TableOptions { wide: self.wide, now: Timestamp::now() }
    }

    pub(super) fn headings(&self) -> Vec<String> {
        let mut headings: Vec<String> = Vec::new();
        headings.extend(self.with_namespace.then(|| "NAMESPACE".to_owned()));
        headings.extend(self.printer.begins_with_name().then(|| "NAME".to_owned()));
        headings.extend(self.printer.headings(self.options()).map(str::to_owned));
        headings.extend(self.args.label_columns.iter().map(|key| heading(key)));
        headings.extend(self.args.show_labels.then(|| "LABELS".to_owned()));
        headings.extend(self.several_runs.then(|| "RUN".to_owned()));
        headings
    }

    /// The cells of an object of a run.
    pub(super) fn cells(&self, resource: &Resource, object: &Value, run: &str) -> Vec<String> {
        let name = metadata(object, "name");
        let mut cells = Vec::new();
        cells.extend(self.with_namespace.then(|| metadata(object, "namespace").to_owned()));
        if self.printer.begins_with_name() {
            cells.push(if self.with_kind { resource.named(name) } else { name.to_owned() });
        }
        cells.extend(self.printer.cells(object, self.options()));
        let label = |key: &String| {
            let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(key));
            label.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        cells.extend(self.args.label_columns.iter().map(label));
        cells.extend(self.args.show_labels.then(|| labels(object)));
        cells.extend(self.several_runs.then(|| run.to_owned()));
        cells
    }
}

/// Prints a table for each kind, separated by empty lines.
pub(super) fn tables(
    args: &TableArgs,
    all_namespaces: bool,
    found: &[Found<'_>],
    several_kinds: bool,
    wide: bool,
) -> Result<(), CallError> {
    let of_kinds = found.chunk_by(|one, next| one.resource == next.resource);
    for (index, of_kind) in of_kinds.enumerate() {
        let Some(Found { resource, run: first, .. }) = of_kind.first() else {
            continue;
        };
        if index > 0 && !args.no_headers {
            print("")?;
        }
        let several_runs = of_kind.iter().any(|found| !std::ptr::eq(found.run, *first));
        let layout = args.layout(resource, all_namespaces, wide, several_runs);
        let layout = Layout { with_kind: several_kinds || layout.with_kind, ..layout };
        let headings = layout.headings();
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let mut table = args.columns(&headings);
        for found in of_kind {
            table.row(layout.cells(&found.resource, found.object, &found.run.name));
        }
        table.print()?;
    }
    Ok(())
}

/// A table whose rows arrive one by one: a column widens when a cell requires it, as with `kubectl get --watch`.
#[derive(Debug, Default)]
pub(super) struct GrowingTable {
    widths: Vec<usize>,
}

impl GrowingTable {
    /// The lines of rows that arrive together.
    pub(super) fn lines(&mut self, rows: &[Vec<String>]) -> Vec<String> {
        let escaped = |row: &Vec<String>| row.iter().map(|cell| escape_control(cell)).collect();
        let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
        for row in &rows {
            self.widths.resize(row.len().max(self.widths.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.widths);
            let padded = cells.map(|(cell, width)| format!("{cell:<0$}", *width + GAP));
            padded.collect::<String>().trim_end().to_owned()
        };
        rows.iter().map(line).collect()
    }
}

/// The heading of a label column: the part after the label's prefix, in upper case.
fn heading(key: &str) -> String {
    key.rsplit('/').next().unwrap_or_default().to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_grow_and_stay_wide() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let mut table = GrowingTable::default();
        let first = table.lines(&[row(["NAME", "AGE"]), row(["web", "1s"])]);
        assert_eq!(first, ["NAME   AGE", "web    1s"]);
        assert_eq!(table.lines(&[row(["longer", "2s"])]), ["longer   2s"]);
        assert_eq!(table.lines(&[row(["web", "\x1b[2J"])]), ["web      \\u{1b}[2J"]);
    }
}
