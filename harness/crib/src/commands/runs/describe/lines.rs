//! ◆ Lines with aligned values, as `kubectl describe` lays them out. Pure.

/// What is shown where there is nothing.
pub(super) const NONE: &str = "<none>";

/// The lines so far.
#[derive(Debug, Default)]
pub(super) struct Lines(pub(super) Vec<String>);

impl Lines {
    /// A line by itself, such as a heading.
    pub(super) fn line(&mut self, indent: usize, text: &str) {
        let line = format!("{:indent$}{text}", "");
        self.0.push(line.trim_end().to_owned());
    }

    /// A key and its value, which begins `width` columns after the key does.
    pub(super) fn field(&mut self, indent: usize, width: usize, key: &str, value: &str) {
        let key = format!("{key}:");
        self.line(indent, &format!("{key:<width$}{value}"));
    }

    /// The same, if there is a value.
    pub(super) fn some(&mut self, indent: usize, width: usize, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.field(indent, width, key, value);
        }
    }

    /// A key and any number of values, one below the other.
    pub(super) fn values(&mut self, indent: usize, width: usize, key: &str, values: &[String]) {
        let Some((first, rest)) = values.split_first() else {
            return self.field(indent, width, key, NONE);
        };
        self.field(indent, width, key, first);
        for value in rest {
            self.line(indent + width, value);
        }
    }

    /// Keys with values that begin in one column.
    pub(super) fn block(&mut self, indent: usize, fields: &[(String, String)]) {
        let longest = fields.iter().map(|(key, _)| key.chars().count()).max();
        let width = longest.unwrap_or_default() + 3;
        for (key, value) in fields {
            self.field(indent, width, key, value);
        }
    }

    /// Rows with columns of the same width; the first row has the headings.
    pub(super) fn table<const N: usize>(&mut self, indent: usize, rows: &[[String; N]]) {
        let width = |column: usize| rows.iter().map(move |row| row[column].chars().count()).max();
        let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or_default());
        for row in rows {
            let cells = row.iter().zip(widths);
            let cells: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
            self.line(indent, &cells.join("  "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned() {
        let mut lines = Lines::default();
        lines.field(0, 8, "Name", "web");
        lines.some(0, 8, "Reason", None);
        lines.values(0, 8, "Labels", &["a=b".to_owned(), "c=d".to_owned()]);
        lines.values(0, 8, "Notes", &[]);
        lines.line(0, "Environment:");
        let variable = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        lines.block(2, &[variable("LONGER", "x"), variable("A", "")]);
        let row = |cells: [&str; 2]| cells.map(str::to_owned);
        lines.table(2, &[row(["Type", "Status"]), row(["Ready", "True"])]);
        let expected = [
            "Name:   web",
            "Labels: a=b",
            "        c=d",
            "Notes:  <none>",
            "Environment:",
            "  LONGER:  x",
            "  A:",
            "  Type   Status",
            "  Ready  True",
        ];
        assert_eq!(lines.0, expected);
    }
}
