//! Output of the commands: tables, the runtime's responses in protobuf's JSON form or as YAML, and statistics as a table of the
//! change between two samples.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use crib_base::exit::Exit;
use crib_base::logging::no_color;
use crib_base::terminal_text::{escape_json, plain};
pub(crate) use harness::debug_text::escape_control;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::CallError;

/// The format of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Human-readable table.
    #[default]
    Table,
    /// The runtime's response as JSON.
    Json,
    /// The runtime's response as YAML.
    Yaml,
}

/// The format of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Document {
    /// JSON.
    #[default]
    Json,
    /// YAML.
    Yaml,
}

/// The output options of a listing.
#[derive(Debug, Args)]
pub(crate) struct Listing {
    /// Print ids only
    #[arg(short, long)]
    quiet: bool,
    /// Show full ids
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Listing {
    /// Prints a response; `name` is its message name in the CRI.
    pub(crate) fn show<'a>(
        &self,
        name: &str,
        answer: &impl prost::Message,
        ids: impl IntoIterator<Item = &'a String>,
        table: impl FnOnce() -> Result<(), CallError>,
    ) -> Result<Exit, CallError> {
        match self.output {
            _ if self.quiet => ids.into_iter().try_for_each(|id| print(id))?,
            Form::Json => print_message(name, answer, Document::Json)?,
            Form::Yaml => print_message(name, answer, Document::Yaml)?,
            Form::Table => table()?,
        }
        Ok(Exit::Success)
    }
}

/// A CRI message in protobuf's JSON form: camel-case names, 64-bit numbers as strings, enums by name, and default values included.
pub(crate) fn json(name: &str, message: &impl prost::Message) -> Result<Value, CallError> {
    let conversion_error = conversion_error(name);
    let mut dynamic = DynamicMessage::new(descriptor(name)?);
    dynamic.transcode_from(message).map_err(|error| conversion_error(error.to_string()))?;
    let options = SerializeOptions::new().skip_default_fields(false);
    dynamic
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| conversion_error(error.to_string()))
}

/// The JSON names of the fields of a CRI message.
pub(crate) fn message_fields(name: &str) -> Result<Vec<String>, CallError> {
    let fields = descriptor(name)?.fields().collect::<Vec<_>>();
    Ok(fields.iter().map(|field| field.json_name().to_owned()).collect())
}

/// The protobuf descriptor of a CRI message.
pub(crate) fn descriptor(name: &str) -> Result<MessageDescriptor, CallError> {
    let conversion_error = conversion_error(name);
    let pool = DescriptorPool::decode(cri::DESCRIPTORS)
        .map_err(|error| conversion_error(error.to_string()))?;
    pool.get_message_by_name(&format!("runtime.v1.{name}"))
        .ok_or_else(|| conversion_error("unknown CRI message".to_owned()))
}

fn conversion_error(name: &str) -> impl Fn(String) -> CallError {
    let doing = format!("convert the message {name}");
    move |error| CallError::Io { doing: doing.clone(), source: io::Error::other(error) }
}

/// Prints a CRI message.
pub(crate) fn print_message(
    name: &str,
    message: &impl prost::Message,
    form: Document,
) -> Result<(), CallError> {
    print_value(&json(name, message)?, form)
}

/// Prints a document.
pub(crate) fn print_value(value: &Value, form: Document) -> Result<(), CallError> {
    match form {
        Document::Json => print_json(&format!("{value:#}")),
        Document::Yaml => {
            let text = serde_saphyr::to_string(value).map_err(|error| CallError::Io {
                doing: "write the answer".to_owned(),
                source: io::Error::other(error.to_string()),
            })?;
            print(text.trim_end())
        }
    }
}

/// Prints an object as JSON with kubectl's indent of four spaces.
pub(crate) fn print_object_json(value: &Value) -> Result<(), CallError> {
    print_json(&object_json(value).map_err(|error| CallError::Io {
        doing: "write the answer".to_owned(),
        source: error.into(),
    })?)
}

fn object_json(value: &Value) -> Result<String, serde_json::Error> {
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"    ");
    value.serialize(&mut Serializer::with_formatter(&mut text, formatter))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Prints JSON with control characters escaped, even if standard output is not a terminal.
pub(crate) fn print_json(text: &str) -> Result<(), CallError> {
    print(&escape_json(text))
}

/// The current time in nanoseconds since 1970, as in the CRI.
pub(crate) fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Prints text and a newline. On a terminal, escapes control sequences.
pub(crate) fn print(text: &str) -> Result<(), CallError> {
    let stdout = io::stdout();
    match stdout.is_terminal() {
        true => writeln!(stdout.lock(), "{}", plain(text)),
        false => writeln!(stdout.lock(), "{text}"),
    }
    .map_err(CallError::Output)
}

/// Prints text without a newline. On a terminal, escapes control sequences.
pub(crate) fn write_text(text: &str) -> Result<(), CallError> {
    let stdout = io::stdout();
    let text = if stdout.is_terminal() { plain(text) } else { text.to_owned() };
    let mut stdout = stdout.lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CallError::Output)
}

/// Rows with aligned columns and no borders.
pub(crate) struct Columns {
    table: Table,
    width: usize,
    has_headings: bool,
}

impl Columns {
    /// A table with these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut columns = Self::without_headings(headings.len());
        columns.table.set_header(headings.iter().map(Cell::new));
        columns.has_headings = true;
        columns
    }

    /// A table with this many columns and no headings.
    pub(crate) fn without_headings(width: usize) -> Self {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            // Rows are never wrapped: a program may read them, and a terminal wraps them itself.
            .set_content_arrangement(ContentArrangement::Disabled);
        Self { table, width, has_headings: false }
    }

    /// Adds a row. Escapes control sequences.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| escape_control(&cell));
        self.table.add_row(cells);
    }

    /// Right-aligns these columns.
    pub(crate) fn right(&mut self, columns: &[usize]) {
        for column in columns {
            if let Some(column) = self.table.column_mut(*column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }

    /// The lines, without trailing spaces.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        for column in 0..self.width {
            if let Some(column) = self.table.column_mut(column) {
                column.set_padding((0, 3));
            }
        }
        self.table.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Prints the table, with styled headings on a terminal.
    pub(crate) fn print(mut self) -> Result<(), CallError> {
        let lines = self.lines();
        if lines.is_empty() {
            return Ok(());
        }
        let has_headings = self.has_headings;
        if let Some((first, rest)) = lines.split_first().filter(|_| has_headings && styled()) {
            let first = plain(first);
            writeln!(io::stdout().lock(), "\x1b[1m{first}\x1b[0m").map_err(CallError::Output)?;
            return if rest.is_empty() { Ok(()) } else { print(&rest.join("\n")) };
        }
        print(&lines.join("\n"))
    }
}

/// Clears the screen if standard output is a terminal.
pub(crate) fn clear() -> Result<(), CallError> {
    if !io::stdout().is_terminal() {
        return Ok(());
    }
    write!(io::stdout().lock(), "\x1b[H\x1b[2J").map_err(CallError::Output)
}

/// Whether standard output supports styles.
pub(crate) fn styled() -> bool {
    io::stdout().is_terminal() && !no_color()
}

/// How statistics are sampled and printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// Continue until a signal.
    pub(crate) watch: bool,
    /// The time between two samples.
    pub(crate) interval: Duration,
    pub(crate) output: Form,
}

impl Sampling {
    /// Prints the samples that `measure` returns, each a CRI message called `name`. `table` prints the change between two samples.
    pub(crate) async fn print<T: prost::Message>(
        self,
        name: &str,
        measure: impl AsyncFn() -> Result<T, CallError>,
        table: impl Fn(&T, &T) -> Result<(), CallError>,
    ) -> Result<Exit, CallError> {
        let mut before = None;
        loop {
            let now = measure().await?;
            match (self.output, &before) {
                (Form::Json, _) => print_message(name, &now, Document::Json)?,
                (Form::Yaml, _) => print_message(name, &now, Document::Yaml)?,
                // CPU usage is a difference, so the first sample prints no row.
                (Form::Table, None) => {
                    before = Some(now);
                    tokio::time::sleep(self.interval).await;
                    continue;
                }
                (Form::Table, Some(before)) => table(before, &now)?,
            }
            if !self.watch {
                return Ok(Exit::Success);
            }
            before = Some(now);
            tokio::time::sleep(self.interval).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use cri::v1;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_follows_protobuf_mapping() {
        let message = v1::ListPodSandboxResponse {
            items: vec![v1::PodSandbox {
                id: "x".to_owned(),
                created_at: 1 << 60,
                state: v1::PodSandboxState::SandboxNotready.into(),
                ..Default::default()
            }],
        };
        let expected = json!({"items": [{
            "id": "x",
            "state": "SANDBOX_NOTREADY",
            "createdAt": "1152921504606846976",
            "labels": {},
            "annotations": {},
            "runtimeHandler": "",
        }]});
        assert_eq!(json("ListPodSandboxResponse", &message).unwrap(), expected);
    }

    #[test]
    fn objects_are_indented_by_four_spaces() {
        let expected = "{\n    \"a\": [\n        1\n    ],\n    \"b\": {}\n}";
        assert_eq!(object_json(&json!({"a": [1], "b": {}})).unwrap(), expected);
    }

    #[test]
    fn table_aligns_columns_and_escapes_control_characters() {
        let mut columns = Columns::new(&["ID", "NAME", "SIZE"]);
        columns.right(&[2]);
        columns.row(["1".to_owned(), "a\x1b[2Jb\nc".to_owned(), "10".to_owned()]);
        columns.row(["22".to_owned(), "b".to_owned(), "7".to_owned()]);
        assert_eq!(
            columns.lines(),
            [
                r"ID   NAME             SIZE",
                r"1    a\u{1b}[2Jb\nc     10",
                r"22   b                   7",
            ]
        );
    }
}
