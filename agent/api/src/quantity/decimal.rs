//! ◆ Decimal numbers of any length as digits, and the canonical text of a quantity.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/api/resource: CanonicalizeBytes and amount.go.

use super::scan::{BINARY, DECIMAL, Format};

/// The smallest power of ten that a quantity can hold.
const NANO: i64 = -9;

/// `digits × 10^exponent`, without sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// The number with these digits, leading zeros or not.
    pub(super) fn new(digits: &str, exponent: i64) -> Self {
        Self { digits: digits.trim_start_matches('0').to_owned(), exponent }
    }

    /// Rounds up to billionths, so that no request becomes zero.
    pub(super) fn round_up_to_nano(mut self) -> Self {
        let Ok(drop) = usize::try_from(NANO - self.exponent) else {
            return self;
        };
        if drop == 0 || self.digits.is_empty() {
            return self;
        }
        let kept = self.digits.len().saturating_sub(drop);
        let inexact = self.digits[kept..].bytes().any(|digit| digit != b'0');
        self.digits.truncate(kept);
        if inexact {
            increment(&mut self.digits);
        }
        self.exponent = NANO;
        self
    }

    /// The number times 1024.
    pub(super) fn times_1024(self) -> Self {
        let mut carry = 0_u32;
        let mut digits: Vec<u8> = Vec::with_capacity(self.digits.len() + 4);
        for digit in self.digits.bytes().rev() {
            let product = u32::from(digit - b'0') * 1024 + carry;
            digits.push(b'0' + (product % 10) as u8);
            carry = product / 10;
        }
        digits.reverse();
        let carry = if carry == 0 { String::new() } else { carry.to_string() };
        Self {
            digits: format!("{carry}{}", String::from_utf8_lossy(&digits)),
            exponent: self.exponent,
        }
    }

    /// In billionths; saturates.
    pub(super) fn nanos(&self) -> i128 {
        if self.digits.is_empty() {
            return 0;
        }
        let scaled = || {
            let number: i128 = self.digits.parse().ok()?;
            let power = u32::try_from(self.exponent - NANO).ok()?;
            number.checked_mul(10_i128.checked_pow(power)?)
        };
        scaled().unwrap_or(i128::MAX)
    }

    /// The low 64 bits of the number times a power of ten, rounded up.
    pub(super) fn low_bits(&self, power: i64) -> i64 {
        let exponent = self.exponent.saturating_add(power);
        let drop = usize::try_from(exponent.saturating_neg()).unwrap_or(0);
        let (kept, dropped) = self.digits.split_at(self.digits.len().saturating_sub(drop));
        let number = kept.bytes().fold(0_u64, |number, digit| {
            number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
        });
        // Ten to the power of 64 and beyond has no low bits.
        let tens = 10_u64.wrapping_pow(u32::try_from(exponent.clamp(0, 64)).unwrap_or(0));
        let more = u64::from(dropped.bytes().any(|digit| digit != b'0'));
        number.wrapping_mul(tens).wrapping_add(more) as i64
    }

    /// The digits without trailing zeros, and a power of ten for which a suffix exists, a multiple of three.
    fn canonical(mut self) -> (String, i64) {
        while self.digits.ends_with('0') {
            self.digits.pop();
            self.exponent += 1;
        }
        while self.exponent % 3 != 0 {
            self.digits.push('0');
            self.exponent -= 1;
        }
        (self.digits, self.exponent)
    }
}

fn increment(digits: &mut String) {
    let nines = digits.len() - digits.trim_end_matches('9').len();
    digits.truncate(digits.len() - nines);
    match digits.pop().and_then(|digit| digit.to_digit(10)) {
        // Not nine, so that adding one yields one digit.
        Some(digit) => digits.push_str(&(digit + 1).to_string()),
        None => digits.push('1'),
    }
    digits.extend(std::iter::repeat_n('0', nines));
}

/// The canonical text of a number in a decimal format.
pub(super) fn decimal_text(negative: bool, number: Decimal, format: Format) -> String {
    if number.digits.is_empty() {
        return "0".to_owned();
    }
    let (digits, exponent) = number.canonical();
    let sign = if negative { "-" } else { "" };
    let suffix = match format {
        Format::DecimalExponent if exponent == 0 => String::new(),
        Format::DecimalExponent => format!("e{exponent}"),
        // Kubernetes writes no suffix beyond the greatest one.
        Format::DecimalSi | Format::BinarySi => DECIMAL
            .iter()
            .find(|(_, power)| i64::from(*power) == exponent)
            .map(|(name, _)| (*name).to_owned())
            .unwrap_or_default(),
    };
    format!("{sign}{digits}{suffix}")
}

/// The canonical text of a whole number in the binary format.
pub(super) fn binary_text(mut number: i128) -> String {
    let mut suffix = "";
    for name in BINARY {
        if number == 0 || number % 1024 != 0 {
            break;
        }
        number /= 1024;
        suffix = name;
    }
    format!("{number}{suffix}")
}
