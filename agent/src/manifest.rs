//! Parses manifests into pods, or reports every problem at once, each with its position.

mod decode;
mod defaults;
mod nearest;
mod scalar;
mod support;
#[cfg(test)]
mod tests;
mod tree;
mod validate;

use std::fmt;

use k8s_openapi::api::core::v1::Pod as ApiPod;

use crate::pod::Pod;
use tree::{Node, Position, Value};

pub use validate::{FieldError, Rule};

/// How unknown fields are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// A problem.
    Strict,
    /// A warning.
    Lenient,
}

/// The result of parsing a manifest. Use `pods` only if `problems` is empty.
#[must_use = "a manifest with problems must not be run"]
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// The pods, defaulted and validated, in the order of the text.
    pub pods: Vec<Pod>,
    /// The errors, in the order of the text.
    pub problems: Vec<Problem>,
    /// Fields that are not applied, or look like mistakes.
    pub warnings: Vec<Problem>,
}

/// The longest part of a line that a problem shows, in characters.
const EXCERPT: usize = 120;

/// An error or warning in a manifest. `Display` writes `file:line:column: path: message`, then
/// the line with a caret under the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file name given to [`parse`].
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The path of the field, such as `spec.containers[1].image`; empty if the problem has no field.
    pub path: String,
    /// The error and what was expected.
    pub message: String,
    /// The offending line.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.message)?;
        if self.text.is_empty() {
            return Ok(());
        }
        let number = self.line.to_string();
        let (text, indent) = excerpt(&self.text, self.column);
        write!(
            f,
            "\n  {number} | {text}\n  {:width$} | {indent}^",
            "",
            width = number.len()
        )
    }
}

/// Returns the excerpt of a line and the padding before the caret: at most [`EXCERPT`] characters around `column`, without
/// control characters, which could steer a terminal.
fn excerpt(line: &str, column: usize) -> (String, String) {
    let at = column.saturating_sub(1);
    let from = if line.chars().count() <= EXCERPT {
        0
    } else {
        at.saturating_sub(EXCERPT / 2)
    };
    let head = if from == 0 { "" } else { "…" };
    let shown = line.chars().skip(from);
    let mut text: String = head.to_owned();
    text.extend(shown.clone().take(EXCERPT).map(|c| match c {
        '\t' => c,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }));
    if shown.clone().nth(EXCERPT).is_some() {
        text.push('…');
    }
    // Keep tabs in the padding, so that the caret is aligned.
    let mut indent = " ".repeat(head.chars().count());
    indent.extend(
        shown
            .take(at - from)
            .map(|c| if c == '\t' { c } else { ' ' }),
    );
    (text, indent)
}

/// Parses a manifest: YAML (1.1, like kubectl) or JSON, one or several documents, kinds Pod, List and PodList.
///
/// `file` is only used in messages and to derive the pods' uids. All problems are returned, not only the first.
pub fn parse(file: &str, text: &str, strictness: Strictness) -> Parsed {
    let mut loader = Loader {
        file,
        lines: text.lines().collect(),
        strictness,
        parsed: Parsed::default(),
    };
    let (documents, syntax_errors) = tree::read(text);
    for error in &syntax_errors {
        loader.problem(error.place, "", &error.message);
    }
    for document in &documents {
        loader.document(document);
    }
    if loader.parsed.pods.is_empty() && loader.parsed.problems.is_empty() {
        loader.problem(
            Position { line: 1, column: 1 },
            "",
            "no pod found: expected apiVersion: v1, kind: Pod",
        );
    }
    loader
        .parsed
        .problems
        .sort_by_key(|problem| (problem.line, problem.column));
    loader
        .parsed
        .warnings
        .sort_by_key(|problem| (problem.line, problem.column));
    loader.parsed
}

/// Applies defaults to a pod and validates it, like the API server at creation.
pub fn admit(mut pod: ApiPod) -> (ApiPod, Vec<FieldError>) {
    defaults::apply(&mut pod);
    let errors = validate::pod(&pod);
    (pod, errors)
}

struct Loader<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
    strictness: Strictness,
    parsed: Parsed,
}

impl Loader<'_> {
    fn at(&self, place: Position, path: &str, message: &str) -> Problem {
        Problem {
            file: self.file.to_owned(),
            line: place.line,
            column: place.column,
            path: path.to_owned(),
            message: message.to_owned(),
            text: self
                .lines
                .get(place.line.saturating_sub(1))
                .map_or_else(String::new, |line| (*line).to_owned()),
        }
    }

    fn problem(&mut self, place: Position, path: &str, message: &str) {
        let problem = self.at(place, path, message);
        self.parsed.problems.push(problem);
    }

    fn warning(&mut self, place: Position, path: &str, message: &str) {
        let warning = self.at(place, path, message);
        self.parsed.warnings.push(warning);
    }

    /// One document: a pod, a list of pods, or nothing.
    fn document(&mut self, root: &Node) {
        if is_empty(root) {
            return;
        }
        match self.kind(root, "", None) {
            Some("Pod") => self.pod(root, ""),
            Some(list) => {
                let default_kind = (list == "PodList").then_some("Pod");
                let Some(items) = root.get("items") else {
                    self.problem(root.place, "items", "missing: expected a list of pods");
                    return;
                };
                let Value::Sequence(pods) = &items.value.value else {
                    self.problem(items.value.place, "items", "expected a list of pods");
                    return;
                };
                for (index, item) in pods.iter().enumerate() {
                    let path = format!("items[{index}]");
                    if self.kind(item, &path, default_kind).is_some() {
                        self.pod(item, &path);
                    }
                }
            }
            None => {}
        }
    }

    /// Checks apiVersion and kind. A list (`path` is not empty) may contain only pods, of kind `default` if it is
    /// absent.
    fn kind<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        default: Option<&'n str>,
    ) -> Option<&'n str> {
        if !matches!(node.value, Value::Mapping(_)) {
            self.problem(
                node.place,
                path,
                "expected a pod: an object with apiVersion, kind, metadata and spec",
            );
            return None;
        }
        let wanted: &[&str] = if path.is_empty() {
            &["Pod", "List", "PodList"]
        } else {
            &["Pod"]
        };
        let field = |name: &str| {
            if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}.{name}")
            }
        };
        let mut sound = true;
        match node
            .get("apiVersion")
            .map(|entry| (entry.value.place, entry.value.text()))
        {
            Some((_, Some("v1"))) => {}
            Some((place, found)) => {
                let found = found.unwrap_or("something else");
                self.problem(
                    place,
                    &field("apiVersion"),
                    &format!("expected v1, found {found:?}"),
                );
                sound = false;
            }
            None if default.is_some() => {}
            None => {
                self.problem(node.place, &field("apiVersion"), "missing: expected v1");
                sound = false;
            }
        }
        let expected = wanted.join(", ");
        match node
            .get("kind")
            .map(|entry| (entry.value.place, entry.value.text()))
        {
            Some((_, Some(kind))) if wanted.contains(&kind) => Some(kind).filter(|_| sound),
            Some((place, found)) => {
                let found = found.unwrap_or("something else");
                self.problem(
                    place,
                    &field("kind"),
                    &format!("kind {found:?} is not supported, expected {expected}"),
                );
                None
            }
            None if default.is_some() => default.filter(|_| sound),
            None => {
                self.problem(
                    node.place,
                    &field("kind"),
                    &format!("missing: expected {expected}"),
                );
                None
            }
        }
    }

    fn pod(&mut self, node: &Node, path: &str) {
        let with_kind = with_kind(node);
        let (pod, findings) = decode::decode::<ApiPod>(&with_kind, "");
        let full = |field: &str| match (path.is_empty(), field.is_empty()) {
            (true, _) => field.to_owned(),
            (false, true) => path.to_owned(),
            (false, false) => format!("{path}.{field}"),
        };
        let mut sound = true;
        for finding in findings {
            if finding.unknown_field && self.strictness == Strictness::Lenient {
                self.warning(finding.place, &full(&finding.path), &finding.message);
            } else {
                self.problem(finding.place, &full(&finding.path), &finding.message);
                // An unknown field causes no other errors; a mismatched value, which was replaced by an empty one, could.
                sound &= finding.unknown_field;
            }
        }
        let Some(pod) = pod else { return };
        let (mut pod, mut errors) = admit(pod);
        if pod.metadata.uid.is_none() {
            pod.metadata.uid = Some(uid(self.file, self.parsed.pods.len(), &pod));
        }
        if !sound {
            // Fields that failed to decode were reported already.
            let named: Vec<String> = self
                .parsed
                .problems
                .iter()
                .map(|problem| problem.path.clone())
                .collect();
            errors.retain(|error| !named.contains(&full(&error.field)));
        }
        for error in errors {
            self.problem(
                node.locate(&error.field),
                &full(&error.field),
                &error.to_string(),
            );
        }
        for unsupported in support::unsupported_fields(&pod) {
            if unsupported.fatal {
                self.problem(
                    node.locate(&unsupported.field),
                    &full(&unsupported.field),
                    &unsupported.message,
                );
            } else {
                self.warning(
                    node.locate(&unsupported.field),
                    &full(&unsupported.field),
                    &unsupported.message,
                );
            }
        }
        self.parsed.pods.push(Pod::new(pod));
    }
}

/// An empty document, as between two `---`.
fn is_empty(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar { text, plain: true } if scalar::plain(text) == scalar::Plain::Null)
}

/// Adds apiVersion and kind, which an item of a PodList may omit but the type requires.
fn with_kind(node: &Node) -> Node {
    let mut node = node.clone();
    let place = node.place;
    if let Value::Mapping(entries) = &mut node.value {
        for (key, text) in [("apiVersion", "v1"), ("kind", "Pod")] {
            if entries.iter().all(|entry| entry.key != key) {
                let value = Node {
                    place,
                    value: Value::Scalar {
                        text: text.to_owned(),
                        plain: false,
                    },
                };
                entries.push(tree::Entry {
                    key: key.to_owned(),
                    key_place: place,
                    value,
                });
            }
        }
    }
    node
}

/// Derives a uid for a pod without one: 32 hex digits from its content and position, so that it is stable.
fn uid(file: &str, index: usize, pod: &ApiPod) -> String {
    let content = serde_json::to_string(pod).unwrap_or_default();
    let text = format!("{file}\0{index}\0{content}");
    let hash = text.bytes().fold(
        0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128,
        |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        },
    );
    format!("{hash:032x}")
}
