//! ◆ Formats values for people: the output of `Debug` without Rust's notation, and only the differences of two values.
//!
//! `Some(Container { id: "a", metadata: None, labels: {} })` becomes `{id: "a"}`: empty fields are omitted.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

/// The maximum number of differences that are listed; beyond it, the two values are shown.
const MOST_DIFFERENCES: usize = 6;

/// The fields of a [`tonic::Response`].
const ENVELOPE: [&str; 3] = ["metadata", "message", "extensions"];

/// The parsed output of `Debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DebugValue {
    /// A number, a variant, a time, or a string with its quotes.
    Word(String),
    /// A struct or a map: pairs in braces.
    Fields(Vec<(String, Self)>),
    /// A list in brackets.
    List(Vec<Self>),
    /// A tuple in parentheses, with the word before them.
    Tuple(String, Vec<Self>),
}

/// Whether a character changes the display order of later ones (Unicode, UAX 9: embeddings, overrides, isolates).
#[must_use]
pub fn reorders(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes control characters, and characters that change the display order of others.
#[must_use]
pub fn escape_control(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() || reorders(character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    escaped
}

/// One line of limited length, without characters that control a terminal.
#[must_use]
pub fn brief(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut line = String::new();
    for word in text.split_whitespace() {
        line += if line.is_empty() { "" } else { " " };
        line += word;
        if let Some((end, _)) = line.char_indices().nth(LONGEST) {
            return escape_control(line.get(..end).unwrap_or_default()) + "…";
        }
    }
    escape_control(&line)
}

/// A value on one line.
#[must_use]
pub fn plain(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    parse(&text).map_or(text, |shown| shown.to_string())
}

/// Formats two values that should be equal, the expected one first. If they have the same fields, only the different ones are
/// shown, with their names.
#[must_use]
pub fn difference(
    expected: &(impl fmt::Debug + ?Sized),
    seen: &(impl fmt::Debug + ?Sized),
) -> (String, String) {
    difference_of_texts((format!("{expected:?}"), format!("{seen:?}")))
}

/// [`difference`] for the output of `Debug`. It is not generic, so that it is compiled once.
fn difference_of_texts(texts: (String, String)) -> (String, String) {
    let (Some(expected), Some(seen)) = (parse(&texts.0), parse(&texts.1)) else {
        return texts;
    };
    let mut found = Vec::new();
    compare("", &expected, &seen, &mut found);
    if found.is_empty() || found.len() > MOST_DIFFERENCES {
        return (expected.to_string(), seen.to_string());
    }
    let side = |pick: for<'a> fn(&Difference<'a>) -> Option<&'a DebugValue>| {
        let each = found.iter().map(|one| {
            let value = pick(one).map_or_else(|| "absent".to_owned(), DebugValue::to_string);
            match one.at.is_empty() {
                true => value,
                false => format!("{}: {value}", one.at),
            }
        });
        each.collect::<Vec<_>>().join(", ")
    };
    (side(|one| one.expected), side(|one| one.seen))
}

/// A difference between two values; `None` if a value is missing.
struct Difference<'a> {
    /// The path of the field; empty for the values themselves.
    at: String,
    expected: Option<&'a DebugValue>,
    seen: Option<&'a DebugValue>,
}

fn compare<'a>(
    at: &str,
    expected: &'a DebugValue,
    seen: &'a DebugValue,
    found: &mut Vec<Difference<'a>>,
) {
    match (expected, seen) {
        (DebugValue::Fields(ours), DebugValue::Fields(theirs)) => {
            let value = |of: &'a [(String, DebugValue)], name: &str| {
                of.iter().find(|(one, _)| one == name).map(|(_, it)| it)
            };
            let names = ours.iter().map(|(name, _)| name);
            let more = theirs.iter().map(|(name, _)| name);
            let more = more.filter(|name| value(ours, name).is_none());
            for name in names.chain(more) {
                let at = below(at, name);
                match (value(ours, name), value(theirs, name)) {
                    (Some(expected), Some(seen)) => compare(&at, expected, seen, found),
                    (expected, seen) => found.push(Difference { at, expected, seen }),
                }
            }
        }
        (DebugValue::List(ours), DebugValue::List(theirs)) if ours.len() == theirs.len() => {
            for (index, (expected, seen)) in ours.iter().zip(theirs).enumerate() {
                compare(&format!("{at}[{index}]"), expected, seen, found);
            }
        }
        (expected, seen) if expected == seen => {}
        (expected, seen) => {
            found.push(Difference { at: at.to_owned(), expected: Some(expected), seen: Some(seen) })
        }
    }
}

/// The path of a field, or of a map's key, which has quotes.
fn below(at: &str, name: &str) -> String {
    match (at.is_empty(), name.starts_with('"')) {
        (true, _) => name.to_owned(),
        (false, true) => format!("{at}[{name}]"),
        (false, false) => format!("{at}.{name}"),
    }
}

impl DebugValue {
    /// The message of a response with headers ([`tonic::Response`]).
    fn without_envelope(mut self) -> Self {
        if let Self::Fields(fields) = &mut self
            && fields.iter().map(|(name, _)| name.as_str()).eq(ENVELOPE)
        {
            return fields.swap_remove(1).1;
        }
        self
    }

    /// Whether a client of the protocol cannot distinguish the value from an unset field.
    fn is_empty(&self) -> bool {
        match self {
            Self::Word(word) => word == "None" || word == "\"\"",
            Self::Fields(fields) => fields.iter().all(|(_, value)| value.is_empty()),
            Self::List(values) => values.is_empty(),
            Self::Tuple(..) => false,
        }
    }
}

impl fmt::Display for DebugValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separated = |values: &[Self]| -> String {
            values.iter().map(Self::to_string).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Word(word) if word == "None" => out.write_str("absent"),
            Self::Word(word) => out.write_str(word),
            Self::Fields(fields) => {
                let shown = fields.iter().filter(|(_, value)| !value.is_empty());
                let shown: Vec<String> =
                    shown.map(|(name, value)| format!("{name}: {value}")).collect();
                write!(out, "{{{}}}", shown.join(", "))
            }
            Self::List(values) => write!(out, "[{}]", separated(values)),
            Self::Tuple(name, values) => write!(out, "{name}({})", separated(values)),
        }
    }
}

/// Parses the output of `Debug`; `None` if it is not in the form of derived implementations.
fn parse(text: &str) -> Option<DebugValue> {
    let mut reader = Reader(text.chars().peekable());
    let value = reader.value()?;
    reader.skip_spaces();
    reader.0.next().is_none().then_some(value)
}

struct Reader<'a>(Peekable<Chars<'a>>);

impl Reader<'_> {
    fn skip_spaces(&mut self) {
        while self.0.next_if(|letter| letter.is_whitespace()).is_some() {}
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.skip_spaces();
        self.0.next_if_eq(&wanted).is_some()
    }

    fn value(&mut self) -> Option<DebugValue> {
        self.skip_spaces();
        match self.0.peek()? {
            '"' => Some(DebugValue::Word(self.quoted()?)),
            '[' => Some(DebugValue::List(self.values('[', ']')?)),
            '(' => Some(DebugValue::Tuple(String::new(), self.values('(', ')')?)),
            '{' => self.fields(),
            _ => self.named(),
        }
    }

    /// Parses a word, and the fields or values that follow it.
    fn named(&mut self) -> Option<DebugValue> {
        let word = self.word();
        if word.is_empty() {
            return None;
        }
        match self.0.peek() {
            Some('(') => {
                let mut values = self.values('(', ')')?;
                match (word.as_str(), values.len()) {
                    ("Some", 1) => values.pop(),
                    _ => Some(DebugValue::Tuple(word, values)),
                }
            }
            _ => {
                // A space and a brace mean a struct. Anything else does not belong to the word.
                let mut ahead = self.0.clone();
                let is_struct = ahead.next() == Some(' ') && ahead.next() == Some('{');
                match is_struct {
                    true => {
                        self.skip_spaces();
                        self.fields().map(DebugValue::without_envelope)
                    }
                    false => Some(DebugValue::Word(word)),
                }
            }
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(letter) = self.0.peek().copied() {
            let mut ahead = self.0.clone();
            ahead.next();
            // A time contains colons, too, but without a space after them.
            let ends_name = letter == ':' && ahead.peek().is_none_or(|next| *next == ' ');
            if ends_name || letter.is_whitespace() || ",()[]{}\"".contains(letter) {
                break;
            }
            word.push(letter);
            self.0.next();
        }
        word.strip_prefix("r#").map(str::to_owned).unwrap_or(word)
    }

    /// Parses a string with its quotes.
    fn quoted(&mut self) -> Option<String> {
        let mut text = String::from(self.0.next()?);
        loop {
            let letter = self.0.next()?;
            text.push(letter);
            match letter {
                '"' => return Some(text),
                '\\' => text.push(self.0.next()?),
                _ => {}
            }
        }
    }

    fn values(&mut self, open: char, close: char) -> Option<Vec<DebugValue>> {
        let mut values = Vec::new();
        if !self.takes(open) {
            return None;
        }
        while !self.takes(close) {
            values.push(self.value()?);
            if !self.takes(',') {
                return self.takes(close).then_some(values);
            }
        }
        Some(values)
    }

    /// Parses a struct's fields, a map, or a set, which is shown as a list.
    fn fields(&mut self) -> Option<DebugValue> {
        let (mut fields, mut values) = (Vec::new(), Vec::new());
        if !self.takes('{') {
            return None;
        }
        while !self.takes('}') {
            let name = self.value()?;
            match self.takes(':') {
                true => fields.push((name.to_string(), self.value()?)),
                false => values.push(name),
            }
            if !self.takes(',') {
                if !self.takes('}') {
                    return None;
                }
                break;
            }
        }
        match (fields.is_empty(), values.is_empty()) {
            (_, true) => Some(DebugValue::Fields(fields)),
            (true, false) => Some(DebugValue::List(values)),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use cri::v1;
    use rstest::rstest;

    use super::*;

    fn status(id: &str, ip: Option<&str>, label: &str) -> v1::PodSandboxStatus {
        v1::PodSandboxStatus {
            id: id.to_owned(),
            network: ip
                .map(|ip| v1::PodSandboxNetworkStatus { ip: ip.to_owned(), ..Default::default() }),
            labels: [("app".to_owned(), label.to_owned())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn message_is_shown_without_types_and_empty_fields() {
        assert_eq!(
            plain(&Some(status("a", Some("10.0.0.1"), "x, \"y\" {"))),
            r#"{id: "a", state: SandboxReady, created_at: 0, network: {ip: "10.0.0.1"}, labels: {"app": "x, \"y\" {"}}"#
        );
    }

    #[rstest]
    #[case::text(&"a: b", "\"a: b\"")]
    #[case::number(&-1.5, "-1.5")]
    #[case::nothing(&None::<u8>, "absent")]
    #[case::something(&Some(Some(1)), "1")]
    #[case::time(&Duration::from_micros(25_964), "25.964ms")]
    #[case::pair(&(1, "a"), "(1, \"a\")")]
    #[case::list(&[Some("a"), None], "[\"a\", absent]")]
    #[case::empty_list(&Vec::<u8>::new(), "[]")]
    #[case::map(&BTreeMap::from([(1, "a")]), "{1: \"a\"}")]
    #[case::set(&BTreeSet::from([1, 2]), "[1, 2]")]
    #[case::variant(&tonic::Code::NotFound, "NotFound")]
    #[case::answer(&tonic::Response::new(Some("a")), "\"a\"")]
    #[case::unlike_derived(&format_args!("no: such (thing"), "no: such (thing")]
    fn values_are_shown_plainly(#[case] value: &dyn fmt::Debug, #[case] expected: &str) {
        assert_eq!(plain(&value), expected);
    }

    #[test]
    fn only_fields_that_differ_are_shown() {
        let expected = Some(status("a", Some("10.0.0.1"), "x"));
        let without = Some(status("a", None, "x"));
        let seen = difference(&expected, &without);
        assert_eq!(seen, ("network: {ip: \"10.0.0.1\"}".to_owned(), "network: absent".to_owned()));
        let other = Some(status("b", Some("10.0.0.2"), "y"));
        assert_eq!(
            difference(&expected, &other),
            (
                "id: \"a\", network.ip: \"10.0.0.1\", labels[\"app\"]: \"x\"".to_owned(),
                "id: \"b\", network.ip: \"10.0.0.2\", labels[\"app\"]: \"y\"".to_owned()
            )
        );
    }

    #[rstest]
    #[case::words(&1, &2, "1", "2")]
    #[case::lists_of_one_length(&[1, 2, 3], &[1, 5, 3], "[1]: 2", "[1]: 5")]
    #[case::missing_key(&BTreeMap::from([("a", 1), ("b", 2)]), &BTreeMap::from([("a", 1)]), "\"b\": 2", "\"b\": absent")]
    #[case::equal(&1, &1, "1", "1")]
    #[case::nothing(&None::<u8>, &Some(3), "absent", "3")]
    fn differences_are_named(
        #[case] expected: &dyn fmt::Debug,
        #[case] seen: &dyn fmt::Debug,
        #[case] expected_shown: &str,
        #[case] seen_shown: &str,
    ) {
        let shown = difference(expected, seen);
        assert_eq!(shown, (expected_shown.to_owned(), seen_shown.to_owned()));
    }

    #[test]
    fn lists_of_other_lengths_are_shown_whole() {
        let shown = difference(&["a", "b"][..], &["a"][..]);
        assert_eq!(shown, ("[\"a\", \"b\"]".to_owned(), "[\"a\"]".to_owned()));
    }
}
