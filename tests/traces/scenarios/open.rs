//! The scenarios that do not agree yet, in `open.tsv`: a scenario and a cause in each line. The list should shrink to nothing. Also
//! the scenarios that cannot be replayed, or cannot agree, for a reason other than the agent or the kubelet.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::comparison::judge::{Outcome, Verdict};
use crate::scenarios::scenario::Scenario;
use crate::scenarios::source::root;

const HEADING: &str = "scenario\tcause\n";

/// The causes of the scenarios that differ, by name.
pub(crate) fn open() -> Vec<(String, String)> {
    let text = fs::read_to_string(path()).unwrap();
    let lines = text.lines().skip(1).filter_map(|line| line.split_once('\t'));
    lines.map(|(name, cause)| (name.to_owned(), cause.to_owned())).collect()
}

/// Rewrites the list: scenarios keep their causes, and new ones get their first difference as the cause.
pub(crate) fn write(verdicts: &[Verdict]) {
    let earlier = open();
    let mut text = HEADING.to_owned();
    for verdict in verdicts {
        let first = match &verdict.outcome {
            Outcome::Agrees(_) | Outcome::Excluded(_) => continue,
            Outcome::Broken(problem) => problem.clone(),
            Outcome::Differs(differences) => {
                let first = differences.first();
                first.map_or_else(String::new, |first| format!("{} {}", first.kind, first.place))
            }
        };
        let known = earlier.iter().find(|(name, _)| *name == verdict.name);
        let cause = known.map_or(&first, |(_, cause)| cause);
        let _ = writeln!(text, "{}\t{cause}", verdict.name);
    }
    fs::write(path(), text).unwrap();
}

fn path() -> PathBuf {
    root().join("tests/traces/open.tsv")
}

/// A rule that excludes scenarios that cannot be replayed, or cannot agree.
pub(crate) struct Exception {
    pub(crate) reason: &'static str,
    pub(crate) applies: fn(&Scenario) -> bool,
}

pub(crate) const EXCEPTIONS: [Exception; 2] = [
    Exception {
        reason: "the recorded runtime offered no user namespaces, and crib's does",
        applies: |scenario| scenario.manifest.contains("hostUsers: false"),
    },
    Exception {
        reason: "the recorded node had no AppArmor, and this one has",
        applies: |scenario| scenario.manifest.contains("appArmorProfile:") && has_apparmor(),
    },
];

fn has_apparmor() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.starts_with('Y'))
}
