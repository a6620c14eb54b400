//! Runs every target on its seeds, its corpus, and mutations of both.

use std::{collections::BTreeSet, fs, panic, path::PathBuf};

use super::{
    Target,
    mutate::{Random, mutate},
    targets,
};

fn corpus() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/corpus"))
}

/// The target's inputs: its seeds, and what is in its directory.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty(), "{} has no seeds", target.name);
    if let Ok(entries) = fs::read_dir(corpus().join(target.name)) {
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        inputs.extend(paths.iter().map(|path| fs::read(path).unwrap()));
    }
    inputs
}

/// Runs one input; says which it was when it breaks a law.
fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = panic::catch_unwind(|| (target.run)(input)) {
        eprintln!("{} fails on b\"{}\"", target.name, input.escape_ascii());
        panic::resume_unwind(panic);
    }
}

/// Every so many targets, from `first`: the tests run side by side.
fn fuzz(first: usize) {
    for target in targets().iter().skip(first).step_by(SHARES) {
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
}

const SHARES: usize = 4;

#[rstest::rstest]
fn parsers_keep_their_laws_on_corpus_and_mutations(#[values(0, 1, 2, 3)] share: usize) {
    fuzz(share);
}

#[test]
fn target_names_are_unique_and_cover_the_corpus() {
    let names: BTreeSet<&str> = targets().iter().map(|target| target.name).collect();
    assert_eq!(names.len(), targets().len());
    for entry in fs::read_dir(corpus()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.contains(name.as_str()), "no target is named {name}");
    }
}

#[test]
fn mutations_are_the_same_each_time() {
    let others = vec![b"abc=1,def=22".to_vec()];
    let some = || {
        let mut random = Random::named("x");
        let mut mutated = || mutate(&others[0], &others, &mut random);
        (0..50).map(|_| mutated()).collect::<Vec<_>>()
    };
    assert_eq!(some(), some());
    assert!(some().iter().collect::<BTreeSet<_>>().len() > 30);
}
