//! Fuzz targets: each has a unique name, each corpus has a target, and tests/fuzz contains the targets of every package.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Tree, must_be_none, rust, tree};

/// The program that lists the targets of all packages.
const PROGRAM: &str = "tests/fuzz/src/main.rs";
const CORPUS: &str = "tests/fuzz/corpus/";

/// Target → the file that declares it, from `Target::new("name"`.
fn targets(tree: &Tree) -> (BTreeMap<&str, &str>, Vec<String>) {
    let (mut targets, mut offences) = (BTreeMap::new(), Vec::new());
    let modules = |path: &str| {
        let inside = path.split_once("/src/").map(|(_, inside)| inside);
        inside.is_some_and(|inside| inside.contains("fuzz"))
    };
    for (path, text) in rust(tree).filter(|(path, _)| modules(path)) {
        for rest in text.split("Target::new(").skip(1) {
            let Some(name) = rest.trim_start().strip_prefix('"') else {
                continue;
            };
            let name = name.split('"').next().unwrap_or_default();
            if let Some(other) = targets.insert(name, path) {
                offences.push(format!("{path} and {other} both have a target {name}"));
            }
        }
    }
    (targets, offences)
}

fn offences(tree: &Tree) -> Vec<String> {
    let (targets, mut offences) = targets(tree);
    let corpora = tree.keys().filter_map(|path| path.strip_prefix(CORPUS));
    let corpora: BTreeSet<&str> = corpora.filter_map(|path| path.split('/').next()).collect();
    let stale = corpora.iter().filter(|name| !targets.contains_key(*name));
    offences.extend(stale.map(|name| format!("{CORPUS}{name}: no target has this name")));
    // The package of `a/src/…/fuzz.rs` is named in `a/Cargo.toml`.
    let packages: BTreeSet<&str> = targets
        .values()
        .filter_map(|path| path.split_once("/src/").map(|(package, _)| package))
        .collect();
    for package in packages {
        let manifest = tree.get(&format!("{package}/Cargo.toml"));
        let name = manifest.and_then(|text| text.split("name = \"").nth(1)?.split('"').next());
        let list = format!("{}::fuzz::targets()", name.unwrap_or("?").replace('-', "_"));
        if !tree.get(PROGRAM).is_some_and(|text| text.contains(&list)) {
            offences.push(format!("{PROGRAM}: {list} is missing"));
        }
    }
    offences
}

#[test]
fn fuzz_targets_have_unique_names_and_cover_the_corpus() {
    must_be_none("fuzz targets", &offences(&tree()));
}

#[test]
fn fuzz_offences_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let tree = Tree::from([
        file("runtime-fake/a/Cargo.toml", "[package]\nname = \"a-b\"\n"),
        file(
            "runtime-fake/a/src/fuzz.rs",
            "Target::new(\"x\", a, b), Target::new(\n  \"y\", c, d)",
        ),
        file("runtime-fake/c/Cargo.toml", "name = \"c\"\n"),
        file("runtime-fake/c/src/d/fuzz.rs", "Target::new(\"x\", a, b)"),
        file(PROGRAM, "c::fuzz::targets()"),
        file("tests/fuzz/corpus/y/1", ""),
        file("tests/fuzz/corpus/z/1", ""),
    ]);
    assert_eq!(
        offences(&tree),
        [
            "runtime-fake/c/src/d/fuzz.rs and runtime-fake/a/src/fuzz.rs both have a target x",
            "tests/fuzz/corpus/z: no target has this name",
            "tests/fuzz/src/main.rs: a_b::fuzz::targets() is missing",
        ]
    );
}
