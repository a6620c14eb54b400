//! ◆ One field of a cron expression: lists of numbers, names, ranges and steps. Pure.

use thiserror::Error;

/// Why a field cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FieldProblem {
    /// Neither a number nor a name.
    #[error("failed to parse int from {0}: expected a number or a name")]
    Number(String),
    /// A range has more than two ends.
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    /// A range has more than one step.
    #[error("too many slashes: {0}")]
    Slashes(String),
    /// A number is too small.
    #[error("beginning of range ({start}) below minimum ({least}): {text}")]
    Below {
        /// The number.
        start: u32,
        /// The minimum of the field.
        least: u32,
        /// The range.
        text: String,
    },
    /// A number is too large.
    #[error("end of range ({end}) above maximum ({most}): {text}")]
    Above {
        /// The number.
        end: u32,
        /// The maximum of the field.
        most: u32,
        /// The range.
        text: String,
    },
    /// A range goes backwards.
    #[error("beginning of range ({start}) beyond end of range ({end}): {text}")]
    Backwards {
        /// Its first number.
        start: u32,
        /// Its last number.
        end: u32,
        /// The range.
        text: String,
    },
    /// The step is 0.
    #[error("step of range should be a positive number: {0}")]
    Step(String),
}

/// The allowed values of a field.
pub(super) struct Bounds {
    least: u32,
    most: u32,
    /// The first name stands for `least`.
    names: &'static [&'static str],
}

pub(super) const MINUTES: Bounds = Bounds { least: 0, most: 59, names: &[] };
pub(super) const HOURS: Bounds = Bounds { least: 0, most: 23, names: &[] };
pub(super) const DAYS: Bounds = Bounds { least: 1, most: 31, names: &[] };
pub(super) const MONTHS: Bounds = Bounds {
    least: 1,
    most: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
pub(super) const WEEKDAYS: Bounds =
    Bounds { least: 0, most: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// The numbers in a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set {
    bits: u64,
    is_star: bool,
}

impl Set {
    pub(super) fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.bits & (1 << number) != 0)
    }

    /// Whether the field allows every value: `*`, or `?`.
    pub(super) fn is_star(self) -> bool {
        self.is_star
    }
}

/// The union of the ranges between commas.
pub(super) fn parse(text: &str, bounds: &Bounds) -> Result<Set, FieldProblem> {
    let mut all = Set::default();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let set = parse_range(range, bounds)?;
        all.bits |= set.bits;
        all.is_star |= set.is_star;
    }
    Ok(all)
}

fn parse_range(text: &str, bounds: &Bounds) -> Result<Set, FieldProblem> {
    let parts: Vec<&str> = text.split('/').collect();
    let (range, step) = match parts.as_slice() {
        [range] => (*range, None),
        [range, step] => (*range, Some(number(step)?)),
        _ => return Err(FieldProblem::Slashes(text.to_owned())),
    };
    let ends: Vec<&str> = range.split('-').collect();
    let (start, mut end, mut is_star) = match ends.as_slice() {
        ["*" | "?", ..] => (bounds.least, bounds.most, true),
        [one] => {
            let one = number_or_name(one, bounds)?;
            (one, one, false)
        }
        [first, last] => {
            let first = number_or_name(first, bounds)?;
            (first, number_or_name(last, bounds)?, false)
        }
        _ => return Err(FieldProblem::Hyphens(text.to_owned())),
    };
    // `3/5` is the range from 3 to the maximum.
    if step.is_some() && ends.len() == 1 {
        end = bounds.most;
    }
    let step = step.unwrap_or(1);
    is_star &= step <= 1;
    let (least, most, text) = (bounds.least, bounds.most, || text.to_owned());
    if start < least {
        let text = text();
        return Err(FieldProblem::Below { start, least, text });
    }
    if end > most {
        let text = text();
        return Err(FieldProblem::Above { end, most, text });
    }
    if start > end {
        let text = text();
        return Err(FieldProblem::Backwards { start, end, text });
    }
    if step == 0 {
        return Err(FieldProblem::Step(text()));
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    let bits = (start..=end).step_by(step).fold(0, |bits, number| bits | 1 << number);
    Ok(Set { bits, is_star })
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, FieldProblem> {
    let names = (bounds.least..).zip(bounds.names);
    let mut named = names.filter(|(_, name)| name.eq_ignore_ascii_case(text));
    match named.next() {
        Some((number, _)) => Ok(number),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, FieldProblem> {
    text.parse().map_err(|_| FieldProblem::Number(text.to_owned()))
}
