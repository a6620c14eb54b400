//! ◆ Resource quantities such as `250m`, `64Mi` and `1e3`.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/api/resource: a decimal number, then a decimal suffix (`n u m k M G T P E`),
//! a binary one (`Ki Mi Gi Ti Pi Ei`), an exponent (`e3`, `E3`) or nothing. Fractions of a billionth are rounded up.
//!
//! Kubernetes has two representations, whose conversions to 64 bits overflow differently. They matter for amounts beyond 64 bits,
//! and for the rounding of negative ones; `Form` records the representation of an amount.

mod decimal;
mod integer;
mod scan;

use std::cmp::Ordering;
use std::fmt;

use decimal::{Decimal, binary_text, decimal_text};
use integer::Integer;
use scan::{Parts, Problem, Scale};

pub use scan::Format;

/// A quantity, in billionths of its unit, and its format. Quantities are equal if their amounts are.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// Saturated, for comparisons and sums.
    nanos: i128,
    form: Form,
    format: Format,
}

/// How Kubernetes represents an amount.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// A 64-bit integer and a power of ten.
    Integer(Integer),
    /// A decimal number of any length, as the results of its conversions.
    Decimal {
        /// In whole units.
        value: i64,
        /// In thousandths of a unit.
        milli: i64,
    },
}

const NANO: i128 = 1_000_000_000;

/// The maximum number of digits for which Kubernetes does not need its slow decimal arithmetic.
const FAST_DIGITS: usize = 18;

/// Not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a quantity: expected a number with an optional suffix, such as 250m, 1.5, 64Mi or 1G"
)]
pub struct QuantityError {
    text: String,
    problem: Problem,
}

impl QuantityError {
    /// The API server's message.
    pub fn api_message(&self) -> &'static str {
        match self.problem {
            Problem::Form => {
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            Problem::Number => "unable to parse numeric part of quantity",
            Problem::Suffix => "unable to parse quantity's suffix",
        }
    }
}

/// A quantity as the API server rewrites it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// The text: the given one if it is canonical or nearly canonical, as in `1500m`.
    pub text: String,
    /// The amount, if it was written as a whole number of units that fits into 64 bits.
    pub exact_integer: Option<i64>,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self {
        nanos: 0,
        form: Form::Integer(Integer { number: 0, power: 0 }),
        format: Format::DecimalSi,
    };
    /// One.
    pub const ONE: Self = Self {
        nanos: NANO,
        form: Form::Integer(Integer { number: 1, power: 0 }),
        format: Format::DecimalSi,
    };

    /// Parses a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = parts(text)?;
        Ok(match fast(&parts) {
            Some(fast) => Self {
                nanos: fast.integer.nanos(),
                form: Form::Integer(fast.integer),
                format: parts.format,
            },
            None => from_decimal(&parts),
        })
    }

    /// A whole number of units.
    pub fn whole(units: i64, format: Format) -> Self {
        let integer = Integer { number: units, power: 0 };
        Self { nanos: integer.nanos(), form: Form::Integer(integer), format }
    }

    /// Its format.
    pub fn format(self) -> Format {
        self.format
    }

    /// In whole units, rounded away from zero; beyond 64 bits the same result as in Kubernetes.
    pub fn value(self) -> i64 {
        match self.form {
            Form::Integer(integer) => integer.scaled(0),
            Form::Decimal { value, .. } => value,
        }
    }

    /// In thousandths of a unit, rounded away from zero; beyond 64 bits the same result as in Kubernetes.
    pub fn milli_value(self) -> i64 {
        match self.form {
            Form::Integer(integer) => integer.scaled(-3),
            Form::Decimal { milli, .. } => milli,
        }
    }

    /// Rounded away from zero to thousandths; an amount too large to have a smaller part is unchanged.
    #[must_use]
    pub fn rounded_to_milli(self) -> Self {
        const UNIT: i128 = NANO / 1000;
        let number = i64::try_from(self.nanos / UNIT + (self.nanos % UNIT).signum());
        match number {
            Ok(number) if self.nanos % UNIT != 0 => {
                let integer = Integer { number, power: -3 };
                Self { nanos: integer.nanos(), form: Form::Integer(integer), format: self.format }
            }
            Ok(_) | Err(_) => self,
        }
    }

    /// Whether it is negative.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// The sum, in this quantity's format, or in the other's if this is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let nanos = self.nanos.saturating_add(other.nanos);
        let sum = match (self.form, other.form) {
            (Form::Integer(a), Form::Integer(b)) => a.plus(b),
            (Form::Decimal { .. }, _) | (_, Form::Decimal { .. }) => None,
        };
        Self {
            nanos,
            form: sum.map_or_else(|| decimal_form(nanos), Form::Integer),
            format: if self.is_zero() { other.format } else { self.format },
        }
    }

    /// The difference, in this quantity's format, or in the other's if this is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let form = match other.form {
            Form::Integer(integer) => Form::Integer(Integer { number: -integer.number, ..integer }),
            Form::Decimal { .. } => other.form,
        };
        self.plus(Self { nanos: other.nanos.saturating_neg(), form, ..other })
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    /// The canonical text of the amount.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, rest) = (self.nanos / NANO, self.nanos % NANO);
        if self.format == Format::BinarySi && rest == 0 && units.unsigned_abs() >= 1024 {
            return f.write_str(&binary_text(units));
        }
        let number = match self.form {
            Form::Integer(it) => {
                Decimal::new(&it.number.unsigned_abs().to_string(), i64::from(it.power))
            }
            Form::Decimal { .. } => Decimal::new(&self.nanos.unsigned_abs().to_string(), -9),
        };
        f.write_str(&decimal_text(self.is_negative(), number, self.format))
    }
}

/// The canonical form of a quantity's text.
pub fn canonical(text: &str) -> Result<Canonical, QuantityError> {
    let parts = parts(text)?;
    if let Some(fast) = fast(&parts) {
        let text = if fast.keeps_text { text.to_owned() } else { own_text(text, &parts)? };
        let exact_integer = fast.integer.exact();
        return Ok(Canonical { text, exact_integer });
    }
    Ok(Canonical { text: own_text(text, &parts)?, exact_integer: None })
}

/// The text formatted from the amount.
fn own_text(text: &str, parts: &Parts<'_>) -> Result<String, QuantityError> {
    match parts.scale {
        // Decimal numbers are not limited, so their digits stay text.
        Scale::Ten(_) => {
            Ok(decimal_text(parts.negative, number(parts).round_up_to_nano(), parts.format))
        }
        Scale::Two(_) => Quantity::parse(text).map(|quantity| quantity.to_string()),
    }
}

/// The number without sign.
fn number(parts: &Parts<'_>) -> Decimal {
    let shift = i64::try_from(parts.fraction.len()).unwrap_or(i64::MAX);
    let digits = format!("{}{}", parts.whole, parts.fraction);
    match parts.scale {
        Scale::Ten(power) => Decimal::new(&digits, i64::from(power).saturating_sub(shift)),
        Scale::Two(power) => {
            let number = Decimal::new(&digits, shift.saturating_neg());
            (0..power / 10).fold(number, |number, _| number.times_1024())
        }
    }
}

/// The quantity as a decimal number.
fn from_decimal(parts: &Parts<'_>) -> Quantity {
    let number = number(parts).round_up_to_nano();
    let magnitude = number.nanos();
    let signed = if parts.negative { -magnitude } else { magnitude };
    let binary = parts.format == Format::BinarySi;
    let most = i128::from(i64::MAX) * NANO;
    // Kubernetes limits binary quantities to 64 bits, and represents the limit as a whole number of units.
    if binary && magnitude > most {
        let value = if parts.negative { -i64::MAX } else { i64::MAX };
        return Quantity {
            nanos: i128::from(value) * NANO,
            form: Form::Decimal { value, milli: value.wrapping_mul(1000) },
            format: parts.format,
        };
    }
    let form = if signed < i128::from(i64::MAX) {
        let low = number.low_bits(9);
        narrow_form(if parts.negative { low.wrapping_neg() } else { low })
    } else {
        Form::Decimal { value: number.low_bits(0), milli: number.low_bits(3) }
    };
    Quantity {
        nanos: signed,
        form,
        // Kubernetes formats a binary fraction of a unit with a decimal suffix.
        format: if binary && magnitude < NANO && magnitude != 0 {
            Format::DecimalSi
        } else {
            parts.format
        },
    }
}

/// The decimal form of these billionths.
fn decimal_form(nanos: i128) -> Form {
    if nanos < i128::from(i64::MAX) {
        return narrow_form(nanos as i64);
    }
    let up = |unit: i128| (nanos / unit + i128::from(nanos % unit != 0)) as i64;
    Form::Decimal { value: up(NANO), milli: up(NANO / 1000) }
}

/// The decimal form of fewer than 2^63 − 1 billionths. Kubernetes takes the low 64 bits of a negative number of any size, and adds
/// one to every inexact quotient, even to a negative one, so that -1.5000000001 becomes 0.
fn narrow_form(nanos: i64) -> Form {
    let up = |unit: i64| nanos / unit + i64::from(nanos % unit != 0);
    Form::Decimal { value: up(1_000_000_000), milli: up(1_000_000) }
}

fn parts(text: &str) -> Result<Parts<'_>, QuantityError> {
    let error = |problem| QuantityError { text: text.to_owned(), problem };
    let parts = scan::parts(text).map_err(error)?;
    // A suffix alone is zero, unless it needs the decimal arithmetic, which needs digits.
    if !parts.has_digits && fast(&parts).is_none() {
        return Err(error(Problem::Number));
    }
    Ok(parts)
}

/// A number that Kubernetes parses as an integer and a power of ten.
struct Fast {
    integer: Integer,
    /// Whether the given text counts as canonical.
    keeps_text: bool,
}

/// The number, if it is short enough for Kubernetes' integer arithmetic.
fn fast(parts: &Parts<'_>) -> Option<Fast> {
    let length = parts.whole.len() + parts.fraction.len();
    let (power, factor, most) = match parts.scale {
        Scale::Ten(power) => (power, 1, FAST_DIGITS),
        Scale::Two(power) if parts.fraction.is_empty() => {
            // A factor of 2^10 takes three digits.
            let taken = usize::try_from(power * 3 / 10).ok()?;
            (0, 1_i64 << power, 14_usize.checked_sub(taken)?)
        }
        Scale::Two(_) => return None,
    };
    let power = power.checked_sub(i32::try_from(parts.fraction.len()).ok()?)?;
    if length > most || power < -9 {
        return None;
    }
    let digits = format!("{}{}", parts.whole, parts.fraction);
    let shown: i64 = digits.parse().ok()?;
    let number = shown.checked_mul(factor)?;
    let keeps_text = match parts.scale {
        Scale::Two(_) => shown & 7 != 0,
        Scale::Ten(_) => power % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0'),
    };
    Some(Fast {
        integer: Integer { number: if parts.negative { -number } else { number }, power },
        keeps_text,
    })
}

#[cfg(test)]
mod tests;
