//! ◆ Decodes the manifest of a static pod as a kubelet does, and converts it to this node's pod. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/config/common.go. Unknown fields are ignored and only the first document is used, as in the
//! kubelet's decoder; `references` finds references that a static pod must not have.

mod localize;
mod references;

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use serde::de::IgnoredAny;

use super::scalar::{Plain, plain};
use super::tree::{self, Contents, Node, Policy, Position, Value};
use super::{FieldError, Problem, decode, defaults, is_empty, problem_at, support, validate};
use localize::localize;

/// The kinds of the core API group, which a kubelet can decode.
const CORE_KINDS: &str = "Binding ComponentStatus ComponentStatusList ConfigMap ConfigMapList Endpoints \
    EndpointsList Event EventList LimitRange LimitRangeList List Namespace NamespaceList \
    Node NodeList NodeProxyOptions PersistentVolume PersistentVolumeClaim \
    PersistentVolumeClaimList PersistentVolumeList Pod PodAttachOptions PodExecOptions \
    PodList PodLogOptions PodPortForwardOptions PodProxyOptions PodStatusResult PodTemplate \
    PodTemplateList RangeAllocation ReplicationController ReplicationControllerList \
    ResourceQuota ResourceQuotaList Secret SecretList SerializedReference Service \
    ServiceAccount ServiceAccountList ServiceList ServiceProxyOptions Status";

/// The size from which on a kubelet rejects a manifest, in bytes.
pub const MAX_BYTES: usize = 10 * 1024 * 1024;

/// The origin of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// A file with this path.
    File(&'a str),
    /// An HTTP URL.
    Url(&'a str),
}

impl Location<'_> {
    /// The location in messages: a URL without its credentials and query, which may be secret.
    pub fn shown(&self) -> Cow<'_, str> {
        let url = match self {
            Self::File(path) => return Cow::Borrowed(path),
            Self::Url(url) => url,
        };
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let Some((scheme, rest)) = url.split_once("://") else {
            return Cow::Borrowed(url);
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = host.rsplit('@').next().unwrap_or_default();
        Cow::Owned(format!("{scheme}://{host}/{path}"))
    }
}

/// Why a kubelet does not run a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// It has [`MAX_BYTES`] or more.
    TooLarge,
    /// It is neither YAML nor JSON.
    Syntax,
    /// `apiVersion` and `kind` are absent, or are not those of a core object.
    Kind,
    /// A value has the wrong type.
    Decode,
    /// It is an object other than a Pod.
    NotAPod,
    /// The pod has no name.
    MissingName,
    /// The pod is invalid.
    Validation,
    /// The pod refers to an object of the API server.
    ApiReference,
    /// The pod has fields that this agent does not implement; a kubelet would run it.
    Unsupported,
}

/// A manifest that a kubelet does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Rejected {
    /// The first step that failed.
    pub class: ErrorClass,
    /// The problems, each with its position.
    pub problems: Vec<Problem>,
    /// The invalid fields, for [`ErrorClass::Validation`].
    pub errors: Vec<FieldError>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

/// Decodes the manifest of one pod, or of none if this agent cannot run it. It may refer to API objects if `may_refer`.
pub fn supported_pod(
    location: Location<'_>,
    node_name: &str,
    may_refer: bool,
    bytes: &[u8],
) -> Result<ApiPod, Rejected> {
    let manifest = Manifest { may_refer, ..Manifest::new(location, node_name, bytes)? };
    supported(location, manifest.single()?)
}

/// Like [`supported_pod`], for the manifest of one pod, or a PodList. One invalid pod makes the whole list fail.
pub fn supported_pods(
    location: Location<'_>,
    node_name: &str,
    may_refer: bool,
    bytes: &[u8],
) -> Result<Vec<ApiPod>, Rejected> {
    let manifest = Manifest { may_refer, ..Manifest::new(location, node_name, bytes)? };
    manifest.all()?.into_iter().map(|pod| supported(location, pod)).collect()
}

fn supported(location: Location<'_>, pod: ApiPod) -> Result<ApiPod, Rejected> {
    let problems: Vec<Problem> = support::of_pod(&pod)
        .iter()
        .filter(|unsupported| unsupported.severity == support::Severity::Fatal)
        .map(|unsupported| {
            let place = Position { line: 1, column: 1 };
            let (path, message) = (&unsupported.field, &unsupported.message);
            problem_at(&location.shown(), "", place, path, message)
        })
        .collect();
    if problems.is_empty() {
        return Ok(pod);
    }
    Err(Rejected { class: ErrorClass::Unsupported, problems, errors: Vec::new() })
}

/// Decodes the manifest of one pod.
pub fn pod(location: Location<'_>, node_name: &str, bytes: &[u8]) -> Result<ApiPod, Rejected> {
    Manifest::new(location, node_name, bytes)?.single()
}

/// A manifest that is being decoded.
struct Manifest<'a> {
    location: Location<'a>,
    node_name: &'a str,
    /// Whether its pods may refer to API objects (gate PreventStaticPodAPIReferences).
    may_refer: bool,
    text: Cow<'a, str>,
}

impl<'a> Manifest<'a> {
    fn new(location: Location<'a>, node_name: &'a str, bytes: &'a [u8]) -> Result<Self, Rejected> {
        let empty = Self { location, node_name, may_refer: false, text: Cow::Borrowed("") };
        if bytes.len() >= MAX_BYTES {
            return Err(empty.rejected(
                ErrorClass::TooLarge,
                Position::default(),
                "",
                "the manifest has 10 MiB or more",
            ));
        }
        match text(bytes) {
            Ok(text) => Ok(Self { text, ..empty }),
            Err(message) => {
                Err(empty.rejected(ErrorClass::Syntax, Position::default(), "", message))
            }
        }
    }

    /// Its only pod.
    fn single(&self) -> Result<ApiPod, Rejected> {
        let root = self.root()?;
        match self.kind(&root)? {
            "Pod" => self.pod(&root),
            other => Err(self.at(
                ErrorClass::NotAPod,
                &root,
                "kind",
                &format!("expected a Pod, found a {other}"),
            )),
        }
    }

    /// Its pod, or those of its PodList.
    fn all(&self) -> Result<Vec<ApiPod>, Rejected> {
        let root = self.root()?;
        match self.kind(&root)? {
            "Pod" => Ok(vec![self.pod(&root)?]),
            "PodList" => match root.get("items").map(|items| &items.value) {
                None => Ok(Vec::new()),
                Some(items) => match &items.value {
                    Value::Sequence(items) => items.iter().map(|item| self.pod(item)).collect(),
                    Value::Scalar { .. } if is_empty(items) => Ok(Vec::new()),
                    Value::Scalar { .. } | Value::Mapping(_) => {
                        Err(self.at(ErrorClass::Decode, &root, "items", "expected a list of pods"))
                    }
                },
            },
            other => Err(self.at(
                ErrorClass::NotAPod,
                &root,
                "kind",
                &format!("expected a Pod or a PodList, found a {other}"),
            )),
        }
    }

    fn rejected(&self, class: ErrorClass, place: Position, path: &str, message: &str) -> Rejected {
        Rejected { class, problems: vec![self.problem(place, path, message)], errors: Vec::new() }
    }

    fn problem(&self, place: Position, path: &str, message: &str) -> Problem {
        let place = Position { line: place.line.max(1), column: place.column.max(1) };
        let line = self.text.lines().nth(place.line - 1).unwrap_or_default();
        problem_at(&self.location.shown(), line, place, path, message)
    }

    /// An error at the field `path` of `node`.
    fn at(&self, class: ErrorClass, node: &Node, path: &str, message: &str) -> Rejected {
        self.rejected(class, node.locate(path), path, message)
    }

    /// The first document; null for an empty text.
    fn root(&self) -> Result<Node, Rejected> {
        let syntax = |place, message: &str| self.rejected(ErrorClass::Syntax, place, "", message);
        if is_json(&self.text) {
            if let Err(error) = serde_json::from_str::<IgnoredAny>(&self.text) {
                let place = Position { line: error.line(), column: error.column() };
                return Err(syntax(place, &format!("not valid JSON: {error}")));
            }
        } else if let Some(place) = tree::control_character(&self.text) {
            return Err(syntax(place, "control characters are not allowed"));
        }
        let Contents { mut documents, errors, .. } = tree::read(&self.text, Policy::Kubelet);
        if let Some(error) = errors.first() {
            return Err(syntax(error.place, &error.message));
        }
        if let Some(place) = documents.first().and_then(not_finite) {
            return Err(syntax(place, "infinity and NaN have no form in JSON"));
        }
        Ok(documents.pop().unwrap_or(Node {
            place: Position { line: 1, column: 1 },
            value: Value::Scalar { text: String::new(), plain: true },
        }))
    }

    /// The kind, if it belongs to the core API group.
    fn kind<'n>(&self, root: &'n Node) -> Result<&'n str, Rejected> {
        let wrong = |path: &str, message: &str| self.at(ErrorClass::Kind, root, path, message);
        let Value::Mapping(entries) = &root.value else {
            return Err(wrong("", "expected a Pod: an object with apiVersion and kind"));
        };
        // The kubelet looks these two up case-insensitively.
        let text = |key: &str| {
            let value = root.get(key).map(|entry| &entry.value).or_else(|| {
                let mut folded = entries.iter();
                folded.find(|entry| entry.key.eq_ignore_ascii_case(key)).map(|entry| &entry.value)
            });
            match value {
                Some(value) if is_empty(value) => Ok(""),
                Some(value) => {
                    as_text(value).ok_or_else(|| wrong(key, "expected text, such as v1 and Pod"))
                }
                None => Ok(""),
            }
        };
        let (version, kind) = (text("apiVersion")?, text("kind")?);
        if kind.is_empty() {
            return Err(wrong("kind", "missing: expected Pod"));
        }
        if version.is_empty() {
            return Err(wrong("apiVersion", "missing: expected v1"));
        }
        if version.strip_prefix('/').unwrap_or(version) != "v1" {
            return Err(wrong("apiVersion", &format!("expected v1, found {version:?}")));
        }
        if !CORE_KINDS.split(' ').any(|known| known == kind) {
            return Err(wrong("kind", &format!("expected Pod, found {kind:?}")));
        }
        Ok(kind)
    }

    fn pod(&self, node: &Node) -> Result<ApiPod, Rejected> {
        let (decoded, findings) = decode::decode::<ApiPod>(&as_pod(node));
        let mismatches: Vec<Problem> = findings
            .iter()
            .filter(|finding| !finding.unknown_field)
            .map(|finding| self.problem(finding.place, &finding.path, &finding.message))
            .collect();
        let Some(mut pod) = decoded.filter(|_| mismatches.is_empty()) else {
            return Err(Rejected {
                class: ErrorClass::Decode,
                problems: mismatches,
                errors: Vec::new(),
            });
        };
        if pod.metadata.name.as_deref().unwrap_or_default().is_empty() {
            return Err(self.at(
                ErrorClass::MissingName,
                node,
                "metadata.name",
                "a static pod needs a name",
            ));
        }
        defaults::apply(&mut pod);
        localize(&mut pod, self.location, self.node_name);
        let errors = validate::pod(&pod);
        if !errors.is_empty() {
            let problems = errors
                .iter()
                .map(|error| {
                    self.problem(node.locate(&error.field), &error.field, &error.to_string())
                })
                .collect();
            return Err(Rejected { class: ErrorClass::Validation, problems, errors });
        }
        let reference = match self.may_refer {
            true => references::to_unsupported_objects(&pod),
            false => references::to_api_objects(&pod),
        };
        if let Some(reference) = reference {
            return Err(self.at(
                ErrorClass::ApiReference,
                node,
                reference.field,
                &format!("static pods may not reference {}", reference.resource),
            ));
        }
        Ok(pod)
    }
}

/// The pod's tree with `apiVersion` and `kind`, which items of a list may omit.
fn as_pod(node: &Node) -> Node {
    let mut node = node.clone();
    let place = node.place;
    if let Value::Mapping(entries) = &mut node.value {
        entries.retain(|entry| !matches!(entry.key.as_str(), "apiVersion" | "kind"));
        for (key, text) in [("apiVersion", "v1"), ("kind", "Pod")] {
            entries.push(tree::Entry {
                key: key.to_owned(),
                key_place: place,
                value: Node { place, value: Value::Scalar { text: text.to_owned(), plain: false } },
            });
        }
    }
    node
}

/// The position of the first number that JSON cannot represent.
fn not_finite(node: &Node) -> Option<Position> {
    match &node.value {
        Value::Scalar { text, plain: true } => match plain(text) {
            Plain::Float(number) => (!number.is_finite()).then_some(node.place),
            Plain::Null | Plain::Bool(_) | Plain::Int(_) | Plain::Text(_) => None,
        },
        Value::Scalar { plain: false, .. } => None,
        Value::Sequence(items) => items.iter().find_map(not_finite),
        Value::Mapping(entries) => entries.iter().find_map(|entry| not_finite(&entry.value)),
    }
}

/// The value of a scalar that is text rather than a number or a boolean.
fn as_text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar { text, plain: true } => match plain(text) {
            Plain::Text(text) => Some(text),
            Plain::Null | Plain::Bool(_) | Plain::Int(_) | Plain::Float(_) => None,
        },
        Value::Scalar { text, plain: false } => Some(text),
        Value::Sequence(_) | Value::Mapping(_) => None,
    }
}

/// Whether the kubelet treats the text as JSON.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The text of a manifest: UTF-8, or UTF-16 with a byte order mark. JSON may have invalid bytes in its strings.
fn text(bytes: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        if !bytes.len().is_multiple_of(2) {
            return Err("not valid UTF-16");
        }
        let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
        char::decode_utf16(units)
            .collect::<Result<String, _>>()
            .map(Cow::Owned)
            .map_err(|_| "not valid UTF-16")
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => {
            std::str::from_utf8(rest).map_or(Err("not valid UTF-8"), |text| Ok(Cow::Borrowed(text)))
        }
        _ => match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(text) => Ok(Cow::Borrowed(text)),
            Cow::Owned(text) if is_json(&text) => Ok(Cow::Owned(text)),
            Cow::Owned(_) => Err("not valid UTF-8"),
        },
    }
}

#[cfg(test)]
mod tests;
