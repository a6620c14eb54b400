//! ◆ Numbers that Kubernetes represents as a 64-bit integer and a power of ten.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/api/resource: int64Amount and the arithmetic of math.go.

/// The powers of ten with which Kubernetes multiplies in one step, taking the low 64 bits of the product. A product with another
/// power that overflows is 0.
const ONE_STEP: [u32; 5] = [1, 2, 3, 6, 9];

/// `number × 10^power`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Integer {
    pub(super) number: i64,
    pub(super) power: i32,
}

impl Integer {
    /// In units of a power of ten, rounded away from zero; overflows yield the same result as in Kubernetes.
    pub(super) fn scaled(self, unit: i32) -> i64 {
        let shift = i64::from(self.power) - i64::from(unit);
        let steps = u32::try_from(shift.unsigned_abs()).unwrap_or(u32::MAX);
        if shift >= 0 {
            let exact = times_ten(self.number, steps);
            return exact.unwrap_or_else(|| match 10_i64.checked_pow(steps) {
                Some(by) if ONE_STEP.contains(&steps) => self.number.wrapping_mul(by),
                Some(_) | None => 0,
            });
        }
        match 10_i64.checked_pow(steps) {
            Some(by) => self.number / by + (self.number % by).signum(),
            None => self.number.signum(),
        }
    }

    /// As a whole number of units, if it was written as one and fits.
    pub(super) fn exact(self) -> Option<i64> {
        times_ten(self.number, u32::try_from(self.power).ok()?)
    }

    /// In billionths; saturates.
    pub(super) fn nanos(self) -> i128 {
        if self.number == 0 {
            return 0;
        }
        let scaled = u32::try_from(i64::from(self.power) + 9)
            .ok()
            .and_then(|power| 10_i128.checked_pow(power))
            .and_then(|by| i128::from(self.number).checked_mul(by));
        scaled.unwrap_or(if self.number < 0 { i128::MIN } else { i128::MAX })
    }

    /// The sum of two, if it fits.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        match (self.number, other.number) {
            (_, 0) => return Some(self),
            (0, _) => return Some(other),
            _ => {}
        }
        let power = self.power.min(other.power);
        let at = |it: Self| times_ten(it.number, it.power.abs_diff(power));
        Some(Self { number: at(self)?.checked_add(at(other)?)?, power })
    }
}

fn times_ten(number: i64, times: u32) -> Option<i64> {
    match number {
        0 => Some(0),
        _ => number.checked_mul(10_i64.checked_pow(times)?),
    }
}
