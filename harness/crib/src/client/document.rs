//! `-o json|yaml|go-template|table` of the commands that print documents.

use clap::{Args, ValueEnum};
use crib_base::exit::Exit;
use serde_json::Value;

use super::output::{self, print, print_value};
use super::{CallError, each};
use crate::template::Template;

/// The format of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// JSON.
    #[default]
    Json,
    /// YAML.
    Yaml,
    /// Render with the Go template of --template
    GoTemplate,
    /// Human-readable text.
    Table,
}

/// The format of documents, with crictl's flag names.
#[derive(Clone, Debug, Args)]
pub(crate) struct DocumentArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Go template for -o go-template
    #[arg(long, value_name = "TEMPLATE", required_if_eq("output", "go-template"))]
    pub(crate) template: Option<Template>,
}

/// A document, and its human-readable lines.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) document: Value,
    pub(crate) lines: Vec<String>,
}

impl DocumentArgs {
    /// Prints documents: a single one by itself, several as a list, as in crictl.
    pub(crate) fn print(&self, all: Vec<Rendered>) -> Result<(), CallError> {
        if self.output == Format::Table {
            let mut lines = all.into_iter().flat_map(|shown| shown.lines);
            return lines.try_for_each(|line| print(&line));
        }
        let mut documents: Vec<Value> = all.into_iter().map(|shown| shown.document).collect();
        match documents.len() {
            0 => Ok(()),
            1 => self.print_document(&documents.remove(0)),
            _ => self.print_document(&Value::Array(documents)),
        }
    }

    /// Looks up each id and prints the documents. Without ids, the message names the `kind`.
    pub(crate) async fn print_each(
        &self,
        kind: &'static str,
        ids: &[String],
        look_up: impl AsyncFn(&str) -> Result<Rendered, CallError>,
    ) -> Result<Exit, CallError> {
        if ids.is_empty() {
            return Err(CallError::NothingFits(kind));
        }
        let mut shown = Vec::new();
        let exit = each(ids, async |id: &String| {
            shown.push(look_up(id).await?);
            Ok(())
        });
        let exit = exit.await;
        self.print(shown)?;
        exit
    }

    /// Prints one document.
    pub(crate) fn print_document(&self, document: &Value) -> Result<(), CallError> {
        match (self.output, &self.template) {
            (Format::GoTemplate, Some(template)) => print(&template.fill(document)?),
            (Format::Yaml, _) => print_value(document, output::Document::Yaml),
            (Format::Json | Format::Table | Format::GoTemplate, _) => {
                print_value(document, output::Document::Json)
            }
        }
    }
}
