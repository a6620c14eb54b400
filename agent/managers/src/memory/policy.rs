//! ◆ The policy `Static`: the memory of Guaranteed pods is on as few NUMA nodes as possible, and groups of nodes do not overlap.
//! Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/memorymanager/policy_static.go. `pod_level` allocates for pods with pod-level resources in
//! the scope `pod` of the topology manager.

use api::pod::{Pod, is_sidecar};
use api::quantity::{Format, Quantity};
use compact::Map;
use k8s_openapi::api::core::v1::Container;

use super::requests::{Amounts, HUGE_PAGES, MEMORY, concerns, requested, requested_by_pod};
use super::state::{Block, Machine, NodeState, State, Table, release, reserve};
use crate::numa::Node;
use crate::topology::hint::{Hint, Hints, Mask, hints, subsets};

/// The policy `Static` on a machine.
#[derive(Clone, Debug)]
pub(crate) struct StaticPolicy {
    /// The nodes without any assignment.
    empty: Machine,
    /// Whether pods with pod-level resources get memory (gate PodLevelResourceManagers).
    pub(super) pod_level: bool,
    /// The memory of earlier init containers of the pod in admission, by nodes and type, which later containers may reuse.
    reusable: (String, Map<(Mask, String), u64>),
}

impl StaticPolicy {
    /// Creates the policy for this machine. Each node keeps its `reserved` memory.
    ///
    /// # Errors
    /// The kubelet's error if no memory is reserved.
    pub(crate) fn new(
        nodes: &[Node],
        reserved: &Map<usize, Amounts>,
        pod_level: bool,
    ) -> Result<Self, String> {
        let total: u64 = reserved.values().filter_map(|of| of.get(MEMORY)).sum();
        if total == 0 {
            return Err("[memorymanager] you should specify the system reserved memory".to_owned());
        }
        let of_node = |node: &Node| {
            let reserved = |kind: &str| {
                reserved.get(&node.id).and_then(|of| of.get(kind)).copied().unwrap_or(0)
            };
            let table = |total: u64, kind: &str, others: u64| {
                let system_reserved = reserved(kind);
                let allocatable = total.saturating_sub(system_reserved).saturating_sub(others);
                Table { total, system_reserved, allocatable, reserved: 0, free: allocatable }
            };
            let mut memory_map = Map::new();
            let mut in_huge_pages = 0;
            for (size, count) in &node.huge_pages {
                let kind = huge_pages(*size);
                in_huge_pages += size * count;
                let table = table(size * count, &kind, 0);
                memory_map.insert(kind, table);
            }
            memory_map.insert(MEMORY.to_owned(), table(node.memory, MEMORY, in_huge_pages));
            let node_state =
                NodeState { number_of_assignments: 0, memory_map, cells: vec![node.id] };
            (node.id, node_state)
        };
        let empty = nodes.iter().map(of_node).collect();
        Ok(Self { empty, pod_level, reusable: Default::default() })
    }

    /// The initial state: the checkpoint's, or one without assignments.
    ///
    /// # Errors
    /// The kubelet's error if the machine or the reserved memory has changed.
    pub(crate) fn start(&self, state: State) -> Result<State, String> {
        if state.machine.is_empty() {
            return match state.blocks.is_empty() {
                true => Ok(State { machine: self.empty.clone(), ..State::default() }),
                false => Err(
                    "[memorymanager] machine state can not be empty when it has memory assignments"
                        .to_owned(),
                ),
            };
        }
        let mut expected = self.empty.clone();
        for (pod, containers) in &state.blocks {
            let of_containers = containers.iter().map(|(name, blocks)| (name.as_str(), blocks));
            let assigned: Vec<(&str, &Vec<Block>)> = match state.pods.get(pod) {
                Some(blocks) if !blocks.is_empty() => vec![("", blocks)],
                Some(_) | None => of_containers.collect(),
            };
            for (container, blocks) in assigned {
                for block in blocks {
                    let problem = |what: &str| {
                        format!(
                            "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses {what} that does not exist"
                        )
                    };
                    let of_node = |node: &usize| expected.get(node);
                    if !block.nodes.iter().all(|node| of_node(node).is_some()) {
                        return Err(problem("the NUMA"));
                    }
                    let has = |node: &usize| {
                        of_node(node).is_some_and(|it| it.memory_map.contains_key(&block.kind))
                    };
                    if !block.nodes.iter().all(has) {
                        return Err(problem("memory resource"));
                    }
                    reserve(&mut expected, &block.nodes, &block.kind, block.size);
                }
            }
        }
        match are_equal(&state.machine, &expected) {
            true => Ok(state),
            false => {
                Err("[memorymanager] the expected machine state is different from the real one"
                    .to_owned())
            }
        }
    }

    /// The allocatable memory.
    pub(crate) fn allocatable(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (id, node) in &self.empty {
            for (kind, table) in node.memory_map.iter().filter(|(_, table)| table.allocatable > 0) {
                let (kind, size) = (kind.clone(), table.allocatable);
                blocks.push(Block { nodes: vec![*id], kind, size });
            }
        }
        blocks
    }

    /// Allocates the memory that a container requests. Returns whether the allocation is new.
    ///
    /// # Errors
    /// The kubelet's error if the memory is unavailable.
    pub(crate) fn allocate(
        &mut self,
        state: &mut State,
        pod: &Pod,
        container: &Container,
        chosen: Hint,
    ) -> Result<bool, String> {
        if !self.concerns(pod) {
            return Ok(false);
        }
        let uid = pod.uid().as_str();
        if let Some(blocks) = state.of(uid, &container.name).cloned() {
            self.reuse(pod, container, &blocks);
            return Ok(false);
        }
        let requests = requested(pod, container, self.pod_level);
        let nodes = self.place(&state.machine, pod, &requests, chosen)?;
        let ids = nodes.nodes();
        let block = |(kind, size): (&String, &u64)| Block {
            nodes: ids.clone(),
            kind: kind.clone(),
            size: *size,
        };
        let blocks: Vec<Block> = requests.iter().map(block).collect();
        for block in &blocks {
            let size = block.size.saturating_sub(self.reusable(uid, nodes, &block.kind));
            reserve(&mut state.machine, &ids, &block.kind, size);
        }
        self.reuse(pod, container, &blocks);
        let of_pod = state.blocks.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), blocks.clone());
        take_from_init_containers(state, pod, container, &blocks);
        Ok(true)
    }

    /// The nodes for the allocation: the chosen ones, or else ones that have enough.
    pub(super) fn place(
        &self,
        machine: &Machine,
        pod: &Pod,
        requests: &Amounts,
        chosen: Hint,
    ) -> Result<Mask, String> {
        let nodes = match chosen.nodes {
            Some(nodes) => nodes,
            None => {
                let all = self.find(machine, pod, requests);
                let memory = all.as_ref().map(|of| of.get(MEMORY).map_or(&[][..], Vec::as_slice));
                let found = memory.ok_or("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")?;
                let found = best(found.iter().copied());
                if !found.preferred && chosen.preferred {
                    return Err(
                        "[memorymanager] failed to find the default preferred hint".to_owned()
                    );
                }
                found.nodes.unwrap_or_default()
            }
        };
        let nodes = match has_free(machine, nodes, requests) {
            true => nodes,
            false => {
                let all = self.find(machine, pod, requests).unwrap_or_default();
                let memory = all.get(MEMORY).into_iter().flatten().copied();
                let wider =
                    memory.filter(|hint| hint.nodes.is_some_and(|it| it.and(nodes) == nodes));
                let wider: Vec<Hint> = wider.collect();
                if wider.is_empty() {
                    return Err("[memorymanager] failed to find NUMA nodes to extend the current topology hint".to_owned());
                }
                let found = best(wider.into_iter());
                if !found.preferred && chosen.preferred {
                    return Err(
                        "[memorymanager] failed to find the extended preferred hint".to_owned()
                    );
                }
                found.nodes.unwrap_or_default()
            }
        };
        if splits_a_group(machine, nodes) {
            return Err("[memorymanager] preferred hint violates NUMA node allocation".to_owned());
        }
        Ok(nodes)
    }

    fn reusable(&self, uid: &str, nodes: Mask, kind: &str) -> u64 {
        let (of, reusable) = &self.reusable;
        let key = (nodes, kind.to_owned());
        reusable.get(&key).filter(|_| of == uid).copied().unwrap_or_default()
    }

    fn reuse(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let uid = pod.uid().as_str();
        if self.reusable.0 != uid {
            self.reusable = (uid.to_owned(), Map::new());
        }
        let init = pod.init_containers().iter().find(|init| init.name == container.name);
        let ends = init.is_some_and(|init| !is_sidecar(init));
        for block in blocks {
            let key = (Mask::of(block.nodes.iter().copied()), block.kind.clone());
            let known = self.reusable.1.entry(key).or_default();
            *known = match ends {
                true => block.size.max(*known),
                false => known.saturating_sub(block.size),
            };
        }
    }

    /// Frees the memory of a container. The memory of a pod with pod-level resources is freed with its last container. Returns
    /// whether the container had memory.
    pub(crate) fn remove(&self, state: &mut State, uid: &str, container: &str) -> bool {
        let Some(of_pod) = state.blocks.get_mut(uid) else {
            return false;
        };
        let Some(blocks) = of_pod.remove(container) else {
            return false;
        };
        let is_last = of_pod.is_empty();
        if is_last {
            state.blocks.remove(uid);
        }
        let freed = match state.pods.get(uid) {
            None => blocks,
            Some(_) if !is_last => Vec::new(),
            Some(_) => state.pods.remove(uid).unwrap_or_default(),
        };
        for block in &freed {
            release(&mut state.machine, block);
        }
        true
    }

    /// The topology hints for the memory of a container.
    pub(crate) fn container_hints(&self, state: &State, pod: &Pod, container: &Container) -> Hints {
        if !self.concerns(pod) {
            return Hints::new();
        }
        let requests = requested(pod, container, self.pod_level);
        match state.of(pod.uid().as_str(), &container.name) {
            Some(blocks) => existing_hints(blocks, &requests),
            None => as_hints(self.find(&state.machine, pod, &requests)),
        }
    }

    /// The topology hints for the memory of a pod.
    pub(crate) fn pod_hints(&self, state: &State, pod: &Pod) -> Hints {
        let requests = requested_by_pod(pod, self.pod_level);
        if !self.concerns(pod) || requests.is_empty() {
            return Hints::new();
        }
        let uid = pod.uid().as_str();
        let mut known = pod.init_and_apps().filter_map(|it| state.of(uid, &it.name));
        match known.next() {
            Some(blocks) => existing_hints(blocks, &requests),
            None => as_hints(self.find(&state.machine, pod, &requests)),
        }
    }

    /// Whether the pod's containers get memory of particular nodes.
    pub(crate) fn concerns(&self, pod: &Pod) -> bool {
        concerns(pod, self.pod_level)
    }

    /// The sets of nodes that satisfy the requests, by memory type; `None` if there are none.
    fn find(
        &self,
        machine: &Machine,
        pod: &Pod,
        requests: &Amounts,
    ) -> Option<Map<String, Vec<Hint>>> {
        let ids: Vec<usize> = machine.keys().copied().collect();
        let mut least = ids.len();
        let mut masks = Vec::new();
        for mask in subsets(&ids) {
            let nodes: Vec<&NodeState> =
                mask.nodes().iter().filter_map(|id| machine.get(id)).collect();
            let total = |of: fn(&NodeState, &str) -> u64, kind: &str| -> u64 {
                nodes.iter().map(|node| of(node, kind)).sum()
            };
            if requests.iter().any(|(kind, size)| total(NodeState::allocatable, kind) < *size) {
                continue;
            }
            least = least.min(mask.count());
            let fits = match nodes.as_slice() {
                [one] => one.cells.len() <= 1,
                several => several
                    .iter()
                    .all(|node| node.number_of_assignments == 0 || is_group(&node.cells, mask)),
            };
            let uid = pod.uid().as_str();
            let is_free = |(kind, size): (&String, &u64)| {
                total(NodeState::free, kind) + self.reusable(uid, mask, kind) >= *size
            };
            if fits && requests.iter().all(is_free) {
                masks.push(mask);
            }
        }
        if masks.is_empty() || requests.is_empty() {
            return None;
        }
        let of = hints(masks, least);
        Some(requests.keys().map(|kind| (kind.clone(), of.clone())).collect())
    }
}

/// Converts hints to the form of a manager's.
pub(super) fn as_hints(found: Option<Map<String, Vec<Hint>>>) -> Hints {
    found.into_iter().flatten().map(|(kind, hints)| (kind, Some(hints))).collect()
}

/// The hints of an existing assignment; none if it differs from the requests.
pub(super) fn existing_hints(blocks: &[Block], requests: &Amounts) -> Hints {
    let is_requested = |block: &Block| requests.get(&block.kind) == Some(&block.size);
    if blocks.len() != requests.len() || !blocks.iter().all(is_requested) {
        return Hints::new();
    }
    let hint = |block: &Block| {
        let nodes = Some(Mask::of(block.nodes.iter().copied()));
        (block.kind.clone(), Some(vec![Hint { nodes, preferred: true }]))
    };
    blocks.iter().map(hint).collect()
}

/// The preferred hint with the fewest nodes.
fn best(hints: impl Iterator<Item = Hint>) -> Hint {
    let better = |best: Hint, hint: Hint| {
        let (Some(one), Some(other)) = (best.nodes, hint.nodes) else {
            return hint;
        };
        let is_narrower = hint.preferred == best.preferred && other.is_narrower_than(one);
        if (hint.preferred && !best.preferred) || is_narrower { hint } else { best }
    };
    hints.fold(Hint::default(), better)
}

fn has_free(machine: &Machine, nodes: Mask, requests: &Amounts) -> bool {
    let ids = nodes.nodes();
    requests.iter().all(|(kind, size)| {
        let of = ids.iter().filter_map(|id| machine.get(id));
        of.map(|node| node.free(kind)).sum::<u64>() >= *size
    })
}

/// Whether these nodes are exactly the group's.
fn is_group(cells: &[usize], nodes: Mask) -> bool {
    Mask::of(cells.iter().copied()) == nodes
}

/// Whether memory across several nodes would use a node that is used alone, or in another group.
fn splits_a_group(machine: &Machine, nodes: Mask) -> bool {
    let ids = nodes.nodes();
    let used = ids.iter().filter_map(|id| machine.get(id));
    let mut used = used.filter(|node| node.number_of_assignments > 0);
    ids.len() > 1 && used.any(|node| !is_group(&node.cells, nodes))
}

/// Transfers memory that a container reuses from earlier init containers to the container.
fn take_from_init_containers(
    state: &mut State,
    pod: &Pod,
    container: &Container,
    blocks: &[Block],
) {
    let Some(of_pod) = state.blocks.get_mut(pod.uid().as_str()) else {
        return;
    };
    for block in blocks {
        let mut left = block.size;
        let earlier = pod.init_containers().iter().take_while(|init| init.name != container.name);
        for init in earlier.filter(|init| !is_sidecar(init)) {
            let of_init = of_pod.get_mut(&init.name).into_iter().flatten();
            for of_init in of_init.filter(|it| (&it.kind, &it.nodes) == (&block.kind, &block.nodes))
            {
                let part = left.min(of_init.size);
                of_init.size -= part;
                left -= part;
            }
        }
    }
}

/// The resource name of huge pages of this size.
fn huge_pages(size: u64) -> String {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    format!("{HUGE_PAGES}{}", Quantity::whole(size, Format::BinarySi))
}

/// Whether two states have the same resources, and the same free amounts in each group of nodes.
fn are_equal(one: &Machine, other: &Machine) -> bool {
    let sum = |machine: &Machine, cells: &[usize], kind: &str| {
        let tables = cells.iter().filter_map(|id| machine.get(id)?.memory_map.get(kind));
        tables.fold((0, 0), |(free, reserved), it| (free + it.free, reserved + it.reserved))
    };
    one.len() == other.len()
        && one.iter().all(|(id, node)| {
            other.get(id).is_some_and(|second| {
                let sorted = |cells: &[usize]| Mask::of(cells.iter().copied());
                node.number_of_assignments == second.number_of_assignments
                    && sorted(&node.cells) == sorted(&second.cells)
                    && node.memory_map.len() == second.memory_map.len()
                    && node.memory_map.iter().all(|(kind, table)| {
                        let fixed = |it: &Table| (it.total, it.system_reserved, it.allocatable);
                        let same = second.memory_map.get(kind).map(fixed);
                        same == Some(fixed(table))
                            && sum(one, &node.cells, kind) == sum(other, &node.cells, kind)
                    })
            })
        })
}

#[cfg(test)]
mod tests;
