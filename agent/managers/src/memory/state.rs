//! ◆ The assignment of NUMA nodes' memory to containers. Pure.

use compact::{Map, Set};
use serde::{Deserialize, Serialize};

/// Memory of one type on one node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Table {
    pub(crate) total: u64,
    pub(crate) system_reserved: u64,
    pub(crate) allocatable: u64,
    /// Assigned to containers.
    pub(crate) reserved: u64,
    pub(crate) free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeState {
    /// The number of containers' blocks that are at least partly on the node.
    pub(crate) number_of_assignments: i64,
    /// By `memory` or `hugepages-<size>`.
    pub(crate) memory_map: Map<String, Table>,
    /// The nodes of its group, including itself, over which memory is allocated together.
    pub(crate) cells: Vec<usize>,
}

impl NodeState {
    pub(crate) fn free(&self, kind: &str) -> u64 {
        self.memory_map.get(kind).map_or(0, |table| table.free)
    }

    pub(crate) fn allocatable(&self, kind: &str) -> u64 {
        self.memory_map.get(kind).map_or(0, |table| table.allocatable)
    }
}

/// All NUMA nodes.
pub(crate) type Machine = Map<usize, NodeState>;

/// Memory of one type that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Block {
    #[serde(rename = "numaAffinity")]
    pub(crate) nodes: Vec<usize>,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// In bytes.
    pub(crate) size: u64,
}

/// The memory of containers, by pod uid.
pub(crate) type Blocks = Map<String, Map<String, Vec<Block>>>;

/// The nodes, and the assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) machine: Machine,
    pub(crate) blocks: Blocks,
    /// The memory of pods with pod-level resources, by uid. Their containers have parts of it.
    pub(crate) pods: Map<String, Vec<Block>>,
}

impl State {
    /// The memory blocks of a container.
    pub(crate) fn of(&self, uid: &str, container: &str) -> Option<&Vec<Block>> {
        self.blocks.get(uid)?.get(container)
    }

    /// The nodes of a container's memory.
    pub(crate) fn nodes_of(&self, uid: &str, container: &str) -> Set<usize> {
        self.of(uid, container)
            .into_iter()
            .flatten()
            .flat_map(|block| block.nodes.clone())
            .collect()
    }
}

/// Reserves memory of these nodes, one after another.
pub(crate) fn reserve(machine: &mut Machine, nodes: &[usize], kind: &str, mut size: u64) {
    for id in nodes {
        let Some(node) = machine.get_mut(id) else {
            continue;
        };
        node.number_of_assignments += 1;
        node.cells = nodes.to_vec();
        if let Some(table) = node.memory_map.get_mut(kind) {
            let part = size.min(table.free);
            table.reserved += part;
            table.free -= part;
            size -= part;
        }
    }
}

/// Releases memory.
pub(crate) fn release(machine: &mut Machine, block: &Block) {
    let mut size = block.size;
    for id in &block.nodes {
        let Some(node) = machine.get_mut(id) else {
            continue;
        };
        node.number_of_assignments -= 1;
        if node.number_of_assignments == 0 {
            node.cells = vec![*id];
        }
        if let Some(table) = node.memory_map.get_mut(&block.kind) {
            let part = size.min(table.reserved);
            table.free += part;
            table.reserved -= part;
            size -= part;
        }
    }
}
