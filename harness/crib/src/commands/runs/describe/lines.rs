//! ◆ Lines with aligned values in the layout of `kubectl describe`. Pure.

/// The text for an empty value.
pub(super) const NONE: &str = "<none>";

/// The lines.
#[derive(Debug, Default)]
pub(super) struct Lines(pub(super) Vec<String>);

impl Lines {
    /// Adds a line without a value, such as a heading.
    pub(super) fn line(&mut self, indent: usize, text: &str) {
        let line = format!("{:indent$}{text}", "");
        self.0.push(line.trim_end().to_owned());
    }

    /// Adds a key and its value; the key column is `width` wide.
    pub(super) fn field(&mut self, indent: usize, width: usize, key: &str, value: &str) {
        let key = format!("{key}:");
        self.line(indent, &format!("{key:<width$}{value}"));
    }

    /// Adds a key and its value if there is one.
    pub(super) fn some(&mut self, indent: usize, width: usize, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.field(indent, width, key, value);
        }
    }

    /// Adds a key and any number of values, one per line.
    pub(super) fn values(&mut self, indent: usize, width: usize, key: &str, values: &[String]) {
        let Some((first, rest)) = values.split_first() else {
            return self.field(indent, width, key, NONE);
        };
        self.field(indent, width, key, first);
        for value in rest {
            self.line(indent + width, value);
        }
    }

    /// Adds keys with aligned values.
    pub(super) fn block(&mut self, indent: usize, fields: &[(String, String)]) {
        let longest = fields.iter().map(|(key, _)| key.chars().count()).max();
        let width = longest.unwrap_or_default() + 3;
        for (key, value) in fields {
            self.field(indent, width, key, value);
        }
    }

    /// Adds rows with aligned columns; the first row contains the headings.
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
