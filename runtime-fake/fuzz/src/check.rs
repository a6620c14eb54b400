//! Runs targets on their seeds, their corpus, and mutations of both.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::{fs, panic, path::Path, thread};

use crate::{
    Target,
    mutate::{Random, mutate},
};

/// Inputs that once failed, by target.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus");

/// The number of threads that share the targets.
const THREADS: usize = 4;

/// Runs every target on its seeds, its corpus, and deterministic mutations of both.
///
/// # Panics
/// When an input violates an invariant. The input is printed on standard error.
pub fn check(targets: &[Target]) {
    thread::scope(|scope| {
        for first in 0..THREADS {
            let share = targets.iter().skip(first).step_by(THREADS);
            scope.spawn(|| share.for_each(check_one));
        }
    });
}

fn check_one(target: &Target) {
    let inputs = inputs(target);
    for input in &inputs {
        run(target, input);
    }
    let mut random = Random::named(target.name);
    for _ in 0..target.mutations {
        let input = &inputs[random.below(inputs.len())];
        run(target, &mutate(input, &inputs, &mut random));
    }
}

/// The target's seeds, and the files of its directory in the corpus.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty(), "{} has no seeds", target.name);
    if let Ok(entries) = fs::read_dir(Path::new(CORPUS).join(target.name)) {
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        inputs.extend(paths.iter().map(|path| fs::read(path).unwrap()));
    }
    inputs
}

/// Runs one input, and prints it if it violates an invariant.
fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = panic::catch_unwind(|| (target.run)(input)) {
        eprintln!("{} fails on b\"{}\"", target.name, input.escape_ascii());
        panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(run: fn(&[u8])) -> Target {
        Target::new("none", run, || vec![b"abc".to_vec()])
    }

    #[test]
    fn check_runs_seeds_and_mutations() {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let count = |_: &[u8]| {
            RUNS.fetch_add(1, Relaxed);
        };
        check(&[target(count).slow(7), target(count).slow(2)]);
        assert_eq!(RUNS.load(Relaxed), 2 + 7 + 2);
    }

    #[test]
    fn check_panics_when_a_mutation_violates_a_property() {
        let failing = target(|input| assert_eq!(input, b"abc"));
        assert!(panic::catch_unwind(|| check(&[failing])).is_err());
    }
}
