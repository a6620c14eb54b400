//! Judges the cases of a set: each agrees, differs, or is excluded by an exception with a reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;

use crate::read::{Case, Source};

/// A set of cases, and the function that judges a case.
pub(crate) struct Set {
    /// Name of the file, without `.jsonl.gz`.
    pub(crate) name: &'static str,
    /// The decision, in a few words.
    pub(crate) about: &'static str,
    /// `Ok` if crib decides like Kubernetes; otherwise both decisions.
    pub(crate) judge: fn(&Case) -> Result<(), String>,
    /// Cases in which crib intentionally decides differently.
    pub(crate) exceptions: &'static [Exception],
}

impl Set {
    /// A set without exceptions.
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        judge: fn(&Case) -> Result<(), String>,
    ) -> Self {
        Self { name, about, judge, exceptions: &[] }
    }
}

/// A rule for cases in which crib may differ, and the reason. It depends only on the case, so it also applies to unknown cases.
pub(crate) struct Exception {
    pub(crate) reason: &'static str,
    pub(crate) applies: fn(&Case) -> bool,
}

/// The results of a set.
pub(crate) struct Outcome {
    pub(crate) set: &'static str,
    pub(crate) about: &'static str,
    pub(crate) cases: usize,
    /// Identifies the cases: a hash (FNV-1a) of their ids.
    pub(crate) fingerprint: u64,
    pub(crate) agree: usize,
    /// Case and difference.
    pub(crate) differ: Vec<(String, String)>,
    /// How many cases each exception excluded, in the order of the set's exceptions.
    pub(crate) excluded: Vec<(&'static str, usize)>,
}

/// Judges all sets, on as many threads as there are processors.
pub(crate) fn judge_all(source: &Source, sets: &[&Set]) -> Vec<Outcome> {
    let next = Mutex::new(sets.iter().enumerate());
    let outcomes = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some((place, set)) = next.lock().unwrap().next() else {
                        return;
                    };
                    let outcome = judge(set, &source.cases(set.name));
                    outcomes.lock().unwrap().push((place, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_by_key(|(place, _)| *place);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn judge(set: &Set, cases: &[Case]) -> Outcome {
    assert!(!cases.is_empty(), "{} has no cases", set.name);
    let mut outcome = Outcome {
        set: set.name,
        about: set.about,
        cases: cases.len(),
        fingerprint: fingerprint(cases),
        agree: 0,
        differ: Vec::new(),
        excluded: set.exceptions.iter().map(|exception| (exception.reason, 0)).collect(),
    };
    for case in cases {
        // A panic counts as the difference of one case, and the others are still judged.
        let judged = catch_unwind(AssertUnwindSafe(|| (set.judge)(case)))
            .unwrap_or_else(|_| Err("panicked".to_owned()));
        match judged {
            Ok(()) => outcome.agree += 1,
            Err(difference) => {
                match set.exceptions.iter().position(|exception| (exception.applies)(case)) {
                    Some(exception) => outcome.excluded[exception].1 += 1,
                    None => outcome.differ.push((case.id.clone(), difference)),
                }
            }
        }
    }
    outcome
}

fn fingerprint(cases: &[Case]) -> u64 {
    let bytes = cases.iter().flat_map(|case| case.id.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Outcome {
    /// Writes each difference to `target/vectors/SET.tsv`.
    pub(crate) fn write_differences(&self) {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../vectors");
        std::fs::create_dir_all(&directory).unwrap();
        let rows = self
            .differ
            .iter()
            .map(|(id, difference)| format!("{id}\t{}\n", difference.replace(['\n', '\t'], " ")));
        std::fs::write(directory.join(format!("{}.tsv", self.set)), rows.collect::<String>())
            .unwrap();
    }

    /// The first differences, for the test's message.
    pub(crate) fn shown_differences(&self) -> impl Iterator<Item = String> {
        self.differ.iter().take(8).map(|(id, difference)| {
            let shown: String = difference.chars().take(1500).collect();
            format!("{id}: {shown}")
        })
    }

    /// Exceptions that excluded no case.
    pub(crate) fn outdated_exceptions(&self) -> impl Iterator<Item = String> {
        let unused = self.excluded.iter().filter(|(_, count)| *count == 0);
        unused.map(|(reason, _)| format!("{}: {reason}", self.set))
    }
}
