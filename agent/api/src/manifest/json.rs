//! ◆ Converts texts for a YAML parser: JSON, of which it does not support tabs and surrogates, and byte order marks. Pure.

use std::borrow::Cow;

/// Whether a text is JSON.
pub(super) fn is_json(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with('{')
}

/// A part of a text, and its position: the number of lines before it, and of characters before it in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    pub(super) lines: usize,
    pub(super) columns: usize,
}

impl<'a> Part<'a> {
    /// A text that is one part.
    pub(super) fn whole(text: &'a str) -> Self {
        Self { text, lines: 0, columns: 0 }
    }
}

/// Splits a JSON text with several objects without separators, which YAML does not allow; any other text is one part.
pub(super) fn parts(text: &str) -> Vec<Part<'_>> {
    let mut part = Part::whole(text);
    let mut parts = Vec::new();
    while let Some(at) = is_json(part.text).then(|| next_object(part.text)).flatten() {
        let (object, rest) = part.text.split_at(at);
        let last_line = object.rsplit('\n').next().unwrap_or_default();
        let is_same_line = last_line.len() == object.len();
        let next = Part {
            text: rest,
            lines: part.lines + object.matches('\n').count(),
            columns: last_line.chars().count() + if is_same_line { part.columns } else { 0 },
        };
        parts.push(Part { text: object, ..part });
        part = next;
    }
    parts.push(part);
    parts
}

/// The position of an object that follows another one.
fn next_object(json: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (at, c) in json.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                let rest = json.get(at + 1..).unwrap_or_default();
                let next = rest.trim_start();
                if depth == 0 && next.starts_with('{') {
                    return Some(json.len() - next.len());
                }
            }
            _ => {}
        }
    }
    None
}

/// JSON allows tabs as indentation and escapes characters as pairs of surrogates, YAML does not: tabs are replaced by spaces, which
/// preserves all positions, and pairs by their characters. In YAML, byte order marks of later documents are removed.
pub(super) fn for_yaml(text: &str) -> Cow<'_, str> {
    if !is_json(text) {
        return without_later_marks(text);
    }
    let text =
        if text.contains('\t') { Cow::Owned(text.replace('\t', " ")) } else { Cow::Borrowed(text) };
    if text.contains("\\ud") || text.contains("\\uD") {
        Cow::Owned(without_surrogates(&text))
    } else {
        text
    }
}

/// YAML without the byte order marks at the start of later documents, which kubectl ignores: files were concatenated.
fn without_later_marks(text: &str) -> Cow<'_, str> {
    if !text.contains("\n\u{feff}") {
        return Cow::Borrowed(text);
    }
    let mut follows_separator = false;
    let lines = text.split_inclusive('\n').map(|line| {
        let document = line.strip_prefix('\u{feff}').filter(|_| follows_separator);
        follows_separator = line.starts_with("---");
        document.unwrap_or(line)
    });
    Cow::Owned(lines.collect())
}

/// JSON with escaped surrogates replaced by characters; an unpaired one becomes the replacement character.
fn without_surrogates(json: &str) -> String {
    let mut replaced = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        replaced.push_str(before);
        let length = match (escaped_unit(escape), escaped_unit(escape.get(6..).unwrap_or(""))) {
            (Some(high), Some(low)) if is_pair(high, low) => 12,
            (Some(unit), _) if (0xd800..0xe000).contains(&unit) => 6,
            // The character after the backslash does not begin another escape.
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a: 1\nb: {}", &[("a: 1\nb: {}", 0, 0)])]
    #[case("{}", &[("{}", 0, 0)])]
    #[case(r#"{"a": "}{\\\"}{"}"#, &[(r#"{"a": "}{\\\"}{"}"#, 0, 0)])]
    #[case("{\"ä\": {}} {}\n\n {}\n", &[("{\"ä\": {}} ", 0, 0), ("{}\n\n ", 0, 10), ("{}\n", 2, 1)])]
    #[case("{}\n---\n{}", &[("{}\n---\n{}", 0, 0)])]
    #[case("{\n", &[("{\n", 0, 0)])]
    #[case("}{}{}", &[("}{}{}", 0, 0)])]
    fn objects_after_each_other_are_parts(
        #[case] text: &str,
        #[case] expected: &[(&str, usize, usize)],
    ) {
        let found = parts(text);
        let found: Vec<_> =
            found.iter().map(|part| (part.text, part.lines, part.columns)).collect();
        assert_eq!(found, expected);
    }
}
