//! Rules of this repository that the compiler does not check: dependencies between packages, and the form of files.
//!
//! Each rule is a function from the tree to a list of offences, so that tests can show that it finds them.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/docs.rs"]
mod docs;
#[path = "tidy/fuzz.rs"]
mod fuzz;
#[path = "tidy/import_cycles.rs"]
mod import_cycles;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/licences.rs"]
mod licences;
#[path = "tidy/package_dependencies.rs"]
mod package_dependencies;

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use code::{code_only, lines_naming};
use package_dependencies::{dependencies, dependency_violations};

/// Files that may be longer than [`MAX_LINES`], with the reason.
const LONG: [(&str, &str); 0] = [];
const MAX_LINES: usize = 800;

/// A file with fewer lines is small: it usually belongs into the module or the sibling that uses it.
const SMALL: usize = 60;
/// The maximum number of small files: readers find their way more easily in few files.
const MOST_SMALL: usize = 100;

/// Files that may contain unsafe code, with the reason. In others it is a compiler error (`unsafe_code = "deny"`).
const UNSAFE: [(&str, &str); 5] = [
    ("harness/crib/src/heap.rs", "malloc_trim has no safe wrapper"),
    ("harness/bench/src/floor.rs", "clone has no safe wrapper"),
    ("runtime-fake/keeper/src/kernel/cgroup/program.rs", "bpf has no safe wrapper"),
    ("runtime-fake/src/isolation/userns.rs", "unshare, whose caller keeps its descriptors"),
    (
        "runtime-fake/keeper/src/kernel/sys.rs",
        "clone, mount_setattr and unshare have no safe wrapper",
    ),
];

/// Directories of pure code: no tasks, files, processes, clocks or wire types outside their tests. Files with a ◆ in their first
/// line are pure, too.
const PURE: [&str; 1] = ["agent/api/src/"];

/// Directories whose decisions are about the CRI's messages.
const OF_CRI: [&str; 2] = ["runtime-fake/", "harness/"];

/// Names that must not occur in a pure file.
const EFFECTS: [&str; 17] = [
    "Command::new",
    "File::",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "cri::v1",
    "env::var",
    "fs::",
    "nix::mount",
    "nix::sched",
    "nix::sys",
    "nix::unistd",
    "prost",
    "rustix",
    "tokio",
    "tonic",
];

/// Text files of the repository by their path from its root, with `/`.
type Tree = BTreeMap<String, String>;

/// Fails if there are offences; prints one a line.
fn must_be_none(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every text file of the repository, except build output and git's files.
fn tree() -> Tree {
    let mut tree = Tree::new();
    let mut directories = vec![root().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let hidden = name.starts_with('.') && ![".ci", ".github"].contains(&name.as_str());
            if hidden || name == "target" || entry.path().join("CACHEDIR.TAG").exists() {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                let path = entry.path();
                let path = path.strip_prefix(root()).unwrap().to_str().unwrap();
                tree.insert(path.to_owned(), text);
            }
        }
    }
    for expected in ["Cargo.toml", "agent/src/lib.rs", "tests/tidy.rs"] {
        assert!(tree.contains_key(expected), "did not find {expected}");
    }
    tree
}

/// A tree for a test of a rule.
fn tree_of(files: &[(&str, &str)]) -> Tree {
    let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
    files.iter().map(owned).collect()
}

/// Generated Rust: the compiled protocol.
const GENERATED: &str = "proto/generated/";

fn rust(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let written = |path: &str| path.ends_with(".rs") && !path.starts_with(GENERATED);
    let files = tree.iter().filter(move |(path, _)| written(path));
    files.map(|(path, text)| (path.as_str(), text.as_str()))
}

fn without_a_first_line(tree: &Tree) -> Vec<String> {
    rust(tree)
        .filter(|(_, text)| {
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("//! ").is_none_or(|message| message.trim().len() < 10)
        })
        .map(|(path, _)| path.to_owned())
        .collect()
}

fn too_long(tree: &Tree, exceptions: &[(&str, &str)]) -> Vec<String> {
    let lengths = rust(tree).map(|(path, text)| (path, text.lines().count()));
    let long: BTreeMap<&str, usize> = lengths.filter(|(_, lines)| *lines > MAX_LINES).collect();
    against_list(&long, exceptions, |lines| format!("{lines} lines"))
}

/// Returns nothing if there are at most `most` small files; otherwise the advice, and all small files.
fn too_many_small(tree: &Tree, most: usize) -> Vec<String> {
    let lengths = rust(tree).map(|(path, text)| (path, text.lines().count()));
    let small: Vec<_> = lengths.filter(|(_, lines)| *lines < SMALL).collect();
    if small.len() <= most {
        return Vec::new();
    }
    let advice = format!(
        "{} files have fewer than {SMALL} lines, and {most} may: move what a small file has into the module that declares it or the sibling \
         that uses it, and tests into the file that they test",
        small.len()
    );
    let files = small.iter().map(|(path, lines)| format!("{path}: {lines} lines"));
    std::iter::once(advice).chain(files).collect()
}

fn unsafe_code(tree: &Tree, exceptions: &[(&str, &str)]) -> Vec<String> {
    let found: BTreeMap<&str, usize> = rust(tree)
        .filter_map(|(path, text)| {
            let code = code_only(text);
            Some((path, *lines_naming(&code, "unsafe").first()?))
        })
        .collect();
    against_list(&found, exceptions, |line| format!("line {line}"))
}

/// Found files that are not on the list, and entries of the list that are not needed or have no reason.
fn against_list(
    found: &BTreeMap<&str, usize>,
    list: &[(&str, &str)],
    say: impl Fn(usize) -> String,
) -> Vec<String> {
    let listed: BTreeMap<&str, &str> = list.iter().copied().collect();
    let unlisted = found
        .iter()
        .filter(|(path, _)| !listed.contains_key(*path))
        .map(|(path, n)| format!("{path}: {}", say(*n)));
    let stale = listed
        .iter()
        .filter(|(path, reason)| !found.contains_key(*path) || reason.is_empty())
        .map(|(path, _)| format!("{path} is on the list without need or reason"));
    unlisted.chain(stale).collect()
}

fn impure(tree: &Tree, pure: &[&str]) -> Vec<String> {
    let mut offences = Vec::new();
    let at = |place: &str, path: &str| {
        path == place || (place.ends_with('/') && path.starts_with(place))
    };
    for (path, text) in rust(tree) {
        let marked = text.lines().next().is_some_and(|line| line.contains('◆'));
        if !marked && !pure.iter().any(|place| at(place, path)) {
            continue;
        }
        let code = code::without_tests(&code_only(text));
        let is_input = OF_CRI.iter().any(|place| path.starts_with(place));
        for effect in EFFECTS.into_iter().filter(|effect| !(is_input && *effect == "cri::v1")) {
            let lines = lines_naming(&code, effect);
            offences.extend(lines.iter().map(|line| format!("{path}:{line}: {effect}")));
        }
    }
    let gone = pure.iter().filter(|place| !tree.keys().any(|path| at(place, path)));
    offences.extend(gone.map(|place| format!("{place} is on the list but not in the tree")));
    offences
}

/// Calls that spawn tasks directly, in packages that use `tasks` for it.
fn spawned_without_tasks(tree: &Tree) -> Vec<String> {
    let has_tasks = |path: &str| {
        let directory = path.rsplit_once("/src/").map(|(directory, _)| directory);
        let manifest = directory.and_then(|directory| tree.get(&format!("{directory}/Cargo.toml")));
        manifest.is_some_and(|manifest| manifest.contains("\ntasks.workspace = true\n"))
    };
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("tests.rs");
    let mut offences = Vec::new();
    for (path, text) in rust(tree).filter(|(path, _)| has_tasks(path) && !is_test(path)) {
        let code = code::without_tests(&code_only(text));
        for call in ["tokio::spawn", "task::spawn", "task::spawn_blocking"] {
            let lines = lines_naming(&code, call);
            offences.extend(lines.iter().map(|line| format!("{path}:{line}: {call}")));
        }
    }
    offences
}

/// Disabled tests, and modules in the old layout.
fn shortcuts(tree: &Tree) -> Vec<String> {
    let mut offences = Vec::new();
    for (path, text) in rust(tree) {
        if Path::new(path).file_name().unwrap() == "mod.rs" {
            offences.push(format!("{path}: write foo.rs and foo/, not foo/mod.rs"));
        }
        let lines = lines_naming(&code_only(text), "#[ignore");
        let message =
            "a test that does not run; skip it with a reason when the box lacks something";
        offences.extend(lines.iter().map(|line| format!("{path}:{line}: {message}")));
    }
    offences
}

fn without_lints(tree: &Tree) -> Vec<String> {
    // Examples are independent packages, like those of users.
    let ours = |path: &str| path.ends_with("Cargo.toml") && !path.starts_with("examples/");
    let manifests = tree.iter().filter(|(path, _)| ours(path));
    let mut offences: Vec<String> = manifests
        .filter(|(_, text)| !text.contains("\n[lints]\nworkspace = true\n"))
        .map(|(path, _)| format!("{path}: does not take the workspace's lints"))
        .collect();
    if !tree["Cargo.toml"].contains("\nunsafe_code = \"deny\"\n") {
        offences.push("Cargo.toml: unsafe code is not denied".to_owned());
    }
    offences
}

#[test]
fn packages_depend_only_on_listed_ones() {
    must_be_none("not a listed dependency", &dependency_violations(&dependencies()));
}

#[test]
fn every_file_starts_with_module_comment() {
    must_be_none("no `//! …` as the first line", &without_a_first_line(&tree()));
}

#[test]
fn files_have_at_most_800_lines() {
    must_be_none("too long", &too_long(&tree(), &LONG));
}

#[test]
fn at_most_100_files_have_fewer_than_60_lines() {
    must_be_none("too many small files", &too_many_small(&tree(), MOST_SMALL));
}

#[test]
fn unsafe_code_is_in_listed_files_only() {
    must_be_none("unsafe code", &unsafe_code(&tree(), &UNSAFE));
}

#[test]
fn pure_files_have_no_effects() {
    must_be_none("an effect in a pure file", &impure(&tree(), &PURE));
}

#[test]
fn tasks_are_spawned_by_tasks() {
    let rule = "tasks::spawn and tasks::spawn_blocking compile less";
    must_be_none(rule, &spawned_without_tasks(&tree()));
}

#[test]
fn tests_are_not_ignored_and_modules_use_current_layout() {
    must_be_none("shortcuts", &shortcuts(&tree()));
}

#[test]
fn every_package_inherits_lints() {
    must_be_none("lints", &without_lints(&tree()));
}

#[test]
fn documents_name_existing_paths() {
    must_be_none("named but not there", &docs::missing_paths(&tree()));
}

#[test]
fn architecture_is_short() {
    let length = tree()["ARCHITECTURE.md"].len();
    assert!(
        length <= 15_000,
        "ARCHITECTURE.md has {length} bytes, and 15000 may: details belong in the head of a package"
    );
}

#[test]
fn every_call_is_documented() {
    let tree = tree();
    let document = tree.get("docs/cri.md").expect("there is no docs/cri.md");
    let unlisted = docs::unlisted_calls(&tree["proto/cri-v1.tsv"], document);
    must_be_none("not in docs/cri.md", &unlisted);
}

#[test]
fn every_field_is_documented() {
    let tree = tree();
    let unlisted = docs::unlisted_fields(&tree["proto/cri-v1.tsv"], &tree["docs/cri.md"]);
    must_be_none("not in docs/cri.md", &unlisted);
}

#[test]
fn dependencies_have_permissive_licences() {
    must_be_none("not allowed by deny.toml", &licences::refused(&tree()["deny.toml"]));
}

/// Every rule finds its offences: a rule that never finds anything would always pass.
#[test]
fn rules_find_offences() {
    let tree = tree_of;
    let needs = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    let broken = BTreeMap::from([
        ("cri".to_owned(), needs(&["agent", "prost"])),
        ("agent".to_owned(), needs(&["cri", "runtime-fake", "nix"])),
        ("api".to_owned(), needs(&["agent", "tokio"])),
        ("cluster".to_owned(), needs(&["agent"])),
        ("runtime-fake".to_owned(), needs(&["cri", "k8s-openapi"])),
        ("harness".to_owned(), needs(&["clap", "crib"])),
        ("crib".to_owned(), needs(&["clap", "harness"])),
        ("keeper".to_owned(), needs(&["file-tree", "tonic"])),
        ("utils".to_owned(), needs(&[])),
    ]);
    assert_eq!(dependency_violations(&broken).len(), 11);

    let long = "//! A long file.\n".to_owned() + &"\n".repeat(MAX_LINES);
    let files = tree(&[
        ("a.rs", "fn a() {}"),
        ("b.rs", "//!\n"),
        ("c.rs", "/// Not for the file.\n"),
        ("d.rs", &long),
        (
            "e/mod.rs",
            "//! In the old place.\n#[ignore = \"slow\"]\n#[test]\nfn f() { unsafe { g() } }",
        ),
        (
            "f.rs",
            "//! A decision.\nuse std::{fs, io}; fn f() { fs::read(tokio::x); now(); } // Instant::now",
        ),
    ]);
    assert_eq!(without_a_first_line(&files), ["a.rs", "b.rs", "c.rs"]);
    assert_eq!(too_long(&files, &[]), ["d.rs: 801 lines"]);
    assert_eq!(too_long(&files, &[("d.rs", "generated")]), [""; 0]);
    assert_eq!(too_long(&files, &[("d.rs", ""), ("a.rs", "no need")]).len(), 2);
    assert_eq!(too_many_small(&files, 5), [""; 0]);
    assert_eq!(too_many_small(&files, 4).len(), 6);
    assert_eq!(unsafe_code(&files, &[]), ["e/mod.rs: line 4"]);
    assert_eq!(shortcuts(&files).len(), 2);
    assert_eq!(impure(&files, &["f.rs"]), ["f.rs:2: fs::", "f.rs:2: tokio"]);
    assert_eq!(impure(&files, &["e/"]), [""; 0]);
    assert_eq!(impure(&files, &["g.rs"]).len(), 1);
    let marked = tree(&[(
        "h.rs",
        "//! ◆ A decision.\nfn f() { Instant::now(); }\n#[cfg(test)]\nmod tests { fs::x }",
    )]);
    assert_eq!(impure(&marked, &[]), ["h.rs:2: Instant::now"]);

    let spawns = "fn f() { tokio::spawn(x); tasks::spawn(x); tokio::task::spawn_blocking(x); }";
    let files = tree(&[
        ("a/Cargo.toml", "[dependencies]\ntasks.workspace = true\n"),
        ("a/src/f.rs", spawns),
        ("a/src/tests.rs", spawns),
        ("b/Cargo.toml", "[dependencies]\n"),
        ("b/src/f.rs", spawns),
    ]);
    let found = ["a/src/f.rs:1: tokio::spawn", "a/src/f.rs:1: task::spawn_blocking"];
    assert_eq!(spawned_without_tasks(&files), found);

    let manifests = tree(&[
        (
            "Cargo.toml",
            "[package]\n[lints]\nworkspace = true\n[lints.rust]\nunsafe_code = \"warn\"\n",
        ),
        ("x/Cargo.toml", "[package]\nname = \"x\"\n"),
    ]);
    assert_eq!(without_lints(&manifests).len(), 2);
}
