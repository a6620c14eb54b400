//! The checkpoint of the containers' CPUs: the kubelet's `cpu_manager_state`.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/state: the second format, and with the gate PodLevelResourceManagers the
//! third, which also has the CPUs of pods. With the gate, a file of the second format is read as one without such pods, and the
//! next change replaces it. Without the gate, a file of the third format counts as corrupted, as in the kubelet.

use std::collections::BTreeMap;
use std::path::Path;

use compact::Map;
use serde::{Deserialize, Serialize};

use super::policy::State;
use super::set::{CpuSet, format, parse};
use crate::state_file::{self, checksum, map};

/// The suffix of the text for the checksum.
const CHECKSUM: &str = "Checksum:(checksum.Checksum)0}";

/// The file name.
pub(super) const FILE: &str = "cpu_manager_state";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    entries: Map<String, BTreeMap<String, String>>,
    /// Only in the third format.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pod_entries: Map<String, PodEntry>,
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodEntry {
    #[serde(skip_serializing_if = "String::is_empty")]
    cpu_set: String,
}

impl File {
    /// A checkpoint of the second format with its checksum.
    pub(super) fn new(
        policy_name: String,
        default_cpu_set: String,
        entries: Map<String, BTreeMap<String, String>>,
    ) -> Self {
        let mut file = Self { policy_name, default_cpu_set, entries, ..Self::default() };
        file.checksum = checksum(&file.text("CPUManagerCheckpoint"));
        file
    }

    /// Writes it into this directory.
    pub(super) fn store(&self, directory: &Path) -> std::io::Result<()> {
        state_file::replace(&directory.join(FILE), &serde_json::to_vec(self)?)
    }

    /// Converts it to the third format.
    fn with_pods(mut self, pods: &Map<String, CpuSet>) -> Self {
        let entry = |cpus: &CpuSet| PodEntry { cpu_set: format(cpus) };
        self.pod_entries = pods.iter().map(|(uid, cpus)| (uid.clone(), entry(cpus))).collect();
        self.checksum = checksum(&self.text_with_pods(pods));
        self
    }

    /// Parses the second format.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        file.check()?;
        Ok(Self { pod_entries: Map::new(), ..file })
    }

    /// Parses the third format; `None` if the bytes have another one.
    fn parse_with_pods(bytes: &[u8]) -> Option<(Self, Map<String, CpuSet>)> {
        let file: Self = serde_json::from_slice(bytes).ok()?;
        let mut pods = Map::new();
        for (uid, entry) in &file.pod_entries {
            pods.insert(uid.clone(), parse(&entry.cpu_set)?);
        }
        let is_right = checksum(&file.text_with_pods(&pods)) == file.checksum;
        is_right.then_some((file, pods))
    }

    /// The text for the checksum in the third format.
    fn text_with_pods(&self, pods: &Map<String, CpuSet>) -> String {
        let of_pod = |cpus: &CpuSet| {
            let elements = map(cpus.iter().map(|cpu| (cpu, "{}")));
            format!("{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){elements}}}}}")
        };
        let pods = map(pods.iter().map(|(uid, cpus)| (uid, of_pod(cpus))));
        let second = self.text("CPUManagerCheckpoint");
        let (before, checksum) = second.split_at(second.len() - CHECKSUM.len());
        format!("{before}PodEntries:(state.PodCPUAssignments){pods} {checksum}")
    }

    /// The text for the checksum in the second format, with this type name.
    fn text(&self, name: &str) -> String {
        let entries = self.entries.iter().map(|(pod, containers)| (pod, map(containers)));
        format!(
            "(*state.{name}){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string){} {CHECKSUM}",
            self.policy_name,
            self.default_cpu_set,
            map(entries)
        )
    }

    fn check(&self) -> Result<(), String> {
        // Kubelets of all versions write the first name; the checksum 0 means none.
        let names = ["CPUManagerCheckpoint", "CPUManagerCheckpointV2"];
        let is_right = |name: &&str| checksum(&self.text(name)) == self.checksum;
        match self.checksum == 0 || names.iter().any(is_right) {
            true => Ok(()),
            false => Err("checkpoint is corrupted".to_owned()),
        }
    }

    fn state(&self) -> Result<State, String> {
        let cpus =
            |text: &str| parse(text).ok_or_else(|| format!("could not parse cpu set {text:?}"));
        let mut state = State { shared: cpus(&self.default_cpu_set)?, ..State::default() };
        for (pod, containers) in &self.entries {
            for (container, text) in containers {
                let of_pod = state.exclusive.entry(pod.clone()).or_default();
                of_pod.insert(container.clone(), cpus(text)?);
            }
        }
        Ok(state)
    }
}

/// Reads the checkpoint; `None` if there is none. `pod_level`: the third format is allowed.
///
/// # Errors
/// The kubelet's error if the file cannot be used.
pub(super) fn read(
    directory: &Path,
    policy: &str,
    pod_level: bool,
) -> Result<Option<State>, String> {
    let path = directory.join(FILE);
    let state = state_file::read(&path).and_then(|bytes| {
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        let third = if pod_level { File::parse_with_pods(&bytes) } else { None };
        let (file, pods) = match third {
            Some(third) => third,
            None => (File::parse(&bytes)?, Map::new()),
        };
        if file.policy_name != policy {
            return Err(format!(
                "configured policy {policy:?} differs from state checkpoint policy {:?}",
                file.policy_name
            ));
        }
        file.state().map(|state| Some(State { pods, ..state }))
    });
    state.map_err(|error| not_restored(&path, &error))
}

/// The message that the agent does not start with the file at this path, with the remedy.
pub(super) fn not_restored(path: &Path, error: &str) -> String {
    format!(
        "could not restore state from checkpoint: {error}, please drain this node and delete the CPU manager checkpoint \
         file {:?} before restarting Kubelet",
        path.display()
    )
}

/// Writes the checkpoint, in the third format if `pod_level`.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(
    directory: &Path,
    policy: &str,
    state: &State,
    pod_level: bool,
) -> std::io::Result<()> {
    let containers = |containers: &Map<String, _>| -> BTreeMap<String, String> {
        containers.iter().map(|(container, cpus)| (container.clone(), format(cpus))).collect()
    };
    let entries = state.exclusive.iter().map(|(pod, of_pod)| (pod.clone(), containers(of_pod)));
    let file = File::new(policy.to_owned(), format(&state.shared), entries.collect());
    let file = if pod_level { file.with_pods(&state.pods) } else { file };
    file.store(directory)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    const STATIC: &str = include_str!("../../tests/vectors/cpu_manager_state.json");
    const PODS: &str = include_str!("../../tests/vectors/cpu_manager_state.pods.json");
    const NONE: &str = include_str!("../../tests/vectors/cpu_manager_state.none.json");

    #[rstest]
    #[case("static", STATIC, false)]
    #[case("none", NONE, false)]
    #[case("static", PODS, true)]
    fn state_of_a_kubelet_is_read_and_written(
        #[case] policy: &str,
        #[case] text: &str,
        #[case] pod_level: bool,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, text).unwrap();
        let state = read(directory.path(), policy, pod_level).unwrap().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read(directory.path(), policy, pod_level), Ok(None));
        write(directory.path(), policy, &state, pod_level).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn second_format_is_read_with_gate_and_third_is_rejected_without() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, STATIC).unwrap();
        let state = read(directory.path(), "static", true).unwrap().unwrap();
        assert_eq!(read(directory.path(), "static", false), Ok(Some(state.clone())));
        assert!(state.pods.is_empty());
        for text in [PODS.to_owned(), PODS.replace("1-3,9-11\"}}", "1-3\"}}")] {
            std::fs::write(&file, text).unwrap();
            let error = read(directory.path(), "static", false).unwrap_err();
            assert!(error.contains("checkpoint is corrupted"), "{error}");
        }
        let error = read(directory.path(), "static", true).unwrap_err();
        assert!(error.contains("checkpoint is corrupted"), "changed: {error}");
        // Even without pods, the formats have different checksums.
        write(directory.path(), "none", &State::default(), true).unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(!written.contains("podEntries") && written != NONE, "{written}");
        read(directory.path(), "none", false).unwrap_err();
    }

    #[test]
    fn state_says_which_containers_have_which_processors() {
        let state = serde_json::from_str::<File>(STATIC).unwrap().state().unwrap();
        assert_eq!(format(&state.shared), "0,2-7");
        assert_eq!(format(state.of("b1f7", "other").unwrap()), "8-9");
        assert_eq!(state.of("a1", "app"), None);
    }

    #[rstest]
    #[case::other_policy(
        NONE,
        "configured policy \"static\" differs from state checkpoint policy \"none\""
    )]
    #[case::changed(&STATIC.replace("8-9", "8"), "checkpoint is corrupted")]
    #[case::no_json("x", "expected value at line 1 column 1")]
    fn unusable_state_error_has_the_remedy(#[case] text: &str, #[case] why: &str) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), text).unwrap();
        let error = read(directory.path(), "static", false).unwrap_err();
        let expected = format!(
            "could not restore state from checkpoint: {why}, please drain this node and delete"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
}
