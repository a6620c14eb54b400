//! ◆ A subset of Go's text/template for `-o go-template`, evaluated over JSON, with crictl's additional functions.
//!
//! Unsupported syntax is an error, in most cases when the template is parsed.

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other kind of value is a mistake in the template"
)]
mod evaluate;
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other kind of value is a mistake in the template"
)]
mod format;
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other kind of value is a mistake in the template"
)]
mod functions;
mod lexer;
mod parser;

use serde_json::Value as Json;
use thiserror::Error;

use parser::Node;

/// The text about templates in the help.
pub(crate) const SUPPORTED: &str = "--template supports a part of Go's template language: fields, $variables, pipelines, \
parentheses, if, else, with, range, break, continue, comments, {{- -}}, and the functions and, or, not, eq, ne, lt, le, gt, \
ge, index, slice, len, print, println, printf, json, title, lower, upper and base64decode. --template does not support \
define, template, block or other functions. A field that is missing in the result is an error.";

/// Why a template cannot be parsed or rendered.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum TemplateError {
    /// The template cannot be parsed.
    #[error("invalid template, line {line}: {reason}")]
    Syntax {
        /// The line in the template.
        line: usize,
        /// The problem.
        reason: String,
    },
    /// The template cannot be rendered with the document.
    #[error("failed to fill in the template: {0}")]
    Execute(String),
}

/// The client whose templates are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// A missing field is an error, and a number is a string.
    Crictl,
    /// A missing field has no value, and a number is a number: 0 is false.
    Kubectl,
}

/// A parsed template.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    nodes: Vec<Node>,
}

impl Template {
    /// Parses a template.
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let nodes = parser::parse(lexer::lex(text)?)?;
        Ok(Self { nodes })
    }

    /// Renders the template with a document.
    pub(crate) fn fill(&self, document: &serde_json::Value) -> Result<String, TemplateError> {
        evaluate::run(&self.nodes, document, Dialect::Crictl).map_err(TemplateError::Execute)
    }

    /// Renders the template with an API object, as kubectl does.
    pub(crate) fn fill_object(&self, object: &serde_json::Value) -> Result<String, TemplateError> {
        evaluate::run(&self.nodes, object, Dialect::Kubectl).map_err(TemplateError::Execute)
    }
}

impl std::str::FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Self::parse(text)
    }
}

/// A template value: from the document, or a literal. Numbers of the document are strings in Go (`json.Number`).
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Json(Json),
    Int(i64),
    Float(f64),
}

impl Value {
    fn text(text: impl Into<String>) -> Self {
        Self::Json(Json::String(text.into()))
    }

    /// The truth value for `if`. A number of the document is always true, because it is a non-empty string in Go.
    fn is_true(&self) -> bool {
        match self {
            Self::Json(Json::Null | Json::Bool(false)) => false,
            Self::Json(Json::String(text)) => !text.is_empty(),
            Self::Json(Json::Array(all)) => !all.is_empty(),
            Self::Json(Json::Object(all)) => !all.is_empty(),
            Self::Json(Json::Bool(true) | Json::Number(_)) => true,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
        }
    }

    /// The name of its type in errors.
    fn kind(&self) -> &'static str {
        match self {
            Self::Json(Json::Null) => "null",
            Self::Json(Json::Bool(_)) => "a boolean",
            Self::Json(Json::String(_)) => "a string",
            Self::Json(Json::Array(_)) => "a list",
            Self::Json(Json::Object(_)) => "an object",
            Self::Json(Json::Number(_)) | Self::Int(_) | Self::Float(_) => "a number",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn fill(text: &str) -> Result<String, TemplateError> {
        let document = json!({
            "status": {"id": "abc", "exitCode": 3, "zero": 0, "labels": {"b": "2", "a.b/c": "1"}, "none": null,
                "mounts": [{"path": "/a"}, {"path": "/b"}], "empty": [], "ok": true, "name": "some-pod x", "html": "<&>"},
        });
        Template::parse(text)?.fill(&document)
    }

    // The expected texts are the output of crictl 1.36 for the same document.
    #[rstest]
    #[case("plain", "plain")]
    #[case("{{.status.id}}!", "abc!")]
    #[case("{{ $.status.id }}", "abc")]
    #[case("a {{- .status.id -}} b", "aabcb")]
    #[case("{{/* no */}}x{{- /* trimmed */ -}} y", "xy")]
    #[case("{{.status.labels}}", "map[a.b/c:1 b:2]")]
    #[case("{{.status.mounts}}", "[map[path:/a] map[path:/b]]")]
    #[case("{{.status.none}}", "<no value>")]
    #[case("{{index .status.labels \"a.b/c\"}}", "1")]
    #[case("{{index .status.labels \"no\"}}", "<no value>")]
    #[case("{{(index .status.mounts 1).path}}", "/b")]
    #[case("{{index .status \"mounts\" 0 \"path\"}}", "/a")]
    #[case("{{len .status.mounts}} {{.status.id | len}}", "2 3")]
    #[case("{{range .status.mounts}}[{{.path}}]{{end}}", "[/a][/b]")]
    #[case("{{range $i, $m := .status.mounts}}{{$i}}{{$m.path}} {{end}}", "0/a 1/b ")]
    #[case("{{range $k, $v := .status.labels}}{{$k}}={{$v}},{{end}}", "a.b/c=1,b=2,")]
    #[case("{{range $v := .status.labels}}{{$v}}{{end}}", "12")]
    #[case("{{range .status.empty}}x{{else}}none{{end}}", "none")]
    #[case("{{range .status.none}}x{{else}}none{{end}}", "none")]
    #[case("{{range .status.mounts}}{{if eq .path \"/b\"}}{{break}}{{end}}{{.path}}{{end}}", "/a")]
    #[case(
        "{{range .status.mounts}}{{if eq .path \"/a\"}}{{continue}}{{end}}{{.path}}{{end}}",
        "/b"
    )]
    #[case("{{if .status.ok}}yes{{else}}no{{end}}", "yes")]
    #[case("{{if .status.zero}}a number is true{{end}}", "a number is true")]
    #[case("{{if not .status.ok}}a{{else if .status.empty}}b{{else}}c{{end}}", "c")]
    #[case("{{with .status.id}}{{.}}{{end}}{{with .status.empty}}x{{else}}y{{end}}", "abcy")]
    #[case("{{if and .status.ok (eq .status.id \"abc\")}}both{{end}}", "both")]
    #[case("{{or .status.none \"else\"}} {{and .status.none .status.absent}}", "else <no value>")]
    #[case("{{$x := .status.id}}{{$x}}{{$x = \"y\"}}{{$x}}", "abcy")]
    #[case("{{$x := 1}}{{if true}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21")]
    #[case(
        "{{printf \"%s|%5s|%-5s|%05d|%q|%v|%t|%%\" .status.id \"a\" \"b\" 42 \"q\\n\" 7 true}}",
        "abc|    a|b    |00042|\"q\\n\"|7|true|%"
    )]
    #[case("{{printf \"%.2f %x\" 1.5 255}}", "1.50 ff")]
    #[case("{{.status.id | printf \"%s-%s\" \"x\"}}", "x-abc")]
    #[case("{{json .status.labels}}", "{\"a.b/c\":\"1\",\"b\":\"2\"}\n")]
    #[case("{{json .status.html}}", "\"\\u003c\\u0026\\u003e\"\n")]
    #[case("{{.status.name | title}} {{upper .status.id}} {{lower \"ABC\"}}", "Some-Pod X ABC abc")]
    #[case("{{print 1 2 \"a\" 3 4}}|{{println 1 \"a\"}}", "1 2a3 4|1 a\n")]
    #[case(
        "{{eq .status.exitCode \"3\"}} {{ne 1 2}} {{lt 1 2}} {{ge \"b\" \"a\"}} {{eq 1 2 3 1}}",
        "true true true true true"
    )]
    #[case("{{base64decode \"cmVk\"}} {{\"IQ==\" | base64decode}}", "red !")]
    #[case("{{slice .status.id 1}} {{slice .status.id 0 2}}", "bc ab")]
    #[case("{{`raw \"text\"`}}", "raw \"text\"")]
    #[case("{{true}} {{1.5}} {{-3}}", "true 1.5 -3")]
    fn template_prints_what_go_prints(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(fill(text).unwrap(), expected);
    }

    #[rstest]
    #[case("{{.metadata.name}} {{.spec.replicas}}", "web 0")]
    #[case("{{.nothing}} {{.nothing.at.all}}", "<no value> <no value>")]
    #[case("{{if .spec.replicas}}some{{else}}none{{end}}", "none")]
    #[case("{{if .spec.nothing}}a{{else if eq .spec.port 80}}b{{end}}", "b")]
    #[case("{{range .spec.nothing}}x{{end}}{{with .nothing}}y{{end}}", "")]
    fn template_prints_objects_as_kubectl(#[case] text: &str, #[case] expected: &str) {
        let object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 0, "port": 80}});
        assert_eq!(Template::parse(text).unwrap().fill_object(&object).unwrap(), expected);
    }

    #[test]
    fn template_compares_numbers_of_the_document_with_literals() {
        let seen = fill("{{if gt .status.exitCode 2}}{{eq .status.exitCode 3}}{{end}}").unwrap();
        assert_eq!(seen, "true");
        assert_eq!(fill("{{printf \"%d\" .status.exitCode}}").unwrap(), "3");
    }

    #[rstest]
    #[case("{{.status", "line 1: unclosed action")]
    #[case("a\n{{if .x}}", "line 2: `if` without `end`")]
    #[case("{{end}}", "unexpected `end`")]
    #[case("{{else}}", "unexpected `else`")]
    #[case("{{define \"x\"}}{{end}}", "`define` is not supported")]
    #[case("{{template \"x\"}}", "`template` is not supported")]
    #[case("{{urlquery .x}}", "function \"urlquery\" is not supported; supported are and, eq")]
    #[case("{{\"abc}}", "unterminated string")]
    #[case("{{.a | }}", "missing a command after `|`")]
    #[case("{{}}", "missing a value")]
    #[case("{{(.a}}", "missing `)`")]
    #[case("{{/* a }}", "unclosed comment")]
    #[case("{{break}}", "`break` outside of `range`")]
    #[case("{{.a ; .b}}", "unexpected character ';'")]
    #[case("{{1 | 2}}", "only a function can follow `|`")]
    #[case("{{$}}{{$x := }}", "missing a value")]
    #[case("{{\"\\z\"}}", "unknown escape \\z")]
    fn template_that_cannot_be_read_is_refused(#[case] text: &str, #[case] reason: &str) {
        let error = fill(text).unwrap_err();
        assert!(
            matches!(error, TemplateError::Syntax { .. }) && error.to_string().contains(reason),
            "{error}"
        );
    }

    #[rstest]
    #[case("{{.nothing}}", "no field \"nothing\"")]
    #[case("{{.status.id.x}}", "no field \"x\" in a string")]
    #[case("{{.status.none.x}}", "no field \"x\" in null")]
    #[case("{{index .status.mounts 2}}", "index 2 is out of range")]
    #[case("{{index .status.mounts \"a\"}}", "a list has no index \"a\"")]
    #[case("{{range .status.id}}{{end}}", "cannot range over a string")]
    #[case("{{base64decode \"?\"}}", "base64decode: ")]
    #[case("{{len 3}}", "len: a number has no length")]
    #[case("{{printf \"%w\" 1}}", "printf: verb %w is not supported")]
    #[case("{{printf \"%s\"}}", "printf: no argument for %s")]
    #[case("{{printf \"a\" 1}}", "printf: too many arguments")]
    #[case("{{printf \"%d\" \"x\"}}", "printf: %d of a string")]
    #[case("{{eq 1 \"a\"}}", "cannot compare a number with a string")]
    #[case("{{eq .status.labels .status.labels}}", "cannot compare an object with an object")]
    #[case("{{$x}}", "undefined variable $x")]
    #[case("{{not}}", "not: expected 1 argument")]
    #[case("{{.status.id 1}}", "a field takes no arguments")]
    fn template_that_does_not_fit_document_fails(#[case] text: &str, #[case] reason: &str) {
        let error = fill(text).unwrap_err();
        assert!(
            matches!(error, TemplateError::Execute(_)) && error.to_string().contains(reason),
            "{error}"
        );
    }
}
