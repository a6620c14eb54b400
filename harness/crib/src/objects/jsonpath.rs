//! ◆ A subset of kubectl's JSONPath templates, for `-o jsonpath`, `-o custom-columns` and `--sort-by`. Pure.
//!
//! Supports fields, `['quoted fields']`, indexes, slices, `*`, `..`, comparison filters, `{range}` and `{end}`, and text. Parsing
//! rejects everything else. A missing field yields nothing, as in kubectl; an index out of bounds is an error.
//!
//! Source: Kubernetes 1.36, client-go/util/jsonpath.

mod evaluate;
mod parse;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use serde_json::Value;

/// A parsed template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Node>);

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    Path(Path),
    /// The content between `{range PATH}` and `{end}`.
    Range(Path, Vec<Node>),
}

/// A path such as `.items[*].metadata.name`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    /// Whether it starts at `$`.
    from_root: bool,
    steps: Vec<Step>,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `.name`, `['name', 'other']`.
    Fields(Vec<String>),
    /// `[0]`, `[-1]`, `[1:3]`, `[0,2]`.
    Slices(Vec<Slice>),
    /// `*`
    Wildcard,
    /// `..`: the value and everything below it.
    Descend,
    /// `[?(@.type=="Ready")]`
    Filter(Filter),
}

/// A selection of array elements.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slice {
    from: Option<i64>,
    to: Option<i64>,
    step: Option<i64>,
    /// Whether it is a single index.
    single: bool,
}

/// A condition on array elements.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Path,
    /// `None`: the left path exists.
    test: Option<(Comparison, Operand)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The right side of a comparison.
#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Literal(Value),
    Path(Path),
}

impl JsonPath {
    /// Renders the template with a document.
    pub(crate) fn fill(&self, document: &Value) -> Result<String, String> {
        evaluate::fill(&self.0, document)
    }

    /// Renders the template with a document as JSON arrays, one for each path and each text.
    pub(crate) fn fill_json(&self, document: &Value) -> Result<String, String> {
        evaluate::fill_json(&self.0, document)
    }
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse::template(text).map(Self)
    }
}

impl Path {
    /// Parses a path of `-o custom-columns` or `--sort-by`, in which braces and the first dot are optional.
    pub(crate) fn relaxed(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let braced = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let path = braced.unwrap_or(text);
        if path.is_empty() || path.contains(['{', '}']) {
            return Err(format!("{text:?} is not a path such as .metadata.name"));
        }
        match path.starts_with(['.', '$', '@', '[']) {
            true => parse::path(path),
            false => parse::path(&format!(".{path}")),
        }
    }

    /// The values at the path.
    pub(crate) fn find<'v>(&self, document: &'v Value) -> Result<Vec<&'v Value>, String> {
        evaluate::find(self, document, document)
    }
}

/// A value as text: strings unquoted, objects and arrays as JSON.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
