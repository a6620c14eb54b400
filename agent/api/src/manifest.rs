//! Parses manifests into pods, or reports all problems, each with its position.

mod decode;
mod defaults;
pub mod endpoints;
pub mod fields;
mod generated_name;
mod image_name;
pub mod indexes;
mod json;
mod kinds;
mod kustomization;
mod lenient_yaml;
mod object;
pub mod pod_json;
mod scalar;
pub mod schedule;
pub mod static_pod;
pub mod storage;
mod support;
#[cfg(test)]
mod tests;
mod text_limits;
mod tree;
mod typed_value;
mod validate;
mod workload;

use std::fmt;

use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::generated_names::hash;
use crate::pod::Pod;
use generated_name::Generated;
use support::{Severity, Unsupported};
use tree::{Node, Policy, Position, SyntaxError, Value};
use typed_value::TypedValue;

pub use defaults::service_account;
pub use kinds::Skipped;
pub use object::Object;
pub use typed_value::to_json;
pub use validate::names::{dns_subdomain, label_value, qualified};
pub use validate::pod::resources::is_extended;
pub use validate::service::NODE_PORTS;
pub use validate::{FieldError, Rule};
pub use workload::{Workload, WorkloadObject};

/// How unknown fields are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// As a problem.
    Strict,
    /// As a warning.
    Lenient,
}

/// The result of parsing a manifest. Use `pods` only if `problems` is empty.
#[must_use = "a manifest with problems must not be run"]
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// The pods, defaulted and validated, in the order of the text.
    pub pods: Vec<Pod>,
    /// The objects that pods refer to, in the order of the text.
    pub objects: Vec<Object>,
    /// The objects that create pods, in the order of the text.
    pub workloads: Vec<Workload>,
    /// Objects that are not run: other kinds, and hooks of helm for events other than an installation.
    pub skipped: Vec<Skipped>,
    /// The number of objects in the text, including the items of lists, whatever the result of each.
    pub documents: usize,
    /// Whether a list without items was found, which is not an error.
    pub has_empty_list: bool,
    /// The errors, in the order of the text.
    pub problems: Vec<Problem>,
    /// Fields that are not applied, or may be mistakes.
    pub warnings: Vec<Problem>,
    /// Fields without effect because this implementation lacks what they configure, each with what is missing.
    pub no_effect: Vec<Problem>,
    /// The pods, and the objects that create pods, without a termination grace period in their manifests, so that the default
    /// applies: `pod default/web`, `deployment default/web`.
    pub without_grace: Vec<String>,
}

impl Parsed {
    /// Whether the text had no document.
    fn is_nothing(&self) -> bool {
        let has_pods = !self.pods.is_empty() || !self.workloads.is_empty();
        let has_others =
            !self.objects.is_empty() || !self.skipped.is_empty() || self.has_empty_list;
        !has_pods && !has_others && self.problems.is_empty()
    }
}

/// The maximum number of duplicate keys of a text that are reported individually.
const MAX_DUPLICATES: usize = 100;

const CONTROL_CHARACTER: &str =
    "control characters are not allowed in YAML: write an escape, such as \\x1b, in double quotes";

/// The maximum length of the part of a line that a problem shows, in characters.
const EXCERPT: usize = 120;
/// The maximum length of a line that a problem stores, in bytes: many problems may be on one line.
const LONGEST_LINE: usize = 8192;

/// An error or warning in a manifest. `Display` writes `file:line:column: path: message`, then the line with a caret under the
/// position.
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
    /// The offending line; empty if it is very long.
    pub text: String,
    /// The full name of the claim or PersistentVolume that is not supported, if that is the problem: it is a problem for pods that
    /// use the object.
    pub object: Option<String>,
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
        write!(f, "\n  {number} | {text}\n  {:width$} | {indent}^", "", width = number.len())
    }
}

fn problem_at(file: &str, line: &str, place: Position, path: &str, message: &str) -> Problem {
    let line = if line.len() <= LONGEST_LINE { line } else { "" };
    Problem {
        file: file.to_owned(),
        line: place.line,
        column: place.column,
        path: path.to_owned(),
        message: message.to_owned(),
        text: line.to_owned(),
        object: None,
    }
}

/// Returns the excerpt of a line and the padding before the caret: at most [`EXCERPT`] characters around `column`, without control
/// characters, which could control the terminal.
fn excerpt(line: &str, column: usize) -> (String, String) {
    let at = column.saturating_sub(1);
    let from = if line.chars().count() <= EXCERPT { 0 } else { at.saturating_sub(EXCERPT / 2) };
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
    indent.extend(shown.take(at - from).map(|c| if c == '\t' { c } else { ' ' }));
    (text, indent)
}

/// Parses a manifest: YAML (1.1, like kubectl) or JSON, one or several documents, pods, objects that create pods or that pods refer
/// to, and lists of them. Other kinds are returned in [`Parsed::skipped`].
///
/// `file` is only used in messages and to derive the pods' uids. All problems are returned, not only the first.
pub fn parse(file: &str, text: &str, strictness: Strictness) -> Parsed {
    let mut loader = Loader {
        file,
        lines: text.lines().collect(),
        strictness,
        parsed: Parsed::default(),
        left_out: Vec::new(),
        generated: Generated::new(),
        template_names_no_grace: false,
    };
    if let Some(place) = tree::control_character(text).filter(|_| !json::is_json(text)) {
        loader.problem(place, "", CONTROL_CHARACTER);
    }
    let read = tree::read(text, Policy::Author);
    for error in &read.errors {
        loader.problem(error.place, "", &error.message);
    }
    for document in &read.documents {
        loader.document(document);
    }
    for SyntaxError { place, message } in read.duplicates.iter().take(MAX_DUPLICATES) {
        if strictness == Strictness::Lenient || loader.is_skipped(*place) {
            loader.warning(*place, "", &format!("{message}: the last value is used"));
        } else {
            loader.problem(*place, "", message);
        }
    }
    let rest = read.duplicates.get(MAX_DUPLICATES..).unwrap_or_default();
    if let Some(next) = rest.first() {
        let message = format!("{} more duplicate keys from here on", rest.len());
        let is_harmless = || rest.iter().all(|duplicate| loader.is_skipped(duplicate.place));
        if strictness == Strictness::Lenient || is_harmless() {
            loader.warning(next.place, "", &message);
        } else {
            loader.problem(next.place, "", &message);
        }
    }
    if loader.parsed.is_nothing() {
        loader.problem(
            Position { line: 1, column: 1 },
            "",
            "no pod found: expected apiVersion: v1, kind: Pod",
        );
    }
    let Parsed { problems, warnings, no_effect, .. } = &mut loader.parsed;
    for list in [problems, warnings, no_effect] {
        compact::sort_by_key(list, |problem| (problem.line, problem.column));
    }
    loader.parsed
}

/// Applies defaults to a pod and validates it, like the API server at creation.
pub fn admit(mut pod: ApiPod) -> (ApiPod, Vec<FieldError>) {
    defaults::apply(&mut pod);
    let errors = validate::pod(&pod);
    (pod, errors)
}

/// Like [`admit`], for a pod that an API server admits: it sets the default service account before it validates.
fn admit_with_account(mut pod: ApiPod) -> (ApiPod, Vec<FieldError>) {
    if pod.spec.is_some() {
        service_account(&mut pod);
    }
    admit(pod)
}

struct Loader<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
    strictness: Strictness,
    parsed: Parsed,
    /// The starts and ends of skipped documents.
    left_out: Vec<(Position, Position)>,
    generated: Generated,
    /// Whether the last template has no termination grace period.
    template_names_no_grace: bool,
}

/// Whether the default of `terminationGracePeriodSeconds` will apply to a pod; call it before defaults are applied.
fn names_no_grace(spec: Option<&PodSpec>) -> bool {
    spec.is_some_and(|spec| spec.termination_grace_period_seconds.is_none())
}

impl Loader<'_> {
    fn is_skipped(&self, place: Position) -> bool {
        self.left_out.iter().any(|(first, last)| (*first..=*last).contains(&place))
    }

    fn at(&self, place: Position, path: &str, message: &str) -> Problem {
        let line = self.lines.get(place.line.saturating_sub(1));
        problem_at(self.file, line.copied().unwrap_or_default(), place, path, message)
    }

    fn problem(&mut self, place: Position, path: &str, message: &str) {
        let problem = self.at(place, path, message);
        self.parsed.problems.push(problem);
    }

    fn warning(&mut self, place: Position, path: &str, message: &str) {
        let warning = self.at(place, path, message);
        self.parsed.warnings.push(warning);
    }

    fn pod(&mut self, node: &Node, path: &str) {
        let Some((pod, sound)) = self.decoded::<ApiPod>(node, path) else {
            return;
        };
        if let Some(spec) = &pod.spec {
            self.unsupported(node, path, support::of_media("spec", spec));
        }
        let names_no_grace = names_no_grace(pod.spec.as_ref());
        let (mut pod, errors) = admit_with_account(pod);
        // An API server discards the status of a created pod: that in the output of `kubectl get -o yaml` is another pod's.
        pod.status = None;
        if pod.metadata.uid.is_none() {
            pod.metadata.uid = Some(uid(self.file, self.parsed.pods.len(), &pod));
        }
        self.errors(node, path, errors, sound);
        let pod = Pod::new(pod).with_origin(self.file);
        self.parsed
            .without_grace
            .extend(names_no_grace.then(|| format!("pod {}", pod.full_name())));
        self.parsed.pods.push(pod);
    }

    /// Decodes an object and reports values that cannot be decoded, or are not supported. The flag is whether all other errors have
    /// independent causes.
    fn decoded<T>(&mut self, node: &Node, path: &str) -> Option<(T, bool)>
    where
        T: DeserializeOwned + Serialize,
    {
        let (found, findings) = decode::decode::<T>(node);
        let sound = self.findings(findings, path);
        let found = found?;
        // Checked before defaults are applied, so that only the author's fields are reported.
        self.unsupported(node, path, support::of_table(&TypedValue::of(&found)));
        Some((found, sound))
    }

    /// Reports fields of the object at `path`.
    fn unsupported(&mut self, node: &Node, path: &str, fields: Vec<Unsupported>) {
        for unsupported in fields {
            let place = node.locate(&unsupported.field);
            let field = full_path(path, &unsupported.field);
            let reported = self.at(place, &field, &unsupported.message);
            match unsupported.severity {
                Severity::NoEffect => self.parsed.no_effect.push(reported),
                Severity::Warning => self.parsed.warnings.push(reported),
                Severity::Fatal => {
                    let object = storage::full_name(node);
                    self.parsed.problems.push(Problem { object, ..reported });
                }
            }
        }
    }

    /// Reports values that could not be decoded. Returns whether all other errors have independent causes.
    fn findings(&mut self, findings: Vec<decode::Finding>, path: &str) -> bool {
        let mut sound = true;
        for finding in findings {
            let field = full_path(path, &finding.path);
            if finding.unknown_field && self.strictness == Strictness::Lenient {
                self.warning(finding.place, &field, &finding.message);
            } else {
                self.problem(finding.place, &field, &finding.message);
                // An unknown field causes no other errors; a mismatched value, which was replaced by an empty one, could.
                sound &= finding.unknown_field;
            }
        }
        sound
    }

    /// Reports invalid values.
    fn errors(&mut self, node: &Node, path: &str, mut errors: Vec<FieldError>, sound: bool) {
        if !sound {
            // Fields that failed to decode were reported already.
            let named = self.parsed.problems.iter();
            let named: Vec<String> = named.map(|problem| problem.path.clone()).collect();
            errors.retain(|error| {
                let field = full_path(path, &error.field);
                !named.iter().any(|undecoded| is_consequence(&field, undecoded))
            });
        }
        for error in errors {
            self.problem(
                node.locate(&error.field),
                &full_path(path, &error.field),
                &error.to_string(),
            );
        }
    }
}

/// Whether the error of a field is a consequence of a value that could not be decoded, and was replaced by an empty one. For some keys
/// in brackets, the path of the error has fewer steps: `spec.resources[storage]` for `spec.resources.requests.storage`.
fn is_consequence(field: &str, undecoded: &str) -> bool {
    let key = field.strip_suffix(']').and_then(|field| field.rsplit_once('['));
    let is_step = |(map, key): (&str, &str)| {
        let steps = undecoded.strip_prefix(map);
        steps.is_some_and(|steps| steps.ends_with(&format!(".{key}")))
    };
    field == undecoded || key.is_some_and(is_step)
}

/// The path of a field of the object at `path`.
fn full_path(path: &str, field: &str) -> String {
    match (path.is_empty(), field.is_empty()) {
        (true, _) => field.to_owned(),
        (false, true) => path.to_owned(),
        (false, false) => format!("{path}.{field}"),
    }
}

/// An empty document, as between two `---`.
fn is_empty(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar { text, plain: true } if scalar::plain(text) == scalar::Plain::Null)
}

/// Derives a uid for a pod without one: 32 hex digits from its content and position, so that it is stable.
fn uid(file: &str, index: usize, pod: &ApiPod) -> String {
    let content = TypedValue::of(pod).json();
    hex_hash(&format!("{file}\0{index}\0{content}"))
}

fn hex_hash(text: &str) -> String {
    format!("{:032x}", hash(text.as_bytes()))
}
