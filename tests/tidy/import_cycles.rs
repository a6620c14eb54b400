//! Import cycles: files of a package that import each other, directly or through others.
//!
//! An import is a `use` or a path that begins with `crate`, `self`, `super` or a module that the file declares. A file's imports
//! from the modules that contain it do not count: it is a part of them.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{code_only, without_tests};
use super::{must_be_none, rust, tree};

/// File → the files of the same package that it imports from.
pub(super) type Imports<'t> = BTreeMap<&'t str, BTreeSet<&'t str>>;

/// The cycles among `files` (path and text), each as a sorted list of its files.
fn cycles<'t>(files: &[(&'t str, &'t str)]) -> Vec<Vec<&'t str>> {
    let imports = imports(files);
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|file| (*file, reachable(&imports, file))).collect();
    let mut found = BTreeSet::new();
    for (file, reach) in &reached {
        let cycle: Vec<&str> = reach
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(file)))
            .copied()
            .collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    found.into_iter().collect()
}

fn reachable<'t>(imports: &Imports<'t>, from: &str) -> BTreeSet<&'t str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = imports[from].iter().copied().collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(&imports[file]);
        }
    }
    reached
}

pub(super) fn imports<'t>(files: &[(&'t str, &'t str)]) -> Imports<'t> {
    let modules: BTreeMap<Vec<&str>, &str> =
        files.iter().filter_map(|(path, _)| Some((module(path)?, *path))).collect();
    let mut imports = Imports::new();
    for (path, text) in files {
        let Some(own) = module(path) else { continue };
        let code = without_tests(&code_only(text));
        let mut from = BTreeSet::new();
        for name in paths(&code) {
            let Some(target) = resolve(&own, &name, &modules) else {
                continue;
            };
            // Not the modules that contain a file, and not the file itself.
            if !own.starts_with(&target) {
                from.insert(modules[&target]);
            }
        }
        imports.insert(*path, from);
    }
    imports
}

/// `agent/src/plan/restart.rs` is `[agent, plan, restart]`; a package's root is `[agent]`. `None` for files elsewhere.
fn module(path: &str) -> Option<Vec<&str>> {
    let (package, inside) = path.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    let mut module = vec![package];
    if !matches!(inside, "lib" | "main") {
        module.extend(inside.split('/'));
    }
    Some(module)
}

/// The module that a path refers to, or that contains its item.
fn resolve<'t>(
    own: &[&'t str],
    name: &[String],
    modules: &BTreeMap<Vec<&'t str>, &'t str>,
) -> Option<Vec<&'t str>> {
    let (first, mut rest) = name.split_first()?;
    let mut at = own.to_vec();
    match first.as_str() {
        "crate" => at.truncate(1),
        "self" => {}
        "super" => {
            at.pop();
            while let Some((first, after)) =
                rest.split_first().filter(|(first, _)| *first == "super")
            {
                debug_assert_eq!(first, "super");
                at.pop();
                rest = after;
            }
        }
        _ => rest = name,
    }
    let begin = at.len();
    for part in rest {
        // A module without its own file is a folder, which the file above declares inline.
        let next = modules.keys().find(|module| {
            module
                .strip_prefix(at.as_slice())
                .is_some_and(|inside| inside.first() == Some(&part.as_str()))
        });
        match next {
            Some(module) => at.push(module[at.len()]),
            None => break,
        }
    }
    while at.len() > 1 && !modules.contains_key(&at) {
        at.pop();
    }
    // A path that begins with the name of another package, or of an item in this file.
    let bare = !matches!(first.as_str(), "crate" | "self" | "super");
    (modules.contains_key(&at) && !(bare && at.len() == begin)).then_some(at)
}

/// Every path in `code`; those in the braces of a `use` are separate.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(is_word) {
        let before = rest[..start].chars().next_back();
        rest = &rest[start..];
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        if word == "use" {
            let end = rest.find(';').unwrap_or(rest.len());
            use_tree(&rest[word.len()..end], &[], &mut found);
            rest = &rest[end..];
            continue;
        }
        let end = rest.find(|c| !is_word(c) && c != ':').unwrap_or(rest.len());
        let (path, after) = rest.split_at(end);
        if before != Some(':') && path.contains("::") {
            found.push(path.split("::").map(str::to_owned).collect());
        }
        rest = after;
    }
    found
}

/// The paths of a `use`, without renames: `a::{b, c::{self, d as e}}`.
fn use_tree(text: &str, prefix: &[String], found: &mut Vec<Vec<String>>) {
    let mut depth = 0;
    let mut begin = 0;
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let (path, inside) = match part.split_once('{') {
            Some((path, inside)) => (path, inside.trim_end().strip_suffix('}')),
            None => (part.split(" as ").next().unwrap_or(part), None),
        };
        let mut whole = prefix.to_vec();
        let steps = path.split("::").map(str::trim);
        whole.extend(
            steps
                .filter(|s| !s.is_empty() && (prefix.is_empty() || *s != "self"))
                .map(str::to_owned),
        );
        match inside {
            Some(inside) => use_tree(inside, &whole, found),
            None => found.push(whole),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn files_have_no_import_cycles() {
    let tree = tree();
    let files: Vec<_> = rust(&tree).collect();
    let offences: Vec<String> = cycles(&files).iter().map(|cycle| cycle.join(" ↔ ")).collect();
    must_be_none("a cycle of imports", &offences);
}

#[test]
fn import_cycles_are_found_in_every_form() {
    let files = [
        ("a/src/lib.rs", "mod one; mod two; mod three; pub struct Root;"),
        ("a/src/one.rs", "use crate::{Root, two::{self, Thing as T}};\nmod inner;"),
        ("a/src/two.rs", "fn f() { super::three::g(crate::Root) }"),
        (
            "a/src/three.rs",
            "fn g() { crate::one::inner::h() }\n#[cfg(test)]\nmod tests { use crate::four; }",
        ),
        ("a/src/one/inner.rs", "use super::T;\nuse super::super::two::Thing;"),
        ("a/src/four.rs", "mod child; use self::child::x; use std::three::y;"),
        ("a/src/five.rs", "mod deep { pub mod leaf; } use crate::six::deep::leaf::z;"),
        ("a/src/six/deep/leaf.rs", "use crate::five::Thing;"),
        ("a/src/four/child.rs", "use super::Y; // crate::three"),
        ("b/src/main.rs", "mod one; fn main() { one::f() }"),
        ("b/src/one.rs", "use crate::two::Q; use a::two::x;"),
    ];
    let inline = ["a/src/five.rs", "a/src/six/deep/leaf.rs"];
    let others = ["a/src/one/inner.rs", "a/src/three.rs", "a/src/two.rs"];
    assert_eq!(cycles(&files), [&inline[..], &others]);
    let direct = [("a/src/x.rs", "use super::y::{Y};"), ("a/src/y.rs", "fn f(_: crate::x::X) {}")];
    assert_eq!(cycles(&direct), [["a/src/x.rs", "a/src/y.rs"]]);
}
