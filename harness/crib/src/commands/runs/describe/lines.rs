//! ◆ Lines with aligned values in the layout of `kubectl describe`. Pure.

/// The text for an empty value.
pub(super) const NONE: &str = "<none>";

/// The distance between columns.
const PADDING: usize = 2;

/// The cells of each line. As in Go's text/tabwriter, a column consists of the cells of consecutive lines that have a further cell.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<Vec<String>>);

impl Lines {
    /// Adds a line without a value, such as a heading.
    pub(super) fn line(&mut self, indent: usize, text: &str) {
        self.row(indent, [text.to_owned()]);
    }

    /// Adds a line of cells.
    pub(super) fn row(&mut self, indent: usize, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        if let Some(first) = cells.first_mut() {
            first.insert_str(0, &" ".repeat(indent));
        }
        self.0.push(cells);
    }

    /// Adds a key and its value.
    pub(super) fn field(&mut self, indent: usize, key: &str, value: &str) {
        self.row(indent, [format!("{key}:"), value.to_owned()]);
    }

    /// Adds a key and its value if there is one.
    pub(super) fn some(&mut self, indent: usize, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.field(indent, key, value);
        }
    }

    /// Adds a key and any number of values, one per line.
    pub(super) fn values(&mut self, indent: usize, key: &str, values: &[String]) {
        let Some((first, rest)) = values.split_first() else {
            return self.field(indent, key, NONE);
        };
        self.field(indent, key, first);
        for value in rest {
            self.row(0, [String::new(), value.clone()]);
        }
    }

    /// Adds keys with their values.
    pub(super) fn block(&mut self, indent: usize, fields: &[(String, String)]) {
        for (key, value) in fields {
            self.field(indent, key, value);
        }
    }

    /// The lines with aligned cells.
    pub(super) fn aligned(&self) -> Vec<String> {
        let mut lines = Vec::new();
        align(&self.0, &mut Vec::new(), &mut lines);
        lines
    }
}

/// Aligns lines whose first columns have these widths.
fn align(rows: &[Vec<String>], widths: &mut Vec<usize>, lines: &mut Vec<String>) {
    let column = widths.len();
    let mut rest = rows;
    while let Some((first, others)) = rest.split_first() {
        let count = rest.iter().take_while(|row| row.len() > column + 1).count();
        if count == 0 {
            lines.push(padded(first, widths));
            rest = others;
            continue;
        }
        let (block, after) = rest.split_at(count);
        let cells = block.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max();
        widths.push(longest.unwrap_or_default() + PADDING);
        align(block, widths, lines);
        widths.pop();
        rest = after;
    }
}

fn padded(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().enumerate().map(|(at, cell)| {
        let width = widths.get(at).copied().unwrap_or_default();
        format!("{cell:<width$}")
    });
    cells.collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_values_are_aligned() {
        let mut lines = Lines::default();
        lines.field(0, "Name", "web");
        lines.some(0, "Reason", None);
        lines.values(0, "Labels", &["a=b".to_owned(), "c=d".to_owned()]);
        lines.values(0, "Notes", &[]);
        lines.line(0, "Environment:");
        let variable = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        lines.block(2, &[variable("LONGER", "x"), variable("A", "")]);
        lines.row(2, ["B:", "value", "third"].map(str::to_owned));
        lines.row(2, ["C:", "v", "third"].map(str::to_owned));
        lines.field(0, "Last", "y");
        lines.line(0, "Conditions:");
        for row in [["Type", "Status"], ["Ready", "True"]] {
            lines.row(2, row.map(str::to_owned));
        }
        let expected = [
            "Name:    web",
            "Labels:  a=b",
            "         c=d",
            "Notes:   <none>",
            "Environment:",
            "  LONGER:  x",
            "  A:",
            "  B:       value  third",
            "  C:       v      third",
            "Last:      y",
            "Conditions:",
            "  Type   Status",
            "  Ready  True",
        ];
        assert_eq!(lines.aligned(), expected);
    }
}
