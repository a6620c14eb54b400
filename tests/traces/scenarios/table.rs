//! The printed and written results.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::comparison::judge::{Outcome, Verdict};
use crate::scenarios::source::root;

/// The number of printed differences of a scenario.
const SHOWN: usize = 2;

impl Verdict {
    fn word(&self) -> &'static str {
        match &self.outcome {
            Outcome::Agrees(_) => "agrees",
            Outcome::Differs(_) => "differs",
            Outcome::Excluded(_) => "excluded",
            Outcome::Broken(_) => "broken",
        }
    }

    pub(crate) fn is_wrong(&self) -> bool {
        matches!(self.outcome, Outcome::Differs(_) | Outcome::Broken(_))
    }
}

/// A line for each scenario, the first differences, and the totals.
pub(crate) fn text(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let width = verdicts.iter().map(|verdict| verdict.name.len()).max().unwrap_or_default();
    for verdict in verdicts {
        let _ = write!(text, "{:width$}  {}", verdict.name, verdict.word());
        match &verdict.outcome {
            Outcome::Agrees(explained) => {
                for reason in explained {
                    let _ = write!(text, "; {reason}");
                }
            }
            Outcome::Excluded(reason) => {
                let _ = write!(text, ": {reason}");
            }
            Outcome::Broken(problem) => {
                let _ = write!(text, ": {problem}");
            }
            Outcome::Differs(differences) => {
                let _ = write!(text, " in {}", differences.len());
                for difference in differences.iter().take(SHOWN) {
                    let _ = write!(text, "\n  {difference}");
                }
            }
        }
        text.push('\n');
    }
    for word in ["agrees", "differs", "excluded", "broken"] {
        let count = verdicts.iter().filter(|verdict| verdict.word() == word).count();
        let _ = write!(text, "{word}: {count}  ");
    }
    let _ = writeln!(text, "of {}", verdicts.len());
    text
}

/// Writes all differences of each scenario to `target/traces/SCENARIO.diff`.
pub(crate) fn write(verdicts: &[Verdict]) {
    let directory = root().join("target/traces");
    fs::create_dir_all(&directory).unwrap();
    for verdict in verdicts {
        let path = directory.join(format!("{}.diff", verdict.name));
        match &verdict.outcome {
            Outcome::Differs(differences) => {
                let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
                fs::write(path, format!("{}\n{}\n", verdict.about, lines.join("\n"))).unwrap();
            }
            Outcome::Broken(problem) => fs::write(path, problem).unwrap(),
            Outcome::Agrees(_) | Outcome::Excluded(_) => {
                let _ = fs::remove_file(path);
                let _ = fs::remove_file(directory.join(format!("{}.jsonl", verdict.name)));
            }
        }
    }
}

/// Writes the calls of a differing scenario to `target/traces/SCENARIO.jsonl`.
pub(crate) fn write_calls(scenario: &str, calls: &[Value]) {
    let directory = root().join("target/traces");
    fs::create_dir_all(&directory).unwrap();
    let lines: String = calls.iter().map(|call| format!("{call}\n")).collect();
    fs::write(directory.join(format!("{scenario}.jsonl")), lines).unwrap();
}

/// The scenarios that do not agree and are not listed as open, and those that agree although they are listed.
pub(crate) fn against_open<'a>(
    verdicts: &'a [Verdict],
    open: &[(String, String)],
) -> (Vec<&'a str>, Vec<&'a str>) {
    let listed = |verdict: &&Verdict| open.iter().any(|(name, _)| *name == verdict.name);
    let names = |word: [&str; 2], is_listed: bool| -> Vec<&str> {
        let chosen = verdicts
            .iter()
            .filter(|verdict| word.contains(&verdict.word()) && listed(verdict) == is_listed);
        chosen.map(|verdict| verdict.name.as_str()).collect()
    };
    (names(["differs", "broken"], false), names(["agrees", "excluded"], true))
}
