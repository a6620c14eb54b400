//! From the bytes of a manifest to its text: pure.

use std::borrow::Cow;

use super::super::tree::Position;

/// Whether the kubelet takes the text for JSON.
pub(super) fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The text of a manifest: UTF-8, or UTF-16 with a byte order mark. JSON may have bad bytes in its strings.
pub(super) fn text(bytes: &[u8]) -> Result<Cow<'_, str>, &'static str> {
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
