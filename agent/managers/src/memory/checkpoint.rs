//! The checkpoint of the containers' memory nodes: the kubelet's `memory_manager_state`.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/memorymanager/state: the first format, and with the gate PodLevelResourceManagers the
//! second, which also has the memory of pods. With the gate, a file of the first format is read as one without such pods, and the
//! next change replaces it. Without the gate, a file of the second format counts as corrupted, as in the kubelet.

use std::path::Path;

use compact::Map;
use serde::{Deserialize, Serialize};

use super::state::{Block, Machine, NodeState, State, Table};
use crate::state_file::{self, checksum, list, map};

/// The file name.
pub(super) const FILE: &str = "memory_manager_state";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    policy_name: String,
    machine_state: Machine,
    /// A kubelet writes `null` for a container that requests no memory.
    #[serde(skip_serializing_if = "Map::is_empty")]
    entries: Map<String, Map<String, Option<Vec<Block>>>>,
    /// Only in the second format.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pod_entries: Map<String, PodEntry>,
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodEntry {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory_blocks: Vec<Block>,
}

/// The suffix of the text for the checksum.
const CHECKSUM: &str = "Checksum:(checksum.Checksum)0}";

fn of_table(table: &Table) -> String {
    let Table { total, system_reserved, allocatable, reserved, free } = table;
    format!(
        "<*>{{TotalMemSize:(uint64){total} SystemReserved:(uint64){system_reserved} Allocatable:(uint64){allocatable} \
         Reserved:(uint64){reserved} Free:(uint64){free}}}"
    )
}

fn of_node(node: &NodeState) -> String {
    let tables = node.memory_map.iter().map(|(kind, table)| (kind, of_table(table)));
    format!(
        "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){} Cells:([]int){}}}",
        node.number_of_assignments,
        map(tables),
        list(&node.cells)
    )
}

fn of_block(block: &Block) -> String {
    format!(
        "{{NUMAAffinity:([]int){} Type:(v1.ResourceName){} Size:(uint64){}}}",
        list(&block.nodes),
        block.kind,
        block.size
    )
}

impl File {
    /// The text for the checksum in the second format.
    fn text_with_pods(&self) -> String {
        let of_pod = |entry: &PodEntry| {
            let blocks = list(entry.memory_blocks.iter().map(of_block));
            format!("{{MemoryBlocks:([]state.Block){blocks}}}")
        };
        let pods = map(self.pod_entries.iter().map(|(uid, entry)| (uid, of_pod(entry))));
        let first = self.text("MemoryManagerCheckpoint");
        let (before, checksum) = first.split_at(first.len() - CHECKSUM.len());
        format!("{before}PodEntries:(state.PodMemoryAssignments){pods} {checksum}")
    }

    /// The text for the checksum in the first format, with this type name.
    fn text(&self, name: &str) -> String {
        let machine = self.machine_state.iter().map(|(id, node)| (id, of_node(node)));
        let of_container = |blocks: Option<&Vec<Block>>| match blocks {
            Some(blocks) => list(blocks.iter().map(of_block)),
            None => "<nil>".to_owned(),
        };
        let containers = |containers: &Map<String, Option<Vec<Block>>>| {
            map(containers.iter().map(|(name, blocks)| (name, of_container(blocks.as_ref()))))
        };
        let entries = self.entries.iter().map(|(pod, of_pod)| (pod, containers(of_pod)));
        format!(
            "(*state.{name}){{PolicyName:(string){} MachineState:(state.NUMANodeMap){} \
             Entries:(state.ContainerMemoryAssignments){} {CHECKSUM}",
            self.policy_name,
            map(machine),
            map(entries)
        )
    }

    /// Checks the content. The first format has no pods.
    fn check(&mut self, pod_level: bool) -> Result<(), String> {
        if pod_level && checksum(&self.text_with_pods()) == self.checksum {
            return Ok(());
        }
        self.pod_entries.clear();
        // Kubelets of all versions write the first name; the checksum 0 means none.
        let names = ["MemoryManagerCheckpoint", "MemoryManagerCheckpointV1"];
        let is_right = |name: &&str| checksum(&self.text(name)) == self.checksum;
        match self.checksum == 0 || names.iter().any(is_right) {
            true => Ok(()),
            false => Err("checkpoint is corrupted".to_owned()),
        }
    }
}

/// Reads the checkpoint; `None` if there is none. `pod_level`: the second format is allowed.
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
        let mut file: File = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        file.check(pod_level)?;
        if file.policy_name != policy {
            return Err(format!(
                "[memorymanager] configured policy {policy:?} differs from state checkpoint policy {:?}",
                file.policy_name
            ));
        }
        let pods = file.pod_entries.into_iter().map(|(uid, entry)| (uid, entry.memory_blocks));
        let pods = pods.collect();
        let containers = |of_pod: Map<String, Option<Vec<Block>>>| -> Map<String, Vec<Block>> {
            let blocks = of_pod.into_iter();
            blocks.map(|(name, blocks)| (name, blocks.unwrap_or_default())).collect()
        };
        let entries = file.entries.into_iter();
        let blocks = entries.map(|(uid, of_pod)| (uid, containers(of_pod))).collect();
        Ok(Some(State { machine: file.machine_state, blocks, pods }))
    });
    state.map_err(|error| {
        format!(
            "could not restore state from checkpoint: {error}, please drain this node and delete the memory manager \
             checkpoint file {:?} before restarting Kubelet",
            path.display()
        )
    })
}

/// Writes the checkpoint, in the second format if `pod_level`.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(
    directory: &Path,
    policy: &str,
    state: &State,
    pod_level: bool,
) -> std::io::Result<()> {
    let containers = |of_pod: &Map<String, Vec<Block>>| -> Map<String, Option<Vec<Block>>> {
        let blocks = of_pod.iter();
        blocks.map(|(name, blocks)| (name.clone(), Some(blocks.clone()))).collect()
    };
    let entries = state.blocks.iter().map(|(uid, of_pod)| (uid.clone(), containers(of_pod)));
    let mut file = File {
        policy_name: policy.to_owned(),
        machine_state: state.machine.clone(),
        entries: entries.collect(),
        ..File::default()
    };
    let text = if pod_level {
        let entry = |blocks: &Vec<Block>| PodEntry { memory_blocks: blocks.clone() };
        let pods = state.pods.iter().map(|(uid, blocks)| (uid.clone(), entry(blocks)));
        file.pod_entries = pods.collect();
        file.text_with_pods()
    } else {
        file.text("MemoryManagerCheckpoint")
    };
    file.checksum = checksum(&text);
    state_file::replace(&directory.join(FILE), &serde_json::to_vec(&file)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    const STATIC: &str = include_str!("../../tests/vectors/memory_manager_state.json");
    const PODS: &str = include_str!("../../tests/vectors/memory_manager_state.pods.json");
    const NONE: &str = include_str!("../../tests/vectors/memory_manager_state.none.json");

    #[rstest]
    #[case("Static", STATIC, false)]
    #[case("None", NONE, false)]
    #[case("Static", PODS, true)]
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
    fn container_without_memory_is_read_from_the_file_of_a_kubelet() {
        let container = Map::from([("b".to_owned(), None)]);
        let entries = Map::from([("u1".to_owned(), container)]);
        let mut file = File { policy_name: "Static".to_owned(), entries, ..File::default() };
        let text = file.text("MemoryManagerCheckpoint");
        let expected = "Entries:(state.ContainerMemoryAssignments)map[u1:map[b:<nil>]] Checksum";
        assert!(text.contains(expected), "{text}");
        file.checksum = checksum(&text);
        let json = serde_json::to_string(&file).unwrap();
        assert!(json.contains(r#""entries":{"u1":{"b":null}}"#), "{json}");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), json).unwrap();
        let state = read(directory.path(), "Static", false).unwrap().unwrap();
        assert!(state.blocks["u1"]["b"].is_empty());
    }

    #[test]
    fn first_format_is_read_with_gate_and_second_is_rejected_without() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, STATIC).unwrap();
        let state = read(directory.path(), "Static", true).unwrap().unwrap();
        assert_eq!(read(directory.path(), "Static", false), Ok(Some(state.clone())));
        assert!(state.pods.is_empty());
        std::fs::write(&file, PODS).unwrap();
        let error = read(directory.path(), "Static", false).unwrap_err();
        assert!(error.contains("checkpoint is corrupted"), "{error}");
        write(directory.path(), "None", &State::default(), true).unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(!written.contains("podEntries") && written != NONE, "{written}");
        read(directory.path(), "None", false).unwrap_err();
    }

    #[rstest]
    #[case::other_policy(
        NONE,
        "[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"None\""
    )]
    #[case::changed(&STATIC.replace("\"size\":20", "\"size\":21"), "checkpoint is corrupted")]
    fn unusable_state_error_has_the_remedy(#[case] text: &str, #[case] why: &str) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), text).unwrap();
        let error = read(directory.path(), "Static", false).unwrap_err();
        let expected = format!(
            "could not restore state from checkpoint: {why}, please drain this node and delete"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
}
