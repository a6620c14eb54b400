//! ◆ D-Bus values by their signatures: parses values, and encodes properties of systemd units. Pure.

use super::wire::{Reader, Writer};

/// The maximum nesting depth of values: the specification allows 64 levels.
const DEPTH: usize = 64;

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string, an object path or a signature.
    Text(String),
    /// An unsigned number, or the bits of another one.
    Number(u64),
    /// A boolean.
    Flag(bool),
    /// The elements of an array, or the fields of a struct.
    List(Vec<Value>),
}

impl Value {
    /// The string, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::Flag(_) | Self::List(_) => None,
        }
    }
}

/// Parses values of these types in sequence.
pub(super) fn read(reader: &mut Reader<'_>, signature: &str) -> Option<Vec<Value>> {
    let mut rest = signature;
    let mut values = Vec::new();
    while !rest.is_empty() {
        let (value, after) = one(reader, rest, DEPTH)?;
        values.push(value);
        rest = after;
    }
    Some(values)
}

/// Parses a value of the first type. Also returns the remaining types.
fn one<'s>(reader: &mut Reader<'_>, types: &'s str, depth: usize) -> Option<(Value, &'s str)> {
    let depth = depth.checked_sub(1)?;
    let mut after = types.chars();
    let number = |reader: &mut Reader<'_>, bytes| reader.number(bytes).map(Value::Number);
    let value = match after.next()? {
        'y' => number(reader, 1)?,
        'n' | 'q' => number(reader, 2)?,
        'i' | 'u' | 'h' => number(reader, 4)?,
        'x' | 't' | 'd' => number(reader, 8)?,
        'b' => Value::Flag(reader.number(4)? != 0),
        's' | 'o' => Value::Text(reader.text()?),
        'g' => Value::Text(reader.signature()?),
        'v' => {
            let signature = reader.signature()?;
            let (value, rest) = one(reader, &signature, depth)?;
            rest.is_empty().then_some(value)?
        }
        'a' => {
            let element = after.as_str();
            let length = reader.length()?;
            reader.align(alignment(element)?);
            let end = reader.at.checked_add(length).filter(|end| *end <= reader.bytes.len())?;
            let mut elements = Vec::new();
            while reader.at < end {
                let before = reader.at;
                elements.push(one(reader, element, depth)?.0);
                // A struct without fields has no length, so an array of them would never end.
                (reader.at > before).then_some(())?;
            }
            let after = element.get(length_of(element, DEPTH)?..)?;
            return Some((Value::List(elements), after));
        }
        open @ ('(' | '{') => {
            let close = if open == '(' { ')' } else { '}' };
            reader.align(8);
            let mut rest = after.as_str();
            let mut fields = Vec::new();
            loop {
                if let Some(after) = rest.strip_prefix(close) {
                    return Some((Value::List(fields), after));
                }
                let (field, after) = one(reader, rest, depth)?;
                fields.push(field);
                rest = after;
            }
        }
        _ => return None,
    };
    Some((value, after.as_str()))
}

/// The alignment of a value of the first type.
fn alignment(types: &str) -> Option<usize> {
    Some(match types.chars().next()? {
        'y' | 'g' | 'v' => 1,
        'n' | 'q' => 2,
        'x' | 't' | 'd' | '(' | '{' => 8,
        _ => 4,
    })
}

/// The number of characters of the first type.
fn length_of(types: &str, depth: usize) -> Option<usize> {
    let depth = depth.checked_sub(1)?;
    match types.chars().next()? {
        'a' => length_of(types.get(1..)?, depth).map(|length| length + 1),
        open @ ('(' | '{') => {
            let close = if open == '(' { ')' } else { '}' };
            let mut length = 1;
            while !types.get(length..)?.starts_with(close) {
                length += length_of(types.get(length..)?, depth)?;
            }
            Some(length + 1)
        }
        one => Some(one.len_utf8()),
    }
}

/// A property of a systemd unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: PropertyValue,
}

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// A string.
    Text(String),
    /// Strings.
    Texts(Vec<String>),
    /// A boolean.
    Flag(bool),
    /// A 64-bit number.
    Number(u64),
}

impl Property {
    /// A property with this value.
    pub(crate) fn new(name: &'static str, value: PropertyValue) -> Self {
        Self { name, value }
    }

    /// Encodes it as a struct of its name and a variant.
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.align(8);
        writer.text(self.name);
        match &self.value {
            PropertyValue::Text(text) => {
                writer.signature("s");
                writer.text(text);
            }
            PropertyValue::Texts(texts) => {
                writer.signature("as");
                writer.list(4, |writer| texts.iter().for_each(|text| writer.text(text)));
            }
            PropertyValue::Flag(flag) => {
                writer.signature("b");
                writer.number(usize::from(*flag));
            }
            PropertyValue::Number(number) => {
                writer.signature("t");
                writer.align(8);
                writer.0.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn properties_are_read_as_they_were_written() {
        let properties = [
            Property::new("Description", PropertyValue::Text("a slice".to_owned())),
            Property::new(
                "Wants",
                PropertyValue::Texts(vec!["a.slice".to_owned(), "b".to_owned()]),
            ),
            Property::new("CPUAccounting", PropertyValue::Flag(true)),
            Property::new("MemoryMax", PropertyValue::Number(1 << 40)),
        ];
        let mut writer = Writer::default();
        writer.text("x");
        writer.list(8, |writer| properties.iter().for_each(|property| property.write(writer)));
        writer.list(8, |_| ());
        let mut reader = Reader { bytes: &writer.0, at: 0, is_little: true };
        let values = read(&mut reader, "sa(sv)a(sa(sv))").unwrap();
        let pair = |name: &str, value| Value::List(vec![text(name), value]);
        let expected = Value::List(vec![
            pair("Description", text("a slice")),
            pair("Wants", Value::List(vec![text("a.slice"), text("b")])),
            pair("CPUAccounting", Value::Flag(true)),
            pair("MemoryMax", Value::Number(1 << 40)),
        ]);
        assert_eq!(values, [text("x"), expected, Value::List(Vec::new())]);
        assert_eq!(reader.at, writer.0.len());
    }

    #[rstest]
    #[case::struct_without_an_end("(s")]
    #[case::array_of_nothing("a")]
    #[case::unknown("z")]
    #[case::array_of_empty_structs("a()")]
    fn malformed_signatures_are_rejected(#[case] signature: &str) {
        let bytes = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut reader = Reader { bytes: &bytes, at: 0, is_little: true };
        assert_eq!(read(&mut reader, signature), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_by_any_signature(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            signature in "[ybnqiuxtdsogv(){}a]{0,20}",
        ) {
            let mut reader = Reader { bytes: &bytes, at: 0, is_little: true };
            let _ = read(&mut reader, &signature);
        }

        #[test]
        fn deeply_nested_variants_are_rejected(depth in 0_usize..400) {
            let bytes = [1, b'v', 0].repeat(depth);
            let mut reader = Reader { bytes: &bytes, at: 0, is_little: true };
            let _ = read(&mut reader, "v");
        }
    }
}
