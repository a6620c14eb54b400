//! Where the scenarios are: the directory or the file that `CRIB_TRACES` names, else `../shared/vectors/traces` beside the
//! repository, else the sample in this directory.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::scenario::Scenario;

const NAMED: &str = "CRIB_TRACES";

#[derive(Debug)]
pub(crate) enum Source {
    /// A directory for each scenario.
    Directory(PathBuf),
    /// A line for each scenario, compressed.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) | Self::File(path) => {
                write!(f, "scenarios of {}", path.display())
            }
        }
    }
}

impl Source {
    pub(crate) fn find() -> Self {
        let beside = root().join("../shared/vectors/traces");
        let path = match std::env::var_os(NAMED) {
            Some(named) => root().join(named),
            None if beside.is_dir() => beside,
            None => sample(),
        };
        if path.is_dir() {
            Self::Directory(path)
        } else {
            Self::File(path)
        }
    }

    /// Every scenario, by name. The starts of an agent are none.
    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        match self {
            Self::Directory(directory) => read_all(directory, "status_history.jsonl"),
            Self::File(path) => {
                let file = BufReader::new(GzDecoder::new(File::open(path).unwrap()));
                let lines = file
                    .lines()
                    .map(|line| serde_json::from_str(&line.unwrap()).unwrap());
                lines.collect()
            }
        }
    }
}

/// The scenarios that nothing is recorded of: manifests and notes, for a kubelet that runs now.
pub(crate) fn unrecorded() -> Vec<Scenario> {
    read_all(&root().join("tests/interop/kubelet/scenarios"), "notes.txt")
}

/// The scenarios below a directory, by name: those that have a file of this name.
fn read_all(directory: &Path, with: &str) -> Vec<Scenario> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join(with).is_file())
        .collect();
    paths.sort();
    paths.iter().map(|path| Scenario::read(path)).collect()
}

/// Writes the sample anew.
pub(crate) fn write_sample(scenarios: &[Scenario]) {
    let mut file = GzEncoder::new(File::create(sample()).unwrap(), Compression::best());
    for scenario in scenarios {
        let line = serde_json::to_string(&scenario.clone().reduced()).unwrap();
        writeln!(file, "{line}").unwrap();
    }
    file.finish().unwrap();
}

pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap().to_owned()
}

fn sample() -> PathBuf {
    root().join("tests/traces/sample.jsonl.gz")
}
