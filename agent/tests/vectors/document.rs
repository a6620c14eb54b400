//! docs/kubelet-parity.md, written from what came out.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::judge::Outcome;

/// Where the document is.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubelet-parity.md")
}

/// The document as it is in the repository.
pub(crate) fn present() -> String {
    std::fs::read_to_string(path()).unwrap_or_default()
}

/// Whether the document in the repository was written from these cases.
pub(crate) fn is_about(outcomes: &[Outcome]) -> bool {
    present().contains(&fingerprint(outcomes))
}

fn fingerprint(outcomes: &[Outcome]) -> String {
    let all = outcomes.iter().fold(0_u64, |all, outcome| {
        all.rotate_left(5) ^ outcome.fingerprint
    });
    format!("<!-- cases {all:016x} -->")
}

/// The document's text.
pub(crate) fn written(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "# How crib's agent agrees with a kubelet\n\n\
         Decisions of crib's agent, compared with those that Kubernetes 1.36.2 takes for the same input. This page is written by\n\
         `CRIB_UPDATE_DOCS=1 cargo test -p agent --test vectors`, and a test keeps it up to date. A case that does not agree fails\n\
         that test, unless one of the exceptions below applies to it.\n\n\
         | set | what is decided | cases | agree | excluded | agreement |\n|---|---|---:|---:|---:|---:|\n",
    );
    for outcome in outcomes {
        let excluded: usize = outcome.excluded.iter().map(|(_, count)| count).sum();
        let share = 100.0 * outcome.agree as f64 / outcome.cases as f64;
        writeln!(
            text,
            "| {} | {} | {} | {} | {excluded} | {share:.2} % |",
            outcome.set, outcome.about, outcome.cases, outcome.agree
        )
        .unwrap();
    }
    writeln!(text, "\n{}", fingerprint(outcomes)).unwrap();
    text.push_str("\n## Exceptions\n\n");
    let used = || {
        outcomes
            .iter()
            .filter(|outcome| outcome.excluded.iter().any(|(_, count)| *count > 0))
    };
    if used().next().is_none() {
        text.push_str("There are none.\n");
    }
    for outcome in used() {
        for (reason, count) in outcome.excluded.iter().filter(|(_, count)| *count > 0) {
            writeln!(text, "- **{}**, {count} cases: {reason}.", outcome.set).unwrap();
        }
    }
    text
}
