//! Finds and reads the cases, and their JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::judge::Set;

/// The variable with the directory of the full sets.
const DIRECTORY: &str = "CRIB_VECTORS";
/// The maximum compressed size of one set's sample, in bytes.
const SAMPLE_BYTES: usize = 22_000;
/// A set of at most this compressed size, in bytes, is kept whole.
const WHOLE_BYTES: usize = 34_000;

/// One line of a file.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) input: Value,
    pub(crate) expected: Value,
}

/// The source of the cases.
pub(crate) struct Source {
    directory: PathBuf,
    full: bool,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.full { "all cases" } else { "the sample" };
        write!(f, "{kind} in {}", self.directory.display())
    }
}

impl Source {
    /// The directory in CRIB_VECTORS, or `../shared/vectors` beside the repository, or the sample.
    pub(crate) fn find() -> Self {
        if let Some(named) = std::env::var_os(DIRECTORY) {
            return Self {
                // Cargo runs tests in the package's directory; a relative path is relative to the repository.
                directory: root().join(named),
                full: true,
            };
        }
        let shared = root().join("../shared/vectors");
        let full = shared.is_dir();
        let directory = if full { shared } else { sample() };
        Self { directory, full }
    }

    /// Whether this is not the sample.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// The cases of a set.
    pub(crate) fn cases(&self, set: &str) -> Vec<Case> {
        self.lines(set).iter().map(|line| case(line)).collect()
    }

    fn lines(&self, set: &str) -> Vec<String> {
        let path = self.directory.join(format!("{set}.jsonl.gz"));
        let packed = std::fs::File::open(&path)
            .unwrap_or_else(|e| panic!("opening {}: {e}", path.display()));
        let lines = BufReader::new(flate2::read::GzDecoder::new(packed)).lines();
        lines.map(Result::unwrap).collect()
    }
}

/// The root of the repository, for the tests of any package.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|directory| directory.join("Cargo.lock").exists()).unwrap()
}

fn sample() -> PathBuf {
    root().join("tests/vectors")
}

fn case(line: &str) -> Case {
    let mut value: Value = serde_json::from_str(line).unwrap();
    let id = value["id"].as_str().unwrap().to_owned();
    let mut take = |a: &str, b: &str| {
        let key = if value.get(a).is_some() { a } else { b };
        value[key].take()
    };
    let input = take("input", "in");
    Case { id, input, expected: take("expected", "out") }
}

/// Rewrites the sample: takes the shortest lines of each group of each set in turn, until the size is reached. Short cases are
/// easier to read.
pub(crate) fn write_sample(source: &Source, sets: &[&Set]) {
    assert!(source.is_full(), "a sample is made from the full sets");
    for set in sets {
        let whole = packed(&source.lines(set.name));
        if whole.len() <= WHOLE_BYTES {
            std::fs::write(sample().join(format!("{}.jsonl.gz", set.name)), whole).unwrap();
            continue;
        }
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in source.lines(set.name) {
            let value: Value = serde_json::from_str(&line).unwrap();
            let group =
                value.get("group").or_else(|| value.get("category")).and_then(Value::as_str);
            groups.entry(group.unwrap_or_default().to_owned()).or_default().push(line);
        }
        for lines in groups.values_mut() {
            lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
        }
        let mut chosen: Vec<String> = Vec::new();
        while packed(&chosen).len() < SAMPLE_BYTES && groups.values().any(|lines| !lines.is_empty())
        {
            chosen.extend(groups.values_mut().filter_map(Vec::pop));
        }
        while packed(&chosen).len() > SAMPLE_BYTES {
            chosen.pop();
        }
        std::fs::write(sample().join(format!("{}.jsonl.gz", set.name)), packed(&chosen)).unwrap();
    }
}

fn packed(lines: &[String]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for line in lines {
        writeln!(encoder, "{line}").unwrap();
    }
    encoder.finish().unwrap()
}

/// `Ok` if equal; otherwise both sides.
pub(crate) fn same(what: &str, ours: &Value, theirs: &Value) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: ours {ours}, expected {theirs}")) }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
