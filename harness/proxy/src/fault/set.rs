//! The rules of one proxy, from a file with one rule a line, comments, and a seed.

use std::str::FromStr;

use super::Fault;
use super::cursor::excerpt;

/// The rules of one proxy.
///
/// The text has one [`Fault`] a line, `seed N` on its own line, and comments from `#` on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuleSet {
    /// The seed that decides to which calls a rule with a probability applies.
    pub seed: u64,
    /// The rules, in the order in which they apply.
    pub faults: Vec<Fault>,
}

/// Why a text is not a valid set of rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {why}")]
pub struct ParseRulesError {
    line: usize,
    column: usize,
    why: String,
}

impl From<Vec<Fault>> for RuleSet {
    fn from(faults: Vec<Fault>) -> Self {
        Self { seed: 0, faults }
    }
}

impl FromStr for RuleSet {
    type Err = ParseRulesError;

    fn from_str(text: &str) -> Result<Self, ParseRulesError> {
        let mut set = Self::default();
        let mut seed_line = None;
        for (number, line) in text.lines().enumerate() {
            let bad = |column, why| ParseRulesError { line: number + 1, column, why };
            let words = line.split('#').next().unwrap_or_default();
            let mut words = words.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (None, _, _) => {}
                (Some("seed"), seed, None) => {
                    let seed = seed.unwrap_or_default();
                    if let Some(first) = seed_line.replace(number + 1) {
                        let column = line.find("seed").unwrap_or_default() + 1;
                        return Err(bad(column, format!("line {first} has a seed already")));
                    }
                    set.seed = seed.parse().map_err(|_| {
                        bad(
                            line.find("seed").unwrap_or_default() + 6,
                            format!("{:?} is not a number", excerpt(seed)),
                        )
                    })?;
                }
                _ => {
                    let fault: Fault = line
                        .parse()
                        .map_err(|error: super::ParseFaultError| bad(error.column, error.why))?;
                    set.faults.push(fault);
                }
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn rules_are_read_from_lines() {
        let text = "# A slow runtime.\n\n  seed 7 # same run\nVersion hang # now\n  \
                    Status set runtime_handlers.name \"a # b\"\n";
        let set: RuleSet = text.parse().unwrap();
        let texts: Vec<_> = set.faults.iter().map(Fault::text).collect();
        let expected = ["Version hang # now", "Status set runtime_handlers.name \"a # b\""];
        assert_eq!((set.seed, texts), (7, expected.to_vec()));
        assert_eq!("".parse(), Ok(RuleSet::default()));
    }

    #[rstest]
    #[case(
        "Version hang\n\n  Version hagn",
        "3:11: unknown action \"hagn\": did you mean \"hang\"?"
    )]
    #[case("seed x", "1:6: \"x\" is not a number")]
    #[case("seed", "1:6: \"\" is not a number")]
    #[case("seed 1\n\n seed 1", "3:2: line 1 has a seed already")]
    #[case("seed 1 2", "1:1: the CRI has no call \"seed\"")]
    #[case("unknown: 5", "1:10: the CRI has no call \"5\"")]
    fn bad_line_is_named_with_column(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<RuleSet>().unwrap_err().to_string(), expected);
    }
}
