//! ◆ Selects rules by id, tag, area, call or severity.

use crate::rule::Rule;

/// A word of `--select` or `--skip` that matches no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no rule has the id, tag, area, call or severity {0:?}: `crib check --list` shows all")]
pub struct NoSuchRule(pub String);

/// The rules that match `select`, or all rules if `select` is empty, without the rules that match `skip`.
///
/// # Errors
/// A word matches no rule.
pub fn choose(
    all: &[&'static Rule],
    select: &[String],
    skip: &[String],
) -> Result<Vec<&'static Rule>, NoSuchRule> {
    for word in select.iter().chain(skip) {
        if !all.iter().any(|rule| means(word, rule)) {
            return Err(NoSuchRule(word.clone()));
        }
    }
    let any = |words: &[String], rule: &Rule| words.iter().any(|word| means(word, rule));
    let chosen = all
        .iter()
        .copied()
        .filter(|rule| select.is_empty() || any(select, rule))
        .filter(|rule| !any(skip, rule));
    Ok(chosen.collect())
}

/// Whether a word matches a rule. A prefix of an id matches: `CRI-CTR` matches every container rule, `CRI-CTR-00` the first nine.
fn means(word: &str, rule: &Rule) -> bool {
    let same = |text: &str| text.eq_ignore_ascii_case(word);
    let begins = !word.is_empty()
        && rule.id.split_at_checked(word.len()).is_some_and(|(head, _)| same(head));
    begins
        || same(rule.area())
        || same(&rule.severity.to_string())
        || rule.tags.iter().any(|tag| same(tag))
        || rule.calls.iter().any(|call| same(call))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::rule::Severity;

    const fn rule(id: &'static str, severity: Severity, calls: &'static [&'static str]) -> Rule {
        Rule {
            id,
            severity,
            says: "",
            source: "",
            tags: &["kubelet"],
            calls,
            faults: &[],
            body: |_| Box::pin(async { Ok(()) }),
        }
    }

    static A: Rule = rule("CRI-CTR-001", Severity::Must, &["StartContainer"]);
    static B: Rule = rule("CRI-CTR-002", Severity::May, &["StopContainer"]);
    static C: Rule = rule("CRI-SBX-001", Severity::Must, &["StopPodSandbox"]);

    #[rstest]
    #[case("", "", "CRI-CTR-001 CRI-CTR-002 CRI-SBX-001")]
    #[case("cri-ctr", "", "CRI-CTR-001 CRI-CTR-002")]
    #[case("CRI-CTR-002", "", "CRI-CTR-002")]
    #[case("CRI-CTR-00", "", "CRI-CTR-001 CRI-CTR-002")]
    #[case("must", "sandbox", "CRI-CTR-001")]
    #[case("StopContainer stoppodsandbox", "", "CRI-CTR-002 CRI-SBX-001")]
    #[case("kubelet", "kubelet", "")]
    fn selectors_choose_rules(#[case] select: &str, #[case] skip: &str, #[case] expected: &str) {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let chosen = choose(&[&A, &B, &C], &words(select), &words(skip)).unwrap();
        let ids: Vec<&str> = chosen.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.join(" "), expected);
    }

    #[rstest]
    #[case("CRI-X")]
    #[case("")]
    #[case("container-x")]
    fn selector_without_rule_is_an_error(#[case] word: &str) {
        let error = choose(&[&A], &[], &[word.to_owned()]).unwrap_err();
        assert_eq!(error, NoSuchRule(word.to_owned()));
    }
}
