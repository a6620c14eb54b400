//! ◆ The results of a benchmark: rows of samples by section, and the machine.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// From the start of crib's daemon to its first response.
    Startup,
    /// A pod's lifecycle, call by call.
    Calls,
    /// Whole pod lifecycles a second, at several concurrency levels.
    Throughput,
    /// Calls while many pods run.
    Growth,
    /// The memory of a pod.
    Density,
    /// The latency of events.
    Events,
    /// Image pulls.
    Pulls,
    /// The throughput of container logs.
    Logs,
}

impl Section {
    /// Every section, in the order of measurement and display.
    pub const ALL: [Self; 8] = [
        Self::Startup,
        Self::Calls,
        Self::Throughput,
        Self::Growth,
        Self::Density,
        Self::Events,
        Self::Pulls,
        Self::Logs,
    ];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Calls => "calls",
            Self::Throughput => "throughput",
            Self::Growth => "growth",
            Self::Density => "density",
            Self::Events => "events",
            Self::Pulls => "pulls",
            Self::Logs => "logs",
        }
    }

    /// Its heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Daemon startup",
            Self::Calls => "Calls of a pod lifecycle",
            Self::Throughput => "Concurrent pod lifecycles",
            Self::Growth => "Calls of a pod lifecycle, by the number of running pods",
            Self::Density => "Memory of a pod's processes and of the daemon (PSS)",
            Self::Events => "Latency of events",
            Self::Pulls => "Image pulls",
            Self::Logs => "Container log throughput, from StartContainer to the last line",
        }
    }

    /// What [`Row::at`] counts.
    #[must_use]
    pub fn at(self) -> &'static str {
        match self {
            Self::Throughput => "concurrent",
            Self::Growth | Self::Density => "pods",
            Self::Startup | Self::Calls | Self::Events | Self::Pulls | Self::Logs => "",
        }
    }
}

/// A word that names no section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no section is named {0:?}: choose from {all}", all = Section::ALL.map(Section::name).join(", "))]
pub struct UnknownSection(String);

impl FromStr for Section {
    type Err = UnknownSection;

    fn from_str(name: &str) -> Result<Self, UnknownSection> {
        let found = Self::ALL.into_iter().find(|section| section.name() == name);
        found.ok_or_else(|| UnknownSection(name.to_owned()))
    }
}

/// The unit of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Pods a second.
    #[serde(rename = "pods/s")]
    PodsPerSecond,
    /// 1024 bytes.
    #[serde(rename = "KiB")]
    Kibibytes,
    /// Million bytes a second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Milliseconds => "ms",
            Self::PodsPerSecond => "pods/s",
            Self::Kibibytes => "KiB",
            Self::MegabytesPerSecond => "MB/s",
        })
    }
}

/// One measured quantity, with a sample for each round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The section.
    pub section: Section,
    /// The call or quantity.
    pub name: String,
    /// The number of pods, or the concurrency level: see [`Section::at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The unit of the samples.
    pub unit: Unit,
    /// The samples of each endpoint in the order of the rounds: samples at the same index form a pair.
    pub samples: Vec<Vec<f64>>,
    /// What the kernel alone needed in the same rounds (the floor); empty if it was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floor: Vec<f64>,
}

/// A measured runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The runtime's name and version.
    pub name: String,
    /// Its socket as a URL.
    pub endpoint: String,
}

/// The machine of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether the benchmark ran as root.
    pub root: bool,
    /// The load average of the last minute, before and after.
    pub load: [f64; 2],
}

/// The results of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// The runtimes; ratios compare the first to the second.
    pub subjects: Vec<Subject>,
    /// The rows by section.
    pub rows: Vec<Row>,
    /// What this machine or a runtime does not support, and objects that could not be removed.
    pub notes: Vec<String>,
    /// Sections that ended early, with the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// The duration of the benchmark.
    pub seconds: f64,
}

impl Report {
    /// The rows of a section.
    pub fn of(&self, section: Section) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.section == section)
    }
}

/// A builder of rows.
#[derive(Debug)]
pub(super) struct Rows {
    subjects: usize,
    pub(super) rows: Vec<Row>,
}

impl Rows {
    /// No rows, for this number of endpoints.
    pub(super) fn new(subjects: usize) -> Self {
        Self { subjects, rows: Vec::new() }
    }

    /// Adds a sample of an endpoint.
    pub(super) fn add(&mut self, key: Key<'_>, subject: usize, sample: f64) {
        if let Some(samples) = self.row(key).samples.get_mut(subject) {
            samples.push(rounded(sample));
        }
    }

    /// Adds a sample of the floor.
    pub(super) fn add_floor(&mut self, key: Key<'_>, sample: f64) {
        self.row(key).floor.push(rounded(sample));
    }

    fn row(&mut self, key: Key<'_>) -> &mut Row {
        let found = self.rows.iter().position(|row| {
            (row.section, row.name.as_str(), row.at) == (key.section, key.name, key.at)
        });
        let index = found.unwrap_or_else(|| {
            self.rows.push(Row {
                section: key.section,
                name: key.name.to_owned(),
                at: key.at,
                unit: key.unit,
                samples: vec![Vec::new(); self.subjects],
                floor: Vec::new(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }
}

/// A sample rounded to four decimals: more digits are noise, and make reports long.
fn rounded(sample: f64) -> f64 {
    (sample * 1e4).round() / 1e4
}

/// The key of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    section: Section,
    name: &'a str,
    at: Option<u64>,
    unit: Unit,
}

impl<'a> Key<'a> {
    /// The key of a row with this unit.
    pub(super) fn new(section: Section, name: &'a str, unit: Unit) -> Self {
        Self { section, name, at: None, unit }
    }

    /// The key of a row of durations.
    pub(super) fn time(section: Section, name: &'a str) -> Self {
        Self::new(section, name, Unit::Milliseconds)
    }

    /// The same key for this number of pods.
    pub(super) fn at(mut self, at: u64) -> Self {
        self.at = Some(at);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_row_stay_together() {
        let mut rows = Rows::new(2);
        let key = Key::time(Section::Calls, "Version");
        rows.add(key, 0, 1.0);
        rows.add(key.at(10), 0, 5.000_01);
        rows.add(key, 1, 2.0);
        rows.add(key, 0, 3.0);
        rows.add_floor(key, 0.5);
        let [alone, many] = rows.rows.as_slice() else {
            panic!("{rows:?}");
        };
        assert_eq!(alone.samples, [vec![1.0, 3.0], vec![2.0]]);
        assert_eq!(alone.floor, [0.5]);
        assert_eq!((many.at, &many.samples[0]), (Some(10), &vec![5.0]));
    }

    #[test]
    fn sections_are_read_by_their_names_in_reports() {
        for section in Section::ALL {
            assert_eq!(section.name().parse(), Ok(section));
            let json = serde_json::to_value(section).unwrap();
            assert_eq!(json, section.name());
        }
        let error = "speed".parse::<Section>().unwrap_err().to_string();
        assert_eq!(
            error,
            "no section is named \"speed\": choose from startup, calls, throughput, growth, density, events, pulls, logs"
        );
    }

    #[test]
    fn report_survives_its_json() {
        let mut rows = Rows::new(1);
        rows.add(Key::new(Section::Density, "a pod", Unit::Kibibytes).at(50), 0, 900.0);
        let report = Report {
            machine: Machine { cores: 2, kernel: "6.1".to_owned(), root: true, load: [0.5, 1.0] },
            subjects: vec![Subject { name: "crib 1".to_owned(), endpoint: "unix:///s".to_owned() }],
            rows: rows.rows,
            notes: vec!["a note".to_owned()],
            failures: Vec::new(),
            seconds: 1.5,
        };
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#""unit":"KiB""#), "{json}");
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
