//! Decodes a tree into a typed value and records every mismatch instead of stopping at the first.
//!
//! The deserializer tracks the path and position of every value, and the field names of every struct. It records a value of the
//! wrong type and replaces it with an empty one. It records a value that the type itself rejects (for example a malformed time),
//! omits it, and starts again.

use std::cell::RefCell;
use std::fmt;

use compact::Set;
use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::scalar::{Plain, plain};
use super::tree::{Entry, Node, Position, Value};
use crate::quantity::Quantity;

mod parts;

use parts::{Fields, Items};

/// A problem found while decoding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) place: Position,
    pub(super) path: String,
    pub(super) message: String,
    /// Whether the problem is an unknown field.
    pub(super) unknown_field: bool,
}

/// Decodes a `T`; `None` only if the type rejects the value even without the rejected parts.
pub(super) fn decode<'de, T: Deserialize<'de>>(root: &'de Node) -> (Option<T>, Vec<Finding>) {
    let notes = Notes::default();
    // Each round omits one more value, so the loop ends; the constant bounds its time.
    for _ in 0..100 {
        let read = T::deserialize(Reader { node: root, path: Path::Root, notes: &notes });
        match (read, notes.again.replace(false)) {
            (Ok(value), _) => return (Some(value), notes.found.into_inner().into_iter().collect()),
            (Err(_), true) => {}
            (Err(Refused(message)), false) => {
                notes.note(root.place, Path::Root, message);
                break;
            }
        }
    }
    (None, notes.found.into_inner().into_iter().collect())
}

#[derive(Default)]
struct Notes {
    found: RefCell<Set<Finding>>,
    /// Paths of values that their types reject.
    refused: RefCell<Set<String>>,
    /// Whether a value was rejected in this round.
    again: std::cell::Cell<bool>,
}

impl Notes {
    fn note(&self, place: Position, path: Path<'_>, message: String) {
        let finding = Finding { place, path: path.text(), message, unknown_field: false };
        self.found.borrow_mut().insert(finding);
    }

    fn is_refused(&self, path: Path<'_>) -> bool {
        let refused = self.refused.borrow();
        !refused.is_empty() && refused.contains(&path.text())
    }
}

/// The error of a type that rejects a value.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// The path of a value: it is formatted only for a problem.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    /// The value of a key of an object.
    Field(&'a Path<'a>, &'a str),
    /// An item of a list.
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn text(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Field(Path::Root, key) => (*key).to_owned(),
            Self::Field(object, key) if key.contains(['.', '/', '[', ' ']) || key.is_empty() => {
                format!("{}[{key}]", object.text())
            }
            Self::Field(object, key) => format!("{}.{key}", object.text()),
            Self::Item(list, index) => format!("{}[{index}]", list.text()),
        }
    }
}

/// Reads a value. Each type has a copy of each generic function, so these functions only select the input of the visitor.
#[derive(Clone, Copy)]
struct Reader<'de, 'a> {
    node: &'de Node,
    path: Path<'a>,
    notes: &'a Notes,
}

/// Describes a value in its author's terms.
fn describe(node: &Node) -> String {
    match &node.value {
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "an object".to_owned(),
        Value::Scalar { text, plain: false } => format!("the text {text:?}"),
        Value::Scalar { text, plain: true } => match plain(text) {
            Plain::Null => "null".to_owned(),
            Plain::Bool(_) => format!("the boolean {text}"),
            Plain::Int(_) | Plain::Float(_) => format!("the number {text}"),
            Plain::Text(text) => format!("the text {text:?}"),
        },
    }
}

impl<'de> Reader<'de, '_> {
    fn meaning(&self) -> Option<Plain<'de>> {
        match &self.node.value {
            Value::Scalar { text, plain: true } => Some(plain(text)),
            Value::Scalar { text, plain: false } => Some(Plain::Text(text)),
            Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    fn is_null(&self) -> bool {
        self.meaning() == Some(Plain::Null)
    }

    fn expected(&self, what: &str) {
        let found = describe(self.node);
        let hint = match self.meaning() {
            Some(Plain::Bool(_) | Plain::Int(_) | Plain::Float(_)) if what == "text" => {
                "; put it in quotes"
            }
            _ => "",
        };
        let message = format!("expected {what}, found {found}{hint}");
        self.notes.note(self.node.place, self.path, message);
    }

    /// An integer from `least` to `most`; null is 0, as in Go.
    fn integer(&self, least: i128, most: i128) -> i128 {
        match self.meaning() {
            Some(Plain::Null) => 0,
            Some(Plain::Int(number)) if (least..=most).contains(&number) => number,
            Some(Plain::Int(_)) => {
                self.expected(&format!("a whole number from {least} to {most}"));
                0
            }
            // `5.0` is 5.
            Some(Plain::Float(float)) if float.fract() == 0.0 && float.abs() < 1e15 => {
                let number = float as i128;
                if (least..=most).contains(&number) {
                    number
                } else {
                    self.expected(&format!("a whole number from {least} to {most}"));
                    0
                }
            }
            Some(Plain::Float(_) | Plain::Bool(_) | Plain::Text(_)) | None => {
                self.expected("a whole number");
                0
            }
        }
    }

    fn boolean(&self) -> bool {
        match self.meaning() {
            Some(Plain::Bool(value)) => value,
            Some(Plain::Null) => false,
            Some(Plain::Int(_) | Plain::Float(_) | Plain::Text(_)) | None => {
                self.expected("true or false");
                false
            }
        }
    }

    fn number(&self) -> f64 {
        match self.meaning() {
            Some(Plain::Float(value)) => value,
            Some(Plain::Int(value)) => value as f64,
            Some(Plain::Null) => 0.0,
            Some(Plain::Bool(_) | Plain::Text(_)) | None => {
                self.expected("a number");
                0.0
            }
        }
    }

    fn text(&self) -> &'de str {
        match self.meaning() {
            Some(Plain::Text(text)) => text,
            Some(Plain::Null) => "",
            Some(Plain::Bool(_) | Plain::Int(_) | Plain::Float(_)) | None => {
                self.expected("text");
                ""
            }
        }
    }

    /// A quantity, which may be a number in the text although its type expects a string.
    fn quantity(&self) -> String {
        let text = match self.meaning() {
            Some(Plain::Text(text)) => text.to_owned(),
            Some(Plain::Int(number)) => number.to_string(),
            Some(Plain::Float(number)) => number.to_string(),
            Some(Plain::Null) => "0".to_owned(),
            Some(Plain::Bool(_)) | None => {
                self.expected("a quantity");
                "0".to_owned()
            }
        };
        match Quantity::parse(&text) {
            Ok(_) => text,
            Err(error) => {
                self.notes.note(self.node.place, self.path, error.to_string());
                "0".to_owned()
            }
        }
    }

    /// The items of a list; for another type, records a problem and returns none.
    fn items(&self) -> &'de [Node] {
        match &self.node.value {
            Value::Sequence(items) => items,
            Value::Scalar { .. } | Value::Mapping(_) => {
                if !self.is_null() {
                    self.expected("a list");
                }
                &[]
            }
        }
    }

    /// The entries of an object; for another type, records a problem and returns none.
    fn entries(&self) -> &'de [Entry] {
        match &self.node.value {
            Value::Mapping(entries) => entries,
            Value::Scalar { .. } | Value::Sequence(_) => {
                if !self.is_null() {
                    self.expected("an object");
                }
                &[]
            }
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ident),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
            let number = self.integer($type::MIN as i128, $type::MAX as i128);
            visitor.$visit($type::try_from(number).unwrap_or_default())
        }
    )*};
}

/// Values that are read like those of another kind; the other arguments describe the expected type.
macro_rules! alike {
    ($($method:ident($($expected:ty),*) => $other:ident),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(
            self,
            $(_: $expected,)*
            visitor: V,
        ) -> Result<V::Value, Refused> {
            self.$other(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'de, '_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.meaning() {
            Some(Plain::Null) => visitor.visit_unit(),
            Some(Plain::Bool(value)) => visitor.visit_bool(value),
            Some(Plain::Int(value)) => match i64::try_from(value) {
                Ok(value) => visitor.visit_i64(value),
                Err(_) => visitor.visit_f64(value as f64),
            },
            // kubectl writes `80.0` as 80.
            Some(Plain::Float(value)) if value.fract() == 0.0 && value.abs() < 1e15 => {
                visitor.visit_i64(value as i64)
            }
            Some(Plain::Float(value)) => visitor.visit_f64(value),
            Some(Plain::Text(text)) => visitor.visit_borrowed_str(text),
            None => match &self.node.value {
                Value::Sequence(_) => self.deserialize_seq(visitor),
                Value::Mapping(_) | Value::Scalar { .. } => self.deserialize_map(visitor),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_bool(self.boolean())
    }

    integers! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
    }

    alike! {
        deserialize_f32() => deserialize_f64,
        deserialize_char() => deserialize_str,
        deserialize_string() => deserialize_str,
        deserialize_bytes() => deserialize_str,
        deserialize_byte_buf() => deserialize_str,
        deserialize_identifier() => deserialize_str,
        deserialize_ignored_any() => deserialize_unit,
        deserialize_unit_struct(&'static str) => deserialize_unit,
        deserialize_tuple(usize) => deserialize_seq,
        deserialize_tuple_struct(&'static str, usize) => deserialize_seq,
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_f64(self.number())
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_borrowed_str(self.text())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if name != "Quantity" {
            return visitor.visit_newtype_struct(self);
        }
        visitor.visit_newtype_struct(StringDeserializer::new(self.quantity()))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let items = self.items().iter().enumerate();
        visitor.visit_seq(Items { reader: self, items })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let entries = self.entries().iter();
        visitor.visit_map(Fields { reader: self, entries, known: None, entry: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let entries = self.entries().iter();
        visitor.visit_map(Fields { reader: self, entries, known: Some(fields), entry: None })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_enum(StrDeserializer::new(self.node.text().unwrap_or_default()))
    }
}

/// The known name that is similar to `key`.
pub(super) fn nearest_name<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|field| {
            (strsim::damerau_levenshtein(&key.to_lowercase(), &field.to_lowercase()), *field)
        })
        .min()
        .filter(|(distance, field)| *distance <= 1 + field.len().max(key.len()) / 4)
        .map(|(_, field)| field)
}

/// The message for an unknown field.
pub(super) fn unknown_field(key: &str, known: &[&str]) -> String {
    match nearest_name(key, known) {
        Some(field) => format!("unknown field {key:?}, did you mean {field:?}?"),
        None if known.len() <= 8 => {
            format!("unknown field {key:?}, expected one of {}", known.join(", "))
        }
        None => format!("unknown field {key:?}"),
    }
}
