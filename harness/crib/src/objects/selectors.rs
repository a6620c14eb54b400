//! ◆ Label selectors and field selectors with kubectl's grammar. Pure.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/labels/selector.go and apimachinery/pkg/fields/selector.go; the fields of kinds are
//! those of pkg/registry.

use std::str::FromStr;

use serde_json::Value;

/// A label selector: `app=web,tier in (a, b),!canary`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels(Vec<Requirement>);

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

/// The condition of a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Above(i64),
    Below(i64),
}

impl Labels {
    /// Whether the selector matches the object.
    pub(crate) fn match_object(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        self.accept(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str))
    }

    /// Whether the selector matches labels with these values.
    pub(crate) fn accept<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.0.iter().all(|requirement| requirement.test.accepts(label(&requirement.key)))
    }
}

impl Test {
    fn accepts(&self, value: Option<&str>) -> bool {
        let listed = |values: &[String]| value.is_some_and(|of| values.iter().any(|v| v == of));
        let number = value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => listed(values),
            Self::NotIn(values) => !listed(values),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::Above(limit) => number.is_some_and(|number| number > *limit),
            Self::Below(limit) => number.is_some_and(|number| number < *limit),
        }
    }
}

/// The tokens of a label selector: operators, parentheses, commas and words.
fn tokens(mut rest: &str) -> Vec<&str> {
    let is_special = |c: char| "()=!<>,".contains(c) || c.is_whitespace();
    let mut all = Vec::new();
    loop {
        rest = rest.trim_start();
        let length = match rest {
            "" => return all,
            _ if rest.starts_with("==") || rest.starts_with("!=") => 2,
            _ if rest.starts_with(is_special) => 1,
            _ => rest.find(is_special).unwrap_or(rest.len()),
        };
        let (token, behind) = rest.split_at(length);
        all.push(token);
        rest = behind;
    }
}

fn is_word(token: Option<&&str>) -> bool {
    token.is_some_and(|token| !token.starts_with(|c| "()=!<>,".contains(c)))
}

/// A parser at a position in a label selector.
struct LabelParser<'t> {
    tokens: std::iter::Peekable<std::vec::IntoIter<&'t str>>,
}

impl<'t> LabelParser<'t> {
    fn all(mut self) -> Result<Vec<Requirement>, String> {
        let mut all = Vec::new();
        if self.tokens.peek().is_none() {
            return Ok(all);
        }
        loop {
            all.push(self.requirement()?);
            match self.tokens.next() {
                None => return Ok(all),
                Some(",") => {}
                Some(token) => return Err(format!("found {token:?}, expected ',' or the end")),
            }
        }
    }

    fn word(&mut self) -> Result<&'t str, String> {
        match self.tokens.next() {
            token if is_word(token.as_ref()) => Ok(token.unwrap_or_default()),
            Some(token) => Err(format!("found {token:?}, expected a label")),
            None => Err("found the end, expected a label".to_owned()),
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let missing = self.tokens.next_if_eq(&"!").is_some();
        let key = label_key(self.word()?)?;
        let end = self.tokens.peek().is_none_or(|token| *token == ",");
        let test = match missing {
            true => Test::Missing,
            false if end => Test::Exists,
            false => self.test()?,
        };
        Ok(Requirement { key, test })
    }

    fn test(&mut self) -> Result<Test, String> {
        let operator = self.tokens.next().unwrap_or_default();
        match operator {
            "in" => self.values().map(Test::In),
            "notin" => self.values().map(Test::NotIn),
            "=" | "==" => Ok(Test::In(vec![self.value()?])),
            "!=" => Ok(Test::NotIn(vec![self.value()?])),
            ">" => self.number().map(Test::Above),
            "<" => self.number().map(Test::Below),
            _ => Err(format!("found {operator:?}, expected in, notin, =, ==, !=, < or >")),
        }
    }

    /// Parses a value, which may be empty.
    fn value(&mut self) -> Result<String, String> {
        match is_word(self.tokens.peek()) {
            true => label_value(self.tokens.next().unwrap_or_default()),
            false => Ok(String::new()),
        }
    }

    fn number(&mut self) -> Result<i64, String> {
        let value = self.value()?;
        value.parse().map_err(|_| format!("{value:?} is not an integer, as < and > need"))
    }

    /// Parses values in parentheses; each may be empty.
    fn values(&mut self) -> Result<Vec<String>, String> {
        if self.tokens.next() != Some("(") {
            return Err("expected '(' after in or notin".to_owned());
        }
        let mut all = Vec::new();
        loop {
            all.push(self.value()?);
            match self.tokens.next() {
                Some(",") => {}
                Some(")") => return Ok(all),
                Some(token) => return Err(format!("found {token:?}, expected ',' or ')'")),
                None => return Err("expected ')'".to_owned()),
            }
        }
    }
}

/// Whether text has at most 63 letters, digits, `-`, `_` and `.`, and begins and ends with a letter or digit.
fn is_label_name(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn label_key(text: &str) -> Result<String, String> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(p, n)| (Some(p), n));
    let is_prefix = |prefix: &str| {
        let is_part = |part: &str| is_label_name(part) && !part.contains('_');
        prefix.len() <= 253 && prefix.split('.').all(is_part)
    };
    match is_label_name(name) && prefix.is_none_or(is_prefix) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a label's name")),
    }
}

fn label_value(text: &str) -> Result<String, String> {
    match is_label_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a label's value")),
    }
}

impl FromStr for Labels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let tokens = tokens(text).into_iter().peekable();
        LabelParser { tokens }.all().map(Self)
    }
}

/// A field selector: `status.phase=Running,metadata.name!=web`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<FieldTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

/// The selectable fields of every kind.
const FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];
/// The additional selectable fields of kinds: the kind, the field, and its value if it is not set.
const KIND_FIELDS: [(&str, &str, &str); 24] = [
    ("Pod", "spec.nodeName", ""),
    ("Pod", "spec.restartPolicy", ""),
    ("Pod", "spec.schedulerName", ""),
    ("Pod", "spec.serviceAccountName", ""),
    ("Pod", "spec.hostNetwork", "false"),
    ("Pod", "status.phase", ""),
    ("Pod", "status.podIP", ""),
    ("Pod", "status.nominatedNodeName", ""),
    ("Event", "involvedObject.apiVersion", ""),
    ("Event", "involvedObject.fieldPath", ""),
    ("Event", "involvedObject.kind", ""),
    ("Event", "involvedObject.name", ""),
    ("Event", "involvedObject.namespace", ""),
    ("Event", "involvedObject.uid", ""),
    ("Event", "reason", ""),
    ("Event", "reportingComponent", ""),
    ("Event", "source", ""),
    ("Event", "type", ""),
    ("Job", "status.successful", "0"),
    ("Namespace", "status.phase", ""),
    ("ReplicationController", "status.replicas", "0"),
    ("Secret", "type", "Opaque"),
    ("Service", "spec.clusterIP", ""),
    ("Service", "spec.type", "ClusterIP"),
];

impl Fields {
    /// Whether the selector matches the object.
    pub(crate) fn match_object(&self, object: &Value) -> bool {
        self.0.iter().all(|term| (value_of(object, &term.path) == term.value) == term.equal)
    }

    /// Checks that a kind supports all fields of the selector.
    pub(crate) fn check(&self, kind: &str) -> Result<(), String> {
        let known = |path: &str| FIELDS.contains(&path) || kind_field(kind, path).is_some();
        match self.0.iter().find(|term| !known(&term.path)) {
            Some(term) => Err(format!("field label not supported for kind {kind}: {}", term.path)),
            None => Ok(()),
        }
    }
}

/// The value of a selectable field of a kind if it is not set.
fn kind_field(kind: &str, path: &str) -> Option<&'static str> {
    let mut fields = KIND_FIELDS.iter();
    fields.find(|field| field.0 == kind && field.1 == path).map(|field| field.2)
}

/// The value of a selectable field as text.
fn value_of(object: &Value, path: &str) -> String {
    let place = match path {
        "status.successful" => "status.succeeded",
        "source" => "source.component",
        path => path,
    };
    match place.split('.').try_fold(object, |value, field| value.get(field)) {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::String(_) | Value::Null | Value::Array(_) | Value::Object(_)) | None => {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
            kind_field(kind, path).unwrap_or_default().to_owned()
        }
    }
}

/// Splits a field selector at commas; a backslash escapes the next character.
fn terms(text: &str) -> Vec<&str> {
    let (mut all, mut from, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                all.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    all.extend(text.get(from..));
    all.retain(|term| !term.is_empty());
    all
}

fn field_term(term: &str) -> Result<FieldTerm, String> {
    let invalid = || format!("{term:?} is not FIELD=VALUE, FIELD==VALUE or FIELD!=VALUE");
    let at = term.find(['=', '!']).ok_or_else(invalid)?;
    let (path, rest) = term.split_at(at);
    let operators = [("!=", false), ("==", true), ("=", true)];
    let found =
        operators.iter().find_map(|(operator, equal)| Some((rest.strip_prefix(operator)?, *equal)));
    let (text, equal) = found.ok_or_else(invalid)?;
    let mut value = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some(escaped @ ('\\' | ',' | '=')) => value.push(escaped),
                _ => return Err(format!("invalid escape sequence in {term:?}")),
            },
            '=' => return Err(invalid()),
            c => value.push(c),
        }
    }
    Ok(FieldTerm { path: path.trim().to_owned(), value, equal })
}

impl FromStr for Fields {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        terms(text).into_iter().map(field_term).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests;
