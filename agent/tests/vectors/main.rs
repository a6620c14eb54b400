//! Compares the agent's decisions with those of Kubernetes 1.36.2 for the same input (see `tests/vectors/README.md`).
#![allow(
    clippy::unwrap_used,
    reason = "a malformed vector has to fail the test"
)]

mod actions;
mod backoff;
mod config;
mod document;
mod eviction;
mod images;
mod inside;
mod judge;
mod kill;
mod mounts;
mod probes;
mod read;
mod resources;
mod restart;
mod sets;
mod static_pod_dirs;
mod static_pods;
mod status;
mod support;
mod table;
mod validation;

use std::io::Write;

/// Set to write docs/kubelet-parity.md anew.
const UPDATE_DOCUMENT: &str = "CRIB_UPDATE_DOCS";
/// Set to write the sample in tests/vectors anew, from the full sets.
const UPDATE_SAMPLE: &str = "CRIB_UPDATE_VECTORS_SAMPLE";
/// Names of the sets to judge, separated by commas; all of them when it is not set.
const CHOSEN: &str = "CRIB_SETS";

#[test]
fn decisions_agree_with_kubernetes() {
    let source = read::Source::find();
    let chosen = std::env::var(CHOSEN).ok();
    let sets: Vec<&judge::Set> = sets::SETS
        .iter()
        .filter(|set| {
            chosen
                .as_ref()
                .is_none_or(|names| names.split(',').any(|name| name == set.name))
        })
        .collect();
    assert!(!sets.is_empty(), "{CHOSEN} names no set");
    if std::env::var_os(UPDATE_SAMPLE).is_some() {
        read::write_sample(&source, &sets);
    }

    let results = judge::judge_all(&source, &sets);
    for result in &results {
        result.write_differences();
    }
    // The test runner does not capture this, unlike `eprintln!`, so the table is always visible.
    writeln!(
        std::io::stderr().lock(),
        "{source}\n{}",
        table::text(&results)
    )
    .unwrap();
    if std::env::var_os(UPDATE_DOCUMENT).is_some() {
        assert!(
            source.is_full() && chosen.is_none(),
            "the page is written from all cases of all sets"
        );
        std::fs::write(document::path(), document::written(&results)).unwrap();
    }
    // A sample, or other cases of the same kind, say nothing about the page and about what needs an exception.
    if document::is_about(&results) {
        let outdated: Vec<String> = results
            .iter()
            .flat_map(|result| result.outdated_exceptions())
            .collect();
        assert!(
            outdated.is_empty(),
            "exceptions that no case needs: {outdated:#?}"
        );
        assert_eq!(
            document::present(),
            document::written(&results),
            "docs/kubelet-parity.md is not up to date: run this test with {UPDATE_DOCUMENT}=1"
        );
    }
    let differing: Vec<String> = results
        .iter()
        .flat_map(|result| result.shown_differences())
        .collect();
    assert!(
        differing.is_empty(),
        "decisions differ (all of them are in target/vectors), first ones of each set:\n{}",
        differing.join("\n")
    );
}
