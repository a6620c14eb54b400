//! ◆ Reads one step of a script.

use std::time::Duration;

use super::{FORMS, Form, Step};

/// The longest time in a script.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of lines per second.
const MOST_LINES: u32 = 10_000;
/// The maximum number of children: below a kubelet's default limit on a pod's processes on a large node.
const MOST_CHILDREN: u32 = 1_000;
/// How much an unknown step must resemble a known one for a suggestion, from 0 to 1.
const ALIKE: f64 = 0.8;

/// Why a text is not a behaviour script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// A step is empty.
    #[error("a step is missing: write one such as exit-1-after-2s, and / between two steps")]
    Empty,
    /// A step has no known form.
    #[error("there is no step {step:?}{}", suggest(.step))]
    Unknown {
        /// The step as written.
        step: String,
    },
    /// A value of a step is wrong.
    #[error("step {step:?}: {value:?} is not {expected}")]
    Value {
        /// The step as written.
        step: String,
        /// The value in it.
        value: String,
        /// The expected form of the value.
        expected: &'static str,
    },
    /// Two steps contradict each other.
    #[error("{first} and {second} exclude each other: leave one out")]
    Contradiction {
        /// One step.
        first: String,
        /// The other step.
        second: String,
    },
}

/// Proposes the form that resembles a step, or all forms.
fn suggest(step: &str) -> String {
    // Compare only the words around the values, with and without the optional ones, because values differ in any case.
    let shape = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c.is_uppercase(), "");
    let likeness = |known: &Form| {
        let short = known.form.split('[').next().unwrap_or_default();
        let alike = |text| strsim::jaro_winkler(&shape(step), &shape(text));
        alike(short).max(alike(known.example))
    };
    let nearest = FORMS
        .iter()
        .map(|known| (likeness(known), known.form))
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match nearest {
        Some((alike, form)) if alike >= ALIKE => format!(": did you mean {form}?"),
        _ => {
            let forms: Vec<&str> = FORMS.iter().map(|known| known.form).collect();
            format!("; there are: {}", forms.join(", "))
        }
    }
}

/// Reads a step.
pub(super) fn step(step: &str) -> Result<Step, ScriptError> {
    let read = Reader(step);
    match step {
        "" => return Err(ScriptError::Empty),
        "run" => return Ok(Step::Run),
        "ignore-term" => return Ok(Step::IgnoreTerm),
        "create-fails" => return Ok(Step::CreateFails),
        "start-fails" => return Ok(Step::StartFails),
        "exec-hangs" => return Ok(Step::ExecHangs),
        _ => {}
    }
    if let Some(time) = step.strip_prefix("create-takes-") {
        return Ok(Step::CreateTakes(read.time(time)?));
    }
    if let Some(time) = step.strip_prefix("start-takes-") {
        return Ok(Step::StartTakes(read.time(time)?));
    }
    if let Some(rest) = step.strip_prefix("log-") {
        let lines = rest.strip_suffix("-to-stderr");
        let Some(count) = lines.unwrap_or(rest).strip_suffix("-a-second") else {
            return Err(read.unknown());
        };
        return Ok(Step::Log {
            per_second: read.number(count, 1..=MOST_LINES, "a number of lines: 1 to 10000")?,
            stderr: lines.is_some(),
        });
    }
    let (what, after) = match step.split_once("-after-") {
        Some((what, time)) => (what, read.time(time)?),
        None => (step, Duration::ZERO),
    };
    if let Some(rest) = what.strip_prefix("exit-") {
        let expected = "an exit code: 0 to 255";
        // The part after the code is misspelt.
        if rest
            .split_once('-')
            .is_some_and(|(code, end)| code.parse::<u8>().is_ok() && end != "on-term")
        {
            return Err(read.unknown());
        }
        return Ok(match rest.strip_suffix("-on-term") {
            Some(code) => {
                Step::ExitOnTerm { code: read.number(code, 0..=u8::MAX, expected)?, after }
            }
            None => Step::Exit { code: read.number(rest, 0..=u8::MAX, expected)?, after },
        });
    }
    if let Some(size) = what.strip_prefix("allocate-") {
        let bytes = match size {
            "until-oom" => None,
            size => Some(read.size(size)?),
        };
        return Ok(Step::Allocate { bytes, after });
    }
    if let Some(count) = what.strip_prefix("fork-") {
        let expected = "a number of processes: 1 to 1000";
        let count = read.number(count, 1..=MOST_CHILDREN, expected)?;
        return Ok(Step::Fork { count, after });
    }
    Err(read.unknown())
}

/// Reads the values of a step.
struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn unknown(&self) -> ScriptError {
        ScriptError::Unknown { step: self.0.to_owned() }
    }

    fn wrong(&self, value: &str, expected: &'static str) -> ScriptError {
        ScriptError::Value { step: self.0.to_owned(), value: value.to_owned(), expected }
    }

    fn number<N: std::str::FromStr + PartialOrd>(
        &self,
        text: &str,
        range: std::ops::RangeInclusive<N>,
        expected: &'static str,
    ) -> Result<N, ScriptError> {
        // `parse` also accepts a sign.
        let digits = text.bytes().all(|c| c.is_ascii_digit());
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.filter(|_| digits).ok_or_else(|| self.wrong(text, expected))
    }

    fn time(&self, text: &str) -> Result<Duration, ScriptError> {
        let expected = "a time: a whole number with ms, s, m or h, at most 24h";
        let (digits, millis) =
            unit(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)])
                .ok_or_else(|| self.wrong(text, expected))?;
        let count: u32 =
            self.number(digits, 0..=u32::MAX, expected).map_err(|_| self.wrong(text, expected))?;
        let time = Duration::from_millis(u64::from(count) * millis);
        if time > LONGEST {
            return Err(self.wrong(text, expected));
        }
        Ok(time)
    }

    fn size(&self, text: &str) -> Result<u64, ScriptError> {
        let expected = "until-oom, nor a size: a whole number with ki, mi or gi, at most 1023gi";
        let (digits, bytes) = unit(text, &[("ki", 1 << 10), ("mi", 1 << 20), ("gi", 1 << 30)])
            .ok_or_else(|| self.wrong(text, expected))?;
        let count: u64 =
            self.number(digits, 1..=1023, expected).map_err(|_| self.wrong(text, expected))?;
        Ok(count * bytes)
    }
}

/// Splits a number from its unit.
fn unit<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(&'a str, u64)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, name) = text.split_at(end);
    let (_, factor) = units.iter().find(|(known, _)| *known == name)?;
    Some((digits, *factor))
}
