//! ◆ Chooses CPUs that are close to each other. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/cpu_assignment.go takeByTopologyNUMAPacked.

use super::layout::{Cpus, Layout, Part};
use super::set::CpuSet;

/// The order in which single CPUs are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// All of a core, then those of the next one.
    #[default]
    Packed,
    /// By number, which usually means one of each core first.
    Spread,
}

/// The progress of an allocation.
pub(super) struct Accumulator<'a> {
    layout: &'a Layout,
    /// The free CPUs.
    pub(super) free: Cpus,
    pub(super) needed: usize,
    pub(super) taken: CpuSet,
    order: Order,
}

/// Takes `count` of the available CPUs: whole sockets or NUMA nodes first, then whole caches if requested, then whole cores, then
/// single CPUs.
///
/// # Errors
/// The kubelet's error if there are too few.
pub(crate) fn packed(
    layout: &Layout,
    available: &CpuSet,
    count: usize,
    order: Order,
    by_cache: bool,
) -> Result<CpuSet, String> {
    let mut accumulator = Accumulator::new(layout, available, count, order);
    if let Some(done) = accumulator.begin(available, count)? {
        return Ok(done);
    }
    let [first, second] = accumulator.levels();
    accumulator.take_full(first);
    accumulator.take_full(second);
    if by_cache && accumulator.needed > 0 {
        accumulator.take_caches();
    }
    if accumulator.needed > 0 && order == Order::Packed {
        accumulator.take_full(Part::Core);
    }
    accumulator.take_rest();
    match accumulator.needed {
        0 => Ok(accumulator.taken),
        _ => Err("failed to allocate cpus".to_owned()),
    }
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(layout: &'a Layout, available: &CpuSet, count: usize, order: Order) -> Self {
        let free = layout.cpus.keep(available);
        Self { layout, free, needed: count, taken: CpuSet::new(), order }
    }

    /// Returns an empty set if nothing is needed. Fails if there are too few CPUs.
    pub(super) fn begin(&self, available: &CpuSet, count: usize) -> Result<Option<CpuSet>, String> {
        if self.needed == 0 {
            return Ok(Some(CpuSet::new()));
        }
        if self.needed > self.free.0.len() {
            let available = available.len();
            return Err(format!(
                "not enough cpus available to satisfy request: requested={count}, available={available}"
            ));
        }
        Ok(None)
    }

    /// The levels of sockets and NUMA nodes, the outer one first: either can contain the other.
    fn levels(&self) -> [Part; 2] {
        match self.layout.sockets >= self.layout.nodes {
            true => [Part::Node, Part::Socket],
            false => [Part::Socket, Part::Node],
        }
    }

    /// Sorts parts by their number of free CPUs, ascending.
    fn sort(&self, part: Part, ids: &mut [usize]) {
        compact::sort_by_key(ids, |id| (self.free.count(part, *id), *id));
    }

    /// The parts with free CPUs, in the order in which they are taken.
    pub(super) fn sorted(&self, part: Part) -> Vec<usize> {
        let [first, second] = self.levels();
        let outer = match part {
            part if part == first => {
                let mut ids: Vec<usize> = self.free.parts(part).into_iter().collect();
                self.sort(part, &mut ids);
                return ids;
            }
            Part::Cache => Part::Node,
            Part::Core => second,
            Part::Socket | Part::Node => first,
        };
        let mut sorted = Vec::new();
        for id in self.sorted(outer) {
            let mut ids = self.free.parts_in(part, outer, id);
            self.sort(part, &mut ids);
            sorted.extend(ids);
        }
        sorted
    }

    /// Whether all CPUs of a part are free.
    fn is_free(&self, part: Part, id: usize) -> bool {
        let all = match part {
            Part::Core => self.layout.cpus_per_core(),
            Part::Socket => self.layout.cpus_per_socket(),
            Part::Node | Part::Cache => self.layout.cpus.count(part, id),
        };
        self.free.count(part, id) == all
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.free.0.retain(|cpu, _| !cpus.contains(cpu));
        self.taken.extend(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// Takes whole parts while they fit into the needed number.
    fn take_full(&mut self, part: Part) {
        let mut free = self.sorted(part);
        free.retain(|id| self.is_free(part, *id));
        for id in free {
            let cpus = self.layout.cpus.of(part, id);
            if self.needed > 0 && self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    /// Takes whole caches, or the remainder from one cache.
    fn take_caches(&mut self) {
        for cache in self.sorted(Part::Cache) {
            if self.needed >= self.layout.cpus_per_cache() {
                self.take_full(Part::Cache);
            }
            if self.needed == 0 {
                return;
            }
            self.take_of_cache(cache);
            if self.needed == 0 {
                return;
            }
        }
    }

    /// Takes all needed CPUs from one cache, if it has enough.
    fn take_of_cache(&mut self, cache: usize) {
        let each = self.layout.cpus_per_core();
        let cores = self.needed.div_ceil(each.max(1));
        let mut of_cache = self.free.parts_in(Part::Core, Part::Cache, cache);
        of_cache.truncate(cores);
        let mut cpus = self.free.of_all(Part::Core, &of_cache);
        if !self.needed.is_multiple_of(2) && each > 1 && cpus.len() > self.needed {
            // An odd number needs only one CPU of the last core.
            cpus.pop_last();
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn take_rest(&mut self) {
        let by = match self.order {
            Order::Packed => Part::Core,
            Order::Spread => Part::Socket,
        };
        let in_order: Vec<usize> =
            self.sorted(by).into_iter().flat_map(|id| self.free.of(by, id)).collect();
        let needed = self.needed;
        self.take(&in_order.into_iter().take(needed).collect());
    }
}

#[cfg(test)]
mod tests;
