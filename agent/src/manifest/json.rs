//! JSON for a parser of YAML, which reads all of JSON but tabs and surrogates: pure.

use std::borrow::Cow;

/// Whether a text is JSON.
pub(super) fn is_json(text: &str) -> bool {
    text.trim_start_matches('\u{feff}')
        .trim_start()
        .starts_with('{')
}

/// JSON allows tabs as indentation and writes characters as pairs of surrogates, YAML does not: replace the tabs by spaces,
/// which keeps all positions, and the pairs by their characters.
pub(super) fn for_yaml(text: &str) -> Cow<'_, str> {
    if !is_json(text) {
        return Cow::Borrowed(text);
    }
    let text = if text.contains('\t') {
        Cow::Owned(text.replace('\t', " "))
    } else {
        Cow::Borrowed(text)
    };
    if text.contains("\\ud") || text.contains("\\uD") {
        Cow::Owned(without_surrogates(&text))
    } else {
        text
    }
}

/// JSON whose escaped surrogates are characters; one without its other half is the replacement character.
fn without_surrogates(json: &str) -> String {
    let mut replaced = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        replaced.push_str(before);
        let length = match (
            escaped_unit(escape),
            escaped_unit(escape.get(6..).unwrap_or("")),
        ) {
            (Some(high), Some(low)) if is_pair(high, low) => 12,
            (Some(unit), _) if (0xd800..0xe000).contains(&unit) => 6,
            // The character after the backslash is no escape of its own.
            (Some(_) | None, _) => {
                let end = escape.chars().take(2).map(char::len_utf8).sum();
                replaced.push_str(escape.get(..end).unwrap_or(escape));
                rest = escape.get(end..).unwrap_or("");
                continue;
            }
        };
        let units = [0, 6].into_iter().take(length / 6);
        let units = units.filter_map(|from| escaped_unit(escape.get(from..)?));
        replaced
            .extend(char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)));
        rest = escape.get(length..).unwrap_or("");
    }
    replaced.push_str(rest);
    replaced
}

/// The code unit of an escape `\uXXXX` at the beginning of a text.
fn escaped_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

fn is_pair(high: u16, low: u16) -> bool {
    (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low)
}
