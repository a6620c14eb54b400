//! Resource quantities such as `250m`, `64Mi` and `1e3`.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/api/resource: a decimal number, then a decimal suffix (`n u m k M G T P E`),
//! a binary one (`Ki Mi Gi Ti Pi Ei`), an exponent (`e3`, `E3`) or nothing. Fractions of a billionth are rounded up.

/// A quantity, in billionths of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const NANO: i128 = 1_000_000_000;

/// Not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a quantity: expected a number with an optional suffix, such as 250m, 1.5, 64Mi or 1G"
)]
pub struct QuantityError {
    text: String,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// One.
    pub const ONE: Self = Self(NANO);

    /// Parses a quantity. Magnitudes beyond the 64-bit range saturate.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text).map(Self).ok_or_else(|| QuantityError {
            text: text.to_owned(),
        })
    }

    /// In whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        round_away(self.0, NANO)
    }

    /// In thousandths of a unit, rounded away from zero.
    pub fn milli_value(self) -> i64 {
        round_away(self.0, NANO / 1000)
    }

    /// Whether it is negative.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

fn round_away(number: i128, unit: i128) -> i64 {
    let whole = number / unit;
    let rest = (number % unit).signum();
    i64::try_from(whole + rest).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn parse(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let scale = Scale::parse(suffix)?;
    let magnitude = scale.apply(whole, fraction);
    Some(if negative { -magnitude } else { magnitude })
}

/// The multiplier of a suffix: a power of ten or of two.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Two(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "" => Self::Ten(0),
            "n" => Self::Ten(-9),
            "u" => Self::Ten(-6),
            "m" => Self::Ten(-3),
            "k" => Self::Ten(3),
            "M" => Self::Ten(6),
            "G" => Self::Ten(9),
            "T" => Self::Ten(12),
            "P" => Self::Ten(15),
            "E" => Self::Ten(18),
            "Ki" => Self::Two(10),
            "Mi" => Self::Two(20),
            "Gi" => Self::Two(30),
            "Ti" => Self::Two(40),
            "Pi" => Self::Two(50),
            "Ei" => Self::Two(60),
            exponent => {
                let digits = exponent.strip_prefix(['e', 'E'])?;
                let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
                if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                // An exponent that overflows saturates the value anyway.
                Self::Ten(digits.parse().unwrap_or(if digits.starts_with('-') {
                    -1000
                } else {
                    1000
                }))
            }
        })
    }

    /// Computes `whole.fraction` times the scale, in billionths, rounded up, saturating.
    fn apply(self, whole: &str, fraction: &str) -> i128 {
        const MOST: i128 = i64::MAX as i128 * NANO;
        let digits: String = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return 0;
        }
        // value = digits × 10^-len(fraction) × scale × 10^9
        let shift = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let (ten, two) = match self {
            Self::Ten(power) => (i64::from(power) - shift + 9, 0),
            Self::Two(power) => (9 - shift, power),
        };
        // Too many digits are beyond the range, unless a negative power removes them.
        let mut number: i128 = 0;
        let (mut left, mut ten, mut inexact) = (digits.bytes(), ten, false);
        for digit in left.by_ref() {
            match number
                .checked_mul(10)
                .and_then(|tens| tens.checked_add(i128::from(digit - b'0')))
            {
                Some(next) if next < i128::MAX >> 61 => number = next,
                Some(_) | None => {
                    inexact |= digit != b'0';
                    ten += 1;
                    break;
                }
            }
        }
        for digit in left {
            inexact |= digit != b'0';
            ten += 1;
        }
        let scaled = number
            .checked_shl(two)
            .filter(|scaled| scaled >> two == number)
            .unwrap_or(i128::MAX);
        let result = if ten >= 0 {
            u32::try_from(ten)
                .ok()
                .and_then(|ten| 10_i128.checked_pow(ten))
                .and_then(|by| scaled.checked_mul(by))
        } else {
            let by = u32::try_from(-ten)
                .ok()
                .and_then(|ten| 10_i128.checked_pow(ten));
            Some(by.map_or(1, |by| {
                scaled / by + i128::from(scaled % by != 0 || inexact)
            }))
        };
        result.unwrap_or(MOST).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::Quantity;

    #[rstest]
    #[case("0", 0, 0)]
    #[case("250m", 1, 250)]
    #[case("1.5", 2, 1500)]
    #[case(".5", 1, 500)]
    #[case("64Mi", 67_108_864, 67_108_864_000)]
    #[case("1.5Gi", 1_610_612_736, 1_610_612_736_000)]
    #[case("1e3", 1000, 1_000_000)]
    #[case("12E-1", 2, 1200)]
    #[case("-1.5", -2, -1500)]
    #[case("1n", 1, 1)]
    fn parse_accepts_quantities(#[case] text: &str, #[case] value: i64, #[case] milli: i64) {
        let quantity = Quantity::parse(text).unwrap();
        assert_eq!((quantity.value(), quantity.milli_value()), (value, milli));
    }

    #[rstest]
    fn parse_rejects_other_text(
        #[values("", "m", "1.2.3", "1 Gi", "1mi", "1e", "ten", "1Kib", "--1", "1e1.5")] text: &str,
    ) {
        assert!(Quantity::parse(text).is_err());
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in ".*") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn whole_numbers_are_exact(number in any::<i32>()) {
            prop_assert_eq!(Quantity::parse(&number.to_string()).unwrap().value(), i64::from(number));
        }
    }
}
