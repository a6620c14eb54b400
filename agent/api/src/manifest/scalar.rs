//! Resolves plain scalars like kubectl: YAML 1.1.
//!
//! Source: sigs.k8s.io/yaml 1.6 (goyaml.v2): `0644` is octal, `yes`, `on` and `y` are booleans, `1_000` is a number.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};

/// The meaning of a plain scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plain<'a> {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
}

/// Reads a plain scalar.
pub(super) fn plain(text: &str) -> Plain<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Plain::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
            Plain::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            Plain::Bool(false)
        }
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Plain::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Plain::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => Plain::Float(f64::NAN),
        _ => number(text).unwrap_or(Plain::Text(text)),
    }
}

fn number(text: &str) -> Option<Plain<'_>> {
    let starts_like_one =
        text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    if !starts_like_one {
        return None;
    }
    let digits = text.replace('_', "");
    if let Some(integer) = integer(&digits) {
        return Some(Plain::Int(integer));
    }
    let float =
        digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'))
            && digits.contains(|c: char| c.is_ascii_digit());
    let number = digits.parse().ok().filter(|n: &f64| float && n.is_finite());
    number.map(Plain::Float)
}

/// An integer with the prefixes of Go: `0x`, `0o`, `0b`, and `0` for octal.
fn integer(digits: &str) -> Option<i128> {
    let (negative, unsigned) = match digits.strip_prefix(['+', '-']) {
        Some(rest) => (digits.starts_with('-'), rest),
        None => (false, digits),
    };
    let prefixed = |prefixes: [&str; 2], radix| {
        let rest = prefixes.iter().find_map(|prefix| unsigned.strip_prefix(prefix))?;
        Some((rest, radix))
    };
    let (digits, radix) = prefixed(["0x", "0X"], 16)
        .or_else(|| prefixed(["0o", "0O"], 8))
        .or_else(|| prefixed(["0b", "0B"], 2))
        .or_else(|| {
            unsigned.strip_prefix('0').filter(|rest| !rest.is_empty()).map(|rest| (rest, 8))
        })
        .unwrap_or((unsigned, 10));
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

/// Decodes base64 as Go does: line breaks are ignored, and the last character may have more bits than the bytes need.
pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    const GO: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    GO.decode(text.replace(['\r', '\n'], "")).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Plain, decode_base64, plain};

    #[rstest]
    #[case("0644", Plain::Int(420))]
    #[case("0o644", Plain::Int(420))]
    #[case("0x1F", Plain::Int(31))]
    #[case("-5", Plain::Int(-5))]
    #[case("1_000", Plain::Int(1000))]
    #[case("0", Plain::Int(0))]
    #[case("0899", Plain::Float(899.0))]
    #[case("1.5", Plain::Float(1.5))]
    #[case("1e3", Plain::Float(1000.0))]
    #[case("yes", Plain::Bool(true))]
    #[case("on", Plain::Bool(true))]
    #[case("y", Plain::Bool(true))]
    #[case("off", Plain::Bool(false))]
    #[case("~", Plain::Null)]
    #[case("", Plain::Null)]
    #[case("1e400", Plain::Text("1e400"))]
    #[case("1:30", Plain::Text("1:30"))]
    #[case("2001-01-01", Plain::Text("2001-01-01"))]
    #[case("0O17", Plain::Int(15))]
    #[case("0_17", Plain::Int(15))]
    #[case("1.2.3", Plain::Text("1.2.3"))]
    #[case("100m", Plain::Text("100m"))]
    #[case("-", Plain::Text("-"))]
    #[case(".", Plain::Text("."))]
    #[case("1-2", Plain::Text("1-2"))]
    #[case("0b", Plain::Text("0b"))]
    fn plain_scalars_follow_yaml_1_1(#[case] text: &str, #[case] meaning: Plain<'_>) {
        assert_eq!(plain(text), meaning);
    }
    #[rstest]
    #[case("aGVsbG8=", Some("hello"))]
    #[case("aGVs\r\nbG8=\n", Some("hello"))]
    #[case::trailing_bits("aGVsbG9=", Some("hello"))]
    #[case::no_padding("aGVsbG8", None)]
    #[case::url_alphabet("aGVsbG8_", None)]
    #[case::blank("aGVs bG8=", None)]
    fn base64_is_decoded_as_in_go(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(decode_base64(text).as_deref(), expected.map(str::as_bytes));
    }
}
