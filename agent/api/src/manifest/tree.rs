//! Parses YAML or JSON into trees of values with positions.

use std::borrow::Cow;
use std::ops::ControlFlow;

use compact::Map;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use super::json::{Part, for_yaml, is_json, parts};
use super::lenient_yaml::Repairs;
use super::scalar::{Plain, decode_base64, plain as meaning};
use super::text_limits::{MAX_COMMAS, excess_comma, excess_value};

/// The maximum nesting depth of values; a pod needs about a dozen levels.
const MAX_DEPTH: usize = 64;
/// The maximum number of values of a text with its aliases expanded; guards against alias bombs.
const MAX_VALUES: usize = 200_000;
/// The maximum memory of the copies of anchored values, in bytes: one long value may have many aliases.
const MAX_COPIED: usize = 64 << 20;

/// A position in the text: line and column in characters, both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Position,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Whether it may be a number, a boolean or null: it is written without quotes, or its tag is of such a type.
        plain: bool,
    },
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// One `key: value`.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_place: Position,
    pub(super) value: Node,
}

/// The two policies of the decoder. Of equal keys the last one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// For an author's manifest: every document is used.
    Author,
    /// As a kubelet reads static pods: the first document is used.
    Kubelet,
}

/// The content of a text.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The documents that are used.
    pub(super) documents: Vec<Node>,
    /// The errors that stopped the parser.
    pub(super) errors: Vec<SyntaxError>,
    /// Repeated keys of objects.
    pub(super) duplicates: Vec<SyntaxError>,
}

/// A syntax error.
#[derive(Clone, Debug)]
pub(super) struct SyntaxError {
    pub(super) place: Position,
    pub(super) message: String,
}

/// Parses the documents that are used. A syntax error stops the parser; the documents before it are still returned.
pub(super) fn read(text: &str, policy: Policy) -> Contents {
    let overlays = policy == Policy::Kubelet && is_json(text);
    let mut builder = Builder { overlays, ..Builder::default() };
    let parts = match policy {
        Policy::Author => parts(text),
        Policy::Kubelet => vec![Part::whole(text)],
    };
    for part in parts {
        builder.part = (part.lines, part.columns);
        builder.repairs = Repairs::default();
        if builder.read(part.text, policy).is_break() {
            break;
        }
    }
    builder.contents
}

/// The first character that YAML does not allow.
pub(super) fn control_character(text: &str) -> Option<Position> {
    let printable = |c: char| {
        matches!(c,
            '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}'
            | '\u{10000}'..)
    };
    let at = text.find(|c| !printable(c))?;
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    Some(Position { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 })
}

/// Why a collection cannot be a key. An unrendered template looks like one.
const NO_KEY: &str = "a list or an object cannot be a key: render a template with {{ … }} first, for example with helm template";

/// A collection that is still open.
enum Open {
    Sequence {
        place: Position,
        anchor: usize,
        items: Vec<Node>,
    },
    Mapping {
        place: Position,
        anchor: usize,
        entries: Vec<Entry>,
        /// Each key's first line, and its index in `entries`.
        known: Map<String, (usize, usize)>,
        key: Option<(String, Position)>,
    },
}

/// What stops the parser.
enum Stop {
    Scan(ScanError),
    Here(SyntaxError),
}

#[derive(Default)]
struct Builder {
    contents: Contents,
    open: Vec<Open>,
    anchors: Map<usize, Node>,
    values: usize,
    /// The bytes of all copies of anchored values so far.
    copied: usize,
    /// Whether the value of an equal key is merged over the first one, as Go decodes JSON.
    overlays: bool,
    /// The number of lines before the parsed part, and of characters before it in its line.
    part: (usize, usize),
    /// The repairs of the part.
    repairs: Repairs,
}

impl Builder {
    /// Parses the documents of a text, until there are enough or one is invalid. Deviations from YAML that kubectl allows are
    /// repaired, and then the text is parsed again.
    fn read(&mut self, text: &str, policy: Policy) -> ControlFlow<()> {
        if let Some(error) = self.excess(text) {
            self.contents.errors.push(error);
            return ControlFlow::Break(());
        }
        let mut text = for_yaml(text);
        let known = (self.contents.documents.len(), self.contents.duplicates.len());
        let counted = (self.values, self.copied);
        loop {
            let error = match self.read_once(&text, policy) {
                Ok(flow) => return flow,
                Err(error) => error,
            };
            let repaired = match &error {
                Stop::Scan(error) => self.repairs.repair(&text, error),
                Stop::Here(_) => None,
            };
            let Some(repaired) = repaired else {
                let error = match error {
                    Stop::Scan(error) => self.syntax(&error),
                    Stop::Here(error) => error,
                };
                self.contents.errors.push(error);
                return ControlFlow::Break(());
            };
            text = Cow::Owned(repaired);
            self.contents.documents.truncate(known.0);
            self.contents.duplicates.truncate(known.1);
            (self.values, self.copied) = counted;
            self.open.clear();
            self.anchors.clear();
        }
    }

    /// The error of a text that exceeds the limits of the parser.
    fn excess(&self, text: &str) -> Option<SyntaxError> {
        if let Some(offset) = excess_value(text, MAX_VALUES) {
            return Some(too_many_values(self.place_of_byte(text, offset)));
        }
        excess_comma(text).map(|offset| SyntaxError {
            place: self.place_of_byte(text, offset),
            message: format!("more than {MAX_COMMAS} commas in one file: split the file"),
        })
    }

    /// The position of a byte of the part that is to be parsed.
    fn place_of_byte(&self, text: &str, offset: usize) -> Position {
        let (lines, columns) = self.part;
        let before = text.get(..offset).unwrap_or_default();
        let in_line = before.rsplit('\n').next().unwrap_or_default();
        let is_first = in_line.len() == before.len();
        Position {
            line: lines + 1 + before.matches('\n').count(),
            column: 1 + in_line.chars().count() + if is_first { columns } else { 0 },
        }
    }

    fn read_once(&mut self, text: &str, policy: Policy) -> Result<ControlFlow<()>, Stop> {
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(Stop::Scan)?;
            self.take(event, span).map_err(Stop::Here)?;
            if policy == Policy::Kubelet && !self.contents.documents.is_empty() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn place(&self, at: Marker) -> Position {
        let (lines, columns) = self.part;
        let line = at.line().max(1);
        let column = at.col().saturating_sub(self.repairs.before(line));
        Position { line: lines + line, column: column + 1 + if line == 1 { columns } else { 0 } }
    }

    fn syntax(&self, error: &ScanError) -> SyntaxError {
        SyntaxError {
            place: self.place(*error.marker()),
            message: format!("not valid YAML: {}", error.info()),
        }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        let place = self.place(span.start);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Alias(anchor) => {
                let node = self.alias(anchor, place)?;
                self.put(Node { place, ..node }, 0)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = is_plain(style, tag.as_deref());
                let text = match is_core(tag.as_deref(), &["binary"]) {
                    true => binary(&text).ok_or_else(|| SyntaxError {
                        place,
                        message: "expected base64 after the tag !!binary".to_owned(),
                    })?,
                    false => text.into_owned(),
                };
                self.put(Node { place, value: Value::Scalar { text, plain } }, anchor)
            }
            Event::SequenceStart(anchor, _) => {
                self.begin(place, Open::Sequence { place, anchor, items: Vec::new() })
            }
            Event::MappingStart(anchor, _) => self.begin(
                place,
                Open::Mapping { place, anchor, entries: Vec::new(), known: Map::new(), key: None },
            ),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
        }
    }

    fn begin(&mut self, place: Position, open: Open) -> Result<(), SyntaxError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(SyntaxError {
                place,
                message: format!("nested more than {MAX_DEPTH} levels deep"),
            });
        }
        if let Some(Open::Mapping { key: None, .. }) = self.open.last() {
            return Err(SyntaxError { place, message: NO_KEY.to_owned() });
        }
        self.open.push(open);
        Ok(())
    }

    /// Copies an anchored value. Its size is checked first, because copies may exhaust the memory.
    fn alias(&mut self, anchor: usize, place: Position) -> Result<Node, SyntaxError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(SyntaxError { place, message: self.dangling(anchor).to_owned() });
        };
        let values = self.values + size(node);
        if values > MAX_VALUES {
            return Err(too_many_values(place));
        }
        let copied = self.copied + bytes(node);
        if copied > MAX_COPIED {
            return Err(too_long_copies(place));
        }
        let copy = node.clone();
        (self.values, self.copied) = (values, copied);
        Ok(copy)
    }

    /// Why an anchor has no value.
    fn dangling(&self, anchor: usize) -> &'static str {
        let mut open = self.open.iter();
        let is_open = open.any(|open| match open {
            Open::Sequence { anchor: of, .. } | Open::Mapping { anchor: of, .. } => *of == anchor,
        });
        match is_open {
            true => "an alias refers to an anchor that contains it",
            false => {
                "an alias refers to an anchor of another document: write the value out, because an anchor is valid only in its own document"
            }
        }
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        match self.open.pop() {
            Some(Open::Sequence { place, anchor, items }) => {
                self.put(Node { place, value: Value::Sequence(items) }, anchor)
            }
            Some(Open::Mapping { place, anchor, entries, .. }) => {
                let entries = merge(entries)?;
                self.put(Node { place, value: Value::Mapping(entries) }, anchor)
            }
            None => Ok(()),
        }
    }

    /// Adds a complete value to its parent.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), SyntaxError> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(too_many_values(node.place));
        }
        if anchor != 0 {
            // Each of several nested anchors keeps a copy.
            self.copied += bytes(&node);
            if self.copied > MAX_COPIED {
                return Err(too_long_copies(node.place));
            }
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.contents.documents.push(node),
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, known, key, .. }) => match key.take() {
                Some((key, key_place)) => {
                    let first = known.get(&key).filter(|_| key != MERGE).copied();
                    let entry = first.and_then(|(_, index)| entries.get_mut(index));
                    let (Some((line, _)), Some(entry)) = (first, entry) else {
                        known.insert(key.clone(), (key_place.line, entries.len()));
                        entries.push(Entry { key, key_place, value: node });
                        return Ok(());
                    };
                    let message = format!("duplicate key {key:?}, first given on line {line}");
                    self.contents.duplicates.push(SyntaxError { place: key_place, message });
                    // Replaced in place: there may be very many.
                    let below = std::mem::replace(&mut entry.value, node);
                    if self.overlays {
                        let nothing = Node { place: key_place, value: Value::Sequence(Vec::new()) };
                        let above = std::mem::replace(&mut entry.value, nothing);
                        entry.value = overlaid(below, above);
                    }
                    entry.key_place = key_place;
                }
                None => match node.value {
                    Value::Scalar { text, plain: true } if meaning(&text) == Plain::Null => {
                        return Err(SyntaxError {
                            place: node.place,
                            message: "null cannot be a key".to_owned(),
                        });
                    }
                    Value::Scalar { text, plain } => {
                        *key = Some((key_text(text, plain), node.place));
                    }
                    Value::Sequence(_) | Value::Mapping(_) => {
                        return Err(SyntaxError { place: node.place, message: NO_KEY.to_owned() });
                    }
                },
            },
        }
        Ok(())
    }
}

/// The key as kubectl and the kubelet write it in JSON: `on` is `"true"`, `0x10` is `"16"`.
fn key_text(text: String, plain: bool) -> String {
    if !plain {
        return text;
    }
    match meaning(&text) {
        Plain::Bool(value) => value.to_string(),
        Plain::Int(number) => number.to_string(),
        Plain::Float(number) if number.is_finite() => number.to_string(),
        Plain::Float(_) | Plain::Null | Plain::Text(_) => text,
    }
}

const MERGE: &str = "<<";

/// Merge key: `<<: *defaults` adds the entries of other mappings. As in kubectl (go.yaml.in/yaml/v2, `decoder.merge`), the last of
/// equal entries counts, so that an entry before the merge key is replaced. Of a list of mappings, the first one counts.
fn merge(entries: Vec<Entry>) -> Result<Vec<Entry>, SyntaxError> {
    if entries.iter().all(|entry| entry.key != MERGE) {
        return Ok(entries);
    }
    let (mut merged, mut known): (Vec<Entry>, Map<String, usize>) = (Vec::new(), Map::new());
    let mut add = |entry: Entry| match known.get(&entry.key).copied() {
        Some(index) => merged[index] = entry,
        None => {
            known.insert(entry.key.clone(), merged.len());
            merged.push(entry);
        }
    };
    for entry in entries {
        if entry.key == MERGE {
            merge_sources(entry.value)?.into_iter().for_each(&mut add);
        } else {
            add(entry);
        }
    }
    Ok(merged)
}

/// The entries that the value of a merge key adds; a later one replaces an equal one.
fn merge_sources(value: Node) -> Result<Vec<Entry>, SyntaxError> {
    let sources = match value.value {
        Value::Sequence(sources) => sources,
        Value::Scalar { .. } | Value::Mapping(_) => vec![value],
    };
    let mut added = Vec::new();
    for source in sources.into_iter().rev() {
        let Value::Mapping(entries) = source.value else {
            return Err(SyntaxError {
                place: source.place,
                message: format!("{MERGE} takes an object or a list of objects"),
            });
        };
        added.extend(entries);
    }
    Ok(added)
}

/// The value of a key that a JSON object has twice: Go decodes the second value over the first.
fn overlaid(first: Node, second: Node) -> Node {
    match (first.value, second.value) {
        (Value::Mapping(mut below), Value::Mapping(above)) => {
            for entry in above {
                match below.iter().position(|known| known.key == entry.key) {
                    Some(index) => {
                        let known = below.remove(index);
                        let value = overlaid(known.value, entry.value);
                        below.push(Entry { value, ..entry });
                    }
                    None => below.push(entry),
                }
            }
            Node { place: second.place, value: Value::Mapping(below) }
        }
        (Value::Mapping(_) | Value::Sequence(_) | Value::Scalar { .. }, value) => {
            Node { place: second.place, value }
        }
    }
}

/// Whether a scalar may be a number, a boolean or null. Of the tags, those of these types decide that it may, even in quotes; any
/// other tag makes it a text.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    match tag {
        None => style == ScalarStyle::Plain,
        Some(_) => is_core(tag, &["bool", "float", "int", "null"]),
    }
}

/// Whether a tag is one of these tags of YAML itself.
fn is_core(tag: Option<&Tag>, names: &[&str]) -> bool {
    tag.is_some_and(|tag| tag.is_yaml_core_schema() && names.contains(&tag.suffix.as_str()))
}

/// The text of a scalar with the tag `!!binary`.
fn binary(base64: &str) -> Option<String> {
    decode_base64(base64).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::Scalar { .. } => 1,
        Value::Sequence(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Mapping(entries) => {
            1 + entries.iter().map(|entry| size(&entry.value)).sum::<usize>()
        }
    }
}

/// The memory that a value takes, in bytes.
fn bytes(node: &Node) -> usize {
    let inside: usize = match &node.value {
        Value::Scalar { text, .. } => text.len(),
        Value::Sequence(items) => items.iter().map(bytes).sum(),
        Value::Mapping(entries) => {
            entries.iter().map(|entry| entry.key.len() + bytes(&entry.value)).sum()
        }
    };
    size_of::<Entry>() + inside
}

fn too_many_values(place: Position) -> SyntaxError {
    SyntaxError {
        place,
        message: format!(
            "more than {MAX_VALUES} values in one file, with aliases expanded: split the file"
        ),
    }
}

fn too_long_copies(place: Position) -> SyntaxError {
    let most = MAX_COPIED >> 20;
    SyntaxError {
        place,
        message: format!(
            "the values of this file's aliases take more than {most} MiB: use fewer aliases of long values"
        ),
    }
}

impl Node {
    /// The mapping's entry with this key.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Scalar { .. } | Value::Sequence(_) => None,
        }
    }

    /// The position of the last value in it.
    pub(super) fn last_place(&self) -> Position {
        let within = match &self.value {
            Value::Scalar { .. } => None,
            Value::Sequence(items) => items.iter().map(Self::last_place).max(),
            Value::Mapping(entries) => entries.iter().map(|entry| entry.value.last_place()).max(),
        };
        within.map_or(self.place, |within| within.max(self.place))
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    /// The position of the field at `path` (`spec.containers[1].image`), or of the innermost existing value around it.
    pub(super) fn locate(&self, path: &str) -> Position {
        let (mut node, mut place) = (self, self.place);
        for step in steps(path) {
            match (&node.value, step) {
                (Value::Mapping(_), Step::Key(key)) => match node.get(key) {
                    Some(entry) => (node, place) = (&entry.value, entry.key_place),
                    None => break,
                },
                (Value::Sequence(items), Step::Index(index)) => match items.get(index) {
                    Some(item) => (node, place) = (item, item.place),
                    None => break,
                },
                (Value::Scalar { .. } | Value::Mapping(_) | Value::Sequence(_), _) => break,
            }
        }
        // Point at a scalar itself, but at the name of a collection.
        if matches!(node.value, Value::Scalar { .. }) { node.place } else { place }
    }
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// Splits a path at dots outside of brackets.
fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = inner.split_once(']').unwrap_or((inner, ""));
            rest = after;
            return Some(inside.parse().map_or(Step::Key(inside), Step::Index));
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        rest = after;
        Some(Step::Key(key))
    })
}
