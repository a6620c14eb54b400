//! Paths in documents that do not exist.

use std::collections::BTreeSet;

use crate::Tree;

/// The beginnings of this repository's paths.
const TOP: [&str; 9] =
    [".ci", ".github", "agent", "docs", "examples", "harness", "proto", "runtime-fake", "tests"];

/// `document: path` for every path in a document that is not in the tree.
///
/// Documents are the *.md files of the top level and of docs/. Paths are words that begin with a directory of the top level and a
/// slash, and the relative targets of links.
pub(crate) fn missing_paths(tree: &Tree) -> Vec<String> {
    let mut offences = Vec::new();
    for (document, text) in tree {
        let (directory, _) = document.rsplit_once('/').unwrap_or_default();
        if !document.ends_with(".md") || !["", "docs"].contains(&directory) {
            continue;
        }
        let words = words_like_paths(text).into_iter();
        let links = link_targets(text).into_iter().map(|link| resolve(directory, &link));
        for path in words.chain(links) {
            if !exists(tree, &path) {
                offences.push(format!("{document}: {path}"));
            }
        }
    }
    offences
}

/// The calls of the protocol that docs/cri.md does not mention: each must be documented as supported or not.
pub(crate) fn unlisted_calls(contract: &str, document: &str) -> Vec<String> {
    let rows = contract.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let calls = rows.filter_map(|row| (row[0] == "rpc").then(|| row[3].to_owned()));
    let words: BTreeSet<&str> = document.split(|c: char| !c.is_alphanumeric()).collect();
    calls.filter(|call| !words.contains(call.as_str())).collect()
}

/// `message.field` for every field of a request without a row `| message | …field… |` in docs/cri.md. Windows fields are ignored.
pub(crate) fn unlisted_fields(contract: &str, document: &str) -> Vec<String> {
    let rows: Vec<Vec<&str>> = contract.lines().map(|line| line.split('\t').collect()).collect();
    let requests = rows.iter().filter(|row| row[0] == "rpc").map(|row| row[4]);
    let (mut sent, mut next) = (BTreeSet::new(), requests.collect::<Vec<_>>());
    while let Some(message) = next.pop() {
        if !message.starts_with("Windows") && sent.insert(message) {
            let fields = rows.iter().filter(|row| row[0] == "field" && row[1] == message);
            next.extend(fields.map(|row| row[4].trim_start_matches("repeated ")));
        }
    }
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (message, fields) = (cells.next()?, cells.next()?);
            let field = |name: &str| format!("{message}.{}", name.trim_matches('`'));
            Some(fields.split(", ").map(field).collect::<Vec<_>>())
        })
        .flatten()
        .collect();
    rows.iter()
        .filter(|row| row[0] == "field" && sent.contains(row[1]))
        .map(|row| format!("{}.{}", row[1], row[3]))
        .filter(|field| !listed.contains(field))
        .collect()
}

fn exists(tree: &Tree, path: &str) -> bool {
    let directory = format!("{}/", path.trim_end_matches('/'));
    tree.contains_key(path) || tree.keys().any(|file| file.starts_with(&directory))
}

/// The words of a text that are paths from the top: `a/{b,c}.rs` is two paths, and a glob is its directory.
fn words_like_paths(text: &str) -> BTreeSet<String> {
    let separator = |c: char| c.is_whitespace() || "`'\"()<>|[]=;".contains(c);
    let mut paths = BTreeSet::new();
    for word in text.split(separator) {
        let word = word.trim_start_matches("./").trim_end_matches(['.', ',', ':', '!', '?', '*']);
        for path in braces(word) {
            let path = path.split([':', '#', '*']).next().unwrap_or_default();
            let Some((top, rest)) = path.split_once('/') else {
                continue;
            };
            if TOP.contains(&top) && !rest.is_empty() {
                paths.insert(path.to_owned());
            }
        }
    }
    paths
}

/// `a/{b,c}.rs` → `a/b.rs`, `a/c.rs`.
fn braces(word: &str) -> Vec<String> {
    let parts = word.split_once('{').and_then(|(before, rest)| {
        let (choices, after) = rest.split_once('}')?;
        Some((before, choices, after))
    });
    let Some((before, choices, after)) = parts else {
        return vec![word.to_owned()];
    };
    let one = |choice| format!("{before}{choice}{after}");
    choices.split(',').map(one).collect()
}

/// The targets of Markdown links within the repository.
fn link_targets(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| {
            !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:")
        })
        .map(str::to_owned)
        .collect()
}

fn resolve(directory: &str, link: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn calls_match_whole_words_only() {
    let contract = "# x\nrpc\tS\t\tExec\tA\tB\nrpc\tS\t\tExecSync\tA\tB\nfield\tM\t1\tx\tint32\t";
    assert_eq!(unlisted_calls(contract, "| `ExecSync` | yes |"), ["Exec"]);
}

#[test]
fn fields_must_be_in_row_of_their_message() {
    let contract = "rpc\tS\t\tRun\tRun\tB\nfield\tRun\t1\tpod\tPod\t\nfield\tPod\t1\tname\tstring\t\n\
                    field\tPod\t2\tuid\tstring\t\nfield\tPod\t3\two\tWindowsPod\t\nfield\tWindowsPod\t1\ta\tstring\t\n\
                    field\tB\t1\tid\tstring\t";
    let document = "| Run | `pod` | yes |\n| Pod | `uid`, `wo` | yes |\n| Other | `name` | yes |";
    assert_eq!(unlisted_fields(contract, document), ["Pod.name"]);
}

#[test]
fn missing_paths_are_found_in_words_and_links() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let tree = Tree::from([
        file(
            "README.md",
            "See `agent/src/plan.rs`, agent/src/{plan,gone}.rs and agent/src/*.rs.\ncargo run -- run examples/none.yaml\n[how](docs/a.md#x) [why](https://x.y/docs/z) target/release/crib and/or",
        ),
        file("docs/a.md", "[up](../README.md) [gone](b.md) runtime-fake/src/lib.rs:12"),
        file("agent/src/plan.rs", "// docs/nothing.md"),
    ]);
    let expected = [
        "README.md: agent/src/gone.rs",
        "README.md: examples/none.yaml",
        "docs/a.md: runtime-fake/src/lib.rs",
        "docs/a.md: docs/b.md",
    ];
    assert_eq!(missing_paths(&tree), expected);
}
