//! The source of the scenarios: the directory or the file in `CRIB_TRACES`, or `../shared/vectors/traces` beside the repository, or
//! the sample in this directory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use serde_json::{Value, json};

use crate::scenarios::scenario::Scenario;
use crate::scenarios::steps::Plan;

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
        if path.is_dir() { Self::Directory(path) } else { Self::File(path) }
    }

    /// Every scenario, by name, without recordings of agent starts.
    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        match self {
            Self::Directory(directory) => read_all(directory, "status_history.jsonl"),
            Self::File(path) => {
                let file = BufReader::new(GzDecoder::new(File::open(path).unwrap()));
                file.lines().map(|line| of_sample(&line.unwrap())).collect()
            }
        }
    }
}

fn of_sample(line: &str) -> Scenario {
    let mut scenario: Value = serde_json::from_str(line).unwrap();
    scenario["plan"] = json!(plan_of(scenario["name"].as_str().unwrap()));
    serde_json::from_value(scenario).unwrap()
}

/// The steps of a scenario whose directory does not contain them.
pub(crate) fn plan_of(name: &str) -> Option<Plan> {
    static PLANS: LazyLock<BTreeMap<String, Plan>> = LazyLock::new(|| {
        let text = fs::read_to_string(root().join("tests/traces/steps.jsonl")).unwrap();
        let plans = text.lines().map(|line| {
            let mut plan: Value = serde_json::from_str(line).unwrap();
            let name = plan.as_object_mut().unwrap().remove("name").unwrap();
            (name.as_str().unwrap().to_owned(), serde_json::from_value(plan).unwrap())
        });
        plans.collect()
    });
    PLANS.get(name).cloned()
}

/// Scenarios without a recording: manifests and steps, for a kubelet that runs during the test.
pub(crate) fn unrecorded() -> Vec<Scenario> {
    read_all(&root().join("tests/interop/kubelet/scenarios"), "steps.json")
}

/// The scenarios below a directory, by name: those that contain a file with this name.
fn read_all(directory: &Path, with: &str) -> Vec<Scenario> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join(with).is_file())
        .collect();
    paths.sort();
    paths.iter().map(|path| Scenario::read(path)).collect()
}

/// Rewrites the sample.
pub(crate) fn write_sample(scenarios: &[Scenario]) {
    let mut file = GzEncoder::new(File::create(sample()).unwrap(), Compression::best());
    for scenario in scenarios {
        let mut line = json!(scenario.clone().reduced());
        line.as_object_mut().unwrap().remove("plan");
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
