//! ◆ Splits the text of a quantity into sign, digits and suffix.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/api/resource: parseQuantityString and suffix.go. The number may lack digits before or
//! after the point, or both: `.5`, `5.` and `Ki` are quantities.

/// The format of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// With a decimal suffix: `100m`, `5`, `2G`.
    DecimalSi,
    /// With a binary suffix: `64Mi`.
    BinarySi,
    /// With an exponent: `1e3`.
    DecimalExponent,
}

impl Format {
    /// Its name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DecimalSi => "DecimalSI",
            Self::BinarySi => "BinarySI",
            Self::DecimalExponent => "DecimalExponent",
        }
    }
}

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// A character is not allowed in its place.
    Form,
    /// A required digit is missing.
    Number,
    /// The suffix is unknown.
    Suffix,
}

/// The multiplier of a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// A power of ten.
    Ten(i32),
    /// A power of two: 10, 20, … 60.
    Two(u32),
}

/// The parts of a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    /// Whether it is negative.
    pub(super) negative: bool,
    /// Digits before the point, without leading zeros; `0` if there are none.
    pub(super) whole: &'a str,
    /// Digits after the point.
    pub(super) fraction: &'a str,
    /// Whether the text has any digit before its suffix.
    pub(super) has_digits: bool,
    /// The multiplier.
    pub(super) scale: Scale,
    /// The format.
    pub(super) format: Format,
}

/// The decimal suffixes and their powers of ten.
pub(super) const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// The binary suffixes; each is 1024 times the previous one.
pub(super) const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Splits off the leading characters that `test` accepts.
fn take(text: &str, test: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !test(c)).unwrap_or(text.len()))
}

/// Splits the text of a quantity.
pub(super) fn parts(text: &str) -> Result<Parts<'_>, Problem> {
    if text.is_empty() {
        return Err(Problem::Form);
    }
    let digit = |c: char| c.is_ascii_digit();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (zeros, rest) = take(unsigned, |c| c == '0');
    let (whole, rest) = take(rest, digit);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => take(rest, digit),
        None => ("", rest),
    };
    let (_, after) = take(suffix, |c| "eEinumkKMGTP".contains(c));
    let after = after.strip_prefix(['+', '-']).unwrap_or(after);
    if !after.chars().all(digit) {
        return Err(Problem::Form);
    }
    let (scale, format) = scale(suffix).ok_or(Problem::Suffix)?;
    Ok(Parts {
        negative: text.starts_with('-'),
        whole: if whole.is_empty() { "0" } else { whole },
        fraction,
        has_digits: !(zeros.is_empty() && whole.is_empty() && fraction.is_empty()),
        scale,
        format,
    })
}

fn scale(suffix: &str) -> Option<(Scale, Format)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Scale::Ten(*power), Format::DecimalSi));
    }
    if let Some(at) = BINARY.iter().position(|name| *name == suffix) {
        let power = u32::try_from(10 * (at + 1)).ok()?;
        return Some((Scale::Two(power), Format::BinarySi));
    }
    let power: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Kubernetes takes the low 32 bits.
    Some((Scale::Ten(power as i32), Format::DecimalExponent))
}
