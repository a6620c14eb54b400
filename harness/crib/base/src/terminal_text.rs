//! ◆ Escapes untrusted text for a terminal: text from manifests, runtimes, images and containers. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

pub use harness::debug_text::reorders;

/// `text` for a terminal: keeps colours. Control characters that move the cursor, clear the screen, or set the title or clipboard
/// are replaced by their control pictures (Unicode, U+2400). Characters that change the order of letters are replaced too.
#[must_use]
pub fn escape_keeping_colours(text: &str) -> String {
    shown(text, colour_sequence)
}

/// Like [`escape_keeping_colours`], but also removes colours, because a colour can hide the text after it. For text that is not container output.
#[must_use]
pub fn plain(text: &str) -> String {
    shown(text, |_| None)
}

/// Escapes `text`, except for sequences for which `kept` returns a length in bytes.
fn shown(text: &str, kept: impl Fn(&str) -> Option<usize>) -> String {
    let mut rest = text.strip_suffix('\r').unwrap_or(text);
    let mut tamed = String::with_capacity(rest.len());
    while let Some(next) = rest.chars().next() {
        let length = kept(rest);
        let (taken, behind) = rest.split_at(length.unwrap_or(next.len_utf8()));
        rest = behind;
        match (length, u32::from(next)) {
            (None, code @ 0..=0x1f) if next != '\t' && next != '\n' => {
                tamed.extend(char::from_u32(0x2400 + code));
            }
            (None, 0x7f) => tamed.push('\u{2421}'),
            (None, 0x80..=0x9f) => tamed.push(char::REPLACEMENT_CHARACTER),
            (None, _) if reorders(next) => tamed.push(char::REPLACEMENT_CHARACTER),
            _ => tamed.push_str(taken),
        }
    }
    tamed
}

/// The length in bytes of the colour or style sequence (ECMA-48 SGR) at the start of `text`.
fn colour_sequence(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let length = parameters.find(|c: char| !matches!(c, '0'..='9' | ';' | ':'))?;
    parameters.get(length..)?.starts_with('m').then_some("\x1b[".len() + length + "m".len())
}

/// Escapes control characters, and characters that change the order of letters, as `\uXXXX`: the JSON has the same meaning and is
/// safe to print on a terminal. JSON contains such characters only in strings, and serialisers escape those below U+0020
/// themselves.
#[must_use]
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let steers = |c: char| matches!(c, '\u{7f}'..='\u{9f}') || reorders(c);
    if !json.contains(steers) {
        return json.into();
    }
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match steers(character) {
            // Writing to a string cannot fail.
            true => drop(write!(escaped, "\\u{:04x}", u32::from(character))),
            false => escaped.push(character),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("a\tb", "a\tb")]
    #[case::colours(
        "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx\x1b[m",
        "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx\x1b[m"
    )]
    #[case::clears("\x1b[2Jx", "\u{241b}[2Jx")]
    #[case::moves("\x1b[5;5Hx", "\u{241b}[5;5Hx")]
    #[case::title("\x1b]0;t\x07x", "\u{241b}]0;t\u{2407}x")]
    #[case::cut("x\x1b[3", "x\u{241b}[3")]
    #[case::returns("10 %\r20 %\r", "10 %\u{240d}20 %")]
    #[case::others("\x7f\u{9b}2J", "\u{2421}\u{fffd}2J")]
    #[case::order("a\u{202e}b\u{2069}", "a\u{fffd}b\u{fffd}")]
    #[case::not_ours("日本語 🦀", "日本語 🦀")]
    fn colours_stay_and_other_escapes_are_shown(#[case] text: &str, #[case] tamed: &str) {
        assert_eq!(escape_keeping_colours(text), tamed);
        assert_eq!(plain(text), tamed.replace('\x1b', "\u{241b}"));
    }

    #[test]
    fn escaped_json_means_the_same_and_steers_nothing() {
        let value = serde_json::json!({"\u{9b}2J\u{202e}": "\u{1b}]0;t\u{7}\u{7f}\u{85}\u{2066} \\ \" 日本語 🦀"});
        let raw = value.to_string();
        let escaped = escape_json(&raw);
        assert!(!escaped.contains(|c: char| c.is_control() || reorders(c)), "{escaped:?}");
        assert!(
            escaped.starts_with(r#"{"\u009b2J\u202e":"\u001b]0;t\u0007\u007f\u0085\u2066 "#),
            "{escaped}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        assert_eq!(escape_json(r#"{"a": "é\u009b"}"#), r#"{"a": "é\u009b"}"#);
    }
}
