//! ◆ The topology of the machine's CPUs: cores, caches, sockets and NUMA nodes. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/topology/topology.go.

use compact::{Map, Set};

use super::set::CpuSet;
use crate::numa::Node;

/// The location of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// The lowest number of the core's CPUs.
    pub(crate) core: usize,
    pub(crate) socket: usize,
    pub(crate) node: usize,
    /// The last-level cache, if only some cores of a node share it, or else the socket.
    pub(crate) cache: usize,
}

/// A level of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Core,
    Socket,
    Node,
    Cache,
}

impl Cpu {
    pub(crate) fn part(&self, part: Part) -> usize {
        match part {
            Part::Core => self.core,
            Part::Socket => self.socket,
            Part::Node => self.node,
            Part::Cache => self.cache,
        }
    }
}

/// CPUs by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Map<usize, Cpu>);

impl Cpus {
    pub(crate) fn set(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    pub(crate) fn keep(&self, set: &CpuSet) -> Self {
        let kept = self.0.iter().filter(|(cpu, _)| set.contains(cpu));
        Self(kept.map(|(cpu, at)| (*cpu, *at)).collect())
    }

    /// The CPUs of a part.
    pub(crate) fn of(&self, part: Part, id: usize) -> CpuSet {
        let of = self.0.iter().filter(|(_, cpu)| cpu.part(part) == id);
        of.map(|(cpu, _)| *cpu).collect()
    }

    pub(crate) fn count(&self, part: Part, id: usize) -> usize {
        self.0.values().filter(|cpu| cpu.part(part) == id).count()
    }

    /// The CPUs of several parts.
    pub(crate) fn of_all(&self, part: Part, ids: &[usize]) -> CpuSet {
        let of = self.0.iter().filter(|(_, cpu)| ids.contains(&cpu.part(part)));
        of.map(|(cpu, _)| *cpu).collect()
    }

    /// All parts of a level.
    pub(crate) fn parts(&self, part: Part) -> Set<usize> {
        self.0.values().map(|cpu| cpu.part(part)).collect()
    }

    /// The parts of a level that are in another part.
    pub(crate) fn parts_in(&self, part: Part, of: Part, id: usize) -> Vec<usize> {
        let inside = self.0.values().filter(|cpu| cpu.part(of) == id);
        let ids: Set<usize> = inside.map(|cpu| cpu.part(part)).collect();
        ids.into_iter().collect()
    }
}

/// The machine's CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) cpus: Cpus,
    pub(crate) sockets: usize,
    pub(crate) cores: usize,
    pub(crate) nodes: usize,
    pub(crate) caches: usize,
}

impl Layout {
    /// The layout of these nodes.
    pub(crate) fn of(nodes: &[Node]) -> Self {
        let mut cpus = Map::new();
        let mut cores = 0;
        for node in nodes {
            for core in &node.cores {
                let Some(lowest) = core.threads.iter().min() else {
                    continue;
                };
                cores += 1;
                for cpu in &core.threads {
                    let (socket, cache) = (core.socket, core.cache.unwrap_or(core.socket));
                    cpus.insert(*cpu, Cpu { core: *lowest, socket, node: node.id, cache });
                }
            }
        }
        let cpus = Cpus(cpus);
        let count = |part| cpus.parts(part).len();
        let (sockets, nodes) = (count(Part::Socket), count(Part::Node));
        Self { sockets, cores, nodes, caches: count(Part::Cache), cpus }
    }

    /// The number of CPUs per part, assuming that all parts are equal.
    fn each(&self, parts: usize) -> usize {
        self.cpus.0.len().checked_div(parts).unwrap_or_default()
    }

    pub(crate) fn cpus_per_core(&self) -> usize {
        self.each(self.cores)
    }

    pub(crate) fn cpus_per_socket(&self) -> usize {
        self.each(self.sockets)
    }

    pub(crate) fn cpus_per_cache(&self) -> usize {
        self.each(self.caches)
    }
}
