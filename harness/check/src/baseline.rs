//! ◆ A runtime's expected failures.

use std::collections::BTreeMap;

use crate::outcome::word;
use crate::rule::{Rule, Severity};
use crate::running::run::Report;

/// Expected failures by rule id, each with its explanation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baseline(BTreeMap<String, String>);

/// A malformed line of a baseline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected ID, a tab and an explanation, not {text:?}")]
pub struct BadBaseline {
    line: usize,
    text: String,
}

impl Baseline {
    /// Parses lines of an id, a tab and an explanation. Skips empty lines and lines that begin with `#`.
    ///
    /// # Errors
    /// A line has another form.
    pub fn parse(text: &str) -> Result<Self, BadBaseline> {
        let mut known = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once('\t') {
                Some((id, why)) if !id.is_empty() && !why.trim().is_empty() => {
                    known.insert(id.to_owned(), why.trim().to_owned());
                }
                Some(_) | None => {
                    return Err(BadBaseline { line: index + 1, text: line.to_owned() });
                }
            }
        }
        Ok(Self(known))
    }

    /// The explanation if the rule's failure is expected.
    #[must_use]
    pub fn explanation(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }

    /// Whether a rule of at least this severity failed unexpectedly.
    #[must_use]
    pub fn fails(&self, report: &Report, severity: Severity) -> bool {
        report.results.iter().any(|result| {
            word(&result.outcome) == "fail"
                && result.rule.severity >= severity
                && self.explanation(result.rule.id).is_none()
        })
    }

    /// The ids in the baseline that no rule has.
    #[must_use]
    pub fn unknown(&self, rules: &[&Rule]) -> Vec<&str> {
        let ids = self.0.keys().map(String::as_str);
        ids.filter(|id| rules.iter().all(|rule| rule.id != *id)).collect()
    }

    /// The ids of rules that passed although the baseline expects them to fail.
    #[must_use]
    pub fn outdated<'a>(&self, report: &'a Report) -> Vec<&'a str> {
        let passed = report.results.iter().filter(|one| word(&one.outcome) == "pass");
        passed.map(|result| result.rule.id).filter(|id| self.explanation(id).is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn lines_have_id_and_explanation() {
        let baseline = Baseline::parse("# known\n\nCRI-CTR-001\tit is old\n").unwrap();
        assert_eq!(baseline.explanation("CRI-CTR-001"), Some("it is old"));
        assert_eq!(baseline.explanation("CRI-CTR-002"), None);
    }

    #[rstest]
    #[case("CRI-CTR-001")]
    #[case("CRI-CTR-001\t ")]
    #[case("\twhy")]
    fn line_without_explanation_is_refused(#[case] text: &str) {
        let error = Baseline::parse(&format!("#\n{text}")).unwrap_err();
        assert_eq!(error.line, 2);
    }
}
