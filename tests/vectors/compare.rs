//! Judges the sets of a package, prints the table, and updates the package's section of docs/kubelet-parity.md.

use std::io::Write;

use crate::document;
use crate::judge::{Outcome, Set, judge_all};
use crate::read::{Source, write_sample};

/// Environment variable that makes the test update docs/kubelet-parity.md.
const UPDATE_DOCUMENT: &str = "CRIB_UPDATE_DOCS";
/// If set, the test rewrites the sample in tests/vectors from the full sets.
const UPDATE_SAMPLE: &str = "CRIB_UPDATE_VECTORS_SAMPLE";
/// The names of the sets to judge, separated by commas; by default all.
const CHOSEN: &str = "CRIB_SETS";

/// Judges the sets of a package, whose section in docs/kubelet-parity.md has this heading.
pub(crate) fn decisions_agree(heading: &str, sets: &[Set]) {
    let source = Source::find();
    let chosen = std::env::var(CHOSEN).ok();
    let is_chosen = |set: &&Set| {
        chosen.as_ref().is_none_or(|names| names.split(',').any(|name| name == set.name))
    };
    let sets: Vec<&Set> = sets.iter().filter(is_chosen).collect();
    assert!(!sets.is_empty(), "{CHOSEN} names no set of this package");
    if std::env::var_os(UPDATE_SAMPLE).is_some() {
        write_sample(&source, &sets);
    }

    let results = judge_all(&source, &sets);
    for result in &results {
        result.write_differences();
    }
    // The test runner does not capture this, unlike `eprintln!`, so the table is always visible.
    writeln!(std::io::stderr().lock(), "{source}\n{}", table(&results)).unwrap();
    if std::env::var_os(UPDATE_DOCUMENT).is_some() {
        assert!(
            source.is_full() && chosen.is_none(),
            "the page is written from all cases of all sets"
        );
        document::write(heading, &results);
    }
    // The sample, or other cases, cannot show whether the page and the exceptions are up to date.
    if document::is_about(heading, &results) {
        let outdated: Vec<String> =
            results.iter().flat_map(|result| result.outdated_exceptions()).collect();
        assert!(outdated.is_empty(), "exceptions that no case needs: {outdated:#?}");
        assert_eq!(
            document::present(heading),
            document::written(heading, &results),
            "docs/kubelet-parity.md is not up to date: run this test with {UPDATE_DOCUMENT}=1"
        );
    }
    let differing: Vec<String> =
        results.iter().flat_map(|result| result.shown_differences()).collect();
    assert!(
        differing.is_empty(),
        "decisions differ (all of them are in target/vectors), first ones of each set:\n{}",
        differing.join("\n")
    );
}

/// The table of all sets, for a terminal: one line a set, then one for each used exception.
fn table(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.set.len()).max().unwrap_or_default();
    let mut lines = vec![format!("{:width$}  cases  agree differ excluded", "set")];
    for outcome in outcomes {
        let excluded: usize = outcome.excluded.iter().map(|(_, count)| count).sum();
        lines.push(format!(
            "{:width$}  {:5}  {:5}  {:5}    {excluded:5}",
            outcome.set,
            outcome.cases,
            outcome.agree,
            outcome.differ.len(),
        ));
        let used = outcome.excluded.iter().filter(|(_, count)| *count > 0);
        lines.extend(used.map(|(reason, count)| format!("{:width$}  {count:5}  {reason}", "")));
    }
    lines.join("\n")
}
