//! Limits the number of files in a folder, and checks that imports between the layers of a package point downward.

use std::collections::BTreeMap;

use super::import_cycles::imports;
use super::{must_be_none, rust, tree, tree_of};

/// The maximum number of Rust files in one folder.
const MOST: usize = 25;

/// Folders whose modules are layers, the lowest first: a file may import from its own layer and from lower ones. Imports from and
/// to modules that are not listed only must not form a cycle.
const LAYERS: &[(&str, &[&str])] = &[
    ("runtime-fake/keeper/src", &["kernel", "contract", "setup", "parent"]),
    ("runtime-fake/image/src", &["formats", "layer", "local", "store", "registry"]),
    ("runtime-fake/network/src", &["links", "netfilter", "egress", "bridging"]),
    (
        "agent/src",
        &[
            "node",
            "source",
            "objects",
            "observed",
            "pod_spec",
            "local_node",
            "cri",
            "decide",
            "reporting",
            "images",
            "upkeep",
            "storage",
            "eviction",
            "observation",
            "checks",
            "services",
            "execute",
            "worker",
            "sync_loop",
        ],
    ),
    (
        "harness/crib/run/src",
        &[
            "reports",
            "input",
            "args",
            "output",
            "processes",
            "manifest_watch",
            "event_loop",
            "session",
        ],
    ),
    ("harness/check/src", &["outcome", "context", "rule", "rules", "running", "report"]),
];

/// Folders with too many files.
fn crowded<'t>(files: impl Iterator<Item = (&'t str, &'t str)>) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, _) in files {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *counts.entry(folder).or_default() += 1;
    }
    let full = counts.into_iter().filter(|(_, count)| *count > MOST);
    full.map(|(folder, count)| format!("{folder}: {count} files")).collect()
}

/// Imports from a layer above the file's own.
fn upward(files: &[(&str, &str)], layers: &[(&str, &[&str])]) -> Vec<String> {
    let mut found = Vec::new();
    let imports = imports(files);
    for (folder, layers) in layers {
        let layer = |path: &str| {
            let inside = path.strip_prefix(folder)?.strip_prefix('/')?;
            let module = inside.split(['/', '.']).next()?;
            layers.iter().position(|layer| *layer == module)
        };
        for (file, targets) in &imports {
            let Some(own) = layer(file) else { continue };
            let above = targets.iter().filter(|target| layer(target).is_some_and(|it| it > own));
            found.extend(above.map(|target| format!("{file} → {target}")));
        }
    }
    found
}

#[test]
fn folders_have_at_most_25_files() {
    let tree = tree();
    must_be_none("a folder with too many files: create a subfolder", &crowded(rust(&tree)));
}

#[test]
fn imports_between_layers_point_downward() {
    let tree = tree();
    let files: Vec<_> = rust(&tree).collect();
    must_be_none("an import from a layer above", &upward(&files, LAYERS));
    // A renamed layer would disable the rule silently.
    for (folder, layers) in LAYERS {
        for layer in *layers {
            let (file, folder_of_layer) =
                (format!("{folder}/{layer}.rs"), format!("{folder}/{layer}/"));
            let exists =
                tree.keys().any(|path| *path == file || path.starts_with(&folder_of_layer));
            assert!(exists, "there is no {file}, and nothing in {folder_of_layer}");
        }
    }
}

#[test]
fn full_folders_and_upward_imports_are_found() {
    let names: Vec<String> = (0..=MOST).map(|number| format!("a/src/m{number}.rs")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let full = tree_of(&files);
    assert_eq!(crowded(rust(&full)), ["a/src: 26 files"]);
    let fits = tree_of(&files[1..]);
    assert_eq!(crowded(rust(&fits)), [""; 0]);
    let files = [
        ("a/src/lib.rs", "mod low; mod high;"),
        ("a/src/low.rs", "mod one; use crate::high::Thing;"),
        ("a/src/low/one.rs", "fn f() { super::super::high::two::g() }"),
        ("a/src/high.rs", "mod two; use crate::low::x; use crate::other::y;"),
        ("a/src/high/two.rs", "use super::Z;"),
        ("a/src/other.rs", "use crate::high::q;"),
    ];
    let layers: &[(&str, &[&str])] = &[("a/src", &["low", "high"])];
    let expected = ["a/src/low.rs → a/src/high.rs", "a/src/low/one.rs → a/src/high/two.rs"];
    assert_eq!(upward(&files, layers), expected);
}
